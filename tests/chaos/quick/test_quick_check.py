"""What the quick check finds, in traces that are wrong in one way each, and that it finds nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos.quick import check
from chaos.quick.check import quick_check
from chaos.quick.trace import QuickReport, events_of
from chaos.trace.operations import Numbers, Process
from chaos.trace.schema import Ev
from chaos.trace.writer import TraceWriter
from dledger.errors import Indeterminate, NotLeader

Row = dict[str, Any]


def log_row(mid: int, lidx: int, digest: str = "") -> Row:
    return {"mid": mid, "digest": digest or f"{mid:016x}", "ledger": "log", "lidx": lidx}


class Run:
    """A client with five messages: 1, 2 and 3 acknowledged at 10, 11, 12 (2 and 3 as a batch), 4 failed, 5 in
    doubt and stored. `rows` is what is read in the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = [log_row(1, 10), log_row(2, 11), log_row(3, 12), log_row(5, 13)]
        self.first_positions = [10, 11]
        self.target = 13
        self.ends = True

    def check(self, window: int = 1 << 20) -> QuickReport:
        with TraceWriter(self.folder, "r", "client:p0") as writer:
            process = Process(writer, Numbers(0))
            process.invoke("append", ledger="log", mid=1, digest=f"{1:016x}")
            process.ok(lidx=self.first_positions[0])
            for i in (0, 1):
                process.item(i, 2 + i, f"{2 + i:016x}", ledger="log")
            process.invoke("send_batch", ledger="log", count=2)
            process.ok(lidx=self.first_positions[1])
            for mid, error in ((4, NotLeader("x")), (5, Indeterminate("x"))):
                process.invoke("append", ledger="log", mid=mid, digest=f"{mid:016x}")
                process.failed(error)
        with TraceWriter(self.folder, "r", "client:drain") as writer:
            writer.write(Ev.META, {"e": "drain_target", "ledger": "log", "off": self.target})
            process = Process(writer, Numbers(9))
            process.invoke("drain", ledger="log")
            for i, row in enumerate(self.rows):
                process.delivered(i, **row)
            process.ok(count=len(self.rows))
            if self.ends:
                writer.write(Ev.META, {"e": "drain_end"})
        return quick_check(self.folder, window)


def found(report: QuickReport) -> dict[str, int]:
    kinds = ("lost", "duplicated", "reordered", "phantom")
    return {kind: getattr(report, kind) for kind in kinds if getattr(report, kind)}


@pytest.mark.parametrize("window", [1 << 20, 2, 1])
def test_a_run_in_which_all_was_kept_is_good(tmp_path: Path, window: int) -> None:
    report = Run(tmp_path).check(window)
    assert report.is_good and not found(report), report.examples
    assert (report.acknowledged, report.failed, report.in_doubt, report.in_doubt_stored) == (3, 1, 1, 1)
    assert report.read == 4


def test_a_number_far_behind_all_others_takes_one_more_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    with TraceWriter(tmp_path, "r", "client:p1") as writer:
        process = Process(writer, Numbers(1))
        for mid in ((1 << 40) + 1, (2 << 40) - 1):
            process.invoke("append", ledger="log", mid=mid, digest=f"{mid:016x}")
            process.ok(lidx=20)
    readings: list[Path] = []

    def counted(path: Path, *about: Any) -> Iterator[Row]:
        readings.append(path)
        return events_of(path, *about)

    monkeypatch.setattr(check, "events_of", counted)
    report = run.check(window=1 << 10)
    assert report.lost == 2 and len(readings) < 20


def without(position: int) -> Callable[[Run], None]:
    return lambda run: run.rows.pop(position) and None


def put(rows: Iterable[Row]) -> Callable[[Run], None]:
    return lambda run: run.rows.extend(rows)


def swap(run: Run) -> None:
    run.rows[0], run.rows[1] = log_row(2, 10), log_row(1, 11)


def late(run: Run) -> None:
    run.rows[1], run.rows[2] = run.rows[2], run.rows[1]


def backwards(run: Run) -> None:
    run.first_positions = [13, 11]
    run.rows = [log_row(2, 11), log_row(3, 12), log_row(1, 13), log_row(5, 14)]


@pytest.mark.parametrize(
    ("mutate", "expected"),
    [
        (without(0), {"lost": 1}),
        (without(2), {"lost": 1}),
        (without(3), {}),  # in doubt: it need not be there
        (put([log_row(3, 14)]), {"duplicated": 1, "reordered": 1}),  # and not where it was acknowledged
        (put([log_row(5, 14)]), {"duplicated": 1}),
        (put([log_row(4, 14)]), {"phantom": 1}),
        (put([log_row(6, 14)]), {"phantom": 1}),
        (put([log_row(1 << 50, 14)]), {"phantom": 1}),
        (put([log_row(-1, 14)]), {"phantom": 1}),
        (put([log_row(1 << 39, 14)]), {"phantom": 1}),
        (lambda run: run.rows.__setitem__(0, log_row(1, 10, "ff")), {"phantom": 1}),
        (swap, {"reordered": 2}),
        (late, {"reordered": 1}),
        (backwards, {"reordered": 1}),
    ],
)
@pytest.mark.parametrize("window", [1 << 20, 8])
def test_each_defect_is_found_and_nothing_else(
    tmp_path: Path, mutate: Callable[[Run], None], expected: dict[str, int], window: int
) -> None:
    run = Run(tmp_path)
    mutate(run)
    report = run.check(window)
    assert found(report) == expected, report.examples
    assert report.is_good == (not expected)


def test_many_defects_of_one_kind_do_not_hide_one_of_another(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.rows = [log_row(4, 20 + i) for i in range(30)] + run.rows[1:]
    run.target = 49
    report = run.check()
    assert (report.lost, report.phantom) == (1, 30), report.examples
    kinds = [example.split(":")[0] for example in report.examples]
    assert kinds[0] == "lost" and kinds.count("phantom") == 5, "the worst comes first, and a few of each"


def test_a_drain_that_did_not_end_is_not_good(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.ends = False
    report = run.check()
    assert not report.is_good and not found(report)


def test_a_queue_that_was_not_read_to_its_target_is_not_good(tmp_path: Path) -> None:
    with TraceWriter(tmp_path, "r", "client:drain") as writer:
        writer.write(Ev.META, {"e": "drain_target", "topic": "t", "q": 0, "off": 3})
        writer.write(Ev.META, {"e": "drain_end"})
    assert not quick_check(tmp_path).is_good


def test_equal_offsets_of_different_queues_are_no_duplicates(tmp_path: Path) -> None:
    with (
        TraceWriter(tmp_path, "r", "client:p0") as writer,
        TraceWriter(tmp_path, "r", "client:drain") as drain,
    ):
        process, reader = Process(writer, Numbers(0)), Process(drain, Numbers(1))
        reader.invoke("drain")
        for queue in (0, 1):
            process.invoke("send", topic="t", q=queue, mid=1 + queue, digest="ab")
            process.ok(qoff=0, topic="t", q=queue)
            drain.write(Ev.META, {"e": "drain_target", "topic": "t", "q": queue, "off": 0})
            reader.delivered(queue, 1 + queue, "ab", topic="t", q=queue, qoff=0)
        drain.write(Ev.META, {"e": "drain_end"})
    report = quick_check(tmp_path)
    assert report.is_good, report.examples


def test_a_torn_last_line_is_counted(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run.check().torn_lines == 0
    with (tmp_path / "raw" / "client-p0.0.jsonl").open("a") as file:
        file.write('{"v":1,')
    assert quick_check(tmp_path).torn_lines == 1
