"""The commands that change metadata, and the valid range of each field.

A command is checked twice. `check` checks it before it is proposed, without access to the state. The state
machine checks it when it is applied, in log order. Only the second check decides, and its result is the same
on every node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from broker_adapter.api import MESSAGE_TYPES, GroupConfig, QueueOffset, TopicConfig
from broker_adapter.errors import BrokerError, Status, error_for
from broker_adapter.wire.topic_names import check_group_name, check_topic_name

#: Topic of the messages that carry commands. It has no ConsumeQueue.
METADATA_TOPIC = "DLEDGER_SYS_METADATA"
#: Prefix reserved for topics of the broker itself.
RESERVED_PREFIX = "DLEDGER_SYS_"
#: Generation of a commit outside any generation: all commits since release 0.1.0.
NO_GENERATION = -1

#: Rules version of release 0.1.0, whose logs and images do not record one.
FIRST_RULES_VERSION = 1

# Limits of one command. They are part of the format: changing one requires a new version of the record.
MAX_QUEUES_PER_TOPIC = 1_024
MAX_OFFSETS_PER_COMMAND = 4_096
MAX_LOCKS_PER_COMMAND = 16_384
MAX_MEMBER_ID_LENGTH = 255
MAX_OFFSET = (1 << 63) - 1
#: Maximum start offset of a queue. The queue's first file has space for units below the start.
MAX_QUEUE_BEGIN = 1 << 50
_MAX_INT = (1 << 31) - 1
_MAX_ATTRIBUTES = 16
_MAX_ATTRIBUTE_LENGTH = 255
_MAX_PROGRESS = 1 << 96  # more than the sum of all offsets of a group

_MERGE_ID = re.compile(r"[0-9a-f]{32}\Z")
_MEMBER_ID = re.compile(r"[!-~]+\Z")  # printable ASCII; RocketMQ's ids have the form ip@process#number

#: (topic, queue id), sorted.
Queues = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class PutTopic:
    """Create a topic or replace its config. With `create_only`, an existing topic is not changed.

    A created topic starts without messages, unless `keeps_messages` is set: another broker created the topic,
    and its messages precede this command in the log.
    """

    config: TopicConfig
    create_only: bool = False
    keeps_messages: bool = False


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Remove a topic, and the offsets of all groups in it."""

    topic: str


@dataclass(frozen=True, slots=True)
class PutGroup:
    """Create a group or replace its config. With `create_only`, an existing group is not changed."""

    config: GroupConfig
    create_only: bool = False


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """Remove a group, its offsets and its cursors.

    `keeps_offsets`: retain the offsets for a later group with the same name.
    """

    group: str
    keeps_offsets: bool = False


@dataclass(frozen=True, slots=True)
class ExpireGroup:
    """Remove an automatically created group, if it has no unacknowledged messages and its generation and
    progress (`MetadataState.progress`) are unchanged.
    """

    group: str
    generation: int
    progress: int


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Commit all offsets or none. In each queue the greater offset wins.

    A commit without a generation changes nothing in a queue that was reset after `judged_at`, the index up to
    which the proposer had applied the log when it judged the commit. The barriers of the other queues record
    `client_id`, if it is not empty, as a client that has passed. Only release 0.1.0 wrote commits with a
    generation.
    """

    group: str
    generation: int
    offsets: tuple[QueueOffset, ...]
    client_id: str = ""
    judged_at: int = MAX_OFFSET


@dataclass(frozen=True, slots=True)
class ResetOffsets:
    """Set offsets, forward or backward.

    With barriers, commits that the master judged before the reset have no effect. Offsets copied from another
    cluster are set without barriers, because the consumers are still connected there.
    """

    group: str
    offsets: tuple[QueueOffset, ...]
    has_barriers: bool = True


@dataclass(frozen=True, slots=True)
class EndBarriers:
    """Remove the barriers of a group that were set by resets up to this index."""

    group: str
    up_to: int


@dataclass(frozen=True, slots=True)
class DropOffsets:
    """Remove the group's offsets in these queues (topic, queue id), from which it has consumed nothing."""

    group: str
    queues: Queues


@dataclass(frozen=True, slots=True)
class BeginQueue:
    """Set the first offset of a queue that has never had a message."""

    topic: str
    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class NewGeneration:
    """Set the members of a group. Only release 0.1.0 proposed this; since rules version 3 it is skipped."""

    group: str
    members: frozenset[str]


