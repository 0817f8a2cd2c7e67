"""Which member of a group consumes a queue in order: locks, which expire.

Clients renew a lock every 20 s, and believe it for 30 s after the answer to the last renewal, for which they
wait a second. So 35 s after it no client believes the lock. RocketMQ's brokers keep it for 60 s, for members
that stand still between a look at their lock and the listener. Whoever has no connection any more, and has
not come back for 35 s, is taken to be dead, and its lock is over then.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from broker_adapter.errors import Busy, ResponseCode, Status
from broker_adapter.processor import bodies
from broker_adapter.processor.request import RemotingRequest
from broker_adapter.proxy.messages.context import CallContext
from broker_adapter.remoting.command import RemotingCommand
from dledger.platform import SharedPlaces, client_of

_MAX_LOCKS = 65_536
#: After the last renewal of a member that is not connected.
_OF_THE_GONE_S = 35.0
#: Locks that are over are looked for so often at most: that takes milliseconds.
_SWEEP_S = 1.0


_Key: TypeAlias = tuple[str, str, int]  # group, topic, queue id


class _Lock(NamedTuple):
    client_id: str
    renewed_s: float
    address: str  # of the client


class LockProcessor:
    """On the master, in its memory: a new master knows of none, and members lock anew. Who is master again
    knows those of before until they are over."""

    def __init__(
        self, now_s: Callable[[], float], live_s: float, is_member: Callable[[str, str], bool]
    ) -> None:
        """`live_s`: of a lock that is not renewed. `is_member(group, client id)`: it is connected here."""
        self._now_s = now_s
        self._live_s = live_s
        self._is_member = is_member
        self._locks: dict[_Key, _Lock] = {}
        self._places = SharedPlaces(_MAX_LOCKS, "queues are locked", "unlock some")
        self._swept_s = -math.inf

    async def lock(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """Busy (TOO_MANY_MEMBERS) beyond so many locks, which addresses share."""
        wanted, now_s = bodies.lock_request(request.command.body), self._now_s()
        address = client_of(context.remote)
        granted = []
        for queue in wanted.queues:
            key = (wanted.group, queue.topic, queue.queue_id)
            lock = self._locks.get(key)
            if lock is None or lock.client_id == wanted.client_id or self._is_over(wanted.group, lock, now_s):
                if lock is None or lock.address != address:
                    self._take_place(address, now_s)
                    self._give_up(key)
                self._locks[key] = _Lock(wanted.client_id, now_s, address)
                granted.append(queue)
        return request.command.answer(ResponseCode.SUCCESS, body=bodies.locked(granted))

    async def unlock(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        wanted = bodies.lock_request(request.command.body)
        for queue in wanted.queues:
            key = (wanted.group, queue.topic, queue.queue_id)
            lock = self._locks.get(key)
            if lock is not None and lock.client_id == wanted.client_id:
                self._give_up(key)
        return request.command.answer(ResponseCode.SUCCESS)

    def _is_over(self, group: str, lock: _Lock, now_s: float) -> bool:
        age_s = now_s - lock.renewed_s
        return age_s >= self._live_s or (
            age_s >= _OF_THE_GONE_S and not self._is_member(group, lock.client_id)
        )

    def _take_place(self, address: str, now_s: float) -> None:
        if self._places.refusal(address):
            self._sweep(now_s)
        if refusal := self._places.refusal(address):
            raise Busy(Status.TOO_MANY_MEMBERS, refusal)
        self._places.take(address)

    def _give_up(self, key: _Key) -> None:
        if (lock := self._locks.pop(key, None)) is not None:
            self._places.give_back(lock.address)

    def _sweep(self, now_s: float) -> None:
        if now_s < self._swept_s + _SWEEP_S:
            return
        self._swept_s = now_s
        for key in [key for key, lock in self._locks.items() if self._is_over(key[0], lock, now_s)]:
            self._give_up(key)
