"""Reads records from the broker's system queues."""

from __future__ import annotations

from collections.abc import Sequence

from broker_adapter.errors import ReadFailed, Status
from broker_adapter.store.queue_reader import QueueReader
from broker_adapter.wire.consume_queue_unit import ConsumeQueueUnit


def read_records(reader: QueueReader, units: Sequence[ConsumeQueueUnit]) -> list[bytes | None]:
    """Return the records for `units`. For a missing or purged record, the result contains None.

    Call from a reader thread. Raises ReadFailed (BEING_REPAIRED).
    """
    return [_record(reader, unit.physical_offset) if unit.is_message() else None for unit in units]


def _record(reader: QueueReader, physical_offset: int) -> bytes | None:
    try:
        return reader.message_at(physical_offset)
    except ReadFailed as error:
        if error.status is not Status.MESSAGE_NOT_FOUND:
            raise
        return None