@dataclass(frozen=True, slots=True)
class SetRulesVersion:
    """Apply all later entries under this rules version (`dledger.RULES_VERSION`)."""

    version: int


@dataclass(frozen=True, slots=True)
class SetMergedTables:
    """Record that the log contains all commands of a merge of another broker's tables.

    `merge_id`: 32 hex digits, which the broker has also stored with the tables.
    """

    merge_id: str


@dataclass(frozen=True, slots=True)
class GrantLocks:
    """Make the client the holder of these queues for the group, replacing any other holder.

    `queues` must be sorted.
    """

    group: str
    client_id: str
    queues: Queues


@dataclass(frozen=True, slots=True)
class ReleaseLocks:
    """Release the given queues that the client holds for the group. `queues` must be sorted."""

    group: str
    client_id: str
    queues: Queues


Command = (
    PutTopic
    | DeleteTopic
    | PutGroup
    | DeleteGroup
    | ExpireGroup
    | CommitOffsets
    | ResetOffsets
    | EndBarriers
    | DropOffsets
    | NewGeneration
    | BeginQueue
    | SetRulesVersion
    | SetMergedTables
    | GrantLocks
    | ReleaseLocks
)


def check(command: Command) -> None:
    """Check that a command may be written to the log.

    Raises IllegalMessage, or TopicRefused for a reserved name.
    """
    match command:
        case PutTopic(config=config):
            _check_topic_config(config)
        case DeleteTopic(topic=topic):
            check_user_topic(topic)
        case PutGroup(config=group_config):
            _check_group_config(group_config)
        case DeleteGroup(group=group):
            check_group_name(group)
        case ExpireGroup(group=group, generation=generation, progress=progress):
            check_group_name(group)
            _check_range("generation", generation, 0, MAX_OFFSET)
            _check_range("progress", progress, 0, _MAX_PROGRESS)
        case CommitOffsets(group=group, generation=generation, offsets=offsets):
            check_group_name(group)
            _check_range("generation", generation, NO_GENERATION, MAX_OFFSET)
            _check_range("judged_at", command.judged_at, -1, MAX_OFFSET)
            if command.client_id:
                check_member_id(command.client_id)
            _check_offsets(offsets)
        case ResetOffsets(group=group, offsets=offsets):
            check_group_name(group)
            _check_offsets(offsets)
        case EndBarriers(group=group, up_to=up_to):
            check_group_name(group)
            _check_range("up_to", up_to, 0, MAX_OFFSET)
        case DropOffsets(group=group, queues=queues):
            check_group_name(group)
            _check_offsets(tuple(QueueOffset(topic, queue_id, 0) for topic, queue_id in queues))
        case NewGeneration(group=group, members=members):
            check_group_name(group)
            for member_id in members:
                check_member_id(member_id)
        case BeginQueue(topic=topic, queue_id=queue_id, offset=offset):
            check_user_topic(topic)
            _check_range("queue id", queue_id, 0, MAX_QUEUES_PER_TOPIC - 1)
            _check_range("offset", offset, 0, MAX_QUEUE_BEGIN)
        case SetRulesVersion(version=version):
            _check_range("rules version", version, FIRST_RULES_VERSION, _MAX_INT)
        case SetMergedTables(merge_id=merge_id):
            check_merge_id(merge_id)
        case (
            GrantLocks(group=group, client_id=client_id, queues=queues)
            | ReleaseLocks(group=group, client_id=client_id, queues=queues)
        ):
            check_lock_holder(group, client_id, queues)


def check_merge_id(merge_id: str) -> None:
    """Raise IllegalMessage (FIELD_OUT_OF_RANGE) if the id is not 32 hex digits."""
    if not _MERGE_ID.match(merge_id):
        raise _out_of_range(f"merge id {merge_id[:64]!r} is not 32 hex digits")


def check_user_topic(name: str) -> None:
    """Check the name of a user's topic.

    Raises IllegalMessage (TOPIC_NAME_INVALID, TOPIC_NAME_TOO_LONG) or TopicRefused (TOPIC_RESERVED).
    """
    check_topic_name(name)
    if name.startswith(RESERVED_PREFIX):
        raise error_for(Status.TOPIC_RESERVED, f"topic {name!r} is reserved for the broker")


