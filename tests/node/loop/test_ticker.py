"""Ticks: at the usual rate while something is under way, and at the next deadline else. That no tick is slept
over which would do something, the simulator checks with every tick."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dledger.core.values import Base, OwnerFitness
from dledger.node.ticker import MAX_IDLE_MS, Ticker, next_tick_ms
from dledger.replica.images import LoggedImage
from dledger.replica.log_state import ImageSpan
from dledger.replica.replica import Replica
from tests.node.local import leader_of, running_nodes, until
from tests.replica.replica_world import World


class Timers:
    """Time that passes when it is told to; one timer at a time."""

    def __init__(self) -> None:
        self.now_ms = 1000
        self.due_ms = 1000  # what the ticked one says
        self.ticks: list[int] = []
        self.at: float | None = None
        self.callback: Callable[[], None] = lambda: None
        self.ticker = Ticker(
            20, self.tick, lambda _: self.due_ms, now_ms=lambda: self.now_ms, later=self.later
        )

    def later(self, delay_s: float, callback: Callable[[], None]) -> Any:
        assert self.at is None, "the timer before it was cancelled"
        self.at, self.callback = self.now_ms + delay_s * 1000, callback
        return self

    def cancel(self) -> None:
        self.at = None

    def tick(self) -> None:
        self.ticks.append(self.now_ms)

    def pass_time(self, end_ms: int) -> None:
        for self.now_ms in range(self.now_ms, end_ms + 1):  # noqa: B020
            if self.at is not None and self.at <= self.now_ms:
                self.at = None
                self.callback()


def test_ticks_come_every_period_while_something_is_under_way() -> None:
    timers = Timers()
    timers.ticker.run()
    timers.pass_time(1100)
    assert timers.ticks == [1000, 1020, 1040, 1060, 1080, 1100]
    assert not timers.ticker.sleeps


def test_ticks_wait_for_the_next_deadline() -> None:
    timers = Timers()
    timers.due_ms = 1150
    timers.ticker.run()
    assert timers.ticker.sleeps
    timers.pass_time(1149)
    assert timers.ticks == [1000]
    timers.due_ms = 1400
    timers.pass_time(1200)
    assert timers.ticks == [1000, 1151]


def test_a_deadline_nearer_than_a_period_is_kept() -> None:
    timers = Timers()
    timers.due_ms = 1007
    timers.ticker.run()
    timers.pass_time(1007)
    assert timers.ticks == [1000, 1007]


@pytest.mark.parametrize(("due_ms", "ticked_ms"), [(1061, 1061), (1090, 1091), (900, 1070), (1300, 1201)])
def test_what_happens_meanwhile_brings_the_next_tick_nearer(due_ms: int, ticked_ms: int) -> None:
    timers = Timers()
    timers.due_ms = 1200
    timers.ticker.run()
    timers.pass_time(1050)
    timers.due_ms = due_ms
    timers.ticker.reschedule()
    timers.pass_time(ticked_ms)
    assert timers.ticks == [1000, ticked_ms]


def test_nothing_is_ticked_after_a_stop() -> None:
    timers = Timers()
    timers.ticker.run()
    timers.ticker.stop()
    assert timers.at is None and not timers.ticker.sleeps


def due_in(world: World, node: str) -> int:
    host = world[node]
    return next_tick_ms(host.replica, host.now) - host.now


def settled() -> World:
    """a leads b and c, and all have all, and have reported their directories to each other."""
    world = World("a", "b", "c")
    world.elect("a")
    world.carry()
    for host in world.hosts.values():
        host.replica.tick(host.now)
    world.carry()
    return world


def test_an_idle_follower_waits_and_a_leader_waits_for_its_next_heartbeat() -> None:
    world = settled()
    for node in "bc":
        world[node].now = world["a"].now
    assert due_in(world, "b") == due_in(world, "c") == MAX_IDLE_MS
    assert due_in(world, "a") == world["a"].core.timing.heartbeat_ms


def test_a_follower_whose_leader_is_lost_wakes_in_time() -> None:
    world = settled()
    b = world["b"]
    b.replica.leader_stream_lost(b.now, "a", world.streams["b"])
    assert b.core.shortcut is not None
    assert next_tick_ms(b.replica, b.now) == b.core.shortcut.next_ms
    assert due_in(world, "b") <= b.core.timing.shortcut_max_wait_ms


def test_a_follower_wakes_for_its_election_time_out() -> None:
    world = settled()
    b = world["b"]
    b.now = b.core.election_deadline_ms - 30
    assert due_in(world, "b") == 30


def test_ticks_are_as_frequent_as_ever_while_something_is_uncommitted() -> None:
    world = settled()
    a = world["a"]
    a.append("x", b"x")
    assert due_in(world, "a") <= 0
    world.carry()
    assert due_in(world, "a") > 0


def set_to(path: str, value: object) -> Callable[[Replica], None]:
    """What is under way: an attribute of a replica, or of a part of it."""

    def change(replica: Replica) -> None:
        *owners, name = path.split(".")
        found: object = replica
        for owner in owners:
            found = getattr(found, owner)
        setattr(found, name, value)

    return change


def purge_behind_an_image(replica: Replica) -> None:
    replica.retainer.purge_to = Base(0, 1, 64, 7)
    replica.admission.state.image = ImageSpan(1, 64, 128)


UNDER_WAY: dict[str, Callable[[Replica], None]] = {
    "entries that are not durable": set_to("core.log.durable_index", -1),
    "entries that are not committed": set_to("core.committed_index", -1),
    "a sync that the core waits for": set_to("core.fsync_began_ms", 5),
    "a sync that has begun": set_to("shell.fsync_began_ms", lambda: 5),
    "a program that said something new": set_to("owner", OwnerFitness(3, True)),
    "appends that were gathered": set_to("admission.gathered_bytes", 1),
    "appends that wait for room": set_to("admission_queue", [None]),
    "a log that is read again": set_to("admission.state.is_rebuilding", True),
    "an index that could not be read": set_to("suspects", [0]),
    "a probe that was not answered": set_to("unread_probes", {"a": None}),
    "a purge that is to be carried out": purge_behind_an_image,
    "an image of the log that is to be copied": set_to("admission.state.logged", LoggedImage(0, 3)),
}


@pytest.mark.parametrize("change", UNDER_WAY.values(), ids=[name.replace(" ", "-") for name in UNDER_WAY])
def test_nothing_is_slept_over_that_is_under_way(change: Callable[[Replica], None]) -> None:
    world = settled()
    world["b"].now = world["a"].now
    assert due_in(world, "b") == MAX_IDLE_MS
    change(world["b"].replica)
    assert due_in(world, "b") <= 0


def test_a_purge_that_waits_for_an_image_wakes_nobody() -> None:
    world = settled()
    world["b"].now = world["a"].now
    world["b"].replica.retainer.purge_to = Base(0, 1, 64, 7)
    assert due_in(world, "b") == MAX_IDLE_MS


@pytest.mark.parametrize("what", ["an append", "retention"])
def test_deadlines_of_callers_and_of_housekeeping_are_kept(what: str) -> None:
    world = settled()
    a = world["a"]
    if what == "an append":
        a.replica.admission.next_deadline_ms = a.now + 3
    else:
        a.replica.retainer.requested_before = 1
        a.replica.retainer._next_check_ms = a.now + 3
    assert due_in(world, "a") == 3


async def test_three_idle_nodes_are_ticked_about_as_often_as_they_hear_of_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks: dict[str, int] = {}
    tick = Replica.tick

    def counting(replica: Replica, now_ms: int) -> None:
        node = replica.core.node_id
        ticks[node] = ticks.get(node, 0) + 1
        tick(replica, now_ms)

    async with running_nodes(tmp_path, 3) as servers:
        leader = leader_of(servers)
        core = leader._replica.core
        assert core.leadership is not None
        end = core.log.end_index
        await until(lambda: all(s._replica.core.committed_index == end for s in servers))
        monkeypatch.setattr(Replica, "tick", counting)
        leadership, first = core.leadership, core.leadership.round
        await until(lambda: leadership.round >= first + 15)
        # With a tick every 20 ms each would have had at least 75.
        assert all(count <= 30 for count in ticks.values()), ticks
