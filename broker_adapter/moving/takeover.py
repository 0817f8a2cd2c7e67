"""A mirror takes over from its master: producers first, then consumers, by permissions alone.

    fence     the master takes no messages any more (brokerPermission 4, startAcceptSendRequestTimeStamp)
    drain     until every queue ends here where it does there, and still does when sends that were under way
              are over
    open      the topics take messages here: from here on there is no way back
    consumed  groups consume what the master has, as long as they do and are given
    move      the master gives no messages any more (0), offsets are copied, the topics give messages here
    linger    clients that learn of it late still commit at the master: offsets are copied on

NameServers learn of each change of permissions at once, and clients from them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from broker_adapter.api import PERM_READ, PERM_WRITE
from broker_adapter.errors import Status, error_for
from broker_adapter.moving.delayed import mark_delayed, take_delayed
from broker_adapter.moving.master import NEVER_MS, Admission, Master
from broker_adapter.moving.mirror import Mirror
from broker_adapter.moving.target import ImportTarget

_LOOK_S = 0.05
#: The log may grow by so much while nobody is refused yet.
_CLOSE_BYTES = 1 << 20
_ALL, _NONE = PERM_READ | PERM_WRITE, 0
_SHOWN = 5


class TakeoverSettings(NamedTuple):
    """Seconds. `drain_s`: for the rest of the log, while producers are refused; then they are let in again.
    `consume_s`: for groups to consume what the master has. `linger_s`: as long as clients ask for routes
    (pollNameServerInterval is 30 s). `leave_pending`: open transactions and timers are no obstacle.
    `settle_s`: for sends that the master had admitted to be stored there."""

    drain_s: float = 30.0
    consume_s: float = 60.0
    linger_s: float = 35.0
    leave_pending: bool = False
    settle_s: float = 1.0


class Takeover:
    """`pauses`: seconds for which no broker has taken messages, and has given messages."""

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
        self._say = say
        self._settings = settings or TakeoverSettings()

    async def was_interrupted(self) -> bool:
        """Whether the topics take messages here already, and not at the master: only `finish` is left."""
        if (await self._master.admission()).permission & PERM_WRITE or not await self._metadata.look():
            return False
        for key in self._metadata.queues():
            await self._mirror.queues.meet(key)
        return True

    async def run(self) -> None:
        """While the mirror follows, which ends. TAKEOVER_BLOCKED, MASTER_DIFFERS: the master goes on."""
        await self._until(self._is_close, None)
        await self._check_pending()
        await self._mirror.sync_metadata()
        before = await self._master.admission()
        begun = self._now()
        try:
            # It may be in force though its answer was lost.
            await self._master.set_admission(Admission(PERM_READ, NEVER_MS))
            self._say("the master takes no messages any more")
            delays = await self._drain()
            self._say(f"all of its messages are here, after {self._now() - begun:.2f} s")
            waiting = await mark_delayed(self._master, self._target, delays)
            await self._mirror.sync_metadata()
            # What the master's own services write from here on is its own.
            await self._mirror.stop()
        except BaseException:
            # Also if it is cancelled: nobody may be left without a master.
            await asyncio.shield(self._master.set_admission(before))
            self._say("the master takes messages again")
            raise
        await self._metadata.open_topics(PERM_WRITE)
        self.pauses["send"] = self._now() - begun
        self._say(
            f"the topics take messages here, after {self.pauses['send']:.2f} s; {waiting} wait for a time"
        )
        await self.finish()

    async def finish(self) -> None:
        """From where the topics take messages here. Repeatable."""
        writable = {name for name, one in self._metadata.topics.items() if one.is_writable}
        sent = await take_delayed(self._master, self._target, writable)
        if sent:
            self._say(f"{sent} delayed messages were sent now, to wait here")
        if not await self._until(self._is_consumed, self._settings.consume_s):
            self._say("some groups have not consumed all at the master, and will here")
        begun = self._now()
        await self._master.set_admission(Admission(_NONE, NEVER_MS))
        changed = await self._metadata.sync_offsets(only_up=True)
        await self._metadata.open_topics(_ALL)
        self.pauses["receive"] = self._now() - begun
        self._say(f"the topics give messages here, after {self.pauses['receive']:.2f} s")
        deadline = self._now() + self._settings.linger_s
        while self._now() < deadline:
            await asyncio.sleep(_LOOK_S)
            changed += await self._metadata.sync_offsets(only_up=True)
        self._say(f"taken over; {changed} offsets of groups were copied at the end. Stop the master now")

    # -- inside -------------------------------------------------------------------------------------------

    async def _check_pending(self) -> None:
        if self._settings.leave_pending:
            return
        await self._until_none_is_open()
        timers = await self._master.waiting_timers()
        if timers:
            raise error_for(Status.TAKEOVER_BLOCKED, f"{timers} messages wait in timers of the master")

    async def _drain(self) -> Mapping[int, int]:
        """Until all that the master has is here, sends that it had admitted included. Its offsets of delays
        from before that: what they say was delivered is in the log."""
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
        text = f"not all was here in {self._settings.drain_s:g} s: {what}"
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
        """By all groups that have members, as far as they have offsets."""
        for group, offsets in (await self._master.offsets()).items():
            mine = [one for one in offsets if one.topic in self._metadata.topics]
            if not mine or not await self._master.is_consuming(group):
                continue
            for one in mine:
                if one.offset < (await self._master.bounds(one.topic, one.queue_id))[1]:
                    return False
        return True

    async def _until(self, condition: Callable[[], Awaitable[bool]], within_s: float | None) -> bool:
        """None: as long as it takes."""
        deadline = None if within_s is None else self._now() + within_s
        while not await condition():
            if deadline is not None and self._now() > deadline:
                return False
            await asyncio.sleep(_LOOK_S)
        return True

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
