"""Stores records at the target exactly once, even if responses are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from broker_adapter.errors import BrokerError, Status
from broker_adapter.log.classic.store_directory import QueueKey
from broker_adapter.migration.target import ImportTarget, pause

# Limits of one request, small enough that the put pipeline does not delay other requests.
MOST_BYTES = 1 << 20
MOST_RECORDS = 1_024


class ImportRow(NamedTuple):
    """A record and its queue and offset."""

    key: QueueKey
    offset: int
    record: bytes


def in_batches(rows: Sequence[ImportRow]) -> Iterator[Sequence[ImportRow]]:
    """Split rows into batches, each of which fits into one request."""
    begin = size = 0
    for at, row in enumerate(rows):
        if at > begin and (at - begin == MOST_RECORDS or size + len(row.record) > MOST_BYTES):
            yield rows[begin:at]
            begin, size = at, 0
        size += len(row.record)
    if rows:
        yield rows[begin:]


async def store_once(target: ImportTarget, rows: Sequence[ImportRow], timeout_s: float) -> None:
    """Store rows exactly once. Raises BrokerErrors after `timeout_s`.

    After an error, queries the ends of the queues at the target and sends only the missing rows.
    """
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
