"""Binary encoding of the whole metadata state, as stored in state images and checkpoints.

    0    4    "DMSI"
    4    1    version, 2; images of version 1 (release 0.1.0) have no rules version and are still readable
    5    4    CRC32 of the remaining bytes
    9    n    a JSON object in UTF-8 with sorted keys and no whitespace, so that equal states have equal bytes

Unlike an unknown command, which is skipped, an image that cannot be decoded completely is damaged.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from zlib_ng.zlib_ng import crc32

from broker_adapter.errors import BrokerError, Status, StoredDataDamaged
from broker_adapter.metadata.commands import (
    FIRST_RULES_VERSION,
    MAX_LOCKS_PER_COMMAND,
    MAX_OFFSET,
    MAX_QUEUES_PER_TOPIC,
    NO_GENERATION,
    NewGeneration,
    PutGroup,
    PutTopic,
    check,
    check_lock_holder,
    check_member_id,
    check_merge_id,
)
from broker_adapter.metadata.records import (
    JsonObject,
    group_from_json,
    group_to_json,
    members_from_json,
    members_to_json,
    queues_from_json,
    queues_to_json,
    topic_from_json,
    topic_to_json,
    typed,
)
from broker_adapter.metadata.values import MAX_PASSED, Barrier, Group, StateContents

MAGIC = b"DMSI"
VERSION = 2
_READABLE = (1, VERSION)

_HEADER = struct.Struct(">4sBI")


def encode_image(contents: StateContents) -> bytes:
    """Encode the state as an image."""
    value: JsonObject = {
        "appliedIndex": contents.applied_index,
        "topics": [topic_to_json(contents.topics[name]) for name in sorted(contents.topics)],
        "groups": [_group(contents.groups[name]) for name in sorted(contents.groups)],
        "rulesVersion": contents.rules_version,
    }
    if contents.lock_holders:  # absent from images of 0.1.0
        value["lockHolders"] = {
            group: _lock_holders(holders) for group, holders in contents.lock_holders.items()
        }
    if contents.imported_queues:  # likewise
        value["importedQueues"] = {name: sorted(ids) for name, ids in contents.imported_queues.items()}
    if contents.deleted_groups:  # likewise
        value["deletedGroups"] = [
            [name, _offsets(offsets)] for name, offsets in contents.deleted_groups.items()
        ]
    if contents.merged_tables:  # likewise
        value["mergedTables"] = contents.merged_tables
    payload = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    return _HEADER.pack(MAGIC, VERSION, crc32(payload)) + payload


def decode_image(image: bytes) -> StateContents:
    """Decode an image. Raises StoredDataDamaged (METADATA_DAMAGED) if it is invalid."""
    try:
        magic, version, crc = _HEADER.unpack_from(image)
        payload = image[_HEADER.size :]
        if magic != MAGIC or version not in _READABLE:
            raise _damaged(f"unexpected magic {magic!r} or version {version}")
        if crc32(payload) != crc:
            raise _damaged("the checksum does not match")
        return _contents(typed(json.loads(payload.decode()), dict))
    except StoredDataDamaged:
        raise
    except (BrokerError, ValueError, KeyError, IndexError, TypeError, struct.error, RecursionError) as error:
        raise _damaged(f"{type(error).__name__}: {str(error)[:200]}") from None


def _contents(value: JsonObject) -> StateContents:
    if merged_tables := typed(value.get("mergedTables", ""), str):
        check_merge_id(merged_tables)
    topics = [topic_from_json(typed(topic, dict)) for topic in typed(value["topics"], list)]
    for config in topics:
        check(PutTopic(config))
    groups = [_group_from(typed(group, dict)) for group in typed(value["groups"], list)]
    return StateContents(
        _number(value["appliedIndex"], -1),
        {topic.name: topic for topic in topics},
        {group.name: group for group in groups},
        _number(value.get("rulesVersion", FIRST_RULES_VERSION), FIRST_RULES_VERSION),
        {
            name: _lock_holders_from(name, typed(holders, dict))
            for name, holders in typed(value.get("lockHolders", {}), dict).items()
        },
        {
            name: frozenset(_number(queue_id, 0, MAX_QUEUES_PER_TOPIC - 1) for queue_id in typed(ids, list))
            for name, ids in typed(value.get("importedQueues", {}), dict).items()
        },
        {
            typed(name, str): _offsets_from(typed(offsets, dict))
            for name, offsets in typed(value.get("deletedGroups", []), list)
        },
        merged_tables,
    )


def _lock_holders(holders: Mapping[tuple[str, int], str]) -> JsonObject:
    """Encode lock holders as {client id: {topic: [queue id, ...]}}."""
    queues: dict[str, list[tuple[str, int]]] = {}
    for queue, client_id in sorted(holders.items()):
        queues.setdefault(client_id, []).append(queue)
    return {client_id: queues_to_json(own) for client_id, own in queues.items()}


def _lock_holders_from(group: str, value: JsonObject) -> Mapping[tuple[str, int], str]:
    holders: dict[tuple[str, int], str] = {}
    for client_id, listed in value.items():
        queues = queues_from_json(typed(listed, dict))
        for start in range(0, len(queues), MAX_LOCKS_PER_COMMAND):
            check_lock_holder(group, client_id, queues[start : start + MAX_LOCKS_PER_COMMAND])
        holders.update(dict.fromkeys(queues, client_id))
    return MappingProxyType(holders)


def _group(group: Group) -> JsonObject:
    fields = {
        "config": group_to_json(group.config),
        "generation": group.generation,
        "assignment": members_to_json(group.members),
        "offsets": _offsets(group.offsets),
    }
    if group.barriers:  # absent from images of release 0.1.0
        fields["barriers"] = _barriers(group.barriers)
    return fields


def _offsets(offsets: Mapping[tuple[str, int], int]) -> JsonObject:
    """Encode offsets as {topic: [[queue id, offset], ...]}."""
    by_topic: dict[str, list[tuple[int, int]]] = {}
    for (topic, queue_id), offset in sorted(offsets.items()):
        by_topic.setdefault(topic, []).append((queue_id, offset))
    return by_topic


def _offsets_from(value: JsonObject) -> dict[tuple[str, int], int]:
    return {
        (topic, _number(queue_id, 0, MAX_QUEUES_PER_TOPIC - 1)): _number(offset, 0)
        for topic, listed in value.items()
        for queue_id, offset in typed(listed, list)
    }


def _barriers(barriers: Mapping[tuple[str, int], Barrier]) -> JsonObject:
    """Encode barriers, with client ids listed once and referenced by position.

    {"clients": ids, "queues": {topic: [[queue id, reset index, [client position, ...]], ...]}}
    """
    clients = sorted({client_id for barrier in barriers.values() for client_id in barrier.passed})
    place = {client_id: at for at, client_id in enumerate(clients)}
    queues: dict[str, list[tuple[int, int, list[int]]]] = {}
    for (topic, queue_id), barrier in sorted(barriers.items()):
        row = queue_id, barrier.reset_index, [place[client_id] for client_id in barrier.passed]
        queues.setdefault(topic, []).append(row)
    return {"clients": clients, "queues": queues}


def _barriers_from(value: JsonObject) -> dict[tuple[str, int], Barrier]:
    clients = [typed(client_id, str) for client_id in typed(value["clients"], list)]
    for client_id in clients:
        check_member_id(client_id)
    barriers = {}
    for topic, listed in typed(value["queues"], dict).items():
        for queue_id, reset_index, places in listed:
            passed = tuple(clients[_number(at, 0, len(clients) - 1)] for at in typed(places, list))
            if len(passed) > MAX_PASSED:
                raise ValueError(f"{len(passed)} clients have passed a single barrier")
            queue = topic, _number(queue_id, 0, MAX_QUEUES_PER_TOPIC - 1)
            barriers[queue] = Barrier(_number(reset_index, 0), passed)
    return barriers


def _group_from(value: JsonObject) -> Group:
    config = group_from_json(typed(value["config"], dict))
    check(PutGroup(config))
    members = members_from_json(typed(value["assignment"], dict))
    check(NewGeneration(config.name, members))
    offsets = _offsets_from(typed(value["offsets"], dict))
    generation = _number(value["generation"], NO_GENERATION)
    barriers = _barriers_from(typed(value["barriers"], dict)) if "barriers" in value else {}
    return Group(
        config,
        generation,
        MappingProxyType(offsets),
        MappingProxyType(barriers),
        members,
    )


def _number(value: Any, least: int, most: int = MAX_OFFSET) -> int:
    number = typed(value, int)
    if not least <= number <= most:
        raise ValueError(f"{number} is not between {least} and {most}")
    return number


def _damaged(problem: str) -> StoredDataDamaged:
    return StoredDataDamaged(Status.METADATA_DAMAGED, f"not a valid metadata image: {problem}")
