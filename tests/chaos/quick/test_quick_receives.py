"""What the quick check finds in the hands of groups that receive messages one by one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.quick.check import quick_check
from chaos.quick.trace import QuickReport
from chaos.trace.operations import Numbers, Process
from chaos.trace.schema import Ev
from chaos.trace.writer import Clocks, TraceWriter

WHERE = {"topic": "t", "q": 0}
COUNT = 5


class World:
    """Messages 1 to 5 of one queue, all acknowledged to their producer, and a group of two members."""

    def __init__(self, folder: Path, mode: str = "shared") -> None:
        self._folder = folder
        self._now = 0
        self._writers: list[TraceWriter] = []
        self._send()
        self._members = {name: self._writer(f"client:{name}") for name in ("g-0", "g-1")}
        self._numbers = {name: Numbers(1 + i) for i, name in enumerate(self._members)}
        for name, writer in self._members.items():
            how = {"topic": "t", "mode": mode, "filter": "*", "from_start": True}
            writer.write(Ev.MEMBER, {"e": "join", **_who(name), **how})

    @property
    def now(self) -> int:
        return self._now

    def receive(self, name: str, *mids: int, attempt: int = 0) -> None:
        self.begin_receive(name)(*mids, attempt=attempt)

    def begin_receive(self, name: str) -> Callable[..., None]:
        """What ends it, with what it brings."""
        process = Process(self._members[name], self._numbers[name])
        process.invoke("receive", **_who(name))

        def end(*mids: int, attempt: int = 0, **more: int) -> None:
            for i, mid in enumerate(mids):
                about = {**_who(name), **WHERE, "qoff": mid - 1, "attempt": attempt, **more}
                process.delivered(i, mid, f"{mid:016x}", **about)
            process.ok(count=len(mids))

        return end

    def ack(self, name: str, *mids: int, answered: bool = True) -> None:
        for mid in mids:
            about = {**_who(name), **WHERE}
            self._members[name].write(Ev.DONE, {"mid": mid, "code": "ok", "qoff": mid - 1, **about})
            process = Process(self._members[name], self._numbers[name])
            process.invoke("ack", mid=mid, **about)
            if answered:
                process.ok()
            else:
                process.failed(TimeoutError())

    def check(self, window: int = 1 << 20) -> QuickReport:
        self._drain()
        for writer in self._writers:
            writer.close()
        return quick_check(self._folder, window)

    def _writer(self, name: str) -> TraceWriter:
        def tick() -> int:
            self._now += 1
            return self._now

        self._writers.append(TraceWriter(self._folder, "r", name, clocks=Clocks(tick, tick)))
        return self._writers[-1]

    def _send(self) -> None:
        process = Process(self._writer("client:p0"), Numbers(0))
        for mid in range(1, COUNT + 1):
            process.invoke("send", mid=mid, digest=f"{mid:016x}", **WHERE)
            process.ok(qoff=mid - 1, **WHERE)

    def _drain(self) -> None:
        writer = self._writer("client:drain")
        process = Process(writer, Numbers(9))
        writer.write(Ev.META, {"e": "drain_target", "off": COUNT - 1, **WHERE})
        process.invoke("drain", **WHERE)
        for mid in range(1, COUNT + 1):
            process.delivered(mid, mid, f"{mid:016x}", qoff=mid - 1, **WHERE)
        process.ok()
        writer.write(Ev.META, {"e": "drain_end"})


def _who(name: str) -> dict[str, str]:
    return {"group": "g", "consumer": name}


@pytest.mark.parametrize("window", [1, 3, 1 << 20])
def test_sharing_leaving_and_doubtful_acks_are_no_faults(tmp_path: Path, window: int) -> None:
    world = World(tmp_path)
    world.receive("g-0", 1, 4)
    world.receive("g-1", 2, 3)
    world.ack("g-0", 1)
    world.ack("g-1", 2, answered=False)
    world.receive("g-0", 5)
    world.receive("g-1", 4, 2, 3, attempt=1)
    world.ack("g-1", 4, 2, 3)
    world.ack("g-0", 5)
    report = world.check(window)
    assert report.is_good and (report.consumed, report.redelivered) == (6, 3), report.examples


@pytest.mark.parametrize("window", [1, 3, 1 << 20])
def test_what_was_acknowledged_must_not_come_again(tmp_path: Path, window: int) -> None:
    world = World(tmp_path)
    world.receive("g-0", 1, 2, 3, 4, 5)
    world.ack("g-0", 1, 2, 3, 4, 5)
    world.receive("g-1", 3, attempt=1)
    report = world.check(window)
    assert (report.returned, report.broken) == (1, 1) and not report.is_good
    assert report.examples == [
        "returned: message 3 of q:t/0, which group g had acknowledged, was redelivered to g-1"
    ]


def test_what_was_on_its_way_when_it_was_acknowledged_may_come(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.receive("g-0", 1, 2, 3, 4, 5)
    end = world.begin_receive("g-1")
    world.ack("g-0", 1, 2, 3, 4, 5)
    end(3, attempt=1)
    assert world.check().is_good


def test_what_a_push_consumer_had_before_it_was_acknowledged_may_be_handed_over(tmp_path: Path) -> None:
    world = World(tmp_path)
    had = world.now
    world.receive("g-0", 1, 2, 3, 4, 5, attempt=1)
    world.ack("g-0", 1, 2, 3, 4, 5)
    world.begin_receive("g-1")(3, since=had)
    assert world.check().is_good


def test_what_nobody_is_through_with_is_lost_for_the_group(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.receive("g-0", 1, 2, 3, 4, 5)
    world.ack("g-0", 1, 2, 4, 5)
    report = world.check()
    assert (report.lost, report.broken) == (1, 1) and "message 3" in report.examples[0]


@pytest.mark.parametrize(("mode", "reordered"), [("fifo", 1), ("shared", 0)])
def test_only_in_order_the_first_times_have_to_be_in_order(tmp_path: Path, mode: str, reordered: int) -> None:
    world = World(tmp_path, mode)
    world.receive("g-0", 1, 3)
    world.receive("g-1", 3, attempt=1)
    world.receive("g-1", 2)
    world.receive("g-0", 4, 5)
    world.receive("g-1", 1, attempt=1)
    world.ack("g-0", 1, 2, 3, 4, 5)
    report = world.check()
    assert (report.reordered, report.broken) == (reordered, reordered), report.examples
