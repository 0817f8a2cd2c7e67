"""Queue locks. A lock determines which member of a group consumes a queue in order.

Clients renew a lock every 20 s, wait one second for the response, and rely on the lock for 30 s after the
response. So no client relies on a lock 35 s after its last renewal. RocketMQ's brokers keep a lock for 60 s,
to allow for members that pause between checking their lock and calling the listener. A member without a
connection counts as dead 35 s after its last renewal, and its locks then expire.

The log records each change of a holder. A grant is answered after its record is committed. Renewals are not
recorded. Suppose that the master fails after a renewal. The next master finds the holder in the log, and
counts the lock as renewed at the takeover. This is later than any renewal that the old master answered,
because it confirmed its leadership before each response.

A release takes effect when it is applied. Suppose that a member unlocks a queue and locks it again before
that. The log still names the member as the holder, but the release is about to follow. So the grant is
recorded again, after the release. Otherwise the next master would give the queue to another member.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.v4 import bodies
from broker_adapter.endpoints.v4.request import RemotingRequest
from broker_adapter.errors import BrokerError, Busy, NotMaster, PutIndeterminate, ResponseCode, Status
from broker_adapter.remoting.command import RemotingCommand
from dledger.infra.logs import get_logger
from dledger.infra.quotas import Quota, client_of

_log = get_logger("locks")

_MAX_LOCKS = 65_536
#: Lifetime of a lock after its last renewal, if the member is not connected (seconds).
_DISCONNECTED_LIVE_S = 35.0
#: Minimum time between two searches for expired locks, because a search takes milliseconds (seconds).
_SWEEP_S = 1.0
#: Interval at which the release of expired locks is recorded in the log (seconds).
_EXPIRE_S = 5.0
#: Maximum number of queues released per command.
_MAX_RELEASED = 4_096

Queue: TypeAlias = tuple[str, int]  # topic, queue id
_Key: TypeAlias = tuple[str, str, int]  # group, topic, queue id


class LockHolders(Protocol):
    """The holders of locks according to the log."""

    def all(self) -> Mapping[str, Mapping[Queue, str]]:
        """The client id by group and queue, as applied on this node."""

    async def grant(self, group: str, client_id: str, queues: Collection[Queue]) -> None:
        """Record the client as holder of these queues.

        Raises BrokerErrors, and PutIndeterminate if the outcome is unknown.
        """

    async def release(self, group: str, client_id: str, queues: Collection[Queue]) -> None:
        """Remove the client as holder of the queues that it holds. Raises the errors of `grant`."""

    async def confirm(self) -> None:
        """Confirm that this node was still the leader after the call started.

        Raises BrokerError if this cannot be confirmed.
        """


@dataclass(slots=True, eq=False)
class _Lock:
    client_id: str
    renewed_s: float
    address: str  # the client's; "" if unknown


class LockProcessor:
    """Grants locks while this node is the master. Implements MasterService."""

    def __init__(
        self,
        holders: LockHolders,
        now_s: Callable[[], float],
        live_s: float,
        is_member: Callable[[str, str], bool],
    ) -> None:
        """`now_s`: a monotonic clock.

        `live_s`: lifetime of a lock after its last renewal. `is_member(group, client id)`: whether the member
        has a connection to this node.
        """
        self._holders = holders
        self._now_s = now_s
        self._live_s = live_s
        self._is_member = is_member
        self._locks: dict[_Key, _Lock] = {}
        self._releases = Counter[_Key]()  # in progress, or with an unknown outcome
        self._places = self._no_places()
        self._swept_s = -math.inf
        self._is_leading = False
        self._expiring: asyncio.Task[None] | None = None

    # -- as MasterService ---------------------------------------------------------------------------------

    def start(self, term: int, role_epoch: int) -> None:
        """Adopt the recorded locks and count them as renewed now.

        Call this only after all entries of earlier terms have been applied.
        """
        self._forget_all()
        now_s = self._now_s()
        for group, queues in self._holders.all().items():
            for queue, client_id in queues.items():
                self._places.acquire("")
                self._locks[group, *queue] = _Lock(client_id, now_s, "")
        self._is_leading = True
        self._expiring = asyncio.get_running_loop().create_task(self._expire_repeatedly())

    async def stop(self) -> None:
        self._is_leading = False
        self._forget_all()
        if self._expiring is not None:
            self._expiring.cancel()
            await asyncio.gather(self._expiring, return_exceptions=True)
            self._expiring = None

    # -- requests -----------------------------------------------------------------------------------------

    async def lock(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """Grant or renew the requested locks that no other member holds.

        Raises NotMaster, Busy (TOO_MANY_MEMBERS) if the number of locks would exceed _MAX_LOCKS, which all
        addresses share, and the errors of LockHolders.
        """
        self._check_leading()
        wanted, address = bodies.lock_request(request.command.body), client_of(context.remote)
        locks: dict[bodies.QueueName, _Lock] = {}
        new: list[_Key] = []
        try:
            for queue in wanted.queues:
                key = (wanted.group, queue.topic, queue.queue_id)
                before = self._locks.get(key)
                lock = self._claim(key, wanted.client_id, address)
                if lock is not None:
                    locks[queue] = lock
                    if lock is not before:
                        new.append(key)
        except Busy:  # reject the whole request, after which the client assumes that it has no lock
            for key in new:
                self._forget(key)
            raise
        await self._record(wanted.group, wanted.client_id, locks)
        self._check_leading()  # after this node, a newer master is responsible for the locks
        now_s, granted = self._now_s(), []
        for queue, lock in locks.items():
            if self._locks.get((wanted.group, queue.topic, queue.queue_id)) is lock:
                lock.renewed_s = now_s
                granted.append(queue)
        return request.command.answer(ResponseCode.SUCCESS, body=bodies.locked(granted))

    async def unlock(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """Release the queues that the client holds. Raises NotMaster and the errors of LockHolders."""
        self._check_leading()
        wanted = bodies.lock_request(request.command.body)
        await self._release(
            wanted.group, wanted.client_id, [(one.topic, one.queue_id) for one in wanted.queues]
        )
        return request.command.answer(ResponseCode.SUCCESS)

    async def member_left(self, group: str, client_id: str) -> None:
        """If this node is the master, release the locks of a member that has unregistered from this node."""
        if not self._is_leading:
            return
        queues = [key[1:] for key in self._locks if key[0] == group]
        try:
            for start in range(0, len(queues), _MAX_RELEASED):
                await self._release(group, client_id, queues[start : start + _MAX_RELEASED])
        except BrokerError as error:
            # The locks remain recorded. The next master keeps them for their lifetime, and `expire` removes
            # them.
            _log.info("locks of a member that left stay recorded", group=group, reason=str(error))

    def has_locks(self, group: str) -> bool:
        """Return True if a member of the group holds a lock."""
        now_s = self._now_s()
        return any(
            key[0] == group and not self._is_expired(group, lock, now_s) for key, lock in self._locks.items()
        )

    # -- internal -----------------------------------------------------------------------------------------

    def _check_leading(self) -> None:
        if not self._is_leading:
            raise NotMaster("this broker is not the master: only the master locks queues")

    def _claim(self, key: _Key, client_id: str, address: str) -> _Lock | None:
        """Return the client's lock, which is new or renewed, or None if another member holds the queue."""
        lock, now_s = self._locks.get(key), self._now_s()
        if lock is not None and lock.client_id == client_id:
            lock.renewed_s = now_s
            if lock.address != address:
                self._acquire_slot(address, now_s)
                self._places.release(lock.address)
                lock.address = address
            return lock
        if lock is not None and not self._is_expired(key[0], lock, now_s):
            return None
        if lock is None or lock.address != address:
            self._acquire_slot(address, now_s)
            self._forget(key)
        self._locks[key] = lock = _Lock(client_id, now_s, address)
        return lock

    async def _record(self, group: str, client_id: str, locks: Mapping[bodies.QueueName, _Lock]) -> None:
        """Record the client as holder of these queues.

        If all locks are already recorded and no release is pending, only confirms that this node is the
        leader.
        """
        recorded = self._holders.all().get(group, {})
        new = [
            one
            for one in locks
            if recorded.get((one.topic, one.queue_id)) != client_id
            or (group, one.topic, one.queue_id) in self._releases
        ]
        if not new:
            if locks:
                await self._holders.confirm()
            return
        try:
            await self._holders.grant(group, client_id, [(one.topic, one.queue_id) for one in new])
        except PutIndeterminate:
            raise  # the lock may be recorded, so the client keeps it
        except BrokerError:
            for queue in new:
                key = (group, queue.topic, queue.queue_id)
                if self._locks.get(key) is locks[queue]:
                    self._forget(key)
            raise

    async def _release(self, group: str, client_id: str, queues: Iterable[Queue]) -> None:
        released = []
        for queue in queues:
            key = (group, *queue)
            lock = self._locks.get(key)
            if lock is not None and lock.client_id == client_id:
                self._forget(key)
                released.append(queue)
        if released:
            await self._record_release(group, client_id, released)

    async def _record_release(self, group: str, client_id: str, queues: Collection[Queue]) -> None:
        """Record a release.

        If the outcome of a release is unknown, it may still be applied at any time while this node leads.
        """
        keys, releases = [(group, *queue) for queue in queues], self._releases
        releases.update(keys)
        try:
            await self._holders.release(group, client_id, queues)
        except (PutIndeterminate, asyncio.CancelledError):
            raise
        except BrokerError:
            _settle(releases, keys)
            raise
        _settle(releases, keys)

    def _is_expired(self, group: str, lock: _Lock, now_s: float) -> bool:
        age_s = now_s - lock.renewed_s
        return age_s >= self._live_s or (
            age_s >= _DISCONNECTED_LIVE_S and not self._is_member(group, lock.client_id)
        )

    def _acquire_slot(self, address: str, now_s: float) -> None:
        if self._places.refusal(address):
            self._sweep(now_s)
        if refusal := self._places.refusal(address):
            raise Busy(Status.TOO_MANY_MEMBERS, refusal)
        self._places.acquire(address)

    def _forget(self, key: _Key) -> None:
        if (lock := self._locks.pop(key, None)) is not None:
            self._places.release(lock.address)

    def _forget_all(self) -> None:
        self._locks = {}
        self._releases = Counter()
        self._places = self._no_places()

    @staticmethod
    def _no_places() -> Quota:
        return Quota(_MAX_LOCKS, "queues are locked", "unlock some")

    def _sweep(self, now_s: float) -> None:
        if now_s < self._swept_s + _SWEEP_S:
            return
        self._swept_s = now_s
        for key in [key for key, lock in self._locks.items() if self._is_expired(key[0], lock, now_s)]:
            self._forget(key)

    async def expire(self) -> None:
        """Discard expired locks, and release recorded holders that have no lock."""
        self._sweep(self._now_s())
        for group, queues in self._holders.all().items():
            stale: dict[str, list[Queue]] = {}
            for queue, client_id in queues.items():
                if (group, *queue) not in self._locks:
                    stale.setdefault(client_id, []).append(queue)
            for client_id, released in stale.items():
                for start in range(0, len(released), _MAX_RELEASED):
                    some = released[start : start + _MAX_RELEASED]
                    free = [queue for queue in some if (group, *queue) not in self._locks]
                    if free:
                        await self._release_recorded(group, client_id, free)

    async def _release_recorded(self, group: str, client_id: str, queues: Collection[Queue]) -> None:
        """Release recorded holders. Errors are logged, and the next search repeats the release."""
        try:
            await self._record_release(group, client_id, queues)
        except BrokerError as error:
            _log.info("expired locks stay recorded", group=group, reason=str(error))

    async def _expire_repeatedly(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRE_S)
            await self.expire()


def _settle(releases: Counter[_Key], keys: Iterable[_Key]) -> None:
    releases.subtract(keys)
    for key in [key for key in keys if not releases[key]]:
        del releases[key]
