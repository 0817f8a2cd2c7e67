"""How far each queue of a live master is stored in a group of ours, and which message comes next.

Nothing else is kept of a mirror's progress. Where the master has the first message of each queue that is not
stored says where the log has to be read from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import NamedTuple, TypeVar

from broker_adapter.classic.commit_log import StoredMessage
from broker_adapter.classic.store_directory import QueueDigest, QueueKey
from broker_adapter.errors import ReadFailed, Status, error_for
from broker_adapter.format.message import Message
from broker_adapter.moving.master import Master
from broker_adapter.moving.storing import Row
from broker_adapter.moving.target import ImportTarget

T = TypeVar("T")

#: Queues that are asked for at a time.
_AT_ONCE = 16


class _Stored(NamedTuple):
    """`end`: the next offset. `last_physical`: where the master has the last message; -1: there is none."""

    end: int
    last_physical: int


class MirroredQueues:
    def __init__(self, master: Master, target: ImportTarget) -> None:
        self._master = master
        self._target = target
        self._stored: dict[QueueKey, _Stored] = {}

    def end(self, key: QueueKey) -> int:
        """The next offset here."""
        found = self._stored.get(key)
        return 0 if found is None else found.end

    async def resume(self, keys: Iterable[QueueKey]) -> int:
        """Ask both sides about these queues, and give the physical offset to go on at. MASTER_DIFFERS."""
        # Messages behind the frontier may be in no queue yet. It is asked for first: so none is missed.
        frontier = (await self._master.frontier()).dispatched
        missing = await _each(self._begin(key) for key in keys)
        return min([frontier, *(offset for offset in missing if offset >= 0)])

    def is_known(self, key: QueueKey) -> bool:
        return key in self._stored

    async def begin(self, key: QueueKey) -> None:
        """Ask about a queue that was not there when the mirror resumed."""
        part = await self._target.read_queue(*key, -1)
        self._stored[key] = _Stored(part.end, -1)

    def is_next(self, message: Message) -> bool:
        """False: it is stored. MASTER_DIFFERS if it is neither."""
        key = message.topic, message.queue_id
        stored = self._stored[key]
        if message.queue_offset == stored.end:
            return True
        if message.queue_offset < stored.end and message.physical_offset <= stored.last_physical:
            return False
        text = f"has message {message.queue_offset}, where {stored.end} comes next here"
        raise _differs(key, f"{text}: it was made anew")

    def add(self, found: StoredMessage) -> Row:
        """It will be stored; if it is not, `resume` finds out."""
        message = found.message
        key = message.topic, message.queue_id
        self._stored[key] = _Stored(message.queue_offset + 1, message.physical_offset)
        return Row(key, message.queue_offset, found.record)

    async def unequal(self, keys: Iterable[QueueKey]) -> list[str]:
        """Queues that end elsewhere at the master. MASTER_DIFFERS if a last message differs."""

        async def look(key: QueueKey) -> str:
            here = await self._target.read_queue(*key, -1)
            _, end = await self._master.bounds(*key)
            if here.end == end:
                await self._compare_last(key, here.end, here.records)
            return (
                "" if here.end == end else f"queue {key[1]} of {key[0]} ends at {here.end} here, {end} there"
            )

        return [one for one in await _each(look(key) for key in keys) if one]

    async def meet(self, key: QueueKey) -> None:
        """Find out up to where the queue is the master's, if both have gone on by themselves."""
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
        self._stored[key] = _Stored(low, -1)

    async def _begin(self, key: QueueKey) -> int:
        """The physical offset of the first message that is not stored; -1: none is known."""
        here = await self._target.read_queue(*key, -1)
        least, end = await self._master.bounds(*key)
        here_end = here.end
        if not here_end and least:
            await self._target.begin_queue(*key, least)
            here_end = least
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
        self._stored[key] = _Stored(here_end, max(last, first - 1))
        return first

    async def _compare_last(self, key: QueueKey, end: int, records: list[bytes]) -> int:
        """The master's physical offset of the last message here; -1: there is none, or it is gone there."""
        if not records:
            return -1
        try:
            unit = await self._master.unit(*key, end - 1)
            record = await self._master.record_at(unit.physical_offset)
        except ReadFailed as error:
            if error.status is not Status.MESSAGE_NOT_FOUND:
                raise
            return -1
        if _digest(record) != _digest(records[-1]):
            raise _differs(key, f"has another message {end - 1} at the master: it was made anew there")
        return unit.physical_offset


def _digest(record: bytes) -> str:
    digest = QueueDigest()
    digest.add(record)
    return digest.text()


def _differs(key: QueueKey, what: str) -> Exception:
    return error_for(Status.MASTER_DIFFERS, f"queue {key[1]} of {key[0]} {what}")


async def _each(works: Iterable[Awaitable[T]]) -> list[T]:
    """Some at a time, in their order."""
    turn = asyncio.Semaphore(_AT_ONCE)

    async def one(work: Awaitable[T]) -> T:
        async with turn:
            return await work

    tasks = [asyncio.ensure_future(one(work)) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
