r"""Binary encoding of metadata commands: the bodies of the messages of `DLEDGER_SYS_METADATA`.

    0    2    "DM"
    2    1    kind
    3    1    version of this kind's payload: 2 for CommitOffsets and ResetOffsets, 1 for the others
    4    16   request id, which matches a result to its proposer; all zeros if no proposer waits
    20   n    payload

Most kinds have a JSON object in UTF-8 as payload: 1 PutTopic, 2 DeleteTopic, 3 PutGroup, 4 DeleteGroup, 7
NewGeneration, 8 ExpireGroup, 9 BeginQueue, 10 SetRulesVersion, 11 EndBarriers, 16 GrantLocks, 17
ReleaseLocks, 18 DropOffsets, 19 SetMergedTables. Field names are RocketMQ's where RocketMQ has the field.
Readers ignore unknown fields.

The two frequent kinds, 5 CommitOffsets and 6 ResetOffsets, have a binary payload::

         2+n  group
         8    generation (5 only)
         8    index up to which the proposer judged (5 only; not in version 1, of release 0.1.0)
         2+n  client id (likewise)
         1    whether it has barriers (6 only; likewise)
         2    number of topics, then for each: 2+n
         2    number of offsets, then for each: topic 2 (position in the list above), queue id 4, offset 8

Integers are big endian and signed, except lengths and counts, which are unsigned. An unknown kind or version
decodes to `UnknownCommand`, so that older nodes skip commands of newer nodes. Any other deviation from the
format is damage, and the entry has no effect.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.errors import BrokerError, Status, StoredDataDamaged, error_for
from broker_adapter.metadata.commands import (
    BeginQueue,
    Command,
    CommitOffsets,
    DeleteGroup,
    DeleteTopic,
    DropOffsets,
    EndBarriers,
    ExpireGroup,
    GrantLocks,
    NewGeneration,
    PutGroup,
    PutTopic,
    Queues,
    ReleaseLocks,
    ResetOffsets,
    SetMergedTables,
    SetRulesVersion,
    check,
)

MAGIC = b"DM"
VERSION = 1
#: Payload version of CommitOffsets and ResetOffsets. Version 1, of release 0.1.0, has no barriers.
OFFSETS_VERSION = 2
REQUEST_ID_SIZE = 16
#: Request id of a command without a waiting proposer.
NO_REQUEST = bytes(REQUEST_ID_SIZE)
#: Upper bound of an encoded command. The limits on the fields of commands keep them below it.
MAX_COMMAND_BYTES = 1 << 20

_HEADER = struct.Struct(">2sBB16s")
_COUNT = struct.Struct(">H")
_GENERATION = struct.Struct(">q")
_INDEX = struct.Struct(">q")
_FLAG = struct.Struct(">?")
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
    SetRulesVersion: 10,
    GrantLocks: 16,
    ReleaseLocks: 17,
    EndBarriers: 11,
    DropOffsets: 18,
    SetMergedTables: 19,
}

JsonObject = dict[str, Any]
_Value = TypeVar("_Value")


class UnknownCommand(NamedTuple):
    """A command that a newer release has written. It has no effect on this node."""

    kind: int
    version: int


class Record(NamedTuple):
    request_id: bytes
    command: Command | UnknownCommand


def encode(command: Command, request_id: bytes = NO_REQUEST) -> bytes:
    """Encode a command.

    Raises the errors of `check`, ValueError for a request id of the wrong size, and IllegalMessage
    (COMMAND_TOO_LARGE).
    """
    check(command)
    if len(request_id) != REQUEST_ID_SIZE:
        raise ValueError(f"a request id must be {REQUEST_ID_SIZE} bytes long, not {len(request_id)}")
    match command:
        case CommitOffsets():
            judged = _GENERATION.pack(command.generation) + _INDEX.pack(command.judged_at)
            payload = _encode_offsets(command.group, judged + _text(command.client_id), command.offsets)
        case ResetOffsets():
            payload = _encode_offsets(command.group, _FLAG.pack(command.has_barriers), command.offsets)
        case _:
            payload = json.dumps(_to_json(command), separators=(",", ":")).encode()
    size = _HEADER.size + len(payload)
    if size > MAX_COMMAND_BYTES:
        raise error_for(
            Status.COMMAND_TOO_LARGE, f"the command is {size} bytes long; the limit is {MAX_COMMAND_BYTES}"
        )
    kind = _KINDS[type(command)]
    return _HEADER.pack(MAGIC, kind, _version_of(kind), request_id) + payload


def decode(data: bytes) -> Record:
    """Decode a command and its request id. Raises StoredDataDamaged (COMMAND_DAMAGED)."""
    if len(data) > MAX_COMMAND_BYTES:
        raise _damaged(f"the command is too short: {len(data)} bytes")
    try:
        magic, kind, version, request_id = _HEADER.unpack_from(data)
        if magic != MAGIC:
            raise _damaged(f"unexpected magic {magic!r}")
        if not 1 <= version <= _version_of(kind) or kind not in _KINDS.values():
            return Record(request_id, UnknownCommand(kind, version))
        command = _decode_payload(kind, version, data[_HEADER.size :])
        check(command)
    except StoredDataDamaged:
        raise
    except BrokerError as error:
        raise _damaged(str(error)) from None
    # RecursionError: the JSON may be nested arbitrarily deeply.
    except (ValueError, KeyError, IndexError, TypeError, struct.error, RecursionError) as error:
        raise _damaged(f"{type(error).__name__}: {str(error)[:200]}") from None
    return Record(request_id, command)


def _version_of(kind: int) -> int:
    """Return the newest payload version of a kind."""
    return OFFSETS_VERSION if kind in (_KINDS[CommitOffsets], _KINDS[ResetOffsets]) else VERSION


def is_of_topic(data: bytes) -> bool:
    """Return True for a PutTopic or DeleteTopic. Reads only the kind byte."""
    return data[2:3] in (b"\x01", b"\x02")


def topic_to_json(config: TopicConfig) -> JsonObject:
    fields: JsonObject = {
        "topicName": config.name,
        "readQueueNums": config.read_queues,
        "writeQueueNums": config.write_queues,
        "perm": config.perm,
        "topicSysFlag": config.sys_flag,
        "order": config.order,
    }
    if config.message_type:  # unknown to older nodes
        fields["messageType"] = config.message_type
    if config.auto_created:  # unknown to older nodes
        fields["autoCreated"] = True
    if config.attributes:
        fields["attributes"] = dict(config.attributes)
    return fields


def topic_from_json(value: JsonObject) -> TopicConfig:
    """Decode a topic config.

    Raises KeyError if a field is missing, and TypeError if it has the wrong type.
    """
    return TopicConfig(
        name=typed(value["topicName"], str),
        read_queues=typed(value["readQueueNums"], int),
        write_queues=typed(value["writeQueueNums"], int),
        perm=typed(value["perm"], int),
        sys_flag=typed(value["topicSysFlag"], int),
        order=typed(value["order"], bool),
        message_type=typed(value.get("messageType", ""), str),  # absent from older records
        auto_created=typed(value.get("autoCreated", False), bool),
        attributes=_attributes(value),
    )


def group_to_json(config: GroupConfig) -> JsonObject:
    fields: JsonObject = {
        "groupName": config.name,
        "consumeEnable": config.consume_enable,
        "consumeFromMinEnable": config.consume_from_min_enable,
        "consumeBroadcastEnable": config.consume_broadcast_enable,
        "retryQueueNums": config.retry_queues,
        "retryMaxTimes": config.retry_max_times,
    }
    if config.consume_orderly:
        fields["consumeMessageOrderly"] = True
    if config.auto_created:  # unknown to older nodes
        fields["autoCreated"] = True
    if config.attributes:
        fields["attributes"] = dict(config.attributes)
    return fields


def group_from_json(value: JsonObject) -> GroupConfig:
    """Decode a group config.

    Raises KeyError if a field is missing, and TypeError if it has the wrong type.
    """
    return GroupConfig(
        name=typed(value["groupName"], str),
        consume_enable=typed(value["consumeEnable"], bool),
        consume_from_min_enable=typed(value["consumeFromMinEnable"], bool),
        consume_broadcast_enable=typed(value["consumeBroadcastEnable"], bool),
        retry_queues=typed(value["retryQueueNums"], int),
        retry_max_times=typed(value["retryMaxTimes"], int),
        consume_orderly=typed(value.get("consumeMessageOrderly", False), bool),
        auto_created=typed(value.get("autoCreated", False), bool),
        attributes=_attributes(value),
    )


def _attributes(value: JsonObject) -> tuple[tuple[str, str], ...]:
    """Return the attributes, sorted by name. Records of 0.1.0 have none."""
    attributes = typed(value.get("attributes", {}), dict)
    return tuple(sorted((name, typed(text, str)) for name, text in attributes.items()))


def members_to_json(members: frozenset[str]) -> JsonObject:
    """Encode group members as release 0.1.0 did, which also listed the queues of each member."""
    return {"topics": [], "members": {member_id: [] for member_id in sorted(members)}}


def members_from_json(value: JsonObject) -> frozenset[str]:
    return frozenset(typed(value["members"], dict))


def queues_to_json(queues: Iterable[tuple[str, int]]) -> JsonObject:
    """Group queue ids by topic."""
    by_topic: dict[str, list[int]] = {}
    for topic, queue_id in queues:
        by_topic.setdefault(topic, []).append(queue_id)
    return by_topic


def queues_from_json(value: JsonObject) -> Queues:
    """Decode the output of `queues_to_json`, in the same order.

    Raises TypeError if the value has another form.
    """
    return tuple(
        (topic, typed(queue_id, int)) for topic, listed in value.items() for queue_id in typed(listed, list)
    )


def typed(value: object, kind: type[_Value]) -> _Value:
    """Return the value if it has exactly this type, so that JSON's true does not count as 1.

    Raises TypeError otherwise.
    """
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")
    return value


def _to_json(command: Command) -> JsonObject:
    match command:
        case PutTopic(config=config, create_only=create_only):
            keeps = {"keepsMessages": True} if command.keeps_messages else {}  # unknown to older nodes
            return {**topic_to_json(config), "createOnly": create_only, **keeps}
        case DeleteTopic(topic=topic):
            return {"topicName": topic}
        case PutGroup(config=group_config, create_only=create_only):
            return {**group_to_json(group_config), "createOnly": create_only}
        case DeleteGroup(group=group, keeps_offsets=keeps_offsets):
            # Commands of 0.1.0 do not have this field.
            return {"groupName": group, **({"keepsOffsets": True} if keeps_offsets else {})}
        case ExpireGroup(group=group, generation=generation, progress=progress):
            return {"groupName": group, "generation": generation, "progress": progress}
        case NewGeneration(group=group, members=members):
            return {"groupName": group, **members_to_json(members)}
        case EndBarriers(group=group, up_to=up_to):
            return {"groupName": group, "upTo": up_to}
        case BeginQueue(topic=topic, queue_id=queue_id, offset=offset):
            return {"topicName": topic, "queueId": queue_id, "offset": offset}
        case SetRulesVersion(version=version):
            return {"version": version}
        case SetMergedTables(merge_id=merge_id):
            return {"mergeId": merge_id}
        case (
            GrantLocks(group=group, client_id=client_id, queues=queues)
            | ReleaseLocks(group=group, client_id=client_id, queues=queues)
        ):
            return {"groupName": group, "clientId": client_id, "queues": queues_to_json(queues)}
        case DropOffsets(group=group, queues=queues):
            return {"groupName": group, "queues": queues_to_json(queues)}
    raise AssertionError(command)


def _decode_commit(version: int, payload: bytes) -> CommitOffsets:
    group, at = _text_at(payload, 0)
    (generation,) = _GENERATION.unpack_from(payload, at)
    at += _GENERATION.size
    if version == 1:
        return CommitOffsets(group, generation, _decode_offsets(payload, at))
    (judged_at,) = _INDEX.unpack_from(payload, at)
    client_id, at = _text_at(payload, at + _INDEX.size)
    return CommitOffsets(group, generation, _decode_offsets(payload, at), client_id, judged_at)


def _decode_reset(version: int, payload: bytes) -> ResetOffsets:
    group, at = _text_at(payload, 0)
    if version == 1:
        return ResetOffsets(group, _decode_offsets(payload, at))
    (has_barriers,) = _FLAG.unpack_from(payload, at)
    return ResetOffsets(group, _decode_offsets(payload, at + _FLAG.size), has_barriers)


def _decode_payload(kind: int, version: int, payload: bytes) -> Command:
    if kind == _KINDS[CommitOffsets]:
        return _decode_commit(version, payload)
    if kind == _KINDS[ResetOffsets]:
        return _decode_reset(version, payload)
    value = typed(json.loads(payload.decode()), dict)
    if kind == _KINDS[PutTopic]:
        keeps_messages = typed(value.get("keepsMessages", False), bool)
        return PutTopic(topic_from_json(value), typed(value["createOnly"], bool), keeps_messages)
    if kind == _KINDS[DeleteTopic]:
        return DeleteTopic(typed(value["topicName"], str))
    if kind == _KINDS[PutGroup]:
        return PutGroup(group_from_json(value), typed(value["createOnly"], bool))
    if kind == _KINDS[DeleteGroup]:
        return DeleteGroup(typed(value["groupName"], str), typed(value.get("keepsOffsets", False), bool))
    if kind == _KINDS[ExpireGroup]:
        generation, progress = typed(value["generation"], int), typed(value["progress"], int)
        return ExpireGroup(typed(value["groupName"], str), generation, progress)
    if kind == _KINDS[EndBarriers]:
        return EndBarriers(typed(value["groupName"], str), typed(value["upTo"], int))
    if kind == _KINDS[BeginQueue]:
        queue_id, offset = typed(value["queueId"], int), typed(value["offset"], int)
        return BeginQueue(typed(value["topicName"], str), queue_id, offset)
    if kind == _KINDS[SetRulesVersion]:
        return SetRulesVersion(typed(value["version"], int))
    if kind == _KINDS[SetMergedTables]:
        return SetMergedTables(typed(value["mergeId"], str))
    if kind in (_KINDS[GrantLocks], _KINDS[ReleaseLocks]):
        group, client_id = typed(value["groupName"], str), typed(value["clientId"], str)
        queues = queues_from_json(typed(value["queues"], dict))
        is_grant = kind == _KINDS[GrantLocks]
        return (GrantLocks if is_grant else ReleaseLocks)(group, client_id, queues)
    if kind == _KINDS[DropOffsets]:
        return DropOffsets(typed(value["groupName"], str), queues_from_json(typed(value["queues"], dict)))
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
        raise ValueError(f"{len(payload) - at} bytes cannot hold {count} offsets")
    offsets = tuple(
        QueueOffset(topics[place], queue_id, offset)
        for place, queue_id, offset in _OFFSET.iter_unpack(memoryview(payload)[at:])
    )
    # A command has exactly one encoding: each topic once, in the order of first use.
    if list(dict.fromkeys(offset.topic for offset in offsets)) != topics:
        raise ValueError("the topic table does not match the offsets")
    return offsets


def _text(text: str) -> bytes:
    raw = text.encode()
    return _COUNT.pack(len(raw)) + raw


def _text_at(payload: bytes, at: int) -> tuple[str, int]:
    """Return the text at a byte position, and the position after it."""
    (size,) = _COUNT.unpack_from(payload, at)
    at += _COUNT.size
    raw = payload[at : at + size]
    if len(raw) != size:
        raise ValueError(f"a string of {size} bytes is truncated to {len(raw)} bytes")
    return raw.decode(), at + size


def _damaged(problem: str) -> StoredDataDamaged:
    return StoredDataDamaged(Status.COMMAND_DAMAGED, f"not a valid command: {problem}")
