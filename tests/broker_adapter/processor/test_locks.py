"""How long a lock of a queue is kept for a member that does not renew it."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from broker_adapter.errors import Busy
from broker_adapter.processor import locks
from broker_adapter.processor.locks import LockProcessor
from broker_adapter.processor.request import RemotingRequest
from broker_adapter.proxy.messages.context import CallContext
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand


class World:
    """A master's locks, its clock, and the members of the group `g` that are connected to it."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.members = {"old", "new"}
        self.locks = LockProcessor(lambda: self.now_s, 60.0, self._is_member)

    def _is_member(self, group: str, client_id: str) -> bool:
        return group == "g" and client_id in self.members

    async def lock(self, client_id: str, remote: str = "10.0.0.1:5", queue_id: int = 0) -> bool:
        queues: Sequence[object] = [{"topic": "t", "brokerName": "broker-a", "queueId": queue_id}]
        body = json.dumps({"consumerGroup": "g", "clientId": client_id, "mqSet": queues}).encode()
        request = RemotingRequest(RemotingCommand(RequestCode.LOCK_BATCH_MQ, body=body))
        answer = await self.locks.lock(request, CallContext(client_id, remote=remote))
        return bool(json.loads(answer.body)["lockOKMQSet"])


@pytest.mark.parametrize("after_s", [0.0, 20.0, 34.9])
async def test_a_lock_that_its_member_may_believe_in_stays_though_its_connection_has_ended(
    after_s: float,
) -> None:
    """A connection may be reset while the member consumes on: it believes for 30 s after its last renewal."""
    world = World()
    assert await world.lock("old")
    world.members.remove("old")
    world.now_s += after_s
    assert not await world.lock("new")
    assert await world.lock("old")


async def test_a_lock_of_a_member_that_is_gone_is_over_when_it_cannot_believe_in_it_any_more() -> None:
    world = World()
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
    after_s: float, is_over: bool
) -> None:
    """It may stand still, or its connection be half open."""
    world = World()
    assert await world.lock("old")
    world.now_s += after_s
    assert await world.lock("new") is is_over


async def test_a_member_that_comes_back_in_time_keeps_its_lock() -> None:
    world = World()
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
    world = World()
    for number in range(10):
        assert await world.lock(f"c{number}", f"10.0.0.{number}:5")
        if number < 9:
            world.now_s += 60
    for queue_id in range(1, 4):
        assert await world.lock("c", f"10.0.1.{queue_id}:5", queue_id)


async def test_locks_that_are_over_make_room_and_no_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_MAX_LOCKS", 4)
    world = World()
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
