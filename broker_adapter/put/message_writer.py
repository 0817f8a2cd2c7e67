"""Appends records to the log, under the leadership in which this broker became master.

Queue offsets are assigned only here, in the step in which the log accepts the records, so no offset is reused
or skipped. An append costs a write, a sync, a push to each follower and the replies, whether it contains one
message or a thousand. Therefore `broker_adapter.put.committer` batches sends into appends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import accumulate
from typing import NamedTuple, Protocol, TypeAlias

from broker_adapter.api import OutgoingMessage, TopicConfig
from broker_adapter.errors import (
    BrokerError,
    Busy,
    IllegalMessage,
    NotMaster,
    PutIndeterminate,
    PutRefused,
    Status,
)
from broker_adapter.log.protocol import AppendLog, Places
from broker_adapter.put.record_writer import NO_FIELDS, BrokerFields, RecordBatch
from broker_adapter.wire.host import Host
from dledger import AppendOutcome, Code, DLedgerError, Indeterminate, InvalidRequest, NotLeader, Overloaded

#: Maximum number of topics whose round-robin position is remembered.
_MAX_ROUND_ROBIN_TOPICS = 10_000

#: Topic, queue id and the offset where its ConsumeQueue ends.
Arrival: TypeAlias = tuple[str, int, int]


class TopicCheck(Protocol):
    """`broker_adapter.metadata.writable_topics.TopicGate`."""

    def start_leadership(self) -> None: ...

    def refusal(self, topic: str, queue_id: int) -> BrokerError | None:
        """Return the reason why no message may be appended to this queue now, or None.

        Called in the event-loop step of the append.
        """

    def fitting_queue(self, topic: str, queue_id: int) -> int: ...

    def closing(self, topic: str, first: int) -> AbstractContextManager[None]: ...


class AnyTopic:
    """A TopicCheck for logs without topic metadata: accepts every topic."""

    def start_leadership(self) -> None: ...

    def refusal(self, topic: str, queue_id: int) -> BrokerError | None:
        return None

    def fitting_queue(self, topic: str, queue_id: int) -> int:
        return queue_id

    def closing(self, topic: str, first: int) -> AbstractContextManager[None]:
        return nullcontext()


class Records(Protocol):
    """Records to append (see `broker_adapter.put.record_writer`).

    `sizes`: size in bytes of each record that `fill` builds.
    """

    sizes: list[int]

    def __len__(self) -> int: ...

    def fill(
        self, queue_offset: int, physical_offsets: Sequence[int], store_timestamp: int
    ) -> list[bytes]: ...


class QueuedRecords(NamedTuple):
    """Messages for one queue. `expected`: the required queue offset of the first message; -1 allows any."""

    topic: str
    queue_id: int
    batch: Records
    expected: int = -1


class LateCommand(NamedTuple):
    """A command that names the messages of its append.

    `body` receives the first queue offset of each batch of messages and the sum of the clock steps of the
    append's stamp, and returns `size` bytes.
    """

    size: int
    body: Callable[[Sequence[int], int], bytes]


class _CommandRecord(NamedTuple):
    """A record of a reserved topic, which belongs to no queue.

    `batch` is called with the same arguments as `LateCommand.body`, and returns one record.
    """

    size: int
    batch: Callable[[Sequence[int], int], Records]


class _Append:
    """Records of any queues, followed by commands. They are stored consecutively in the log, all or none.

    Once the log has accepted the records, `firsts` contains the queue offset of the first record of each
    batch, and `physical_offsets` and `indexes` contain one value per record. `appended` is called with the
    index of the first record, in the event-loop step in which the log accepts it. An exception from
    `appended` rejects the append.
    """

    __slots__ = ("appended", "commands", "firsts", "indexes", "physical_offsets", "queued", "sizes")

    def __init__(
        self,
        queued: Sequence[QueuedRecords],
        commands: Sequence[_CommandRecord] = (),
        appended: Callable[[int], None] | None = None,
    ) -> None:
        self.queued = queued
        self.commands = commands
        self.appended = appended
        self.sizes = [size for one in queued for size in one.batch.sizes]
        self.sizes += [command.size for command in commands]
        self.firsts: list[int] = []
        self.indexes: Sequence[int] = ()
        self.physical_offsets: Sequence[int] = ()


class StoredAt(NamedTuple):
    """The positions of the first record of a batch in its queue and in the CommitLog, and its entry.

    `log_index` and `term` of the entry are -1 if unknown. `physical_offsets` contains one offset per record
    of the batch.
    """

    queue_offset: int
    physical_offset: int
    log_index: int = -1
    term: int = -1
    physical_offsets: Sequence[int] = ()


class AppendedBatch(NamedTuple):
    """The result of one append: the position of the first record of each batch.

    `put_status`: as returned by `AppendLog.put_status`. It applies to messages, not to commands.
    """

    places: Sequence[StoredAt]
    put_status: asyncio.Future[Status | None] | None = None


class PutLimits(NamedTuple):
    """Limits of appends. `timeout_ms`: default timeout of an append."""

    max_body_bytes: int
    max_command_bytes: int
    timeout_ms: int


class TopicQueueTable:
    """The next queue offset of every queue, on the master.

    A new master recovers the table from its ConsumeQueues once these include all messages that earlier
    masters committed.
    """

    def __init__(self) -> None:
        self._next: dict[tuple[str, int], int] = {}

    def recover(self, next_offsets: Mapping[tuple[str, int], int]) -> None:
        self._next = dict(next_offsets)

    def reserve(self, topic: str, queue_id: int, count: int) -> int:
        """Reserve `count` consecutive offsets and return the first."""
        assert count > 0
        queue = (topic, queue_id)
        first = self._next.get(queue, 0)
        self._next[queue] = first + count
        return first

    def raise_to(self, topic: str, queue_id: int, offset: int) -> None:
        """Raise the next offset to `offset`, the end of the ConsumeQueue.

        Messages of other masters, or an import that set the first offset, may have used offsets before it.
        """
        queue = (topic, queue_id)
        self._next[queue] = max(self._next.get(queue, 0), offset)

    def behind(self, arrivals: Iterable[Arrival]) -> list[Arrival]:
        """Return the arrivals whose ConsumeQueue ends beyond the offset in this table.

        May be called on any thread.
        """
        return [one for one in arrivals if one[2] > self._next.get((one[0], one[1]), 0)]

    def next_offset(self, topic: str, queue_id: int) -> int:
        return self._next.get((topic, queue_id), 0)


class MessageWriter:
    """Writes records while this broker is master. Only the broker's role calls `open_for` and `close`.

    `master` returns the address of the current master, which the error NotMaster contains.
    """

    def __init__(
        self,
        log: AppendLog,
        store_host: Host,
        limits: PutLimits,
        *,
        master: Callable[[], str | None],
        on_refused: Callable[[BrokerError], None] = lambda _: None,
        topics: TopicCheck | None = None,
        stored: Callable[[str, int, int], None] = lambda topic, messages, size: None,
    ) -> None:
        """`on_refused` is called for every write rejected because of the role of this broker; `stored` with
        topic, messages and bytes of each committed batch.
        """
        #: Called whenever writes become accepted or rejected.
        self.on_change: Callable[[], None] = lambda: None
        self.table = TopicQueueTable()
        self.topics: TopicCheck = topics or AnyTopic()
        self._log = log
        self._store_host = store_host
        self._limits = limits
        self._master = master
        self._stored = stored
        self._command_overheads: dict[str, int] = {}  # by topic
        #: The index of the last entry that this object appended, committed or not; -1 if there is none.
        self.last_index = -1
        self._on_refused = on_refused
        self._expected: tuple[int, int] | None = None
        self._round_robin: dict[str, int] = {}  # round-robin position among the queues of each topic
        self._stopping = False

    @property
    def max_body_bytes(self) -> int:
        return self._limits.max_body_bytes

    @property
    def max_command_bytes(self) -> int:
        return self._limits.max_command_bytes

    @property
    def expected(self) -> tuple[int, int] | None:
        """Return (term, role_epoch) of the current term as master, or None if writes are rejected."""
        return self._expected

    def is_open(self) -> bool:
        """Return whether writes are accepted."""
        return self._expected is not None

    def open_for(self, term: int, role_epoch: int) -> None:
        self.topics.start_leadership()
        self._round_robin.clear()
        self._expected = (term, role_epoch)
        self.on_change()

    def close(self) -> None:
        """Reject every write from now on."""
        self._expected = None
        self.on_change()

    @property
    def store_host(self) -> Host:
        """Return the store host of the records that this broker writes."""
        return self._store_host

    def set_store_host(self, host: Host) -> None:
        """Replace the store host of records that are written from now on."""
        self._store_host = host
        self._command_overheads.clear()  # an IPv6 address is longer

    def stop(self) -> None:
        self._stopping = True
        self.close()

    def check_master(self) -> tuple[int, int]:
        """Return the leadership to write under. Raises NotMaster or PutRefused (SHUTTING_DOWN)."""
        if self._stopping:
            raise PutRefused(Status.SHUTTING_DOWN, "this broker is shutting down")
        if self._expected is None:
            raise self._not_master()
        return self._expected

    def arrived(self, arrivals: Iterable[Arrival]) -> list[Arrival]:
        """Return the queues that end beyond this table, because of other masters or of imports.

        Pass them to `skip_to` on the event loop. May be called on any thread.
        """
        return [] if self._expected is None else self.table.behind(arrivals)

    def skip_to(self, arrivals: Iterable[Arrival]) -> None:
        """Raise the next offsets of these queues to their ends, so that no offset is used twice."""
        for topic, queue_id, end in arrivals:
            self.table.raise_to(topic, queue_id, end)

    def queue_of(self, config: TopicConfig, queue_id: int) -> int:
        """Return the requested queue. For -1, return the next one, in a round-robin order that all protocols
        share.

        Raises IllegalMessage if the topic has no such queue.
        """
        if queue_id == -1:
            if len(self._round_robin) >= _MAX_ROUND_ROBIN_TOPICS and config.name not in self._round_robin:
                self._round_robin.clear()  # drops deleted topics as well; the others restart at queue 0
            position = self._round_robin[config.name] = (
                self._round_robin.get(config.name, -1) + 1
            ) % config.write_queues
            return position
        queues = max(config.read_queues, config.write_queues)  # RocketMQ's rule, see TopicGate
        if not 0 <= queue_id < queues:
            text = f"topic {config.name} has {queues} queues; queue {queue_id} does not exist"
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, text)
        return queue_id

    async def put_stored(self, queued: Sequence[QueuedRecords]) -> None:
        """Append records that another broker has stored, for any queues, all or none.

        Raises PutRefused (IMPORT_OUT_OF_ORDER) if a record would get an unexpected offset, Busy
        (TOPIC_CHANGED), and the errors of `put_together`.
        """
        self.check_master()
        for one in queued:
            if (refusal := self.topics.refusal(one.topic, one.queue_id)) is not None:
                raise refusal
        outcome = await self._committed(_Append(queued), self._limits.timeout_ms)
        found = self._log.put_status(outcome)
        try:
            if found is not None:
                await asyncio.shield(found)
        except DLedgerError as error:
            raise self._as_broker_error(error) from error

    async def put_command(
        self, topic: str, command: bytes, appended: Callable[[int], None] | None = None
    ) -> int:
        """Append a record of a reserved topic, which is in no queue, and return its index once committed.

        `appended` is called with the index in the step in which the log accepts the record; an exception from
        `appended` rejects the append.
        """
        append = self._command(topic, command, appended)
        outcome = await self._committed(append, self._limits.timeout_ms)
        return append.indexes[0] if outcome.index >= 0 else -1

    def append_command(self, topic: str, command: bytes) -> asyncio.Future[AppendOutcome]:
        """Append a record of a reserved topic in this event-loop step, before any other write."""
        append = self._command(topic, command)
        try:
            return self._append(append, self._limits.timeout_ms)
        except Exception as error:
            refused: asyncio.Future[AppendOutcome] = asyncio.get_running_loop().create_future()
            refused.set_exception(error)
            return refused

    def records(
        self,
        topic: str,
        queue_id: int,
        messages: Sequence[OutgoingMessage],
        *,
        born_host: Host,
        is_moved: bool = False,
        own: BrokerFields = NO_FIELDS,
    ) -> QueuedRecords:
        """Build the records of messages for a queue.

        `is_moved`: the messages were already accepted once, perhaps under larger limits. `own`: see
        RecordBatch. Raises the errors of RecordBatch.
        """
        if not messages:
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, "a batch needs at least one message")
        batch = RecordBatch(
            topic,
            queue_id,
            messages,
            born_host=born_host,
            store_host=self._store_host,
            now_ms=self._log.cluster_time_ms(),
            max_body_bytes=self._limits.max_command_bytes if is_moved else self._limits.max_body_bytes,
            own=own,
        )
        return QueuedRecords(topic, queue_id, batch)

    @property
    def steps_ms(self) -> int:
        """Return the sum of the steps of cluster time so far."""
        return self._log.steps_ms

    async def put_status_of_all(self, timeout_ms: int) -> Status | None:
        """Return the put status of the whole log. See `AppendLog.put_status_of_all`."""
        return await self._log.put_status_of_all(timeout_ms)

    async def put_together(
        self,
        queued: Sequence[QueuedRecords],
        command_topic: str,
        commands: Sequence[LateCommand],
        *,
        timeout_ms: int = 0,
    ) -> AppendedBatch:
        """Append batches for any queues and commands of a reserved topic, all or none, and wait for the
        commit.

        The caller must have checked `topics.refusal` in the same step.

        Raises PutRefused, NotMaster, Busy or IllegalMessage if nothing was stored, and PutIndeterminate if
        the outcome is unknown.
        """
        overhead = self._command_overhead(command_topic) if commands else 0
        records = [self._late_record(command_topic, overhead, command) for command in commands]
        append = _Append(queued, records)
        outcome = await self._committed(append, timeout_ms or self._limits.timeout_ms)
        put_status = self._log.put_status(outcome)
        if not queued:
            return AppendedBatch((), put_status)
        firsts = accumulate((len(one.batch) for one in queued[:-1]), initial=0)
        places = [
            StoredAt(
                offset,
                append.physical_offsets[first],
                append.indexes[first] if outcome.index >= 0 else -1,
                outcome.term,
                append.physical_offsets[first : first + len(one.batch)],
            )
            for one, offset, first in zip(queued, append.firsts, firsts, strict=True)
        ]
        return AppendedBatch(places, put_status)

    def _late_record(self, topic: str, overhead: int, command: LateCommand) -> _CommandRecord:
        def batch(firsts: Sequence[int], steps_ms: int) -> RecordBatch:
            return self._command_batch(topic, command.body(firsts, steps_ms))

        return _CommandRecord(overhead + command.size, batch)

    def _command_overhead(self, topic: str) -> int:
        """Return the overhead of a command's record in bytes."""
        found = self._command_overheads.get(topic)
        if found is None:
            found = self._command_overheads[topic] = self._command_batch(topic, b"").sizes[0]
        return found

    def _command(self, topic: str, command: bytes, appended: Callable[[int], None] | None = None) -> _Append:
        batch = self._command_batch(topic, command)
        return _Append((), [_CommandRecord(batch.sizes[0], lambda _, __: batch)], appended)

    def _command_batch(self, topic: str, command: bytes) -> RecordBatch:
        return RecordBatch(
            topic,
            0,
            [OutgoingMessage(command)],
            born_host=self._store_host,
            store_host=self._store_host,
            now_ms=self._log.cluster_time_ms(),
            max_body_bytes=self._limits.max_command_bytes,
            own=BrokerFields(self._log.command_sys_flag),
        )

    async def _committed(self, append: _Append, timeout_ms: int) -> AppendOutcome:
        try:
            # A waiter may be canceled; the append may not.
            return await asyncio.shield(self._append(append, timeout_ms))
        except DLedgerError as error:
            raise self._as_broker_error(error) from error

    def _append(self, append: _Append, timeout_ms: int) -> asyncio.Future[AppendOutcome]:
        """Append the records in this event-loop step. If this method raises an error, nothing was stored."""
        appended = self._log.append_batch(
            append.sizes,
            partial(self._fill, append),
            expected=self.check_master(),
            timeout=timeout_ms / 1000,
        )
        if append.queued:
            appended.add_done_callback(partial(self._count, append))
        return appended

    def _fill(self, append: _Append, places: Places) -> Sequence[bytes]:
        """Assign queue offsets and build the records, in the event-loop step in which the log accepts
        them.
        """
        indexes, _, offsets, stamp_ms, steps_ms = places
        append.indexes, append.physical_offsets = indexes, offsets
        append.firsts = firsts = []
        next_offsets: dict[tuple[str, int], int] = {}
        records: list[bytes] = []
        for topic, queue_id, batch, expected in append.queued:
            queue = (topic, queue_id)
            first = next_offsets.get(queue, self.table.next_offset(*queue))
            if expected not in (-1, first):
                text = f"the next offset of queue {queue_id} of {topic} is {first}, not {expected}"
                raise PutRefused(Status.IMPORT_OUT_OF_ORDER, text)
            at = len(records)
            records += batch.fill(first, offsets[at : at + len(batch)], stamp_ms)
            next_offsets[queue] = first + len(batch)
            firsts.append(first)
        for command in append.commands:
            at = len(records)
            records += command.batch(firsts, steps_ms).fill(0, offsets[at : at + 1], stamp_ms)
        if append.appended is not None:
            append.appended(indexes[0])
        for topic, queue_id, batch, _ in append.queued:  # nothing can fail from here on
            self.table.reserve(topic, queue_id, len(batch))
        self.last_index = indexes[-1]
        return records

    def _count(self, append: _Append, appended: asyncio.Future[AppendOutcome]) -> None:
        if not appended.cancelled() and appended.exception() is None:
            for topic, _, batch, _ in append.queued:
                self._stored(topic, len(batch), sum(batch.sizes))

    def _as_broker_error(self, error: DLedgerError) -> BrokerError:
        match error:
            case NotLeader():
                return self._not_master()
            case Indeterminate():
                return PutIndeterminate(Status.OUTCOME_UNKNOWN, error.message)
            case Overloaded():
                full = error.code is Code.DISK_FULL
                return Busy(Status.DISK_FULL if full else Status.TOO_MANY_PENDING_BYTES, error.message)
            case InvalidRequest():
                return IllegalMessage(Status.BODY_TOO_LARGE, error.message)
        return PutRefused(Status.SHUTTING_DOWN, error.message)

    def _not_master(self) -> NotMaster:
        error = NotMaster("this broker is not the master", master_address=self._master())
        self._on_refused(error)
        return error
