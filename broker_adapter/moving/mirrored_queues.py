"""How far each queue of a live master is stored in a group of ours, and which message comes next.

Nothing else is kept of a mirror's progress. Where the master has the first message of each queue that is not
stored says where the log has to be read from.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from broker_adapter.classic.commit_log import StoredMessage
from broker_adapter.classic.store_directory import QueueDigest, QueueKey
from broker_adapter.errors import ReadFailed, Status, error_for
from broker_adapter.format.message import Message
from broker_adapter.moving.master import Master, Unit
from broker_adapter.moving.several import each
from broker_adapter.moving.storing import Row
from broker_adapter.moving.target import ImportTarget, pause


class _Queue(NamedTuple):
    """`next`: the offset that comes next. `last_physical`: where the master has the message before it; -1:
    there is none. `end`: what is stored for sure ends here."""

    next: int
    last_physical: int
    end: int


class _Place(NamedTuple):
    """Physical offsets at the master: of the first message that is not stored here, and behind the last one
    that is. -1: there is none that is known."""

    missing: int
    last_end: int


class MirroredQueues:
    def __init__(self, master: Master, target: ImportTarget) -> None:
        self._master = master
        self._target = target
        self._queues: dict[QueueKey, _Queue] = {}

    def end(self, key: QueueKey) -> int:
        """Up to where it is stored here."""
        found = self._queues.get(key)
        return 0 if found is None else found.end

    async def resume(self, keys: Iterable[QueueKey]) -> int:
        """Ask both sides about these queues, and give the physical offset to go on at. MASTER_DIFFERS."""
        # Messages behind the frontier may be in no queue yet. It is asked for first: so none is missed. It is
        # no place where a record begins.
        frontier = await self._master.frontier()
        places = await each(self._begin(key) for key in keys)
        missing = min(
            (place.missing for place in places if place.missing >= 0), default=frontier.dispatched + 1
        )
        if missing <= frontier.dispatched:
            return missing
        ends = (place.last_end for place in places if place.last_end <= frontier.dispatched)
        return max(frontier.log_begin, *ends, 0)

    def is_known(self, key: QueueKey) -> bool:
        return key in self._queues

    async def begin(self, key: QueueKey) -> None:
        """Ask about a queue that was not there when the mirror resumed."""
        part = await self._target.read_queue(*key, -1)
        self._queues[key] = _Queue(part.end, -1, part.end)

    def is_next(self, message: Message) -> bool:
        """False: it is stored. MASTER_DIFFERS if it is neither."""
        key = message.topic, message.queue_id
        queue = self._queues[key]
        if message.queue_offset == queue.next:
            return True
        if message.queue_offset < queue.next and message.physical_offset <= queue.last_physical:
            return False
        text = f"has message {message.queue_offset}, where {queue.next} comes next here"
        raise _differs(key, f"{text}: it was made anew")

    def add(self, found: StoredMessage) -> Row:
        """It will be stored; if it is not, `resume` finds out."""
        message = found.message
        key = message.topic, message.queue_id
        self._queues[key] = _Queue(message.queue_offset + 1, message.physical_offset, self._queues[key].end)
        return Row(key, message.queue_offset, found.record)

    def stored(self, rows: Iterable[Row]) -> None:
        """They are."""
        for row in rows:
            self._queues[row.key] = self._queues[row.key]._replace(end=row.offset + 1)

    async def unequal(self, keys: Iterable[QueueKey]) -> list[str]:
        """Queues that end elsewhere at the master. MASTER_DIFFERS if a last message differs."""

        async def look(key: QueueKey) -> str:
            _, end = await self._master.bounds(*key)
            if self.end(key) != end:
                return f"queue {key[1]} of {key[0]} ends at {self.end(key)} here, at {end} there"
            here = await self._target.read_queue(*key, -1)
            if here.end == end:
                await self._compare_last(key, here.end, here.records)
            return (
                "" if here.end == end else f"queue {key[1]} of {key[0]} ends at {here.end} here, {end} there"
            )

        return [one for one in await each(look(key) for key in keys) if one]

    async def meet(self, key: QueueKey) -> None:
        """Find out up to where the queue is the master's, if both have gone on since."""
        here = await self._target.read_queue(*key, -1)
        least, end = await self._master.bounds(*key)
        low, high = min(max(here.begin, least), here.end), min(here.end, end)
        while low < high:
            middle = (low + high) // 2
            record = (await self._target.read_queue(*key, middle)).records[0]
            unit = await self._master.unit(*key, middle)
            if _digest(record) == _digest(await self._master.record_at(unit.physical_offset)):
                low = middle + 1
            else:
                high = middle
        self._queues[key] = _Queue(low, -1, low)

    async def _begin(self, key: QueueKey) -> _Place:
        here = await self._target.read_queue(*key, -1)
        least, end = await self._master.bounds(*key)
        here_end = here.end
        if not here_end and least:
            await self._target.begin_queue(*key, least)
            here_end = least
        if here_end > end:
            end = await self._settled_end(key)
        if here_end > end:
            raise _differs(key, f"has {here_end} messages here, and {end} at the master, which has lost some")
        if here_end < least:
            raise _differs(
                key, f"ends at {here_end} here, and begins at {least} at the master: some are gone"
            )
        last = await self._compare_last(key, here_end, here.records)
        first = -1
        if here_end < end:
            first = (await self._master.unit(*key, here_end)).physical_offset
        before = max(-1 if last is None else last.physical_offset, first - 1)
        self._queues[key] = _Queue(here_end, before, here_end)
        return _Place(first, -1 if last is None else last.end)

    async def _settled_end(self, key: QueueKey) -> int:
        """The master's, when all of its log is in its queues: a slave may have messages before they are."""
        end, attempt = (await self._master.frontier()).log_end, 0
        while (await self._master.frontier()).dispatched < end:
            await pause(attempt)
            attempt += 1
        return (await self._master.bounds(*key))[1]

    async def _compare_last(self, key: QueueKey, end: int, records: list[bytes]) -> Unit | None:
        """Where the master has the last message here; None: there is none, or it is gone there."""
        if not records:
            return None
        try:
            unit = await self._master.unit(*key, end - 1)
            record = await self._master.record_at(unit.physical_offset)
        except ReadFailed as error:
            if error.status is not Status.MESSAGE_NOT_FOUND:
                raise
            return None
        if _digest(record) != _digest(records[-1]):
            raise _differs(key, f"has another message {end - 1} at the master: it was made anew there")
        return unit


def _digest(record: bytes) -> str:
    digest = QueueDigest()
    digest.add(record)
    return digest.text()


def _differs(key: QueueKey, what: str) -> Exception:
    return error_for(Status.MASTER_DIFFERS, f"queue {key[1]} of {key[0]} {what}")
