"""What a broker does for whoever serves it to clients: values and one protocol, no transport in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from broker_adapter.errors import Status

T = TypeVar("T")


class BrokerRole(StrEnum):
    """RocketMQ's. ASYNC_MASTER is a master of a log with ASYNC_FLUSH."""

    SLAVE = "SLAVE"
    SYNC_MASTER = "SYNC_MASTER"
    ASYNC_MASTER = "ASYNC_MASTER"


class BrokerInfo(NamedTuple):
    """What a broker is at the moment, for clients that look for the master."""

    cluster: str
    broker_name: str  # of all brokers on one log
    broker_id: int  # 0: the master
    role: BrokerRole
    term: int
    role_epoch: int
    node_id: str
    address: str  # host:port, where clients reach this broker
    master_address: str | None  # the master this broker believes in


class OutgoingMessage(NamedTuple):
    """A message as a producer hands it in; `properties` include TAGS, KEYS and UNIQ_KEY, if any."""

    body: bytes
    properties: Mapping[str, str] = {}
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0  # ms since 1970; 0: the broker's time


#: Without a call of a Python function for each.
_message_of: Callable[[Iterable[object]], OutgoingMessage] = partial(tuple.__new__, OutgoingMessage)


def outgoing_messages(
    rows: Iterable[tuple[bytes, Mapping[str, str], int, int, int]],
) -> list[OutgoingMessage]:
    """One for each row: body, properties, flag, sys_flag, born_timestamp."""
    return list(map(_message_of, rows))


class SendResult(NamedTuple):
    """Where a batch was stored: message i has queue offset `queue_offset + i`. The replicated log has
    committed it."""

    queue_id: int
    queue_offset: int
    physical_offsets: Sequence[int]
    offset_ids: Sequence[str]  # RocketMQ's offsetMsgId, by which a message is found
    term: int
    node_id: str = ""  # of the broker that has stored it
    #: Of the first message's entry in the log; message i is at index + i; -1: not said.
    index: int = -1  # type: ignore[assignment]  # hides tuple.index
    shortfall: Status | None = None  # what the classic log could not do in time; None: it keeps its promise


class PullStatus(StrEnum):
    FOUND = "FOUND"
    NO_NEW_MESSAGE = "NO_NEW_MESSAGE"  # the end of the queue was reached, and the wait was over
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"  # there were some, none with such a tag: go on at next_offset
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"  # outside of the queue: next_offset is the nearest one inside


class PullResult(NamedTuple):
    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int  # one behind the last message
    records: Sequence[
        bytes
    ] = ()  # message records (`broker_adapter.format.message`), in the order of the queue


class QueueOffset(NamedTuple):
    topic: str
    queue_id: int
    offset: int


class Assignment(NamedTuple):
    """What a member of a group may consume, under which generation."""

    generation: int
    queues: Sequence[tuple[str, int]]  # (topic, queue id)
    members: int
    heartbeat_ms: int  # come back at least so often


#: What the messages of a topic may be.
MESSAGE_TYPES = ("", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "PRIORITY")


#: Bits of the permissions of a topic, as RocketMQ has them.
PERM_WRITE, PERM_READ = 2, 4


class TopicConfig(NamedTuple):
    name: str
    read_queues: int = 4
    write_queues: int = 4
    perm: int = PERM_READ | PERM_WRITE
    sys_flag: int = 0
    order: bool = False
    message_type: str = ""  # RocketMQ's attribute message.type, one of MESSAGE_TYPES; "" takes all
    auto_created: bool = False  # because a client used it: it expires. No admin has put it since

    @property
    def is_readable(self) -> bool:
        return bool(self.perm & PERM_READ)

    @property
    def is_writable(self) -> bool:
        return bool(self.perm & PERM_WRITE)

    def told(self) -> dict[str, Any]:
        """What clients and NameServers are told, by name: `auto_created` is the broker's own affair."""
        found = self._asdict()
        del found["auto_created"]
        return found


class GroupConfig(NamedTuple):
    """A subscription group (RocketMQ's SubscriptionGroupConfig, as far as it is used)."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queues: int = 1
    retry_max_times: int = 16
    consume_orderly: bool = False  # what is received of a queue is done before more of it is given
    auto_created: bool = False  # because a client used it: it expires. No admin has put it since

    def told(self) -> dict[str, Any]:
        """What clients are told, by name: `auto_created` is the broker's own affair."""
        found = self._asdict()
        del found["auto_created"]
        return found


