"""Import messages from another broker with their queue offsets, and set the first offset of each queue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import groupby

from broker_adapter.api import GetMessageResult
from broker_adapter.errors import IllegalMessage, Status
from broker_adapter.metadata.commands import BeginQueue, check_user_topic
from broker_adapter.metadata.proposals import Proposals
from broker_adapter.put.message_writer import MessageWriter, QueuedRecords
from broker_adapter.put.record_writer import StoredRecords
from broker_adapter.wire.message import decode, record_size_at
from broker_adapter.wire.sys_flag import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK

#: Maximum records per call, so that an event loop step takes no longer than for sends.
MAX_RECORDS = 1_024


class Imports:
    """Stores imported messages. Implements `broker_adapter.api.ImportApi`. Runs on the node's event loop."""

    def __init__(
        self,
        writer: MessageWriter,
        proposals: Proposals,
        read_queue: Callable[[str, int, int], Awaitable[GetMessageResult]],
    ) -> None:
        """`read_queue`: see `ImportApi`."""
        self._writer = writer
        self._proposals = proposals
        self._read_queue = read_queue

    async def begin_queue(self, topic: str, queue_id: int, offset: int) -> None:
        self._writer.check_master()
        (await self._proposals.propose(BeginQueue(topic, queue_id, offset))).check()
        # The dispatcher also reports the new offset, but later.
        self._writer.skip_to([(topic, queue_id, offset)])

    async def read_queue(self, topic: str, queue_id: int, offset: int) -> GetMessageResult:
        self._writer.check_master()
        return await self._read_queue(topic, queue_id, offset)

    async def store(self, records: bytes) -> int:
        self._writer.check_master()
        queued = await asyncio.to_thread(_queued, records, self._writer.max_body_bytes)
        await self._writer.put_stored(queued)
        return sum(len(records_of_queue.batch) for records_of_queue in queued)


def _queued(records: bytes, max_body_bytes: int) -> list[QueuedRecords]:
    """Decode records and group them by queue, in order. Blocks."""
    found: list[tuple[tuple[str, int], int, bytes]] = []
    at = 0
    while at < len(records):
        end = at + record_size_at(records, at, max_body_bytes=max_body_bytes)
        record = records[at:end]
        message = decode(record, max_body_bytes=max_body_bytes)
        check_user_topic(message.topic)
        if message.sys_flag & TRANSACTION_MASK in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK):
            text = f"record {len(found)}: a half or rolled-back message cannot be in a queue"
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, text)
        found.append(((message.topic, message.queue_id), message.queue_offset, record))
        if len(found) > MAX_RECORDS:
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, f"the call has more than {MAX_RECORDS} records")
        at = end
    if not found:
        raise IllegalMessage(Status.REQUEST_MALFORMED, "the call contains no records")
    queued = []
    for queue, rows in groupby(found, key=lambda row: row[0]):
        run = list(rows)
        offsets = [offset for _, offset, _ in run]
        if offsets != list(range(offsets[0], offsets[0] + len(run))):
            text = f"queue {queue[1]} of {queue[0]}: offsets {offsets[0]} to {offsets[-1]} have gaps"
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, text)
        stored = StoredRecords([record for *_, record in run])
        queued.append(QueuedRecords(queue[0], queue[1], stored, offsets[0]))
    return queued
