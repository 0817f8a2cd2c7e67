"""The commands that change metadata, and what each of their fields may be.

A command is judged twice: by `check` before it is proposed, alone; and by the state when it is applied, in
the order of the log. Only the second answer counts, and it is the same on every node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from broker_adapter.api import MESSAGE_TYPES, GroupConfig, QueueOffset, TopicConfig
from broker_adapter.errors import BrokerError, Status, error_for
from broker_adapter.format.topic_names import MAX_DERIVED_TOPIC_LENGTH, RETRY_PREFIX, check_topic_name

#: The topic whose messages carry the commands. It appears in no ConsumeQueue.
METADATA_TOPIC = "DLEDGER_SYS_METADATA"
#: No topic of users begins like this.
RESERVED_PREFIX = "DLEDGER_SYS_"
#: The generation that consumers state who assign queues to themselves.
NO_GENERATION = -1

# Limits of one command. They are part of the format: another value needs another version of the record.
MAX_QUEUES_PER_TOPIC = 1_024
MAX_MEMBERS_PER_GROUP = 512
MAX_TOPICS_PER_GROUP = 64  # that the members of a group subscribe to, together
MAX_OFFSETS_PER_COMMAND = 4_096
MAX_MEMBER_ID_LENGTH = 255
#: The group's retry topic needs a name, too.
MAX_GROUP_LENGTH = MAX_DERIVED_TOPIC_LENGTH - len(RETRY_PREFIX)
MAX_OFFSET = (1 << 63) - 1
#: A queue that begins further away is not believed: its units need places in files, too.
MAX_QUEUE_BEGIN = 1 << 50
_MAX_INT = (1 << 31) - 1
_MAX_PROGRESS = 1 << 96  # more than all offsets that a group may have

_GROUP_NAME = re.compile(r"[%|a-zA-Z0-9_-]+\Z")
_MEMBER_ID = re.compile(r"[!-~]+\Z")  # what is visible of ASCII: RocketMQ's are ip@process#number

#: (topic, queue id) of the queues of one member, sorted.
Queues = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class PutTopic:
    """Create a topic, or give it another config. `create_only` leaves an existing one as it is."""

    config: TopicConfig
    create_only: bool = False


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Remove a topic, and with it the offsets that groups have in it."""

    topic: str


@dataclass(frozen=True, slots=True)
class PutGroup:
    """Create a group, or give it another config. `create_only` leaves an existing one as it is."""

    config: GroupConfig
    create_only: bool = False


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """Remove a group and its offsets."""

    group: str


@dataclass(frozen=True, slots=True)
class ExpireGroup:
    """Remove a group that came into being by use, if it has no members, nothing that is not done, and has
    come no further than this (`MetadataState.progress`) in this generation."""

    group: str
    generation: int
    progress: int


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """All of the offsets or none of them; in a queue the greater one wins."""

    group: str
    generation: int
    offsets: tuple[QueueOffset, ...]


@dataclass(frozen=True, slots=True)
class ResetOffsets:
    """Set offsets, backwards too, and begin a new generation with the same members."""

    group: str
    offsets: tuple[QueueOffset, ...]


@dataclass(frozen=True, slots=True)
class BeginQueue:
    """Let a queue in which there never was a message begin at this offset."""

    topic: str
    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class NewGeneration:
    """Who the members of a group are from here on, and which queues each of them has."""

    group: str
    members: Mapping[str, Queues]


Command = (
    PutTopic
    | DeleteTopic
    | PutGroup
    | DeleteGroup
    | ExpireGroup
    | CommitOffsets
    | ResetOffsets
    | NewGeneration
    | BeginQueue
)


