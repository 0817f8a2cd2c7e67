"""Messages into the log: only while this broker is master of the leadership that the node has, and with
queue offsets that are taken in the step in which the log takes the messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

from broker_adapter.api import OutgoingMessage, SendResult, TopicConfig
from broker_adapter.commitlog.put_gathering import CommandRecord, Put, PutGathering, QueuedRecords
from broker_adapter.commitlog.record_writer import NO_FIELDS, BrokerFields, RecordBatch
from broker_adapter.commitlog.topic_queue_table import Arrival, TopicQueueTable
from broker_adapter.errors import (
    BrokerError,
    Busy,
    IllegalMessage,
    NotMaster,
    PutIndeterminate,
    PutRefused,
    Status,
)
from broker_adapter.format.host import Host
from broker_adapter.format.message import record_size
from broker_adapter.format.message_id import OffsetIds
from broker_adapter.log.protocol import AppendLog
from dledger import AppendOutcome, Code, DLedgerError, Indeterminate, InvalidRequest, NotLeader, Overloaded

#: Topics whose turns among their queues are remembered.
_MOST_TURNS = 10_000


class TopicCheck(Protocol):
    """`broker_adapter.metadata.topic_gate.TopicGate`."""

    def begin(self) -> None: ...

    def refusal(self, topic: str, queue_id: int) -> BrokerError | None:
        """Why nothing may be appended for this queue now, if so: asked in the step of the append."""

    def fitting_queue(self, topic: str, queue_id: int) -> int: ...


class AnyTopic:
    """For those who keep no topics."""

    def begin(self) -> None: ...

    def refusal(self, topic: str, queue_id: int) -> BrokerError | None:
        return None

    def fitting_queue(self, topic: str, queue_id: int) -> int:
        return queue_id


class LateCommand(NamedTuple):
    """A command that tells of the messages it is put together with: `body` gets the first queue offset of
    each batch of them, and gives `size` bytes."""

    size: int
    body: Callable[[Sequence[int]], bytes]


class Placed(NamedTuple):
    """Where a record is: in its queue, in the CommitLog, and index and term of its entry (-1: not said)."""

    queue_offset: int
    physical_offset: int
    log_index: int = -1
    term: int = -1


class Together(NamedTuple):
    """What was put in one append: where the first record of each batch is. `shortfall`: what is going to be
    known to be short of it, as of AppendLog; it concerns messages, and no commands."""

    places: Sequence[Placed]
    shortfall: asyncio.Future[Status | None] | None = None


class PutLimits(NamedTuple):
    """Of what is put into the log, by any door. `max_append_bytes` and `max_append_messages`: what comes at
    once is appended at once up to here; the limits of a batch. `timeout_ms`: unless a put has its own."""

    max_body_bytes: int
    max_command_bytes: int
    max_append_bytes: int
    max_append_messages: int
    timeout_ms: int


class MessageWriter:
    """`open_for` and `close` are the broker's role; nothing else opens or closes it.

    `master` says where the master is, for those who ask the wrong broker.
    """

    def __init__(
        self,
        log: AppendLog,
        store_host: Host,
        limits: PutLimits,
        *,
        master: Callable[[], str | None],
        node_id: str = "",
        on_refused: Callable[[BrokerError], None] = lambda _: None,
        topics: TopicCheck | None = None,
        stored: Callable[[str, int, int], None] = lambda topic, messages, size: None,
    ) -> None:
        """`on_refused`: told of every write that is refused for the role of this broker. `stored`: as
        PutGathering has it."""
        #: Called whenever writes are taken, or taken no more.
        self.on_change: Callable[[], None] = lambda: None
        self.table = TopicQueueTable()
        self.topics: TopicCheck = topics or AnyTopic()
        self._gathering = PutGathering(
            log,
            self.table,
            self.check_master,
            self.topics.refusal,
            most_bytes=limits.max_append_bytes,
            most_messages=limits.max_append_messages,
            stored=stored,
        )
        self._log = log
        self._store_host = store_host
        self._limits = limits
        self._master = master
        self._node_id = node_id
        self._on_refused = on_refused
        self._expected: tuple[int, int] | None = None
        self._turns: dict[str, int] = {}  # of topics, among their queues
        self._stopping = False

    @property
    def max_body_bytes(self) -> int:
        return self._limits.max_body_bytes

    @property
    def max_command_bytes(self) -> int:
        return self._limits.max_command_bytes

    @property
    def last_index(self) -> int:
        """Of the last entry that was appended here, committed or not; -1 without one."""
        return self._gathering.last_index

    @property
    def expected(self) -> tuple[int, int] | None:
        """(term, role_epoch) of the mastership; None: writes are refused."""
        return self._expected

    def open_for(self, term: int, role_epoch: int) -> None:
        self.topics.begin()
        self._turns.clear()
        self._expected = (term, role_epoch)
        self.on_change()

    def close(self) -> None:
        """From now on every write is refused."""
        self._expected = None
        self.on_change()

    @property
    def store_host(self) -> Host:
        """Of all records that are stored here."""
        return self._store_host

    def stop(self) -> None:
        self._stopping = True
        self.close()

    def check_master(self) -> tuple[int, int]:
        """The leadership to write under. NotMaster, PutRefused (SHUTTING_DOWN)."""
        if self._stopping:
            raise PutRefused(Status.SHUTTING_DOWN, "this broker is shutting down")
        if self._expected is None:
            raise self._not_master()
        return self._expected

    def arrived(self, arrivals: Iterable[Arrival]) -> list[Arrival]:
        """Queues that have grown beyond what this master gave them: pass them to `skip_to` on the loop. From
        any thread."""
        return [] if self._expected is None else self.table.behind(arrivals)

    def skip_to(self, arrivals: Iterable[Arrival]) -> None:
        """The next messages of these queues come behind what they have: an offset is never used twice."""
        for topic, queue_id, end in arrivals:
            self.table.raise_to(topic, queue_id, end)

    def queue_of(self, config: TopicConfig, queue_id: int) -> int:
        """The queue that is asked for; -1: the next one in turn, whichever door messages come by.
        IllegalMessage."""
        if queue_id == -1:
            if len(self._turns) >= _MOST_TURNS and config.name not in self._turns:
                self._turns.clear()  # those of deleted topics, too: the others begin anew
            turn = self._turns[config.name] = (self._turns.get(config.name, -1) + 1) % config.write_queues
            return turn
        if not 0 <= queue_id < config.write_queues:
            text = f"topic {config.name} has {config.write_queues} queues to write, none is {queue_id}"
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, text)
        return queue_id

    async def put(
        self,
        topic: str,
        queue_id: int,
        messages: Sequence[OutgoingMessage],
        *,
        born_host: Host,
        timeout_ms: int = 0,
    ) -> SendResult:
        """All of the messages in one queue, consecutive and committed, or none of them.

        PutRefused and IllegalMessage: nothing was stored. PutIndeterminate: nobody knows (yet).
        """
        self.check_master()
        queued = self.records(topic, queue_id, messages, born_host=born_host)
        put = Put([queued], timeout_ms=timeout_ms or self._limits.timeout_ms)
        outcome = await self._committed(self._gathering.add(put))
        physical = put.physical_offsets
        ids = OffsetIds(self._store_host, physical)
        index = put.indexes[0] if outcome.index >= 0 else -1
        shortfall = await self._shortfall(outcome)
        first = put.first_offsets[0]
        return SendResult(queue_id, first, physical, ids, outcome.term, self._node_id, index, shortfall)

    async def put_stored(self, queued: Sequence[QueuedRecords]) -> None:
        """Records that another broker has stored, of any queues, all or none. PutRefused
        (IMPORT_OUT_OF_ORDER) if one of them would not get the offset that is expected; else as `put`."""
        self.check_master()
        put = Put(queued, timeout_ms=self._limits.timeout_ms)
        await self._shortfall(await self._committed(self._gathering.append_now(put)))

    async def put_command(
        self, topic: str, command: bytes, appended: Callable[[int], None] | None = None
    ) -> int:
        """A record of a reserved topic, which is in no queue. The index of its entry, once committed;
        `appended` is told it in the step in which the log takes it. What that raises refuses it."""
        self.check_master()
        batch = self._command_batch(topic, command)
        record = CommandRecord(batch.sizes[0], lambda _: batch)
        put = Put((), [record], timeout_ms=self._limits.timeout_ms, appended=appended)
        outcome = await self._committed(self._gathering.append_now(put))
        return put.indexes[0] if outcome.index >= 0 else -1

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
        """The records of messages that are to be put into a queue. `is_moved`: they were taken in when
        more may have been allowed than now. `own`: as RecordBatch has it. IllegalMessage."""
        if not messages:
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, "a batch has at least one message")
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

    async def shortfall_of_all(self, timeout_ms: int) -> Status | None:
        """Of what is in the log: as in SendResult."""
        return await self._log.shortfall_of_all(timeout_ms)

    async def put_together(
        self,
        queued: Sequence[QueuedRecords],
        command_topic: str,
        commands: Sequence[LateCommand],
        *,
        timeout_ms: int = 0,
    ) -> Together:
        """Batches of any queues and, behind them, commands of a reserved topic, all or nothing in one append,
        once it is committed. Errors as those of `put`."""
        self.check_master()
        overhead = record_size(0, len(command_topic), 0, v6_hosts=2 if self._store_host.is_v6 else 0)
        records = [self._late_record(command_topic, overhead, command) for command in commands]
        put = Put(queued, records, timeout_ms=timeout_ms or self._limits.timeout_ms)
        outcome = await self._committed(self._gathering.append_now(put))
        shortfall = self._log.shortfall(outcome)
        if not queued:
            return Together((), shortfall)
        firsts = accumulate((len(one.batch) for one in queued[:-1]), initial=0)
        places = [
            Placed(
                offset,
                put.physical_offsets[first],
                put.indexes[first] if outcome.index >= 0 else -1,
                outcome.term,
            )
            for offset, first in zip(put.first_offsets, firsts, strict=True)
        ]
        return Together(places, shortfall)

    def _late_record(self, topic: str, overhead: int, command: LateCommand) -> CommandRecord:
        def batch(firsts: Sequence[int]) -> RecordBatch:
            return self._command_batch(topic, command.body(firsts))

        return CommandRecord(overhead + command.size, batch)

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

    async def _committed(self, appended: asyncio.Future[AppendOutcome]) -> AppendOutcome:
        try:
            return await appended
        except DLedgerError as error:
            raise self._as_broker_error(error) from error

    async def _shortfall(self, outcome: AppendOutcome) -> Status | None:
        found = self._log.shortfall(outcome)
        try:
            return None if found is None else await asyncio.shield(found)
        except DLedgerError as error:
            raise self._as_broker_error(error) from error

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
