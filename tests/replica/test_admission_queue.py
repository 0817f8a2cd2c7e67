"""Appends wait for space that is being prepared, and are refused only if there is none (rules 9 and 13)."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.errors import Code, DLedgerError, NotLeader, Overloaded
from dledger.node.disk.allocator import Allocator
from dledger.replica.admission import AppendLimits
from dledger.replica.shell import AppendOutcome
from dledger.store.api import ReservedEnd
from tests.node.disk.test_upkeep_parts import RoomyStore
from tests.node.local import running_nodes, until
from tests.node.test_bad_days import read_all
from tests.replica.replica_world import Host


class Room:
    """Stands in for the store's: none is reserved beyond the end until it is opened."""

    def __init__(self, host: Host) -> None:
        self.end = ReservedEnd(host.replica.log_tail.pos, host.replica.log_tail.index)
        self.is_full = False
        self.wanted = 0
        host.replica.admission.room = lambda: self.end
        host.replica.admission.is_full = lambda: self.is_full
        host.replica.admission.want_room = self.want

    def want(self) -> None:
        self.wanted += 1

    def open(self) -> None:
        self.end = ReservedEnd(1 << 40, 1 << 40)


def waiting_host(limits: AppendLimits | None = None) -> tuple[Host, Room]:
    host = Host("a", ["a"], limits=limits).lead_alone()
    return host, Room(host)


def test_appends_wait_in_order_for_room_and_ask_for_it() -> None:
    host, room = waiting_host()
    for number in range(3):
        assert host.append(number, b"%d" % number) is None
    assert room.wanted and not host.shell.jobs, "nothing has an index yet"
    room.open()
    host.pass_time(20)
    host.disk()
    host.append(3, b"3")
    host.disk()
    outcomes = [host.shell.appends[number] for number in range(4)]
    assert all(isinstance(outcome, AppendOutcome) for outcome in outcomes)
    bodies = [entry.body for entry in host.entries() if entry.body in (b"0", b"1", b"2", b"3")]
    assert bodies == [b"0", b"1", b"2", b"3"]


def test_who_comes_later_does_not_overtake_who_waits() -> None:
    host, room = waiting_host()
    assert host.append("large", bytes(1000)) is None
    room.end = ReservedEnd(host.replica.log_tail.pos + 500, 1 << 40)
    assert host.append("small", b"x") is None
    assert not host.shell.jobs
    room.open()
    host.replica.flush(host.now)
    host.disk()
    large, small = host.shell.appends["large"], host.shell.appends["small"]
    assert isinstance(large, AppendOutcome) and isinstance(small, AppendOutcome)
    assert large.index < small.index


def test_who_has_waited_long_enough_is_refused_definitely() -> None:
    host, _ = waiting_host()
    host.append("short", b"x", timeout_ms=100)
    host.append("long", b"y", timeout_ms=10_000)
    host.pass_time(90)
    assert not host.shell.appends
    host.pass_time(20)
    refused = host.shell.appends["short"]
    assert isinstance(refused, Overloaded) and refused.code is Code.LEADER_PENDING_FULL
    assert "long" not in host.shell.appends


def test_who_waits_behind_somebody_more_patient_is_refused_in_time() -> None:
    host, room = waiting_host()
    host.append("long", b"y", timeout_ms=10_000)
    host.append("short", b"x", timeout_ms=100)
    host.append("last", b"z", timeout_ms=10_000)
    host.pass_time(110)
    refused = host.shell.appends["short"]
    assert isinstance(refused, Overloaded) and refused.code is Code.LEADER_PENDING_FULL
    assert set(host.shell.appends) == {"short"}
    room.open()
    host.pass_time(20)
    host.disk()
    host.append("next", b"n")
    host.disk()
    assert [entry.body for entry in host.entries()][-3:] == [b"y", b"z", b"n"]


def test_rule_9_who_waits_for_room_learns_that_the_disk_is_full() -> None:
    host, room = waiting_host()
    host.append("waits", b"x")
    room.is_full = True
    host.pass_time(20)
    refused = host.shell.appends["waits"]
    assert isinstance(refused, Overloaded) and refused.code is Code.DISK_FULL
    assert host.replica.core.log.end_index == host.store.end_index


def test_who_waits_for_room_is_told_when_leadership_is_lost() -> None:
    host = Host("a", ["a", "b", "c"])
    room = Room(host)
    host.replica._leading = True  # of a leadership that ends in the next moment
    host.replica.append(host.now, "waits", [b"x"], session=None, open_session=False, timeout_ms=1000)
    assert len(host.replica.admission_queue) == 1 and room.wanted
    host.replica._leading = False
    host.pass_time(20)
    assert isinstance(host.shell.appends["waits"], NotLeader)


@pytest.mark.parametrize("limits", [AppendLimits(max_pending_appends=3), AppendLimits(max_pending_bytes=300)])
def test_rule_13_no_more_wait_for_room_than_may_be_pending(limits: AppendLimits) -> None:
    host, _ = waiting_host(limits)
    for number in range(3):
        assert host.append(number, bytes(60)) is None
    refused = host.append("one too many", bytes(200))
    assert isinstance(refused, DLedgerError) and refused.code is Code.LEADER_PENDING_FULL
    assert host.replica.admission.limits_hit


def test_the_allocator_prepares_as_much_as_a_second_of_growth_takes() -> None:
    position = 0
    allocator = Allocator(
        RoomyStore(), 100, on_fatal=lambda _: None, most_bytes=10_000, position=lambda: position
    )
    allocator.reckon(1.0)
    assert allocator.ahead_bytes == 100
    position += 500
    allocator.reckon(1.1)
    assert allocator.ahead_bytes == pytest.approx(5000, abs=1)
    allocator.reckon(2.1)
    assert 4000 < allocator.ahead_bytes < 5000, "a pause is not the end of a burst"
    position += 1 << 30
    allocator.reckon(2.2)
    assert allocator.ahead_bytes == 10_000
    for second in range(3, 300):
        allocator.reckon(second)
    assert allocator.ahead_bytes == 100


class Answers:
    """A token that keeps what it is answered."""

    def __init__(self) -> None:
        self.outcomes: list[object] = []

    def answer(self, outcome: object) -> None:
        self.outcomes.append(outcome)


async def test_a_burst_into_small_files_is_not_refused_on_a_healthy_disk(tmp_path: Path) -> None:
    limits = {"limits": {"max_batch_bytes": 8 << 10, "max_body_bytes": 8 << 10}}
    async with running_nodes(tmp_path, 1, limits, data_file_size=16 << 10) as (node,):
        answers = Answers()
        for burst in range(1, 6):
            for number in range(100):
                node.log.append(answers, [b"%04d" % number + bytes(4000)], None, False, 20_000)
            await until(lambda burst=burst: len(answers.outcomes) == burst * 100, 30)  # type: ignore[misc]
        refused = [outcome for outcome in answers.outcomes if not isinstance(outcome, AppendOutcome)]
        assert not refused
        assert len(await read_all(node)) == 500