def is_member_id(member_id: str) -> bool:
    """Return True if this is a valid member id."""
    return len(member_id) <= MAX_MEMBER_ID_LENGTH and _MEMBER_ID.match(member_id) is not None


def check_member_id(member_id: str) -> None:
    """Raise IllegalMessage (MEMBER_ID_INVALID) if this is not a valid member id."""
    if not is_member_id(member_id):
        raise error_for(
            Status.MEMBER_ID_INVALID,
            f"member id {member_id[:MAX_MEMBER_ID_LENGTH]!r} is invalid: 1 to {MAX_MEMBER_ID_LENGTH} "
            "printable ASCII characters are allowed",
        )


def _check_topic_config(config: TopicConfig) -> None:
    check_user_topic(config.name)
    _check_range("read_queues", config.read_queues, 1, MAX_QUEUES_PER_TOPIC)
    _check_range("write_queues", config.write_queues, 1, MAX_QUEUES_PER_TOPIC)
    _check_range("perm", config.perm, 0, 7)
    _check_range("sys_flag", config.sys_flag, 0, _MAX_INT)
    if config.message_type not in MESSAGE_TYPES:
        known = ", ".join(MESSAGE_TYPES[1:])
        raise _out_of_range(f"message_type {config.message_type[:64]!r} is not one of {known}")
    _check_attributes(config.attributes)


def _check_group_config(config: GroupConfig) -> None:
    check_group_name(config.name)
    _check_range("retry_queues", config.retry_queues, 0, MAX_QUEUES_PER_TOPIC)
    _check_range("retry_max_times", config.retry_max_times, -1, _MAX_INT)
    _check_attributes(config.attributes)


def _check_attributes(attributes: tuple[tuple[str, str], ...]) -> None:
    if len(attributes) > _MAX_ATTRIBUTES:
        raise _out_of_range(f"there are {len(attributes)} attributes; the limit is {_MAX_ATTRIBUTES}")
    if attributes != tuple(sorted(dict(attributes).items())):
        raise _out_of_range("attributes must be unique and sorted by name")
    if any(len(name) + len(value) > _MAX_ATTRIBUTE_LENGTH for name, value in attributes):
        raise _out_of_range(f"an attribute has more than {_MAX_ATTRIBUTE_LENGTH} characters")


def _check_offsets(offsets: tuple[QueueOffset, ...]) -> None:
    if len(offsets) > MAX_OFFSETS_PER_COMMAND:
        text = f"{len(offsets)} offsets in one command, more than {MAX_OFFSETS_PER_COMMAND}"
        raise error_for(Status.TOO_MANY_OFFSETS, text)
    for topic in {offset.topic for offset in offsets}:
        check_user_topic(topic)
    for topic, queue_id, offset in offsets:
        if not 0 <= queue_id < MAX_QUEUES_PER_TOPIC:
            raise error_for(Status.QUEUE_UNKNOWN, f"topic {topic!r} has no queue {queue_id}")
        if not 0 <= offset <= MAX_OFFSET:
            raise error_for(
                Status.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is out of range for queue {queue_id} of topic {topic!r}",
            )


def check_lock_holder(group: str, client_id: str, queues: Iterable[tuple[str, int]]) -> None:
    """Raise IllegalMessage if the client cannot hold locks on these queues. The queues need not exist."""
    check_group_name(group)
    if not 0 < len(client_id) <= MAX_MEMBER_ID_LENGTH:
        length = len(client_id)
        text = f"client id {client_id[:64]!r} has {length} characters, not 1 to {MAX_MEMBER_ID_LENGTH}"
        raise error_for(Status.MEMBER_ID_INVALID, text)
    topics, last = set(), ("", -1)
    for count, queue in enumerate(queues, 1):
        if queue <= last or count > MAX_LOCKS_PER_COMMAND:
            text = f"queues of one command must be unique, sorted and at most {MAX_LOCKS_PER_COMMAND}"
            raise _out_of_range(text)
        topics.add(queue[0])
        _check_range("queue id", queue[1], 0, _MAX_INT)
        last = queue
    for topic in topics:
        check_topic_name(topic)


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise _out_of_range(f"{name} {value} is not between {least} and {most}")


def _out_of_range(problem: str) -> BrokerError:
    return error_for(Status.FIELD_OUT_OF_RANGE, problem)
