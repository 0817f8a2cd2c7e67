"""A group of ours as the slave of a live master of RocketMQ: every message at its queue offset."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from broker_adapter.classic.commit_log import StoredMessage
from broker_adapter.classic.store_directory import in_queues
from broker_adapter.classic.system_names import is_system_name
from broker_adapter.errors import (
    AnswerMissing,
    NameServerUnavailable,
    PutIndeterminate,
    PutRefused,
    ReadFailed,
    Status,
)
from broker_adapter.format.delay_levels import SCHEDULE_TOPIC
from broker_adapter.ha.link import Link
from broker_adapter.ha.records import RecordReader
from broker_adapter.ha.transfers import first_report, supplied
from broker_adapter.moving.master import Master
from broker_adapter.moving.metadata_sync import MetadataSync
from broker_adapter.moving.mirrored_queues import MirroredQueues
from broker_adapter.moving.storing import Row, in_batches, store_once
from broker_adapter.moving.target import ImportTarget

#: What a later attempt may overcome: the master or ours is away, or changes.
_PASSING = (AnswerMissing, NameServerUnavailable, PutIndeterminate, PutRefused, ReadFailed)
_FINAL = frozenset({Status.IMPORT_OUT_OF_ORDER, Status.CHANGE_NOT_ALLOWED, Status.STORE_UNSUPPORTED})


class MirrorSettings(NamedTuple):
    """Seconds. `step_s`: for a step that a change of our master interrupts. `sync_s`: between copies of
    topics, groups and offsets. `pause_s`: before the master is tried again."""

    step_s: float = 30.0
    sync_s: float = 3.0
    pause_s: float = 1.0
    tell_s: float = 10.0


@dataclass
class MirrorFigures:
    """`position`: all before it is stored here, and was reported. `stored`: messages, by this process.
    `left`: messages that have no equal here, by topic."""

    position: int
    stored: int
    connections: int
    left: dict[str, int]


class Mirror:
    """`follow` until it is cancelled. BrokerErrors are final; what passes is told, and tried again."""

    def __init__(
        self,
        master: Master,
        target: ImportTarget,
        ha_address: str,
        say: Callable[[str], None],
        settings: MirrorSettings | None = None,
    ) -> None:
        self.queues = MirroredQueues(master, target)
        self.metadata = MetadataSync(master, target, self.queues.end, say)
        self.figures = MirrorFigures(0, 0, 0, {})
        self._master = master
        self._target = target
        self._ha_address = ha_address
        self._say = say
        self._settings = settings or MirrorSettings()
        self._following: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._turn = asyncio.Lock()  # of changes of topics, groups and offsets

    async def follow(self) -> None:
        """Until `stop`. The first connection has to succeed."""
        self._following = asyncio.current_task()
        try:
            await self._follow_ever()
        except asyncio.CancelledError:
            if not self._is_stopped:
                raise
        finally:
            self._following = None

    async def stop(self) -> None:
        """When it returns, nothing is stored any more."""
        if self._following is not None:
            self._is_stopped = True
            self._following.cancel()
            await asyncio.wait([self._following])

    async def _follow_ever(self) -> None:
        while True:
            try:
                await self._follow_once()
            except _PASSING as error:
                if error.status in _FINAL or not self.figures.connections:
                    raise
                self._say(f"{error}; connecting again")
            await asyncio.sleep(self._settings.pause_s)

    async def sync_metadata(self) -> None:
        async with self._turn:
            await self.metadata.sync()

    # -- inside -------------------------------------------------------------------------------------------

    async def _follow_once(self) -> None:
        async with self._turn:
            await self.metadata.sync_topics()
            position = await self.queues.resume(self.metadata.queues())
            await self.metadata.sync_groups()
            await self.metadata.sync_offsets()
        link = await Link.open(self._ha_address, first_report(position))
        works = [
            asyncio.ensure_future(work)
            for work in (self._store_all(link, position), self._sync_ever(), self._tell_ever())
        ]
        try:
            self.figures.connections += 1
            self._say(f"following {self._ha_address} from offset {position} on")
            done, _ = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
            for work in done:
                work.result()
        finally:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
            await link.close()

    async def _store_all(self, link: Link, position: int) -> None:
        records = RecordReader(position)
        pieces = [supplied(position)]
        while True:
            rows: list[Row] = []
            for piece in pieces:
                for found in in_queues(records.feed(piece)):
                    if (row := await self._row(found)) is not None:
                        rows.append(row)
            for batch in in_batches(rows):
                await store_once(self._target, batch, self._settings.step_s)
                self.queues.stored(batch)
                self.figures.stored += len(batch)
            self.figures.position = records.position
            link.report(records.position)
            pieces = [one.data for one in await link.read()]

    async def _row(self, found: StoredMessage) -> Row | None:
        """None: it has no place here, or is there."""
        message = found.message
        key = topic, queue_id = message.topic, message.queue_id
        if topic == SCHEDULE_TOPIC:
            return None  # what still waits is taken over at the end
        if not await self._is_mirrored(topic, message.queue_offset):
            self.figures.left[topic] = self.figures.left.get(topic, 0) + 1
            return None
        if not self.queues.is_known(key):
            async with self._turn:
                await self.metadata.ensure_queue(topic, queue_id)
            await self.queues.begin(key)
        return self.queues.add(found) if self.queues.is_next(message) else None

    async def _is_mirrored(self, topic: str, offset: int) -> bool:
        """A topic is in the master's table before a message of it is in the log. It may have been deleted."""
        if topic in self.metadata.topics:
            return True
        if is_system_name(topic):
            return False
        if topic not in self.figures.left or not offset:
            async with self._turn:
                await self.metadata.sync_topics()
        return topic in self.metadata.topics

    async def _sync_ever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.sync_s)
            await self.sync_metadata()

    async def _tell_ever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.tell_s)
            end = await self._master.log_end()
            figures = self.figures
            behind = max(0, end - figures.position)
            place = f"up to offset {figures.position}, {behind} bytes behind the master"
            self._say(f"{figures.stored} messages stored, {place}")
