"""Records into a group of ours, each once, whatever answers are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from broker_adapter.classic.store_directory import QueueKey
from broker_adapter.errors import BrokerError, Status
from broker_adapter.moving.target import ImportTarget, pause

#: Of one request: what the put pipeline takes at once without holding up anybody.
MOST_BYTES = 1 << 20
MOST_RECORDS = 1_024


class Row(NamedTuple):
    """A record, and its place."""

    key: QueueKey
    offset: int
    record: bytes


def in_batches(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """As much as one request may have."""
    begin = size = 0
    for at, row in enumerate(rows):
        if at > begin and (at - begin == MOST_RECORDS or size + len(row.record) > MOST_BYTES):
            yield rows[begin:at]
            begin, size = at, 0
        size += len(row.record)
    if rows:
        yield rows[begin:]


async def store_once(target: ImportTarget, rows: Sequence[Row], timeout_s: float) -> None:
    """After an error the target is asked what it has. BrokerErrors after `timeout_s`."""
    loop = asyncio.get_running_loop()
    deadline, attempt = loop.time() + timeout_s, 0
    while rows:
        try:
            await target.store(row.record for row in rows)
            return
        except BrokerError as error:
            if loop.time() > deadline or error.status is Status.CHANGE_NOT_ALLOWED:
                raise
        await pause(attempt)
        attempt += 1
        ends = {key: (await target.bounds(*key))[1] for key in {row.key for row in rows}}
        rows = [row for row in rows if row.offset >= ends[row.key]]
