"""Interface of single-message delivery for the endpoints: values and protocols.

RocketMQ calls this style of consuming "POP": a consumer receives messages, which stay invisible to the other
members of its group for a while, and acknowledges each message. Times are ms of cluster time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import NamedTuple, Protocol

from broker_adapter.api import OutgoingMessage, TopicConfig
from broker_adapter.scheduled.deferring import HalfName, OrphanedHalf, Resolution, StoredDelayed, StoredHalf

#: Returns True if a message with these properties (TAGS among them) matches. Called on a reader thread.
Matcher = Callable[[Mapping[str, str]], bool]


class Delivery(NamedTuple):
    """A message delivered to a consumer. `handle` acknowledges it until `invisible_until_ms`."""

    record: bytes  # as in the log: `broker_adapter.wire.message`
    queue_id: int
    queue_offset: int
    attempt: int  # starts at 1
    handle: str
    invisible_until_ms: int
    is_renewed: bool = False  # the broker renews it while the client is alive
    is_repeated: bool = False  # an earlier call with the same attempt id received it, too


#: Maximum number of filter steps in one pull or in one scan of a queue: some tenths of a second on a reader
#: thread.
MAX_FILTER_STEPS = 400_000


class ReceivedBatch(list[Delivery]):
    """The deliveries of one receive, which count against a shared memory limit until `close`.

    The receiver calls `close` on the event loop once the response is written.
    """

    def __init__(
        self, deliveries: Iterable[Delivery] = (), close: Callable[[], object] | None = None
    ) -> None:
        """`close` releases the memory, and needs a running event loop. It is None if no memory was
        reserved."""
        super().__init__(deliveries)
        self._close = close
        self._loop = None if close is None else asyncio.get_running_loop()

    def close(self) -> None:
        close, self._close = self._close, None
        if close is not None:
            close()

    def __del__(self) -> None:
        """Release the memory of a batch that was never closed, in a later step of its event loop.

        The garbage collector may call this on any thread, even while another function changes the limit.
        """
        if self._close is not None and self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._close)


class Filter(NamedTuple):
    """A message filter.

    `tags`: the message must have one of these tags; an empty set allows all messages. `matches`: a further
    condition. Its evaluation takes up to `steps` steps per KiB of a message.
    """

    tags: frozenset[str] = frozenset()
    matches: Matcher | None = None
    steps: int = 1

    def work(self, record: bytes) -> int:
        """Return the maximum number of steps for filtering a record."""
        return 0 if self.matches is None else self.steps * (1 + (len(record) >> 10))


class PeekedMessage(NamedTuple):
    """A message that a receive would deliver."""

    record: bytes  # see `Delivery.record`
    attempts: int  # number of earlier deliveries


class AckStatus(StrEnum):
    OK = "OK"
    INVALID_HANDLE = "INVALID_HANDLE"  # unreadable, expired, replaced by a newer one, or acknowledged before


class DeliveryApi(Protocol):
    """Delivery of single messages. Only the master serves it; other brokers raise NotMaster.

    Raises BrokerErrors, and PutIndeterminate if the outcome is unknown. Creates topics and groups if the
    settings permit it.
    """

    def now_ms(self) -> int:
        """Return the cluster time, the clock of delays."""

    async def send_delayed(
        self,
        topic: str,
        message: OutgoingMessage,
        *,
        message_id: str,
        deliver_at_ms: int,
        level: int = 0,
        queue_id: int = -1,
        born_host: str = "",
        timeout_ms: int = 0,
        config: TopicConfig | None = None,
    ) -> StoredDelayed:
        """Store a message, exactly once, for delivery at a point in cluster time. It keeps its message id.

        `config`: the topic's config. If it is None, the topic is looked up or created. `level`: RocketMQ's
        delay level, which the classic log stores instead of the time; 0 means that the message has none.
        Raises IllegalMessage if the time exceeds the configured limit.
        """

    async def recall(self, topic: str, recall_handle: str) -> str:
        """Cancel a delayed message and return its message id.

        Raises ReadFailed if the message no longer exists.
        """

    async def send_half(
        self,
        topic: str,
        message: OutgoingMessage,
        *,
        message_id: str,
        client_id: str,
        check_after_ms: int = 0,
        queue_id: int = -1,
        born_host: str = "",
        timeout_ms: int = 0,
        config: TopicConfig | None = None,
    ) -> StoredHalf:
        """Store a half message, which is invisible until `end_transaction` commits it.

        `check_after_ms`: time until the first check; 0 means the configured time.
        """

    async def end_transaction(
        self, topic: str, transaction_id: str, resolution: Resolution, *, producer_group: str = ""
    ) -> None:
        """Commit or roll back a half message.

        COMMIT puts the message into its queue exactly once, ROLLBACK discards it. While the broker remembers
        the outcome, repeated calls have no effect. `producer_group` must be the group of the half message if
        both are known. Raises ReadFailed (TRANSACTION_UNKNOWN) if the id is unknown or the group differs.
        """

    async def half_at(self, queue_offset: int, physical_offset: int) -> HalfName | None:
        """Return the half message with these offsets, as in `StoredHalf`.

        Also returns a half message whose transaction has ended, while the broker remembers it.
        """

    def on_orphan(self, check: Callable[[OrphanedHalf], None]) -> None:
        """Register a function that is called on the master's event loop when a half message is due for a
        check.
        """

    async def receive(
        self,
        group: str,
        topic: str,
        *,
        client_id: str,
        wanted: Filter = Filter(),  # noqa: B008 - immutable
        max_messages: int = 32,
        max_bytes: int = 4 << 20,
        invisible_ms: int = 0,
        wait_ms: int = 0,
        attempt_id: str = "",
        in_order: bool = False,
        remote: str = "",
    ) -> ReceivedBatch:
        """Receive messages from any queue of the topic and hide them from other consumers.

        Returns an empty batch if no message arrives within `wait_ms`. The caller must close the batch.

        The group skips messages that do not match `wanted`. If `invisible_ms` is 0, the default time applies;
        once `passed_on` reports that the messages have reached the client, the broker renews it while the
        client is alive. `attempt_id`: a repeated call with the same id returns the same messages. With
        `in_order`, and in a group with `consume_orderly`, a queue with an invisible message delivers no other
        message. A message that was delivered retry_max_times + 1 times moves to the group's dead letter
        topic. `remote`: host:port of the client, or "" if unknown, for limits.
        """

    def passed_on(self, group: str, topic: str, deliveries: Sequence[Delivery]) -> None:
        """Report that deliveries have reached the client. The broker renews them from now on."""

    def give_back(self, group: str, topic: str, deliveries: Sequence[Delivery]) -> None:
        """Return deliveries that could not be sent to the client. They become visible soon and do not count
        as attempts.

        Deliveries that are reported neither to this method nor to `passed_on` become visible when their
        invisible time ends.
        """

    async def ack(
        self, group: str, topic: str, handles: Sequence[str], *, timeout_ms: int = 0
    ) -> list[AckStatus]:
        """Acknowledge messages permanently. Concurrent calls share one append.

        `timeout_ms`: an additional time limit; the shorter of this and the configured timeout applies. 0
        means no additional limit.
        """

    async def change_invisible(self, group: str, topic: str, handle: str, invisible_ms: int) -> str:
        """Set a new invisible time, counted from now.

        Returns a new handle and invalidates the old one. Raises ReadFailed (HANDLE_INVALID).
        """

    async def dead_letter(self, group: str, topic: str, handle: str) -> None:
        """Move a message to `%DLQ%group` atomically. Raises ReadFailed (HANDLE_INVALID)."""

    def heard_of(self, client_id: str, group: str = "") -> None:
        """Report that a client is alive.

        For a while, the broker renews the client's deliveries with invisible_ms 0, restricted to the group if
        one is given.
        """

    async def release(self, client_id: str, group: str = "") -> None:
        """Report that a client has left.

        Its deliveries become visible soon. If a group is given, only deliveries of the group do.
        """


class PeekApi(Protocol):
    """Queries for the messages that a group would receive, and for its waiting receives. Only the master
    serves it.

    Raises GroupRefused (GROUP_UNKNOWN): these calls do not create groups.
    """

    async def peek(
        self, group: str, topic: str, *, queue_id: int, max_messages: int, remote: str = ""
    ) -> list[PeekedMessage]:
        """Return messages of a queue without delivering them. `queue_id` -1 means all queues.

        Raises TopicRefused (QUEUE_UNKNOWN).
        """

    async def wait_for_message(
        self, group: str, topic: str, *, wait_ms: int, in_order: bool = False, remote: str = ""
    ) -> bool:
        """Return True if a receive would find a message, now or within `wait_ms`, regardless of filters.

        Raises ReadFailed (TOO_MANY_HELD_PULLS).
        """

    def waiting_receives(self, group: str, topic: str) -> int:
        """Return the number of receives waiting for messages of a topic, including calls of
        `wait_for_message`.
        """

    def reset_index(self, group: str, topic: str, queue_id: int) -> int:
        """Return the log index of the last reset of a queue that members may not have applied; -1 if there is
        none.
        """

    def newest_pop(self, group: str, topic: str, queue_id: int, offset: int) -> int | None:
        """Return the number of the pop under which a message is pending, or None if it is not pending."""
