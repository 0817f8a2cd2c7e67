"""Which member of a group consumes a queue in order: locks, which expire."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from broker_adapter.errors import Busy, ResponseCode, Status
from broker_adapter.processor import bodies
from broker_adapter.processor.request import RemotingRequest
from broker_adapter.proxy.messages.context import CallContext
from broker_adapter.remoting.command import RemotingCommand

_MAX_LOCKS = 65_536


class _Lock(NamedTuple):
    client_id: str
    until_s: float


class LockProcessor:
    """On the master, in its memory: a new master knows of none, and members lock anew."""

    def __init__(self, now_s: Callable[[], float], live_s: float) -> None:
        """`live_s`: of a lock that is not renewed."""
        self._now_s = now_s
        self._live_s = live_s
        self._locks: dict[tuple[str, str, int], _Lock] = {}

    async def lock(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """Busy (TOO_MANY_MEMBERS) beyond so many locks."""
        wanted, now_s = bodies.lock_request(request.command.body), self._now_s()
        if len(self._locks) + len(wanted.queues) > _MAX_LOCKS:
            self._locks = {key: lock for key, lock in self._locks.items() if lock.until_s > now_s}
            if len(self._locks) + len(wanted.queues) > _MAX_LOCKS:
                raise Busy(Status.TOO_MANY_MEMBERS, f"{_MAX_LOCKS} queues are locked")
        granted = []
        for queue in wanted.queues:
            key = (wanted.group, queue.topic, queue.queue_id)
            lock = self._locks.get(key)
            if lock is None or lock.until_s <= now_s or lock.client_id == wanted.client_id:
                self._locks[key] = _Lock(wanted.client_id, now_s + self._live_s)
                granted.append(queue)
        return request.command.answer(ResponseCode.SUCCESS, body=bodies.locked(granted))

    async def unlock(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        wanted = bodies.lock_request(request.command.body)
        for queue in wanted.queues:
            key = (wanted.group, queue.topic, queue.queue_id)
            lock = self._locks.get(key)
            if lock is not None and lock.client_id == wanted.client_id:
                del self._locks[key]
        return request.command.answer(ResponseCode.SUCCESS)
