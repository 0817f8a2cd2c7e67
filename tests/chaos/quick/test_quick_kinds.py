"""What the quick check finds of delayed, recalled and transactional messages, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.quick.check import quick_check
from chaos.quick.trace import BROKEN, QuickReport
from chaos.trace.operations import Numbers, Process
from chaos.trace.schema import Ev
from chaos.trace.writer import Clocks, TraceWriter
from dledger.errors import Indeterminate

WHERE = {"topic": "t", "q": 0}
#: Numbers of the messages. Each waits for what happens to it, and has a body of its own.
DELAYED, RECALLED, DOUBTED, COMMITTED, ROLLED_BACK, ORPHAN = range(1, 7)
#: When it may come, and its delay: cluster time may gain 1.1 s.
DUE_MS = 1000
DELAY_MS = DUE_MS + 1_100
_MS = 1_000_000


class World:
    """One message of each kind. `read` is what is read in the end, `read_at` when, in ms."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._now = 0
        self.read = [DELAYED, DOUBTED, COMMITTED]
        self.read_at = DUE_MS
        #: What a group was given, and when, in ms.
        self.given: list[tuple[int, int]] = []

    def check(self, window: int = 1 << 20) -> QuickReport:
        clocks = Clocks(lambda: self._now, lambda: self._now)
        with TraceWriter(self._folder, "r", "client:p0", clocks=clocks) as writer:
            self._send(Process(writer, Numbers(0)))
        with TraceWriter(self._folder, "r", "client:g-0", clocks=clocks) as writer:
            self._consume(writer)
        self._now = self.read_at * _MS
        with TraceWriter(self._folder, "r", "client:drain", clocks=clocks) as writer:
            writer.write(Ev.META, {"e": "drain_target", "off": len(self.read) - 1, **WHERE})
            process = Process(writer, Numbers(9))
            process.invoke("drain", **WHERE)
            for i, mid in enumerate(self.read):
                process.delivered(i, mid, f"{mid:016x}", qoff=i, **WHERE)
            process.ok()
            writer.write(Ev.META, {"e": "drain_end"})
        return quick_check(self._folder, window)

    def _send(self, process: Process) -> None:
        for mid in (DELAYED, RECALLED, DOUBTED):
            process.invoke("send", delay_ms=DELAY_MS, **_message(mid))
            process.ok(**WHERE)
        process.invoke("recall", mid=RECALLED, **WHERE)
        process.ok(**WHERE)
        process.invoke("recall", mid=DOUBTED, **WHERE)
        process.failed(Indeterminate("x"))
        for mid in (COMMITTED, ROLLED_BACK, ORPHAN):
            process.invoke("txn_begin", **_message(mid))
            process.ok(**WHERE)
        process.invoke("txn_commit", **_message(COMMITTED))
        process.ok(**WHERE)
        process.invoke("txn_rollback", mid=ROLLED_BACK, **WHERE)
        process.ok(**WHERE)

    def _consume(self, writer: TraceWriter) -> None:
        who = {"group": "g", "consumer": "g-0"}
        writer.write(Ev.MEMBER, {"e": "join", "topic": "t", "mode": "shared", "filter": "*", **who})
        process = Process(writer, Numbers(1))
        for mid, ms in self.given:
            self._now = ms * _MS
            process.invoke("receive", **who)
            process.delivered(0, mid, f"{mid:016x}", qoff=mid, **WHERE, **who)
            process.ok(count=1)
        writer.write(Ev.MEMBER, {"e": "leave", **who})


def _message(mid: int) -> dict[str, int | str]:
    return {"mid": mid, "digest": f"{mid:016x}", **WHERE}


def found(report: QuickReport) -> dict[str, int]:
    return {kind: getattr(report, kind) for kind in BROKEN if getattr(report, kind)}


@pytest.mark.parametrize("window", [1 << 20, 2, 1])
def test_what_is_in_doubt_may_be_there_and_what_was_taken_back_need_not(tmp_path: Path, window: int) -> None:
    world = World(tmp_path)
    world.given = [(DELAYED, DUE_MS), (DOUBTED, DUE_MS)]
    report = world.check(window)
    assert report.is_good and not found(report), report.examples
    assert (report.acknowledged, report.failed, report.in_doubt) == (2, 1, 1)


def without(mid: int) -> Callable[[World], None]:
    return lambda world: world.read.remove(mid)


def with_(mid: int) -> Callable[[World], None]:
    return lambda world: world.read.append(mid)


def read_early(world: World) -> None:
    world.read_at = DUE_MS - 10


def given_early(world: World) -> None:
    world.given = [(DELAYED, DUE_MS - 10)]


def given_rolled_back(world: World) -> None:
    world.given = [(ROLLED_BACK, 1)]


@pytest.mark.parametrize("window", [1 << 20, 2, 1])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (read_early, {"early": 2}),
        (given_early, {"early": 1}),
        (without(DELAYED), {"lost": 1}),
        (with_(RECALLED), {"phantom": 1}),
        (without(COMMITTED), {"lost": 1}),
        (with_(ROLLED_BACK), {"phantom": 1}),
        (given_rolled_back, {"phantom": 1}),
        (with_(ORPHAN), {"phantom": 1}),
    ],
)
def test_each_defect_is_found_and_nothing_else(
    change: Callable[[World], None], expected: dict[str, int], tmp_path: Path, window: int
) -> None:
    world = World(tmp_path)
    change(world)
    assert found(world.check(window)) == expected
