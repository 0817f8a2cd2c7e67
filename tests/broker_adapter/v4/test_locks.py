"""How long a lock of a queue is kept for a member that does not renew it, also by the next master."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager

import pytest

from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.v4 import locks
from broker_adapter.endpoints.v4.locks import LockProcessor
from broker_adapter.endpoints.v4.request import RemotingRequest
from broker_adapter.errors import Busy, NotMaster, PutIndeterminate, PutRefused, ReadFailed, Status
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand


class Log:
    """What the log records, shared by all masters of a group one after the other."""

    def __init__(self) -> None:
        self.holders: dict[str, dict[locks.Queue, str]] = {}
        self.commands: list[tuple[str, str, list[locks.Queue]]] = []
        self.failure: Exception | None = None
        self.is_slow = False
        self.released = asyncio.Event()

    def all(self) -> dict[str, dict[locks.Queue, str]]:
        return {group: dict(queues) for group, queues in self.holders.items()}

    async def grant(self, group: str, client_id: str, queues: Collection[locks.Queue]) -> None:
        self.commands.append(("grant", client_id, list(queues)))
        if self.is_slow:
            await self.released.wait()
        if self.failure is not None:
            raise self.failure
        self.holders.setdefault(group, {}).update(dict.fromkeys(queues, client_id))

    async def release(self, group: str, client_id: str, queues: Collection[locks.Queue]) -> None:
        self.commands.append(("release", client_id, list(queues)))
        if self.is_slow:
            await self.released.wait()
        for queue in queues:
            if self.holders.get(group, {}).get(queue) == client_id:
                del self.holders[group][queue]

    async def confirm(self) -> None:
        self.commands.append(("confirm", "", []))
        if self.failure is not None:
            raise self.failure


class World:
    """A master's locks, its clock, and the members of the group `g` that are connected to it."""

    def __init__(self, log: Log | None = None) -> None:
        self.now_s = 1000.0
        self.members = {"old", "new"}
        self.log = log or Log()
        self.locks = LockProcessor(self.log, lambda: self.now_s, 60.0, self._is_member)

    def _is_member(self, group: str, client_id: str) -> bool:
        return group == "g" and client_id in self.members

    async def lock(self, client_id: str, remote: str = "10.0.0.1:5", *queue_ids: int) -> bool:
        """Whether the client holds all of these queues now; 0 if none is named."""
        wanted = queue_ids or (0,)
        answer = await self.locks.lock(_request(client_id, *wanted), CallContext(client_id, remote=remote))
        return len(json.loads(answer.body)["lockOKMQSet"]) == len(wanted)

    async def unlock(self, client_id: str, *queue_ids: int) -> None:
        await self.locks.unlock(_request(client_id, *queue_ids), CallContext(client_id))


def _request(client_id: str, *queue_ids: int) -> RemotingRequest:
    queues: Sequence[object] = [{"topic": "t", "brokerName": "broker-a", "queueId": n} for n in queue_ids]
    body = json.dumps({"consumerGroup": "g", "clientId": client_id, "mqSet": queues}).encode()
    return RemotingRequest(RemotingCommand(RequestCode.LOCK_BATCH_MQ, body=body))


@asynccontextmanager
async def leading(log: Log | None = None) -> AsyncIterator[World]:
    world = World(log)
    world.locks.start(1, 1)
    try:
        yield world
    finally:
        await world.locks.stop()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with leading() as world:
        yield world


@pytest.mark.parametrize("after_s", [0.0, 20.0, 34.9])
async def test_a_lock_that_its_member_may_believe_in_stays_though_its_connection_has_ended(
    world: World, after_s: float
) -> None:
    """A connection may be reset while the member consumes on: it believes for 30 s after its last renewal."""
    assert await world.lock("old")
    world.members.remove("old")
    world.now_s += after_s
    assert not await world.lock("new")
    assert await world.lock("old")


async def test_a_lock_of_a_member_that_is_gone_is_over_when_it_cannot_believe_in_it_any_more(
    world: World,
) -> None:
    assert await world.lock("old")
    world.now_s += 20
    assert await world.lock("old")  # renewed
    world.members.remove("old")
    world.now_s += 34.9
    assert not await world.lock("new")
    world.now_s += 0.2
    assert await world.lock("new") and not await world.lock("old")


@pytest.mark.parametrize(("after_s", "is_over"), [(35.1, False), (59.9, False), (60.1, True)])
async def test_a_lock_of_a_connected_member_that_is_silent_is_kept_for_its_whole_time(
    world: World, after_s: float, is_over: bool
) -> None:
    """It may stand still, or its connection be half open."""
    assert await world.lock("old")
    world.now_s += after_s
    assert await world.lock("new") is is_over


async def test_a_member_that_comes_back_in_time_keeps_its_lock(world: World) -> None:
    assert await world.lock("old")
    world.members.remove("old")
    world.now_s += 34
    assert not await world.lock("new")
    world.members.add("old")
    world.now_s += 10
    assert not await world.lock("new")
    assert await world.lock("old")


