r"""The bytes of commands: the bodies of the messages of `DLEDGER_SYS_METADATA`.

    0    2    "DM"
    2    1    kind
    3    1    version of this kind's payload, 1 so far
    4    16   request id, by which the proposer knows its result; zeros: nobody waits for it
    20   n    payload

Kinds and their payloads: 1 PutTopic, 2 DeleteTopic, 3 PutGroup, 4 DeleteGroup, 7 NewGeneration,
8 ExpireGroup, 9 BeginQueue: a JSON object in UTF-8, with RocketMQ's names where it has one; what a reader
does not know in it is ignored.
5 CommitOffsets and 6 ResetOffsets, of which there are many::

         2+n  group
         8    generation (5 only)
         2    number of topics, and of each: 2+n
         2    number of offsets, and of each: topic 2 (its place above), queue id 4, offset 8

(big endian, signed but for lengths and counts). A kind or version that a node does not know is an `Unknown`:
newer nodes write what older ones pass over. Everything else that does not fit is damage, and changes nothing.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.errors import BrokerError, Status, StoredDataDamaged, error_for
from broker_adapter.metadata.commands import (
    BeginQueue,
    Command,
    CommitOffsets,
    DeleteGroup,
    DeleteTopic,
    ExpireGroup,
    NewGeneration,
    PutGroup,
    PutTopic,
    Queues,
    ResetOffsets,
    check,
)

MAGIC = b"DM"
VERSION = 1
REQUEST_ID_SIZE = 16
#: The request id of a command whose result nobody waits for.
NO_REQUEST = bytes(REQUEST_ID_SIZE)
#: What the limits of commands allow takes less than this.
MAX_COMMAND_BYTES = 1 << 20

_HEADER = struct.Struct(">2sBB16s")
_COUNT = struct.Struct(">H")
_GENERATION = struct.Struct(">q")
_OFFSET = struct.Struct(">Hiq")

_KINDS: dict[type[Command], int] = {
    PutTopic: 1,
    DeleteTopic: 2,
    PutGroup: 3,
    DeleteGroup: 4,
    CommitOffsets: 5,
    ResetOffsets: 6,
    NewGeneration: 7,
    ExpireGroup: 8,
    BeginQueue: 9,
}

JsonObject = dict[str, Any]
_Value = TypeVar("_Value")


class Unknown(NamedTuple):
    """What a newer node has written: of no effect here."""

    kind: int
    version: int


class Record(NamedTuple):
    request_id: bytes
    command: Command | Unknown


def encode(command: Command, request_id: bytes = NO_REQUEST) -> bytes:
    """The bytes of a command. Errors as those of `check`; ValueError for a request id of another size;
    IllegalMessage (COMMAND_TOO_LARGE)."""
    check(command)
    if len(request_id) != REQUEST_ID_SIZE:
        raise ValueError(f"a request id has {REQUEST_ID_SIZE} bytes, not {len(request_id)}")
    match command:
        case CommitOffsets():
            payload = _encode_offsets(command.group, _GENERATION.pack(command.generation), command.offsets)
        case ResetOffsets():
            payload = _encode_offsets(command.group, b"", command.offsets)
        case _:
            payload = json.dumps(_to_json(command), separators=(",", ":")).encode()
    size = _HEADER.size + len(payload)
    if size > MAX_COMMAND_BYTES:
        raise error_for(Status.COMMAND_TOO_LARGE, f"a command of {size} bytes, more than {MAX_COMMAND_BYTES}")
    return _HEADER.pack(MAGIC, _KINDS[type(command)], VERSION, request_id) + payload


def decode(data: bytes) -> Record:
    """The command in `data` and who waits for it. StoredDataDamaged (COMMAND_DAMAGED)."""
    if len(data) > MAX_COMMAND_BYTES:
        raise _damaged(f"{len(data)} bytes")
    try:
        magic, kind, version, request_id = _HEADER.unpack_from(data)
        if magic != MAGIC:
            raise _damaged(f"magic {magic!r}")
        if version != VERSION or kind not in _KINDS.values():
            return Record(request_id, Unknown(kind, version))
        command = _decode_payload(kind, data[_HEADER.size :])
        check(command)
    except StoredDataDamaged:
        raise
    except BrokerError as error:
        raise _damaged(str(error)) from None
    # RecursionError: JSON may be nested as deeply as its bytes suffice for.
    except (ValueError, KeyError, IndexError, TypeError, struct.error, RecursionError) as error:
        raise _damaged(f"{type(error).__name__}: {str(error)[:200]}") from None
    return Record(request_id, command)


def is_of_topic(data: bytes) -> bool:
    """Whether this may be a PutTopic or a DeleteTopic: a look at the kind alone."""
    return data[2:3] in (b"\x01", b"\x02")


def topic_to_json(config: TopicConfig) -> JsonObject:
    found: JsonObject = {
        "topicName": config.name,
        "readQueueNums": config.read_queues,
        "writeQueueNums": config.write_queues,
        "perm": config.perm,
        "topicSysFlag": config.sys_flag,
        "order": config.order,
    }
    if config.message_type:  # older nodes know none
        found["messageType"] = config.message_type
    if config.auto_created:  # likewise
        found["autoCreated"] = True
    return found


def topic_from_json(value: JsonObject) -> TopicConfig:
    """KeyError or TypeError if a member is missing or of another type."""
    return TopicConfig(
        name=typed(value["topicName"], str),
        read_queues=typed(value["readQueueNums"], int),
        write_queues=typed(value["writeQueueNums"], int),
        perm=typed(value["perm"], int),
        sys_flag=typed(value["topicSysFlag"], int),
        order=typed(value["order"], bool),
        message_type=typed(value.get("messageType", ""), str),  # older records have none
        auto_created=typed(value.get("autoCreated", False), bool),
    )


def group_to_json(config: GroupConfig) -> JsonObject:
    found: JsonObject = {
        "groupName": config.name,
        "consumeEnable": config.consume_enable,
        "consumeFromMinEnable": config.consume_from_min_enable,
        "consumeBroadcastEnable": config.consume_broadcast_enable,
        "retryQueueNums": config.retry_queues,
        "retryMaxTimes": config.retry_max_times,
    }
    if config.consume_orderly:
        found["consumeMessageOrderly"] = True
    if config.auto_created:  # older nodes know none
        found["autoCreated"] = True
    return found


def group_from_json(value: JsonObject) -> GroupConfig:
    """KeyError or TypeError if a member is missing or of another type."""
    return GroupConfig(
        name=typed(value["groupName"], str),
        consume_enable=typed(value["consumeEnable"], bool),
        consume_from_min_enable=typed(value["consumeFromMinEnable"], bool),
        consume_broadcast_enable=typed(value["consumeBroadcastEnable"], bool),
        retry_queues=typed(value["retryQueueNums"], int),
        retry_max_times=typed(value["retryMaxTimes"], int),
        consume_orderly=typed(value.get("consumeMessageOrderly", False), bool),
        auto_created=typed(value.get("autoCreated", False), bool),
    )


def members_to_json(members: Mapping[str, Queues]) -> JsonObject:
    """{"topics": names, "members": {member: [[place of the topic, [queue id, ...]], ...]}}"""
    topics = sorted({topic for queues in members.values() for topic, _ in queues})
    place = {topic: at for at, topic in enumerate(topics)}
    listed: dict[str, list[tuple[int, list[int]]]] = {}
    for member_id in sorted(members):
        by_topic: dict[int, list[int]] = {}
        for topic, queue_id in sorted(members[member_id]):
            by_topic.setdefault(place[topic], []).append(queue_id)
        listed[member_id] = list(by_topic.items())
    return {"topics": topics, "members": listed}


def members_from_json(value: JsonObject) -> dict[str, Queues]:
    """KeyError, IndexError, TypeError or ValueError if it is not what `members_to_json` gives."""
    topics = [typed(topic, str) for topic in typed(value["topics"], list)]
    found: dict[str, Queues] = {}
    for member_id, listed in typed(value["members"], dict).items():
        queues = [
            (topics[_place(at)], typed(queue_id, int))
            for at, queue_ids in typed(listed, list)
            for queue_id in typed(queue_ids, list)
        ]
        found[member_id] = tuple(sorted(queues))
    return found


def typed(value: object, kind: type[_Value]) -> _Value:
    """The value, which is of exactly this type: JSON's true is no 1. TypeError otherwise."""
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} where {kind.__name__} belongs")
    return value


