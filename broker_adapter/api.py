"""Interface between the broker and its endpoints: values and protocols, independent of any transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, TypeVar

T = TypeVar("T")


class BrokerRole(StrEnum):
    """RocketMQ's roles. ASYNC_MASTER is the master of a log with ASYNC_FLUSH."""

    SLAVE = "SLAVE"
    SYNC_MASTER = "SYNC_MASTER"
    ASYNC_MASTER = "ASYNC_MASTER"


class BrokerInfo(NamedTuple):
    """The current role and addresses of a broker, for clients that search for the master."""

    cluster: str
    broker_name: str  # shared by all brokers on one log
    broker_id: int  # 0: the master
    role: BrokerRole
    term: int
    role_epoch: int
    node_id: str
    address: str  # host:port at which clients reach this broker
    master_address: str | None  # the master known to this broker


class OutgoingMessage(NamedTuple):
    """A message from a producer. `properties` include TAGS, KEYS and UNIQ_KEY, if set."""

    body: bytes
    properties: Mapping[str, str] = {}
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0  # ms since 1970; 0: the broker's time
    # identifies a send, together with other fields; not stored. Empty for RocketMQ 5 clients
    producer_group: str = ""


class GetMessageStatus(StrEnum):
    FOUND = "FOUND"
    NO_NEW_MESSAGE = "NO_NEW_MESSAGE"  # the end of the queue was reached, and the wait has ended
    # there were messages, none with a matching tag: continue at next_offset
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"  # outside the queue: next_offset is the nearest valid offset


class GetMessageResult(NamedTuple):
    status: GetMessageStatus
    next_offset: int
    min_offset: int
    max_offset: int  # the offset after the last message
    records: Sequence[bytes] = ()  # message records (`broker_adapter.wire.message`), in queue order


class QueueOffset(NamedTuple):
    topic: str
    queue_id: int
    offset: int


#: Message types of a topic.
MESSAGE_TYPES = ("", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "PRIORITY")


#: Permission bits of a topic, with RocketMQ's values.
PERM_WRITE, PERM_READ = 2, 4
#: The topic may serve as a template for automatic creation.
PERM_INHERIT = 1
#: Template name that stands for the broker's default settings.
DEFAULT_TOPIC = "TBW102"


class DefaultTopic(NamedTuple):
    """Template for the automatic creation of a topic.

    `queues`: maximum number of queues; 0: use the number of queues of the template.
    """

    name: str = DEFAULT_TOPIC
    queues: int = 0


class TopicConfig(NamedTuple):
    name: str
    read_queues: int = 4
    write_queues: int = 4
    perm: int = PERM_READ | PERM_WRITE
    sys_flag: int = 0
    order: bool = False
    message_type: str = ""  # RocketMQ's attribute message.type, one of MESSAGE_TYPES; "" permits all
    auto_created: bool = False  # created on first use, not changed by an administrator since; expires
    attributes: tuple[
        tuple[str, str], ...
    ] = ()  # RocketMQ's other attributes, sorted by name; no effect here

    @property
    def is_readable(self) -> bool:
        return bool(self.perm & PERM_READ)

    @property
    def is_writable(self) -> bool:
        return bool(self.perm & PERM_WRITE)

    def to_fields(self) -> dict[str, Any]:
        """Return the fields that clients and NameServers receive. `auto_created` is internal to the
        broker.
        """
        fields = self._asdict()
        del fields["auto_created"]
        return {**fields, "attributes": dict(self.attributes)}