class QueueStats(NamedTuple):
    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    last_update_ms: int  # store timestamp of the newest message, 0 without one


class ImportApi(Protocol):
    """What comes from another broker, with its queue offsets. Needs the master; BrokerErrors."""

    async def begin_queue(self, topic: str, queue_id: int, offset: int) -> None:
        """The first message of a new queue gets this offset. Repeatable. TopicRefused (QUEUE_NOT_NEW)."""

    async def store(self, records: bytes) -> int:
        """Message records one behind the other, of any queues, with their queue offsets: nothing of them
        changes but the physical offset. All or none. Returns how many there were, committed.

        StoredDataDamaged or IllegalMessage for what is no such record, PutRefused (IMPORT_OUT_OF_ORDER) if
        one does not have the next offset of its queue."""

    async def read_queue(self, topic: str, queue_id: int, offset: int) -> PullResult:
        """Some messages from an offset on, whatever the topic permits; -1: the last one. All that was stored
        before is seen. TopicRefused (TOPIC_UNKNOWN); ReadFailed."""


class BrokerApi(Protocol):
    """Everything raises `broker_adapter.errors.BrokerError`s. Writes and group calls need the master."""

    def info(self) -> BrokerInfo: ...

    async def send(
        self,
        topic: str,
        messages: Sequence[OutgoingMessage],
        *,
        queue_id: int = -1,
        born_host: str = "",
        timeout_ms: int = 0,
    ) -> SendResult:
        """Store a batch in one queue (-1: the broker chooses), all or none of it, committed on return."""

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
        remote: str = "",
    ) -> PullResult:
        """Messages from an offset on; with `wait_ms`, wait so long for one. At least one message is returned
        if there is one, however large. `tags`: only messages with one of these. `remote`: host:port of the
        client, which takes turns with others."""

    async def message_at(self, physical_offset: int, *, remote: str = "") -> bytes:
        """The record at a commit-log offset. `remote`, here and below: as for `pull`."""

    async def query(
        self, topic: str, key: str, *, begin_ms: int, end_ms: int, max_messages: int, remote: str = ""
    ) -> list[bytes]:
        """Records of a topic with this key (or UNIQ_KEY), stored between the times, the newest first."""

    async def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, remote: str = "") -> int:
        """The offset of the first message stored at this time or later; max_offset if there is none."""

    async def put_topic(self, config: TopicConfig) -> None: ...

    async def delete_topic(self, name: str) -> None: ...

    def topics(self) -> list[TopicConfig]:
        """In no order."""

    async def topic_stats(self, topic: str, *, remote: str = "") -> list[QueueStats]:
        """Of every queue. Linearizable: what was acknowledged before the call is counted."""

    async def queue_stats(self, topic: str, queue_id: int, *, remote: str = "") -> QueueStats:
        """Likewise of one. TopicRefused (QUEUE_UNKNOWN)."""

    async def put_group(self, config: GroupConfig) -> None: ...

    async def delete_group(self, name: str) -> None: ...

    def groups(self) -> list[GroupConfig]:
        """In no order."""

    async def commit_offsets(self, group: str, generation: int, offsets: Sequence[QueueOffset]) -> None:
        """Committed in the log on return. A generation that is not the group's newest is refused; -1 is for
        consumers that assign queues to themselves, in groups that have no members."""

    async def offsets(self, group: str, *, remote: str = "") -> tuple[int, list[QueueOffset]]:
        """(generation, the offsets that the group has committed). Linearizable."""

    async def all_offsets(self) -> dict[str, list[QueueOffset]]:
        """Those of all groups, which are not used by this. Linearizable, once for all."""

    def system_offsets(self) -> Mapping[tuple[str, int], int]:
        """How far the broker itself has come in queues of its own, by topic and queue id."""

    async def offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Likewise of one queue: groups may have offsets in thousands. None: it has none there."""

    async def filter(self, work: Callable[[], T], remote: str) -> T:
        """Do what evaluates a client's filter expression. `remote`: its host:port."""

    async def groups_of(self, topic: str) -> list[str]:
        """Those that have offsets in this topic, by name. Linearizable."""

    async def reset_offsets(self, group: str, offsets: Sequence[QueueOffset]) -> int:
        """Set offsets, backwards too. Begins a new generation, which is returned."""

    async def join(self, group: str, member_id: str, topics: Sequence[str], lease_ms: int) -> Assignment:
        """Become or stay a member; the answer is the newest assignment. Also the heartbeat."""

    async def leave(self, group: str, member_id: str) -> None: ...