def _place(value: object) -> int:
    place = typed(value, int)
    if place < 0:  # would count from the end of the list
        raise IndexError(place)
    return place


def _to_json(command: Command) -> JsonObject:
    match command:
        case PutTopic(config=config, create_only=create_only):
            return {**topic_to_json(config), "createOnly": create_only}
        case DeleteTopic(topic=topic):
            return {"topicName": topic}
        case PutGroup(config=group_config, create_only=create_only):
            return {**group_to_json(group_config), "createOnly": create_only}
        case DeleteGroup(group=group):
            return {"groupName": group}
        case ExpireGroup(group=group, generation=generation, progress=progress):
            return {"groupName": group, "generation": generation, "progress": progress}
        case NewGeneration(group=group, members=members):
            return {"groupName": group, **members_to_json(members)}
        case BeginQueue(topic=topic, queue_id=queue_id, offset=offset):
            return {"topicName": topic, "queueId": queue_id, "offset": offset}
    raise AssertionError(command)


def _decode_payload(kind: int, payload: bytes) -> Command:
    if kind == _KINDS[CommitOffsets]:
        group, at = _text_at(payload, 0)
        (generation,) = _GENERATION.unpack_from(payload, at)
        return CommitOffsets(group, generation, _decode_offsets(payload, at + _GENERATION.size))
    if kind == _KINDS[ResetOffsets]:
        group, at = _text_at(payload, 0)
        return ResetOffsets(group, _decode_offsets(payload, at))
    value = typed(json.loads(payload.decode()), dict)
    if kind == _KINDS[PutTopic]:
        return PutTopic(topic_from_json(value), typed(value["createOnly"], bool))
    if kind == _KINDS[DeleteTopic]:
        return DeleteTopic(typed(value["topicName"], str))
    if kind == _KINDS[PutGroup]:
        return PutGroup(group_from_json(value), typed(value["createOnly"], bool))
    if kind == _KINDS[DeleteGroup]:
        return DeleteGroup(typed(value["groupName"], str))
    if kind == _KINDS[ExpireGroup]:
        generation, progress = typed(value["generation"], int), typed(value["progress"], int)
        return ExpireGroup(typed(value["groupName"], str), generation, progress)
    if kind == _KINDS[BeginQueue]:
        queue_id, offset = typed(value["queueId"], int), typed(value["offset"], int)
        return BeginQueue(typed(value["topicName"], str), queue_id, offset)
    return NewGeneration(typed(value["groupName"], str), members_from_json(value))


