"""Batches of messages that come in the same turn of the loop, appended to the log as one.

What a batch of the log costs (a write, a sync, a push to each follower, the answers) is the same for one
message and for a thousand. Nobody waits for company: what there is at the end of the turn goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from broker_adapter.commitlog.record_writer import RecordBatch
from broker_adapter.commitlog.topic_queue_table import TopicQueueTable
from broker_adapter.format.message import ENTRY_HEADER_SIZE
from dledger import AppendOutcome, Assigned

Fill = Callable[[Assigned], Sequence[bytes]]

#: What the log may add to a batch: an entry that holds the time.
_HEAD_BYTES = 256


class AppendPort(Protocol):
    def append_batch(
        self, sizes: Sequence[int], fill: Fill, *, expected: tuple[int, int], timeout_ms: int = 0
    ) -> asyncio.Future[AppendOutcome]: ...


class Put:
    """Messages of one queue. `first_offset`, `positions` (of their entries) and `place` (entries before
    them in the append) are known once the log has taken them."""

    __slots__ = (
        "batch",
        "done",
        "first_offset",
        "place",
        "positions",
        "queue_id",
        "size",
        "timeout_ms",
        "topic",
    )

    def __init__(self, topic: str, queue_id: int, batch: RecordBatch, timeout_ms: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.batch = batch
        self.timeout_ms = timeout_ms
        self.size = sum(batch.sizes) + ENTRY_HEADER_SIZE * len(batch)
        self.first_offset = -1
        self.place = 0
        self.positions: Sequence[int] = ()
        self.done: asyncio.Future[AppendOutcome] = asyncio.get_running_loop().create_future()

    def fail(self, error: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class PutGathering:
    """On the node's event loop. `leadership` gives the (term, role_epoch) to write under, or raises why
    nothing may be written, `refusal` why nothing may be put into a queue of a topic: they are asked at the
    moment of the append."""

    def __init__(
        self,
        node: AppendPort,
        table: TopicQueueTable,
        leadership: Callable[[], tuple[int, int]],
        refusal: Callable[[str, int], BaseException | None] = lambda topic, queue_id: None,
        *,
        most_bytes: int,
        most_messages: int,
    ) -> None:
        self._node = node
        self._table = table
        self._leadership = leadership
        self._refusal = refusal
        self._most_bytes = most_bytes - _HEAD_BYTES
        self._most_messages = most_messages
        self._puts: list[Put] = []
        self.last_index = -1  # of what was appended

    def add(self, put: Put) -> asyncio.Future[AppendOutcome]:
        """Append it with what else comes in this turn. The future ends as that of `append_batch` does, or
        with what this would have raised; a put that is cancelled before the turn ends is not stored.

        A batch of the log expires when the last of its puts would."""
        if not self._puts:
            asyncio.get_running_loop().call_soon(self._flush)
        self._puts.append(put)
        return put.done

    def _flush(self) -> None:
        puts, self._puts = [put for put in self._puts if not put.done.done()], []
        together: list[Put] = []
        size = count = 0
        for put in puts:
            size += put.size
            count += len(put.batch)
            if together and (size > self._most_bytes or count > self._most_messages):
                self._append(together)
                together, size, count = [], put.size, len(put.batch)
            together.append(put)
        if together:
            self._append(together)

    def _append(self, puts: Sequence[Put]) -> None:
        puts = [put for put in puts if not self._is_refused(put)]
        if not puts:
            return
        try:
            appended = self._node.append_batch(
                [size for put in puts for size in put.batch.sizes],
                lambda assigned: self._fill(puts, assigned),
                expected=self._leadership(),
                timeout_ms=max(put.timeout_ms for put in puts),
            )
        except Exception as error:
            if len(puts) == 1:
                puts[0].fail(error)
                return
            for put in puts:  # nothing was stored, and what is too much together may do one by one
                self._append([put])
            return
        appended.add_done_callback(lambda future: _answer(puts, future))

    def _is_refused(self, put: Put) -> bool:
        error = self._refusal(put.topic, put.queue_id)
        if error is not None:
            put.fail(error)
        return error is not None

    def _fill(self, puts: Sequence[Put], assigned: Assigned) -> Sequence[bytes]:
        next_offsets: dict[tuple[str, int], int] = {}
        records: list[bytes] = []
        for put in puts:
            queue = (put.topic, put.queue_id)
            put.first_offset = next_offsets.get(queue, self._table.next_offset(*queue))
            put.place = len(records)
            put.positions = assigned.positions[len(records) : len(records) + len(put.batch)]
            records += put.batch.fill(put.first_offset, put.positions, assigned.stamp_ms)
            next_offsets[queue] = put.first_offset + len(put.batch)
        for put in puts:  # from here on nothing fails: offsets are taken of all or of none
            self._table.take(put.topic, put.queue_id, len(put.batch))
        self.last_index = assigned.first_index + len(records) - 1
        return records


def _answer(puts: Sequence[Put], appended: asyncio.Future[AppendOutcome]) -> None:
    if appended.cancelled():
        for put in puts:
            put.done.cancel()
        return
    error = appended.exception()
    for put in puts:
        if error is not None:
            put.fail(error)
        elif not put.done.done():
            put.done.set_result(appended.result())
