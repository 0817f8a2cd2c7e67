"""What a role change tells its trace, in which order, and what was true then."""

from __future__ import annotations

from typing import Any

from broker_adapter.role.role_change import RoleChangeLimits
from dledger import Role
from tests.broker_adapter.role.role_world import Event, World


class Recorder:
    """Implements NodeTrace; also notes whether writes were accepted in that moment."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.writable: list[bool] = []
        self.world: World | None = None

    def begin(self, node_id: str, incarnation: int) -> None:
        raise AssertionError("this is the node's to tell")

    def event(self, ev: str, e: str, fields: dict[str, Any]) -> None:
        assert ev == "role" and self.world is not None
        self.events.append((e, fields))
        self.writable.append(self.world.adapter.writable is not None)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.events]

    def of(self, name: str) -> dict[str, Any]:
        """The only event of this name."""
        [found] = [fields for e, fields in self.events if e == name]
        return found


async def started(trace: Recorder, **options: Any) -> World:
    world = trace.world = World(trace=trace, **options)
    world.handler.start()
    return world


async def stopped(world: World) -> None:
    world.let_go()
    await world.handler.stop()
    assert not world.wrongs, world.wrongs


def in_role(event: Event, **fields: Any) -> dict[str, Any]:
    return {"term": event.term, "role_epoch": event.role_epoch, **fields}


async def test_every_step_to_master_and_back_is_told_in_order() -> None:
    trace = Recorder()
    world = await started(trace)
    led = await world.lead()
    assert trace.events[0] == ("elected", in_role(led, barrier=led.barrier_index))
    assert trace.names == ["elected", "slave"], "the barrier is not committed yet"
    world.node.commit(led.barrier_index)
    await world.turns()
    followed = await world.follow()
    assert trace.names[2:] == ["barrier_committed", "dispatched", "master_ready", "demoted", "slave"]
    assert trace.of("demoted") == in_role(led), "the leadership that has ended"
    assert trace.events[-1] == ("slave", in_role(followed))
    await stopped(world)


async def test_ready_is_told_with_writes_open_and_demoted_with_writes_closed() -> None:
    trace = Recorder()
    world = await started(trace)
    led = await world.lead()
    world.node.commit(led.barrier_index + 3)
    await world.turns()
    await world.follow()
    open_at = dict(zip(trace.names, trace.writable, strict=True))
    assert open_at["master_ready"] and not open_at["demoted"] and not open_at["dispatched"]
    ready = trace.of("master_ready")
    assert ready["barrier"] == ready["target"] == led.barrier_index
    assert ready["committed"] == ready["reput"] == led.barrier_index + 3
    await stopped(world)


async def test_a_leadership_that_ends_before_it_was_master_is_demoted_and_never_ready() -> None:
    trace = Recorder()
    world = await started(trace)
    led = await world.lead()
    await world.follow()
    assert trace.of("demoted") == in_role(led) and "master_ready" not in trace.names
    await stopped(world)


async def test_another_leader_of_others_demotes_nobody() -> None:
    trace = Recorder()
    world = await started(trace)
    await world.follow("a")
    await world.follow("b")
    assert set(trace.names) == {"slave"}
    await stopped(world)


async def test_a_wait_that_takes_long_says_what_for() -> None:
    trace = Recorder()
    world = await started(trace, limits=RoleChangeLimits(patience_s=2))
    led = await world.lead()
    await world.pass_time(3)
    waited = trace.of("role_wait")
    assert waited["barrier"] == led.barrier_index and waited["committed"] < led.barrier_index
    assert waited["text"].startswith(f"commit of {led.barrier_index}")
    await stopped(world)


async def test_every_candidacy_ends_the_leadership_before() -> None:
    trace = Recorder()
    world = await started(trace)
    first = await world.lead()
    await world.deliver(world.event(Role.CANDIDATE))
    second = await world.lead()
    told = [(e, fields["term"]) for e, fields in trace.events if e in ("elected", "demoted")]
    assert told == [("elected", first.term), ("demoted", first.term), ("elected", second.term)]
    await stopped(world)
