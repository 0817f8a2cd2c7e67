"""What the delivery of single messages offers to whoever serves it to clients: values and one protocol.

RocketMQ calls consuming so "POP": a consumer is given messages for a time, in which nobody else of its group
gets them, and acknowledges each of them. Times are ms of cluster time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from broker_adapter.api import OutgoingMessage, TopicConfig
from broker_adapter.errors import Status

#: Whether a message with these properties (TAGS among them) is wanted. Called on a reader's thread.
Matcher = Callable[[Mapping[str, str]], bool]


class Sent(NamedTuple):
    """Where a message is stored, committed. `is_repeated`: it was already, under the same message id.
    `physical_offset`: in the CommitLog; `log_index`, `term`: of its entry; -1: not said."""

    queue_id: int
    queue_offset: int
    is_repeated: bool = False
    physical_offset: int = -1
    log_index: int = -1
    term: int = -1
    shortfall: Status | None = None  # as in SendResult


class Delayed(NamedTuple):
    """A message that waits for its time; `recall_handle` takes it back."""

    recall_handle: str  # "": it cannot be
    is_repeated: bool = False
    shortfall: Status | None = None  # as in SendResult


class Half(NamedTuple):
    """A message that waits for the end of its transaction."""

    transaction_id: str
    is_repeated: bool = False
    queue_offset: int = 0  # among the half messages, if the log keeps them in a queue
    physical_offset: int = 0
    shortfall: Status | None = None  # as in SendResult


class Delivery(NamedTuple):
    """A message given to a consumer until `invisible_until_ms`; `handle` acknowledges it so long."""

    record: bytes  # as in the log: `broker_adapter.format.message`
    queue_id: int
    queue_offset: int
    attempt: int  # from 1 on
    handle: str
    invisible_until_ms: int
    is_renewed: bool = False  # while its client is heard of, once it is known to have reached it
    is_repeated: bool = False  # the call had got it before


#: Steps that one look at a queue, or one pull, may take: some tenths of a second of a reader thread.
MAX_FILTER_STEPS = 400_000


class Filter(NamedTuple):
    """`tags`: only messages with one of these, empty: all. `matches`: and only those it says yes to, which
    takes up to `steps` for each KiB of a message."""

    tags: frozenset[str] = frozenset()
    matches: Matcher | None = None
    steps: int = 1

    def work(self, record: bytes) -> int:
        """Steps that looking at a record may take."""
        return 0 if self.matches is None else self.steps * (1 + (len(record) >> 10))


class Peeked(NamedTuple):
    """A message that would be given, and was not."""

    record: bytes  # as `Delivery.record`
    attempts: int  # how often it was given before


class Resolution(StrEnum):
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    UNKNOWN = "UNKNOWN"  # asked again later


class AckStatus(StrEnum):
    OK = "OK"
    INVALID_HANDLE = "INVALID_HANDLE"  # unreadable, over, replaced by a newer one, or acknowledged before


class OrphanedHalf(NamedTuple):
    """A half message whose producer has to be asked."""

    topic: str
    transaction_id: str
    client_id: str  # that sent it
    record: bytes  # as `Delivery.record`
    checks: int  # this one included


class DeliveryApi(Protocol):
    """Served by the master only: NotMaster otherwise, before anything was changed. BrokerErrors; what was not
    known to have happened is a PutIndeterminate. Topics and groups are created as the settings allow."""

    async def send(
        self,
        topic: str,
        message: OutgoingMessage,
        *,
        message_id: str,
        queue_id: int = -1,
        born_host: str = "",
        timeout_ms: int = 0,
        config: TopicConfig | None = None,
    ) -> Sent:
        """Store a message once. A duplicate (same topic and message id, within the window that the state
        keeps) is answered as the first one was, when that is committed. -1: any queue. Concurrent sends share
        one append to the log. `message_id` becomes the property UNIQ_KEY; empty: no such check.
        `config`: the topic, by who has waited for it in this step (`Directory.ensure_topic`), and keeps the
        place that he had among all who did; None: it is waited for, and may come into being."""

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
    ) -> Delayed:
        """Store a message that comes into its queue at a time of the wall clock, exactly once, and with its
        own message id.
        `level`: RocketMQ's delay level, by which a log may keep it instead; 0: none.
        IllegalMessage if that is further away than the settings allow."""

    async def recall(self, topic: str, recall_handle: str) -> str:
        """Take a delayed message back: its message id. ReadFailed if there is none any more."""

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
    ) -> Half:
        """Store a message that nobody sees until `end_transaction` commits it. 0: the settings' time."""

    async def end_transaction(self, topic: str, transaction_id: str, resolution: Resolution) -> None:
        """COMMIT brings the message into its queue exactly once, ROLLBACK forgets it. Idempotent as long as
        the end is remembered. ReadFailed (TRANSACTION_UNKNOWN) for an id nobody knows."""

    def on_orphan(self, ask: Callable[[OrphanedHalf], None]) -> None:
        """`ask` is called on the event loop, on the master, when a half message is due for a check."""

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
        remote: str = "",
    ) -> list[Delivery]:
        """Messages of any queue of the topic, invisible to others; empty after `wait_ms` without one.

        What does not match is passed over for this group. `invisible_ms` 0: the settings' time, renewed as
        long as the client is heard of, once `passed_on` says that it has got it. In a group with
        `consume_orderly` nothing more of a queue is given while something of it is invisible. `attempt_id`:
        repeated, the same messages are given again. Messages given as often as the group's retry_max_times
        + 1 go to the group's dead letter topic instead. `remote`: host:port of the client ("":
        not known), what limits go by."""

    def passed_on(self, group: str, topic: str, deliveries: Sequence[Delivery]) -> None:
        """What `receive` gave has reached the client: from now on what is to be renewed is."""

    def give_back(self, group: str, topic: str, deliveries: Sequence[Delivery]) -> None:
        """What `receive` gave could not be passed on to the client: it is visible again soon, and it was no
        attempt. What neither this nor `passed_on` is called for is visible again when its time is over."""

    async def ack(
        self, group: str, topic: str, handles: Sequence[str], *, timeout_ms: int = 0
    ) -> list[AckStatus]:
        """The messages are done with, for ever, once this returns. Concurrent acks share one append.
        `timeout_ms`: no longer than this, and than the settings' time; 0: that."""

    async def change_invisible(self, group: str, topic: str, handle: str, invisible_ms: int) -> str:
        """Another time from now on, and a new handle; the old one is over. ReadFailed (HANDLE_INVALID)."""

    async def dead_letter(self, group: str, topic: str, handle: str) -> None:
        """Move a message to `%DLQ%group`, atomically. ReadFailed (HANDLE_INVALID)."""

    def heard_of(self, client_id: str, group: str = "") -> None:
        """A client lives; what it holds (of the group) with invisible_ms 0 is renewed for a while."""

    async def release(self, client_id: str, group: str = "") -> None:
        """A client went: what it holds (of the group) becomes visible soon."""


class PeekApi(Protocol):
    """What would be given to a group, and who waits for it. Served by the master only, as `DeliveryApi`.
    GroupRefused (GROUP_UNKNOWN): none comes into being by this."""

    async def peek(
        self, group: str, topic: str, *, queue_id: int, max_messages: int, remote: str = ""
    ) -> list[Peeked]:
        """Of a queue, or of all (-1), without giving it to anybody. TopicRefused (QUEUE_UNKNOWN)."""

    async def wait_for_message(self, group: str, topic: str, *, wait_ms: int, remote: str = "") -> bool:
        """Whether a receive would be given something, now or within `wait_ms`; filters are not looked at.
        ReadFailed (TOO_MANY_HELD_PULLS)."""

    def waiting_receives(self, group: str, topic: str) -> int:
        """How many receives wait for messages of a topic, these of `wait_for_message` included."""

    def newest_pop(self, group: str, topic: str, queue_id: int, offset: int) -> int | None:
        """The number of the pop under which a message is pending."""
