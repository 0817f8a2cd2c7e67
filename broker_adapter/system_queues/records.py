"""Records of the broker's own queues. For a reader's thread."""

from __future__ import annotations

from collections.abc import Sequence

from broker_adapter.errors import ReadFailed, Status
from broker_adapter.format.consume_queue_unit import ConsumeQueueUnit
from broker_adapter.store.queue_reader import QueueReader


def read_records(reader: QueueReader, units: Sequence[ConsumeQueueUnit]) -> list[bytes | None]:
    """Those that units point to; None: none, or purged. ReadFailed (BEING_REPAIRED)."""
    return [_record(reader, unit.physical_offset) if unit.is_message() else None for unit in units]


def _record(reader: QueueReader, physical_offset: int) -> bytes | None:
    try:
        return reader.message_at(physical_offset)
    except ReadFailed as error:
        if error.status is not Status.MESSAGE_NOT_FOUND:
            raise
        return None
