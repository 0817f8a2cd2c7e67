"""Take over from a mirrored master. Permissions direct first producers, then consumers to the target.

    fence     the master refuses sends (brokerPermission 4, startAcceptSendRequestTimeStamp)
    drain     wait until every queue has the same end here, also after sends in flight have completed
    open      the topics accept messages here: the point of no return
    consumed  wait until groups have consumed the master's messages, within a time limit
    move      the master refuses reads (0), offsets are copied, the topics allow reads here
    linger    clients with old routes still commit at the master: keep copying offsets

The master announces each change of permissions to the NameServers immediately, from which clients read it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from broker_adapter.api import PERM_READ, PERM_WRITE
from broker_adapter.errors import Status, error_for
from broker_adapter.migration.delayed import mark_delayed, send_marked
from broker_adapter.migration.master import NEVER_MS, BrokerAdmission, Master
from broker_adapter.migration.mirror import Mirror
from broker_adapter.migration.several import to_its_end
from broker_adapter.migration.target import ImportTarget

_POLL_S = 0.05
# Maximum lag of the mirror in bytes at which the master's sends are stopped.
_CLOSE_BYTES = 1 << 20
_ALL, _NONE = PERM_READ | PERM_WRITE, 0
_SHOWN = 5


class TakeoverSettings(NamedTuple):
    """Settings of a takeover, in seconds.

    `drain_s`: timeout of the drain, during which producers are refused. If it expires, producers are admitted
    again. `consume_s`: timeout of the wait for consumers. `linger_s`: time for clients to refresh their
    routes (pollNameServerInterval is 30 s). `leave_pending`: ignore open transactions and timers. `settle_s`:
    time for sends that the master had already admitted.
    """

    drain_s: float = 30.0
    consume_s: float = 60.0
    linger_s: float = 35.0
    leave_pending: bool = False
    settle_s: float = 1.0


class Takeover:
    """Moves clients from the master to the target.

    `pauses`: seconds during which no broker accepted "send" and "receive".
    """

    def __init__(
        self,
        mirror: Mirror,
        master: Master,
        target: ImportTarget,
        say: Callable[[str], None],
        settings: TakeoverSettings | None = None,
    ) -> None:
        self.pauses: dict[str, float] = {}
        self._mirror = mirror
        self._metadata = mirror.metadata
        self._master = master
        self._target = target
        self._report = say
        self._settings = settings or TakeoverSettings()

    async def was_interrupted(self) -> bool:
        """True if the topics already accept messages at the target and no longer do so at the master.

        In that case only `finish` remains to be done.
        """
        if (await self._master.admission()).permission & PERM_WRITE or not await self._metadata.load_topics():
            return False
        for key in self._metadata.queues():
            await self._mirror.queues.meet(key)
        return True

    async def run(self) -> None:
        """Take over from the master and stop the mirror. The mirror must be following the master.

        After TAKEOVER_BLOCKED or MASTER_DIFFERS, the master continues to serve clients.
        """
        await self._until(self._is_close, None)
        await self._check_pending()
        await self._mirror.sync_metadata()
        before = await self._master.admission()
        begun = self._now()
        try:
            # Inside `try`, because the change may take effect even if the response is lost.
            await self._master.set_admission(BrokerAdmission(PERM_READ, NEVER_MS))
            self._report("the master no longer accepts messages")
            delays = await self._drain()
            self._report(f"all messages of the master are here after {self._now() - begun:.2f} s")
            waiting = await mark_delayed(self._master, self._target, delays)
            await self._mirror.sync_metadata()
            # All later records of the master's log belong to its own services.
            await self._mirror.stop()
        except BaseException:
            # Also after a cancellation, because producers would otherwise have no master.
            await to_its_end(self._master.set_admission(before))
            self._report("the master accepts messages again")
            raise
        await self._metadata.open_topics(PERM_WRITE)
        self.pauses["send"] = self._now() - begun
        self._report(f"the topics accept messages here after {self.pauses['send']:.2f} s; {waiting} delayed")
        await self.finish()

    async def finish(self) -> None:
        """Complete a takeover once the topics accept messages at the target. May be repeated."""
        writable = {name for name, config in self._metadata.topics.items() if config.is_writable}
        sent = await send_marked(self._master, self._target, writable)
        if sent:
            self._report(f"{sent} delayed messages sent to wait here")
        if not await self._until(self._is_consumed, self._settings.consume_s):
            self._report("some groups have unconsumed messages of the master and will consume them here")
        begun = self._now()
        await self._master.set_admission(BrokerAdmission(_NONE, NEVER_MS))
        changed = await self._metadata.sync_offsets(only_up=True)
        await self._metadata.open_topics(_ALL)
        self.pauses["receive"] = self._now() - begun
        self._report(f"the topics can be read here after {self.pauses['receive']:.2f} s")
        deadline = self._now() + self._settings.linger_s
        while self._now() < deadline:
            await asyncio.sleep(_POLL_S)
            changed += await self._metadata.sync_offsets(only_up=True)
        self._report(f"takeover complete; {changed} group offsets copied at the end. Stop the master now")

    # -- internals ---------------------------------------------------------------------------------------

    async def _check_pending(self) -> None:
        if self._settings.leave_pending:
            return
        await self._until_none_is_open()
        timers = await self._master.waiting_timers()
        if timers:
            raise error_for(
                Status.TAKEOVER_BLOCKED, f"{timers} messages are still pending in the timers of the master"
            )

    async def _drain(self) -> Mapping[int, int]:
        """Wait until the target has all messages of the master, including sends in flight.

        Returns the master's delay offsets. They are read before the wait, so that the target has all messages
        whose delivery these offsets cover.
        """
        if not self._settings.leave_pending:
            await self._until_none_is_open()
        delays = await self._master.delays()
        end = await self._master.log_end()

        async def is_drained() -> bool:
            return self._mirror.figures.position >= end and not await self._unequal()

        if await self._until(is_drained, self._settings.drain_s):
            await asyncio.sleep(self._settings.settle_s)
            end = await self._master.log_end()
            if await self._until(is_drained, self._settings.drain_s):
                return delays
        unequal = await self._unequal()
        behind = max(0, end - self._mirror.figures.position)
        what = "; ".join(unequal[:_SHOWN]) or f"{behind} bytes are missing"
        text = f"the target did not catch up in {self._settings.drain_s:g} s: {what}"
        raise error_for(Status.TAKEOVER_BLOCKED, text)

    async def _until_none_is_open(self) -> None:
        async def is_none_open() -> bool:
            return not await self._master.open_transactions()

        if not await self._until(is_none_open, self._settings.drain_s):
            count = await self._master.open_transactions()
            raise error_for(Status.TAKEOVER_BLOCKED, f"{count} half messages may belong to open transactions")

    async def _is_close(self) -> bool:
        figures = self._mirror.figures
        end = await self._master.log_end()
        return figures.connections > 0 and end - figures.position < _CLOSE_BYTES

    async def _unequal(self) -> list[str]:
        return await self._mirror.queues.unequal(self._metadata.queues())

    async def _is_consumed(self) -> bool:
        """True if all groups with members have consumed the queues for which they have offsets."""
        for group, offsets in (await self._master.offsets()).items():
            mirrored = [offset for offset in offsets if offset.topic in self._metadata.topics]
            if not mirrored or not await self._master.is_consuming(group):
                continue
            for offset in mirrored:
                if offset.offset < (await self._master.bounds(offset.topic, offset.queue_id))[1]:
                    return False
        return True

    async def _until(self, condition: Callable[[], Awaitable[bool]], within_s: float | None) -> bool:
        """Poll `condition` until it is true. Return False after `within_s` (None: no limit)."""
        deadline = None if within_s is None else self._now() + within_s
        while not await condition():
            if deadline is not None and self._now() > deadline:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