class GroupConfig(NamedTuple):
    """A subscription group, with the fields of RocketMQ's SubscriptionGroupConfig that the broker uses."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queues: int = 1
    retry_max_times: int = 16
    # deliver further messages of a queue only after the delivered ones are acknowledged
    consume_orderly: bool = False
    auto_created: bool = False  # created on first use, not changed by an administrator since; expires
    attributes: tuple[tuple[str, str], ...] = ()  # RocketMQ's attributes, sorted by name; no effect here

    def to_fields(self) -> dict[str, Any]:
        """Return the fields that clients receive. `auto_created` is internal to the broker."""
        fields = self._asdict()
        del fields["auto_created"]
        return {**fields, "attributes": dict(self.attributes)}


class QueueStats(NamedTuple):
    """Statistics of a queue.

    `initial_offset`: offset of the first message in the queue since the creation of its topic, even if that
    message no longer exists. None if the queue was imported without its first messages. Clients do not
    receive this field.
    """

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    last_update_ms: int  # store timestamp of the newest message, 0 if there is none
    initial_offset: int | None = 0

    def to_fields(self) -> dict[str, Any]:
        """Return the fields that clients receive."""
        fields = self._asdict()
        del fields["initial_offset"]
        return fields


class ImportApi(Protocol):
    """Import of messages from another broker, with their queue offsets.

    All methods require the master and raise BrokerErrors.
    """

    async def begin_queue(self, topic: str, queue_id: int, offset: int) -> None:
        """Set the offset of the first message of a new queue. Idempotent.

        Raises TopicRefused (QUEUE_NOT_NEW) if the queue already ends at another offset.
        """

    async def store(self, records: bytes) -> int:
        """Store concatenated message records of any queues, with their queue offsets.

        Only their physical offsets change. Stores all records or none. Returns the number of committed
        records.

        Raises StoredDataDamaged or IllegalMessage for an invalid record, PutRefused (IMPORT_OUT_OF_ORDER) if
        a record does not have the next offset of its queue.
        """

    async def read_queue(self, topic: str, queue_id: int, offset: int) -> GetMessageResult:
        """Read some messages starting at an offset, regardless of the topic's permissions. Offset -1 reads
        the last message.

        Messages stored before the call are visible to it. Raises TopicRefused (TOPIC_UNKNOWN) or ReadFailed.
        """


class BrokerApi(Protocol):
    """Operations of a broker. Writes and group calls require the master. All raise
    `broker_adapter.errors.BrokerError`s.
    """

    def info(self) -> BrokerInfo: ...

    async def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        max_messages: int = 32,
        max_bytes: int = 1 << 20,
        tags: Sequence[str] = (),
        wait_ms: int = 0,
        group: str = "",
        client_id: str = "",
        remote: str = "",
    ) -> GetMessageResult:
        """Return messages starting at an offset. If there are none, wait up to `wait_ms` for one.

        If any message is available, returns at least one, whatever its size. `tags`: return only messages
        with one of these tags. `remote`: host:port of the client, for fair scheduling. `client_id`: the
        client's id as a member of the group. The first pull of a member at an offset from before a reset
        returns OFFSET_ILLEGAL with the new offset, or no messages if the client has been notified of it.
        """

    async def message_at(self, physical_offset: int, *, remote: str = "") -> bytes:
        """Return the record at a CommitLog offset.

        For `remote`, see `pull`; this also applies to the other methods.
        """

    async def query(
        self, topic: str, key: str, *, begin_ms: int, end_ms: int, max_messages: int, remote: str = ""
    ) -> list[bytes]:
        """Return the topic's records with this key (or UNIQ_KEY) stored between the times, newest first."""

    async def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, *, is_upper: bool = False, remote: str = ""
    ) -> int:
        """Return the offset of the first message stored at or after this time, or max_offset if there is
        none.

        `is_upper`: return the offset of the last message stored at or before this time, or min_offset if
        there is none. Like `read` and the statistics, this needs no read permission.
        """

    async def read(
        self, topic: str, queue_id: int, offset: int, *, max_messages: int = 1, remote: str = ""
    ) -> list[bytes]:
        """Return stored messages from an offset on, whatever the permissions of the topic. Never waits."""

    async def put_topic(self, config: TopicConfig) -> None:
        """Create the topic, or replace its complete config."""

    async def change_topic(
        self, name: str, change: Callable[[TopicConfig | None], TopicConfig], *, is_forced: bool = False
    ) -> None:
        """Replace the topic's config with the result of `change`, which receives the current config or None.

        Changes of a topic are serialized, so that no change overwrites another. Raises TopicRefused
        (QUEUES_NOT_EMPTY) if the change would hide stored messages, unless `is_forced`.
        """

    async def delete_topic(self, name: str) -> None: ...

    def topics(self) -> list[TopicConfig]:
        """Return all topics, in no particular order."""

    async def topic_stats(self, topic: str, *, remote: str = "") -> list[QueueStats]:
        """Return the statistics of every queue, including all messages acknowledged before the call."""

    async def queue_stats(self, topic: str, queue_id: int, *, remote: str = "") -> QueueStats:
        """Return the statistics of one queue. Linearizable. Raises TopicRefused (QUEUE_UNKNOWN)."""

    async def put_group(self, config: GroupConfig) -> None:
        """Create the group, or replace its complete config."""

    async def change_group(self, name: str, change: Callable[[GroupConfig | None], GroupConfig]) -> None:
        """Change a group, like `change_topic`."""

    async def delete_group(self, name: str, *, keeps_offsets: bool = False) -> None:
        """Delete a group. Raises GroupRefused (GROUP_UNKNOWN).

        `keeps_offsets`: keep its offsets for a later group with the same name.
        """

    def groups(self) -> list[GroupConfig]:
        """Return all groups, in no particular order."""

    async def commit_offsets(
        self, group: str, offsets: Sequence[QueueOffset], *, client_id: str = ""
    ) -> None:
        """Commit offsets, and return once they are committed in the log.

        `client_id`: id of the committing member, else "". Offsets that a connected member reached before a
        reset have no effect and raise GroupRefused (GENERATION_STALE).
        """

    async def offsets(self, group: str, *, remote: str = "") -> list[QueueOffset]:
        """Return the group's committed offsets. Linearizable."""

    async def all_offsets(self) -> dict[str, list[QueueOffset]]:
        """Return the offsets of all groups. Linearizable as a whole; does not count as a use
        of the groups.
        """

    def pulled_offset(self, group: str, topic: str, queue_id: int) -> int:
        """Return the offset up to which the group has pulled, or -1 if it does not pull from the queue.

        This may be more than the committed offset. The difference is the number of messages that members have
        received and not yet confirmed.
        """

    def system_offsets(self) -> Mapping[tuple[str, int], int]:
        """Return the broker's own progress in its internal queues, by topic and queue id."""

    async def offset(
        self, group: str, topic: str, queue_id: int, *, client_id: str = "", remote: str = ""
    ) -> int | None:
        """Return the group's offset in one queue; None if the group has none. Linearizable.

        Cheaper than `offsets` for a group with thousands of offsets. `client_id` and `remote`: as for `pull`;
        the client continues at this offset.
        """

    async def filter(self, work: Callable[[], T], remote: str) -> T:
        """Evaluate a client's filter expression by running `work`. `remote`: host:port of the client."""

    async def groups_of(self, topic: str) -> list[str]:
        """Return the names of the groups with offsets in this topic, sorted. Linearizable."""

    async def reset_offsets(
        self, group: str, offsets: Sequence[QueueOffset], *, is_import: bool = False
    ) -> int:
        """Set offsets, forward or backward. Returns the index of the reset in the log.

        Later commits of offsets that members reached before the reset have no effect. `is_import`: the
        offsets are an import from another cluster, and commits are not restricted.
        """
