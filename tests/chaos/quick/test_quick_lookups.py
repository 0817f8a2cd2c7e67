"""What the quick check finds of look-ups by key, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from chaos.quick.check import quick_check
from chaos.quick.trace import BROKEN, SHARE, QuickReport
from chaos.trace.operations import Numbers, Process
from chaos.trace.schema import Ev
from chaos.trace.writer import TraceWriter

WHERE = {"topic": "t", "q": 0}
#: The key of each message, of two clients.
KEYS = {1: "a", 2: "b", 3: "a", SHARE + 1: "b"}


def check(
    folder: Path, found: Mapping[str, Sequence[int]], window: int = 1 << 20, *, whole: bool = True
) -> QuickReport:
    """The report on a run in which all is well but for what is found by these keys."""
    for number in range(2):
        with TraceWriter(folder, "r", f"client:p{number}") as writer:
            process = Process(writer, Numbers(number))
            for at, (mid, key) in enumerate(KEYS.items()):
                if mid // SHARE == number:
                    process.invoke("send", mid=mid, digest=f"{mid:016x}", key=key, **WHERE)
                    process.ok(qoff=at, **WHERE)
    with TraceWriter(folder, "r", "client:drain") as writer:
        writer.write(Ev.META, {"e": "drain_target", "off": len(KEYS) - 1, **WHERE})
        process = Process(writer, Numbers(9))
        process.invoke("drain", **WHERE)
        for at, mid in enumerate(KEYS):
            process.delivered(at, mid, f"{mid:016x}", qoff=at, **WHERE)
        process.ok()
        writer.write(Ev.META, {"e": "drain_end"})
    with TraceWriter(folder, "r", "client:lookup") as writer:
        process = Process(writer, Numbers(10))
        for key, mids in found.items():
            process.invoke("lookup", topic="t", key=key)
            for i, mid in enumerate(mids):
                process.delivered(i, mid, f"{mid:016x}", qoff=list(KEYS).index(mid), **WHERE)
            process.ok(count=len(mids), end_claim=whole)
    return quick_check(folder, window)


def broken(report: QuickReport) -> dict[str, int]:
    return {kind: getattr(report, kind) for kind in BROKEN if getattr(report, kind)}


@pytest.mark.parametrize("window", [1 << 20, 2])
def test_what_is_found_by_its_key_is_as_it_should_be(tmp_path: Path, window: int) -> None:
    report = check(tmp_path, {"a": [1, 3], "b": [SHARE + 1, 2], "nobody": []}, window)
    assert report.is_good, report.examples


def test_nobody_has_asked_for_a_key(tmp_path: Path) -> None:
    assert check(tmp_path, {"a": [1, 3]}).is_good


@pytest.mark.parametrize("window", [1 << 20, 2])
def test_a_message_that_its_key_does_not_find_is_lost(tmp_path: Path, window: int) -> None:
    report = check(tmp_path, {"a": [1], "b": [SHARE + 1, 2]}, window)
    assert broken(report) == {"lost": 1}
    assert "message 3" in report.examples[0] and "key" in report.examples[0]


def test_a_look_up_that_was_cut_off_misses_nothing(tmp_path: Path) -> None:
    assert check(tmp_path, {"a": [1]}, whole=False).is_good


def test_what_another_key_finds_is_wrong(tmp_path: Path) -> None:
    report = check(tmp_path, {"a": [1, 3, 2], "b": [SHARE + 1, 2]})
    assert broken(report) == {"phantom": 1} and "message 2" in report.examples[0]