def check(command: Command) -> None:
    """Nothing, if such a command may be in the log.

    IllegalMessage if not; TopicRefused for a reserved name, Busy for too many members.
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
            _check_offsets(offsets)
        case ResetOffsets(group=group, offsets=offsets):
            check_group_name(group)
            _check_offsets(offsets)
        case NewGeneration(group=group, members=members):
            check_group_name(group)
            _check_members(members)
        case BeginQueue(topic=topic, queue_id=queue_id, offset=offset):
            check_user_topic(topic)
            _check_range("queue id", queue_id, 0, MAX_QUEUES_PER_TOPIC - 1)
            _check_range("offset", offset, 0, MAX_QUEUE_BEGIN)


def check_user_topic(name: str) -> None:
    """Nothing, if a topic of users may have this name.

    IllegalMessage (TOPIC_NAME_INVALID, TOPIC_NAME_TOO_LONG) or TopicRefused (TOPIC_RESERVED).
    """
    check_topic_name(name)
    if name.startswith(RESERVED_PREFIX):
        raise error_for(Status.TOPIC_RESERVED, f"topic {name!r} belongs to the broker itself")


def check_group_name(name: str) -> None:
    """IllegalMessage (GROUP_NAME_INVALID), unless a group may be called so."""
    if len(name) > MAX_GROUP_LENGTH:
        problem = f"{name[:MAX_GROUP_LENGTH]!r}... has {len(name)} characters, more than {MAX_GROUP_LENGTH}"
    elif _GROUP_NAME.match(name) is None:
        problem = f"{name!r}: letters, digits and % | _ - are allowed, at least one"
    else:
        return
    raise error_for(Status.GROUP_NAME_INVALID, f"group {problem}")


def check_member_id(member_id: str) -> None:
    """IllegalMessage (MEMBER_ID_INVALID), unless a member may be called so."""
    if len(member_id) > MAX_MEMBER_ID_LENGTH or _MEMBER_ID.match(member_id) is None:
        raise error_for(
            Status.MEMBER_ID_INVALID,
            f"member {member_id[:MAX_MEMBER_ID_LENGTH]!r}: "
            f"1 to {MAX_MEMBER_ID_LENGTH} visible characters of ASCII are allowed",
        )


def check_subscription(topics: Iterable[str]) -> None:
    """Nothing, if a group may subscribe to these.

    IllegalMessage (TOO_MANY_SUBSCRIPTIONS, FIELD_OUT_OF_RANGE if there is none, or of a topic's name) or
    TopicRefused (TOPIC_RESERVED).
    """
    count = 0
    for topic in topics:
        check_user_topic(topic)
        count += 1
    if count > MAX_TOPICS_PER_GROUP:
        raise error_for(
            Status.TOO_MANY_SUBSCRIPTIONS, f"{count} topics in one group, more than {MAX_TOPICS_PER_GROUP}"
        )
    if not count:
        raise error_for(Status.FIELD_OUT_OF_RANGE, "a member subscribes to at least one topic")


def _check_topic_config(config: TopicConfig) -> None:
    check_user_topic(config.name)
    _check_range("read_queues", config.read_queues, 1, MAX_QUEUES_PER_TOPIC)
    _check_range("write_queues", config.write_queues, 1, MAX_QUEUES_PER_TOPIC)
    _check_range("perm", config.perm, 0, 7)
    _check_range("sys_flag", config.sys_flag, 0, _MAX_INT)
    if config.message_type not in MESSAGE_TYPES:
        known = ", ".join(MESSAGE_TYPES[1:])
        raise _out_of_range(f"message_type {config.message_type[:64]!r} is none of {known}")


def _check_group_config(config: GroupConfig) -> None:
    check_group_name(config.name)
    _check_range("retry_queues", config.retry_queues, 0, MAX_QUEUES_PER_TOPIC)
    _check_range("retry_max_times", config.retry_max_times, -1, _MAX_INT)


def _check_offsets(offsets: tuple[QueueOffset, ...]) -> None:
    if len(offsets) > MAX_OFFSETS_PER_COMMAND:
        raise error_for(
            Status.TOO_MANY_OFFSETS, f"{len(offsets)} offsets at once, more than {MAX_OFFSETS_PER_COMMAND}"
        )
    for topic in {offset.topic for offset in offsets}:
        check_user_topic(topic)
    for topic, queue_id, offset in offsets:
        if not 0 <= queue_id < MAX_QUEUES_PER_TOPIC:
            raise error_for(Status.QUEUE_UNKNOWN, f"topic {topic!r} has no queue {queue_id}")
        if not 0 <= offset <= MAX_OFFSET:
            raise error_for(
                Status.OFFSET_OUT_OF_RANGE, f"offset {offset} of queue {queue_id} of topic {topic!r}"
            )


def _check_members(members: Mapping[str, Queues]) -> None:
    if len(members) > MAX_MEMBERS_PER_GROUP:
        raise error_for(
            Status.TOO_MANY_MEMBERS, f"{len(members)} members in one group, more than {MAX_MEMBERS_PER_GROUP}"
        )
    seen: set[tuple[str, int]] = set()
    for member_id, queues in members.items():
        check_member_id(member_id)
        for topic, queue_id in queues:
            _check_range("queue id", queue_id, 0, MAX_QUEUES_PER_TOPIC - 1)
            if (topic, queue_id) in seen:
                raise _out_of_range(f"queue {queue_id} of topic {topic!r} has two members")
            seen.add((topic, queue_id))
    if seen:
        check_subscription({topic for topic, _ in seen})


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise _out_of_range(f"{name} {value} is not within {least} and {most}")


def _out_of_range(problem: str) -> BrokerError:
    return error_for(Status.FIELD_OUT_OF_RANGE, problem)
