"""What the quick check finds in the hands of consumer groups, and that it does not call a repeat a fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from chaos.quick.check import quick_check
from chaos.quick.trace import QuickReport
from chaos.trace.operations import Numbers, Process
from chaos.trace.schema import Ev
from chaos.trace.writer import TraceWriter

WHERE = {"topic": "t", "q": 0}
#: (message, offset, tag)
SENT = ((1, 0, "a"), (2, 1, "b"), (3, 2, "a"), (4, 3, "b"))


class World:
    """Four acknowledged messages of one queue, and what members of groups say. `given`: (message, offset,
    attempt, code) by member and epoch; members that are `gone` have left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.filter = "*"
        self.given: list[tuple[str, int, list[tuple[int, int, int, str]]]] = []
        self.gone: Sequence[str] = ()
        self.is_drained = True

    def give(self, consumer: str, epoch: int, *rows: tuple[int, int, int, str]) -> None:
        self.given.append((consumer, epoch, list(rows)))

    def check(self, window: int = 1 << 20) -> QuickReport:
        self._send()
        self._drain()
        with TraceWriter(self.folder, "r", "client:g-0") as writer:
            numbers = Numbers(1)
            for consumer in dict.fromkeys(name for name, _, _ in self.given):
                who = {"group": "g", "consumer": consumer}
                how = {"topic": "t", "mode": "orderly", "filter": self.filter, "from_start": True}
                writer.write(Ev.MEMBER, {"e": "join", **who, **how})
            for consumer, epoch, rows in self.given:
                process = Process(writer, numbers)
                who = {"group": "g", "consumer": consumer, "epoch": epoch}
                process.invoke("pull", **who, **WHERE)
                for i, (mid, offset, attempt, code) in enumerate(rows):
                    place = {**who, "qoff": offset, "attempt": attempt, **WHERE}
                    process.delivered(i, mid, f"{mid:016x}", **place)
                    if code:
                        writer.write(Ev.DONE, {"mid": mid, "code": code, **place})
                process.ok()
            for consumer in self.gone:
                writer.write(Ev.MEMBER, {"e": "leave", "group": "g", "consumer": consumer})
        return quick_check(self.folder, window)

    def _send(self) -> None:
        with TraceWriter(self.folder, "r", "client:p0") as writer:
            process = Process(writer, Numbers(0))
            for mid, offset, tag in SENT:
                process.invoke("send", mid=mid, digest=f"{mid:016x}", tag=tag, **WHERE)
                process.ok(qoff=offset, **WHERE)

    def _drain(self) -> None:
        with TraceWriter(self.folder, "r", "client:drain") as writer:
            process = Process(writer, Numbers(2))
            writer.write(Ev.META, {"e": "drain_target", "off": 3, **WHERE})
            process.invoke("drain", **WHERE)
            for i, (mid, offset, _) in enumerate(SENT):
                process.delivered(i, mid, f"{mid:016x}", qoff=offset, **WHERE)
            process.ok()
            if self.is_drained:
                writer.write(Ev.META, {"e": "drain_end"})


def rows(*numbers: int) -> list[tuple[int, int, int, str]]:
    return [(n, n - 1, 0, "ok") for n in numbers]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def faults(report: QuickReport) -> dict[str, int]:
    found = {kind: getattr(report, kind) for kind in ("lost", "duplicated", "reordered", "phantom")}
    return {kind: count for kind, count in found.items() if count}


@pytest.mark.parametrize("window", [1, 3, 1 << 20])
def test_a_group_that_was_given_everything_is_fine(world: World, window: int) -> None:
    world.give("c", 1, *rows(1, 2, 3, 4))
    report = world.check(window)
    assert report.is_good and report.consumed == 4 and report.redelivered == 0, report.examples


def test_what_another_member_or_epoch_is_given_again_is_counted_and_no_fault(world: World) -> None:
    world.give("c", 1, *rows(1, 2, 3))
    world.give("d", 2, *rows(2, 3))
    world.give("d", 3, *rows(1, 2, 3, 4))
    world.gone = ("c",)
    report = world.check()
    assert report.is_good and report.redelivered == 5, report.examples


def test_what_failed_may_come_again_at_once(world: World) -> None:
    world.give("c", 1, *rows(1, 2), (3, 2, 0, "retry"), (3, 2, 1, "ok"), (4, 3, 0, "ok"))
    report = world.check()
    assert report.is_good and report.consumed == 4, report.examples


Breach = Callable[[World], None]


def skipped(w: World) -> None:
    w.give("c", 1, *rows(1, 2, 4))
    w.give("c", 2, *rows(3))


def back(w: World) -> None:
    w.give("c", 1, *rows(1, 2, 3, 2, 3, 4))


def twice(w: World) -> None:
    w.give("c", 1, *rows(1, 2, 2, 3, 4))


def never_processed(w: World) -> None:
    w.give("c", 1, *rows(1, 2), (3, 2, 0, ""), *rows(4))


def never_sent(w: World) -> None:
    w.give("c", 1, *rows(1, 2, 3, 4), (99, 4, 0, "ok"))


def nobodys(w: World) -> None:
    w.give("c", 1, *rows(1, 2, 3, 4), (5 << 40, 4, 0, "ok"))


@pytest.mark.parametrize(
    ("breach", "expected"),
    [
        (skipped, {"lost": 1}),
        (back, {"reordered": 1}),
        (twice, {"duplicated": 1}),
        (never_processed, {"lost": 1}),
        (never_sent, {"phantom": 1}),
        (nobodys, {"phantom": 1}),
    ],
)
@pytest.mark.parametrize("window", [2, 1 << 20])
def test_each_fault_of_a_group_is_found(
    world: World, breach: Breach, expected: dict[str, int], window: int
) -> None:
    breach(world)
    report = world.check(window)
    assert faults(report) == expected, report.examples


def test_a_group_with_tags_has_to_process_only_these(world: World) -> None:
    world.filter = "a||c"
    world.give("c", 1, *rows(1))
    report = world.check()
    assert faults(report) == {"lost": 1} and "message 3" in report.examples[0]


def test_a_group_that_nobody_stayed_in_or_that_was_not_drained_has_lost_nothing(
    world: World, tmp_path: Path
) -> None:
    world.give("c", 1, *rows(1))
    world.gone = ("c",)
    assert not faults(world.check())
    other = World(tmp_path / "other")
    other.give("c", 1, *rows(1))
    other.is_drained = False
    report = other.check()
    assert not faults(report) and not report.drained
