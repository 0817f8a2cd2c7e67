"""The bytes of the whole state: what a state image and a checkpoint hold of the metadata.

    0    4    "DMSI"
    4    1    version, 1 so far
    5    4    CRC32 of all that follows
    9    n    a JSON object in UTF-8, sorted, without blanks: equal states have equal bytes

Unlike a command, an image is all or nothing: one that is not understood is damage, never passed over.
"""

from __future__ import annotations

import json
import struct
from types import MappingProxyType
from typing import Any

from zlib_ng.zlib_ng import crc32

from broker_adapter.errors import BrokerError, Status, StoredDataDamaged
from broker_adapter.metadata.commands import (
    MAX_OFFSET,
    MAX_QUEUES_PER_TOPIC,
    NO_GENERATION,
    NewGeneration,
    PutGroup,
    PutTopic,
    check,
)
from broker_adapter.metadata.records import (
    JsonObject,
    group_from_json,
    group_to_json,
    members_from_json,
    members_to_json,
    topic_from_json,
    topic_to_json,
    typed,
)
from broker_adapter.metadata.values import Contents, Group

MAGIC = b"DMSI"
VERSION = 1

_HEADER = struct.Struct(">4sBI")


def encode_image(contents: Contents) -> bytes:
    """The image of a state."""
    value = {
        "appliedIndex": contents.applied_index,
        "topics": [topic_to_json(contents.topics[name]) for name in sorted(contents.topics)],
        "groups": [_group(contents.groups[name]) for name in sorted(contents.groups)],
    }
    payload = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    return _HEADER.pack(MAGIC, VERSION, crc32(payload)) + payload


def decode_image(image: bytes) -> Contents:
    """The state in an image. StoredDataDamaged (METADATA_DAMAGED) if it is none."""
    try:
        magic, version, crc = _HEADER.unpack_from(image)
        payload = image[_HEADER.size :]
        if (magic, version) != (MAGIC, VERSION):
            raise _damaged(f"magic {magic!r}, version {version}")
        if crc32(payload) != crc:
            raise _damaged("its checksum is not that of its bytes")
        return _contents(typed(json.loads(payload.decode()), dict))
    except StoredDataDamaged:
        raise
    except (BrokerError, ValueError, KeyError, IndexError, TypeError, struct.error, RecursionError) as error:
        raise _damaged(f"{type(error).__name__}: {str(error)[:200]}") from None


def _contents(value: JsonObject) -> Contents:
    topics = [topic_from_json(typed(topic, dict)) for topic in typed(value["topics"], list)]
    for config in topics:
        check(PutTopic(config))
    groups = [_group_from(typed(group, dict)) for group in typed(value["groups"], list)]
    return Contents(
        _number(value["appliedIndex"], -1),
        {topic.name: topic for topic in topics},
        {group.name: group for group in groups},
    )


def _group(group: Group) -> JsonObject:
    offsets: dict[str, list[tuple[int, int]]] = {}
    for topic, queue_id, offset in group.queue_offsets():
        offsets.setdefault(topic, []).append((queue_id, offset))
    return {
        "config": group_to_json(group.config),
        "generation": group.generation,
        "assignment": members_to_json(group.members),
        "offsets": offsets,
    }


def _group_from(value: JsonObject) -> Group:
    config = group_from_json(typed(value["config"], dict))
    check(PutGroup(config))
    members = members_from_json(typed(value["assignment"], dict))
    check(NewGeneration(config.name, members))
    offsets: dict[tuple[str, int], int] = {}
    for topic, listed in typed(value["offsets"], dict).items():
        for queue_id, offset in typed(listed, list):
            offsets[topic, _number(queue_id, 0, MAX_QUEUES_PER_TOPIC - 1)] = _number(offset, 0)
    generation = _number(value["generation"], NO_GENERATION)
    return Group(config, generation, MappingProxyType(members), MappingProxyType(offsets))


def _number(value: Any, least: int, most: int = MAX_OFFSET) -> int:
    number = typed(value, int)
    if not least <= number <= most:
        raise ValueError(f"{number} is not within {least} and {most}")
    return number


def _damaged(problem: str) -> StoredDataDamaged:
    return StoredDataDamaged(Status.METADATA_DAMAGED, f"no image of metadata: {problem}")