async def test_a_lock_that_goes_from_address_to_address_takes_one_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(locks, "_MAX_LOCKS", 4)
    async with leading() as world:
        for number in range(10):
            assert await world.lock(f"c{number}", f"10.0.0.{number}:5")
            if number < 9:
                world.now_s += 60
        for queue_id in range(1, 4):
            assert await world.lock("c", f"10.0.1.{queue_id}:5", queue_id)


async def test_a_member_that_moves_from_address_to_address_takes_one_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(locks, "_MAX_LOCKS", 4)
    async with leading() as world:
        for number in range(10):
            assert await world.lock("c", f"10.0.0.{number}:5")
        for queue_id in range(1, 4):
            assert await world.lock("c", f"10.0.1.{queue_id}:5", queue_id)


async def test_locks_that_are_over_make_room_and_no_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_MAX_LOCKS", 4)
    async with leading() as world:
        for queue_id in range(4):
            assert await world.lock(f"c{queue_id}", f"10.0.0.{queue_id}:5", queue_id)
        world.members.add("c0")
        world.now_s += 20
        assert await world.lock("c0", "10.0.0.0:5", 0)
        with pytest.raises(Busy):
            await world.lock("c4", "10.0.0.4:5", 4)
        world.now_s += 40  # c0 has a connection, and is silent
        assert await world.lock("c4", "10.0.0.4:5", 4)
        assert not await world.lock("c5", "10.0.0.5:5", 0)


async def test_only_changes_of_the_holder_are_recorded_and_renewals_confirm_the_leadership(
    world: World,
) -> None:
    assert await world.lock("old")
    assert await world.lock("old")
    await world.unlock("new", 0)
    await world.unlock("old", 0)
    assert await world.lock("new")
    queue = [("t", 0)]
    expected = [("grant", "old", queue), ("confirm", "", []), ("release", "old", queue)]
    assert world.log.commands == [*expected, ("grant", "new", queue)]


async def test_a_grant_is_answered_after_its_record_and_excludes_others_before(world: World) -> None:
    world.log.is_slow = True
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(world.lock("old"))
        while not world.log.commands:
            await asyncio.sleep(0)
        assert not await world.lock("new")
        assert not first.done()
        world.log.released.set()
    assert first.result()


async def test_a_master_that_cannot_confirm_its_leadership_renews_nothing(world: World) -> None:
    """Its successor may have given the queue to another member by the time that the answer arrives."""
    assert await world.lock("old")
    world.log.failure = ReadFailed(Status.NOT_CONFIRMED, "deposed")
    with pytest.raises(ReadFailed):
        await world.lock("old")


async def test_a_grant_that_was_refused_leaves_the_queue_to_others_and_one_in_doubt_does_not(
    world: World,
) -> None:
    world.log.failure = PutRefused(Status.DISK_FULL, "full")
    with pytest.raises(PutRefused):
        await world.lock("old")
    world.log.failure = PutIndeterminate(Status.OUTCOME_UNKNOWN, "who knows")
    with pytest.raises(PutIndeterminate):
        await world.lock("new")
    world.log.failure = None
    assert not await world.lock("old")
    assert await world.lock("new")


@pytest.mark.parametrize(("is_connected", "live_s"), [(True, 60.0), (False, 35.0)])
async def test_a_new_master_counts_recorded_locks_as_renewed_at_its_take_over(
    is_connected: bool, live_s: float
) -> None:
    """However old they are, and whatever its clock says: it runs in another process."""
    log = Log()
    async with leading(log) as first:
        assert await first.lock("old")
        first.now_s += 1_000
        assert await first.lock("old")
    async with leading(log) as second:
        second.now_s = 5.0
        second.locks.start(2, 2)
        second.members = {"new", "old"} if is_connected else {"new"}
        second.now_s += live_s - 0.1
        assert not await second.lock("new")
        second.now_s += 0.2
        assert await second.lock("new")
        assert not await second.lock("old")


async def test_the_holder_goes_on_with_the_new_master_at_once() -> None:
    log = Log()
    async with leading(log) as first:
        assert await first.lock("old", "10.0.0.1:5", 0, 1)
    async with leading(log) as second:
        assert await second.lock("old", "10.0.0.1:5", 0, 1)
        assert log.commands[-1] == ("confirm", "", [])


async def test_a_holder_that_unregistered_or_expired_is_not_known_to_the_next_master() -> None:
    log = Log()
    async with leading(log) as first:
        assert await first.lock("old", "10.0.0.1:5", 0)
        assert await first.lock("new", "10.0.0.1:5", 1)
        await first.locks.member_left("g", "old")
        assert log.holders == {"g": {("t", 1): "new"}}
        first.now_s += 60
        await first.locks.expire()
        assert log.holders == {"g": {}}