def _encode_offsets(group: str, generation: bytes, offsets: tuple[QueueOffset, ...]) -> bytes:
    place = {topic: at for at, topic in enumerate(dict.fromkeys(offset.topic for offset in offsets))}
    pieces = [
        _text(group),
        generation,
        _COUNT.pack(len(place)),
        *map(_text, place),
        _COUNT.pack(len(offsets)),
    ]
    pieces += [_OFFSET.pack(place[topic], queue_id, offset) for topic, queue_id, offset in offsets]
    return b"".join(pieces)


def _decode_offsets(payload: bytes, at: int) -> tuple[QueueOffset, ...]:
    (count,) = _COUNT.unpack_from(payload, at)
    at += _COUNT.size
    topics = []
    for _ in range(count):
        topic, at = _text_at(payload, at)
        topics.append(topic)
    (count,) = _COUNT.unpack_from(payload, at)
    at += _COUNT.size
    if len(payload) != at + count * _OFFSET.size:
        raise ValueError(f"{len(payload) - at} bytes are not {count} offsets")
    offsets = tuple(
        QueueOffset(topics[place], queue_id, offset)
        for place, queue_id, offset in _OFFSET.iter_unpack(memoryview(payload)[at:])
    )
    # One command, one encoding: topics in the order of their first use, each once.
    if list(dict.fromkeys(offset.topic for offset in offsets)) != topics:
        raise ValueError("the table of topics is not that of the offsets")
    return offsets


def _text(text: str) -> bytes:
    raw = text.encode()
    return _COUNT.pack(len(raw)) + raw


def _text_at(payload: bytes, at: int) -> tuple[str, int]:
    """(the text at a byte, where it ends)"""
    (size,) = _COUNT.unpack_from(payload, at)
    at += _COUNT.size
    raw = payload[at : at + size]
    if len(raw) != size:
        raise ValueError(f"a text of {size} bytes has {len(raw)}")
    return raw.decode(), at + size


def _damaged(problem: str) -> StoredDataDamaged:
    return StoredDataDamaged(Status.COMMAND_DAMAGED, f"no command: {problem}")
