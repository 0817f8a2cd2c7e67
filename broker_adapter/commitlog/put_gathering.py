"""The one way into the log: what is put in the same turn of the loop is appended as one batch.

What a batch of the log costs (a write, a sync, a push to each follower, the answers) is the same for one
message and for a thousand. Nobody waits for company: what there is at the end of the turn goes. Queue offsets
are assigned here and nowhere else, in the step in which the log takes the messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple, Protocol

from broker_adapter.commitlog.topic_queue_table import TopicQueueTable
from broker_adapter.errors import PutRefused, Status
from broker_adapter.log.protocol import AppendLog, Places
from dledger import AppendOutcome

#: What the log may add to a batch: an entry that holds the time.
_HEAD_BYTES = 256


class Records(Protocol):
    """`broker_adapter.commitlog.record_writer`: `sizes` of the records that `fill` makes."""

    sizes: list[int]

    def __len__(self) -> int: ...

    def fill(
        self, queue_offset: int, physical_offsets: Sequence[int], store_timestamp: int
    ) -> list[bytes]: ...


class QueuedRecords(NamedTuple):
    """Messages of one queue. `expected`: the queue offset that the first of them has to get; -1: any."""

    topic: str
    queue_id: int
    batch: Records
    expected: int = -1


class CommandRecord(NamedTuple):
    """A record of a reserved topic, which is in no queue. `batch` gets the first queue offset of each batch
    of messages of its put, and gives one record of `size` bytes."""

    size: int
    batch: Callable[[Sequence[int]], Records]


class Put:
    """Messages of any queues and, behind them, commands: all of it is appended, consecutive, or nothing.

    `first_offsets` (of each batch), `physical_offsets` and `indexes` (of all records) are known once the log
    has taken them. `appended` is told the index of its first record in the step in which the log takes it;
    what that raises refuses the put."""

    __slots__ = (
        "appended",
        "commands",
        "count",
        "done",
        "first_offsets",
        "indexes",
        "physical_offsets",
        "queued",
        "size",
        "sizes",
        "timeout_ms",
    )

    def __init__(
        self,
        queued: Sequence[QueuedRecords],
        commands: Sequence[CommandRecord] = (),
        *,
        timeout_ms: int,
        appended: Callable[[int], None] | None = None,
    ) -> None:
        self.queued = queued
        self.commands = commands
        self.timeout_ms = timeout_ms
        self.appended = appended
        self.sizes = [*chain.from_iterable(one.batch.sizes for one in queued), *(c.size for c in commands)]
        self.count = len(self.sizes)
        self.size = sum(self.sizes)
        self.first_offsets: list[int] = []
        self.indexes: Sequence[int] = ()
        self.physical_offsets: Sequence[int] = ()
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
        log: AppendLog,
        table: TopicQueueTable,
        leadership: Callable[[], tuple[int, int]],
        refusal: Callable[[str, int], BaseException | None] = lambda topic, queue_id: None,
        *,
        most_bytes: int,
        most_messages: int,
        stored: Callable[[str, int, int], None] = lambda topic, messages, size: None,
    ) -> None:
        """`stored` is told (topic, messages, bytes) of what the log has taken for good."""
        self._log = log
        self._table = table
        self._leadership = leadership
        self._refusal = refusal
        self._most_bytes = most_bytes - _HEAD_BYTES
        self._most_messages = most_messages
        self._stored = stored
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

    def append_now(self, put: Put) -> asyncio.Future[AppendOutcome]:
        """Append it in this step, behind what was added before: for those who judged something that must
        still hold then."""
        self._puts.append(put)
        self._flush()
        return put.done

    def _flush(self) -> None:
        puts, self._puts = [put for put in self._puts if not put.done.done()], []
        together: list[Put] = []
        size = count = 0
        for put in puts:
            bytes_of_put = put.size + self._log.record_overhead * put.count
            size += bytes_of_put
            count += put.count
            if together and (size > self._most_bytes or count > self._most_messages or put.appended):
                self._append(together)
                together, size, count = [], bytes_of_put, put.count
            together.append(put)
            if put.appended:  # alone: a batch that is tried once more would tell it twice
                self._append(together)
                together, size, count = [], 0, 0
        if together:
            self._append(together)

    def _append(self, puts: Sequence[Put]) -> None:
        puts = [put for put in puts if not self._is_refused(put)]
        if not puts:
            return
        try:
            appended = self._log.append_batch(
                puts[0].sizes if len(puts) == 1 else [size for put in puts for size in put.sizes],
                lambda places: self._fill(puts, places),
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
        appended.add_done_callback(lambda future: self._answer(puts, future))

    def _is_refused(self, put: Put) -> bool:
        for topic, queue_id in dict.fromkeys((one.topic, one.queue_id) for one in put.queued):
            error = self._refusal(topic, queue_id)
            if error is not None:
                put.fail(error)
                return True
        return False

    def _fill(self, puts: Sequence[Put], places: Places) -> Sequence[bytes]:
        indexes, _, offsets, stamp_ms = places
        next_offsets: dict[tuple[str, int], int] = {}
        records: list[bytes] = []
        for put in puts:
            begin, end = len(records), len(records) + put.count
            put.indexes, put.physical_offsets = indexes[begin:end], offsets[begin:end]
            put.first_offsets = []
            for topic, queue_id, batch, expected in put.queued:
                queue = (topic, queue_id)
                first = next_offsets.get(queue, self._table.next_offset(*queue))
                if expected not in (-1, first):
                    text = f"queue {queue_id} of {topic} goes on with offset {first}, not {expected}"
                    raise PutRefused(Status.IMPORT_OUT_OF_ORDER, text)
                at = len(records)
                records += batch.fill(first, offsets[at : at + len(batch)], stamp_ms)
                next_offsets[queue] = first + len(batch)
                put.first_offsets.append(first)
            for command in put.commands:
                at = len(records)
                records += command.batch(put.first_offsets).fill(0, offsets[at : at + 1], stamp_ms)
        for put in puts:
            if put.appended is not None:
                put.appended(put.indexes[0])
        for put in puts:  # from here on nothing fails: offsets are taken of all or of none
            for topic, queue_id, batch, _ in put.queued:
                self._table.take(topic, queue_id, len(batch))
        self.last_index = indexes[-1]
        return records

    def _answer(self, puts: Sequence[Put], appended: asyncio.Future[AppendOutcome]) -> None:
        if appended.cancelled():
            for put in puts:
                put.done.cancel()
            return
        error = appended.exception()
        for put in puts:
            if error is not None:
                put.fail(error)
                continue
            for topic, _, batch, _ in put.queued:
                self._stored(topic, len(batch), sum(batch.sizes))
            if not put.done.done():
                put.done.set_result(appended.result())