async def test_a_queue_that_is_granted_while_expired_locks_are_released_stays_recorded() -> None:
    log = Log()
    async with leading(log) as world:
        assert await world.lock("old", "10.0.0.1:5", 0)
        world.now_s += 60
        assert await world.lock("old", "10.0.0.1:5", 0)
        await world.locks.expire()
        assert log.holders == {"g": {("t", 0): "old"}}


async def test_a_queue_that_is_locked_again_while_an_earlier_part_is_released_stays_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client has its lock, so the next master must know it."""
    monkeypatch.setattr(locks, "_MAX_RELEASED", 1)
    log = Log()
    async with leading(log) as world:
        assert await world.lock("old", "10.0.0.1:5", 0, 1)
        world.now_s += 60
        log.is_slow = True
        expiring = asyncio.create_task(world.locks.expire())
        while log.commands[-1][0] != "release":
            await asyncio.sleep(0)
        assert await world.lock("old", "10.0.0.1:5", 1)
        log.released.set()
        await expiring
        assert log.holders == {"g": {("t", 1): "old"}}


async def test_a_broker_that_is_no_master_grants_renews_and_releases_nothing() -> None:
    async with leading() as world:
        assert await world.lock("old")
    for call in (world.lock("old"), world.unlock("old", 0)):
        with pytest.raises(NotMaster):
            await call
    await world.locks.member_left("g", "old")
    assert world.log.holders == {"g": {("t", 0): "old"}}


async def test_a_master_that_is_deposed_while_it_records_a_grant_does_not_answer_it() -> None:
    """Its memory of locks has ended: an answer without the queue would stop the holder."""
    async with leading() as world:
        world.log.is_slow = True
        asked = asyncio.create_task(world.lock("old"))
        while not world.log.commands:
            await asyncio.sleep(0)
        await world.locks.stop()
        world.log.released.set()
        with pytest.raises(NotMaster):
            await asked


async def test_a_request_that_is_refused_half_way_keeps_no_new_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_MAX_LOCKS", 2)
    async with leading() as world:
        assert await world.lock("old", "10.0.0.1:5", 0)
        with pytest.raises(Busy):
            await world.lock("old", "10.0.0.1:5", 0, 1, 2, 3)
        assert await world.lock("old", "10.0.0.1:5", 0), "what it had before stays"
        assert await world.lock("new", "10.0.0.1:5", 1), "nobody has it"


async def test_a_release_that_is_refused_keeps_no_other_expired_lock_recorded() -> None:
    class Refusing(Log):
        async def release(self, group: str, client_id: str, queues: Collection[locks.Queue]) -> None:
            if client_id == "old":
                raise Busy(Status.TOO_MANY_MEMBERS, "later")
            await super().release(group, client_id, queues)

    async with leading(Refusing()) as world:
        assert await world.lock("old", "", 0) and await world.lock("new", "", 1)
        world.now_s += 60
        await world.locks.expire()
        assert world.log.holders == {"g": {("t", 0): "old"}}


@pytest.mark.parametrize("how", ["unlocked", "unregistered", "expired"])
async def test_a_queue_that_is_locked_again_before_its_release_is_applied_is_kept_by_the_next_master(
    how: str,
) -> None:
    """The log still names the holder, so a confirmed leadership seemed enough. Then the release was applied,
    and the next master gave the queue to another member."""
    log = Log()
    async with leading(log) as first:
        assert await first.lock("old")
        log.is_slow = True
        if how == "expired":
            first.now_s += 60
        release = {
            "unlocked": lambda: first.unlock("old", 0),
            "unregistered": lambda: first.locks.member_left("g", "old"),
            "expired": first.locks.expire,
        }[how]
        releasing = asyncio.create_task(release())
        while log.commands[-1][0] != "release":
            await asyncio.sleep(0)
        locking = asyncio.create_task(first.lock("old"))
        await asyncio.sleep(0)
        log.released.set()
        assert await locking
        await releasing
    async with leading(log) as second:
        assert not await second.lock("new") and await second.lock("old")


async def test_a_lock_after_a_release_in_doubt_is_recorded_again_and_one_after_a_refused_release_is_not() -> (
    None
):
    class Failing(Log):
        outcome: PutRefused | PutIndeterminate = PutRefused(Status.DISK_FULL, "the disk is full")

        async def release(self, group: str, client_id: str, queues: Collection[locks.Queue]) -> None:
            raise self.outcome

    log = Failing()
    async with leading(log) as world:
        assert await world.lock("old")
        with pytest.raises(PutRefused):
            await world.unlock("old", 0)
        assert await world.lock("old") and log.commands[-1][0] == "confirm"
        log.outcome = PutIndeterminate(Status.OUTCOME_UNKNOWN, "no answer")
        with pytest.raises(PutIndeterminate):
            await world.unlock("old", 0)
        for _ in range(2):
            assert await world.lock("old") and log.commands[-1][0] == "grant", (
                "the release may be applied yet"
            )
