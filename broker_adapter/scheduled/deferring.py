"""Interfaces of the stores for delayed messages and half messages. There is one implementation per format."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from broker_adapter.api import OutgoingMessage, TopicConfig
from broker_adapter.config.settings import DeliverySettings
from broker_adapter.delivery_state.commands import Defer
from broker_adapter.delivery_state.handles import deferred_handle
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.errors import ReadFailed, Status
from broker_adapter.put.committer import Committer
from broker_adapter.put.message_writer import MessageWriter
from broker_adapter.put.sender import Sender
from broker_adapter.store.queue_reader import QueueFiles, QueueReader
from broker_adapter.wire.host import Host
from broker_adapter.wire.message import MessageRecord, encode
from broker_adapter.wire.properties import PRODUCER_GROUP, text_of


class StoredDelayed(NamedTuple):
    """A stored delayed message. `recall_handle` cancels it."""

    recall_handle: str  # "": cannot be recalled
    is_repeated: bool = False
    put_status: Status | None = None  # as in `PutResult`


class StoredHalf(NamedTuple):
    """A stored half message of an open transaction."""

    transaction_id: str
    is_repeated: bool = False
    queue_offset: int = 0  # in the queue of half messages, if there is one
    physical_offset: int = 0  # in the log; without a queue of half messages, the number of the half
    put_status: Status | None = None  # as in `PutResult`


class HalfName(NamedTuple):
    """Topic and id of a half message. They are the arguments of `end_transaction`."""

    topic: str
    transaction_id: str


class Resolution(StrEnum):
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    UNKNOWN = "UNKNOWN"  # the broker checks the producer again later


class OrphanedHalf(NamedTuple):
    """A half message whose transaction is open and whose producer must be checked."""

    topic: str
    transaction_id: str
    client_id: str  # the client that sent it
    record: bytes  # as in the log: `broker_adapter.wire.message`, with the offsets of `StoredHalf`
    checks: int  # including this check


class DeferRequest(NamedTuple):
    """A message to be stored until it may enter its topic."""

    config: TopicConfig
    message: OutgoingMessage
    message_id: str
    queue_id: int = -1  # destination queue; -1: any
    born_host: str = ""
    timeout_ms: int = 0


class TransactionEnd(NamedTuple):
    """Arguments of `DeliveryApi.end_transaction`."""

    topic: str
    transaction_id: str
    resolution: Resolution
    producer_group: str = ""

    def check_group(self, properties: Mapping[str, str]) -> None:
        """Raise ReadFailed (TRANSACTION_UNKNOWN) if the half with these properties belongs to another group.

        A half message without a group matches every group. So does a half message whose group is named like
        its topic.
        """
        group = properties.get(PRODUCER_GROUP, "")
        if self.producer_group and group not in ("", self.topic, self.producer_group):
            raise self.unknown("belongs to another producer group")

    def unknown(self, problem: str) -> ReadFailed:
        text = f"transaction {self.transaction_id[:64]!r} {problem}"
        return ReadFailed(Status.TRANSACTION_UNKNOWN, text)


class DeferredStore(Protocol):
    """A store for delayed and half messages. Runs on the master's event loop.

    `start` is called when this broker becomes master, and `stop` when it is no longer master. Times are in ms
    of cluster time. The methods raise the errors of `DeliveryApi`.
    """

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def on_orphan(self, check: Callable[[OrphanedHalf], None]) -> None: ...

    async def delay(self, put: DeferRequest, deliver_at_ms: int, level: int) -> StoredDelayed: ...

    async def half(self, put: DeferRequest, client_id: str, check_after_ms: int) -> StoredHalf: ...

    async def recall(self, topic: str, handle: str, timeout_ms: int) -> str: ...

    async def end_transaction(self, end: TransactionEnd, timeout_ms: int) -> None: ...

    async def half_at(self, queue_offset: int, physical_offset: int) -> HalfName | None: ...


class DispatchedQueues(QueueFiles, Protocol):
    """The queues of this node, and how far they are dispatched."""

    async def wait_applied(self, index: int | None = None, timeout: float = 5.0) -> int: ...

    def wait_keys(self, timeout_ms: int) -> None:
        """Wait until `find_keys` finds all messages dispatched so far.

        Call from a reader thread. Raises ReadFailed.
        """


class DeferredStoreParts(NamedTuple):
    """The components of delivery that an implementation of DeferredStore may use."""

    state: DeliveryState
    committer: Committer
    writer: MessageWriter
    sender: Sender
    reader: QueueReader
    files: DispatchedQueues
    make_topic: Callable[[str], Awaitable[object]]  # creates a topic on behalf of the broker
    now_ms: Callable[[], int]  # cluster time
    run: Callable[[Callable[[], Any], str], Awaitable[Any]]  # runs a blocking call on a reader thread
    settings: DeliverySettings


# Creates a store. `own` stores messages in delivery commands, with any kind of log. Other stores use it for
# messages that their format cannot hold.
MakeDeferredStore = Callable[[DeferredStore, DeferredStoreParts], DeferredStore]


def in_commands(own: DeferredStore, parts: DeferredStoreParts) -> DeferredStore:
    return own


def orphaned_half(
    deferred_id: int, defer: Defer, message: OutgoingMessage, host: Host, checks: int
) -> OrphanedHalf:
    """Build the check of a half message. `message` and `host` were restored from `defer`."""
    record = encode(
        MessageRecord(
            defer.topic,
            defer.body,
            text_of(message.properties),
            defer.queue_id,
            defer.flag,
            physical_offset=deferred_id,
            sys_flag=defer.sys_flag,
            born_timestamp=defer.born_ms,
            born_host=host,
            store_timestamp=defer.born_ms,
        )
    )
    transaction_id = deferred_handle(defer.topic, deferred_id)
    return OrphanedHalf(defer.topic, transaction_id, defer.client_id, bytes(record), checks)
