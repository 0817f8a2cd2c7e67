"""Messages into the log: only while this broker is master of the leadership that the node has, and with
queue offsets that are taken in the step in which the log takes the messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from broker_adapter import put_gathering
from broker_adapter.api import OutgoingMessage, SendResult
from broker_adapter.errors import (
    BrokerError,
    Busy,
    IllegalMessage,
    NotMaster,
    PutIndeterminate,
    PutRefused,
    Status,
)
from broker_adapter.host import Host
from broker_adapter.message import ENTRY_HEADER_SIZE
from broker_adapter.message_id import OffsetIds
from broker_adapter.put_gathering import Put, PutGathering
from broker_adapter.record_writer import RecordBatch
from broker_adapter.topic_queue_table import TopicQueueTable
from dledger import (
    Assigned,
    Code,
    DLedgerError,
    Indeterminate,
    InvalidRequest,
    NotLeader,
    Overloaded,
)


class AppendPort(put_gathering.AppendPort, Protocol):
    """What of `dledger.NodeServer` a writer needs."""

    def cluster_time_ms(self) -> int: ...


class MessageWriter:
    """`open_for` and `close` are the broker's role; nothing else opens or closes it.

    `master` says where the master is, for those who ask the wrong broker. `max_append_bytes` and
    `max_append_messages`: what comes at once is appended at once up to here; the log's limits of a batch.
    """

    def __init__(
        self,
        node: AppendPort,
        store_host: Host,
        *,
        max_body_bytes: int,
        max_command_bytes: int,
        timeout_ms: int,
        max_append_bytes: int,
        max_append_messages: int,
        master: Callable[[], str | None],
        node_id: str = "",
        on_refused: Callable[[BrokerError], None] = lambda _: None,
    ) -> None:
        """`on_refused`: told of every write that is refused for the role of this broker."""
        self.table = TopicQueueTable()
        self._gathering = PutGathering(
            node,
            self.table,
            self.check_master,
            most_bytes=max_append_bytes,
            most_messages=max_append_messages,
        )
        self._node = node
        self._store_host = store_host
        self._max_body_bytes = max_body_bytes
        self._max_command_bytes = max_command_bytes
        self._timeout_ms = timeout_ms
        self._master = master
        self._node_id = node_id
        self._on_refused = on_refused
        self._expected: tuple[int, int] | None = None
        self._stopping = False

    @property
    def expected(self) -> tuple[int, int] | None:
        """(term, role_epoch) of the mastership; None: writes are refused."""
        return self._expected

    def open_for(self, term: int, role_epoch: int) -> None:
        self._expected = (term, role_epoch)

    def close(self) -> None:
        """From now on every write is refused."""
        self._expected = None

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
        if not messages:
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, "a batch has at least one message")
        batch = RecordBatch(
            topic,
            queue_id,
            messages,
            born_host=born_host,
            store_host=self._store_host,
            now_ms=self._node.cluster_time_ms(),
            max_body_bytes=self._max_body_bytes,
        )
        put = Put(topic, queue_id, batch, timeout_ms or self._timeout_ms)
        try:
            outcome = await self._gathering.add(put)
        except DLedgerError as error:
            raise self._as_broker_error(error) from error
        physical = [pos + ENTRY_HEADER_SIZE for pos in put.positions]
        ids = OffsetIds(self._store_host, physical)
        index = outcome.index + put.place if outcome.index >= 0 else -1
        return SendResult(queue_id, put.first_offset, physical, ids, outcome.term, self._node_id, index)

    async def put_command(self, topic: str, command: bytes) -> int:
        """A record of a reserved topic, which is in no queue. The index of its entry, once committed."""
        expected = self.check_master()
        batch = RecordBatch(
            topic,
            0,
            [OutgoingMessage(command)],
            born_host=self._store_host,
            store_host=self._store_host,
            now_ms=self._node.cluster_time_ms(),
            max_body_bytes=self._max_command_bytes,
        )

        def fill(assigned: Assigned) -> Sequence[bytes]:
            return batch.fill(0, assigned.positions, assigned.stamp_ms)

        try:
            outcome = await self._node.append_batch(
                batch.sizes, fill, expected=expected, timeout_ms=self._timeout_ms
            )
        except DLedgerError as error:
            raise self._as_broker_error(error) from error
        return outcome.index

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
