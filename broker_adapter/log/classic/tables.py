"""Parse the tables of a store: topics.json, subscriptionGroup.json, consumerOffset.json, delayOffset.json.

Source: ConfigManager, TopicConfigManager, SubscriptionGroupManager, ConsumerOffsetManager and
ScheduleMessageService of RocketMQ. RocketMQ keeps the previous version in a file with the suffix `.bak`, and
reads it if the main file is missing or not JSON. Keys may be numbers, with or without quotes (fastjson).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from broker_adapter.api import MESSAGE_TYPES, GroupConfig, QueueOffset, TopicConfig
from broker_adapter.errors import Status, StoredDataDamaged
from broker_adapter.wire.attributes import MESSAGE_TYPE, UNSPECIFIED
from broker_adapter.wire.longs import LONGS, long_of

# A string, which is copied unchanged, or an unquoted number as a key.
_BARE_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|(?P<before>[{,]\s*)(?P<key>[0-9]{1,19})\s*:')
_SEPARATOR = "@"
_Value = TypeVar("_Value")


def table_at(path: Path) -> dict[str, Any]:
    """Read the table from the file or its backup.

    Return an empty table if neither exists. Raises STORE_TABLE_DAMAGED.
    """
    content = content_at(path)
    return {} if content is None else parse_table(content)


def content_at(path: Path, read: Callable[[Path], bytes] = Path.read_bytes) -> bytes | None:
    """Read the file, or its backup if the file is not a table.

    Return None if neither exists. Raises STORE_TABLE_DAMAGED.
    """
    problem: StoredDataDamaged | None = None
    for candidate in (path, path.with_name(path.name + ".bak")):
        try:
            content = read(candidate)
            parse_table(content)
            return content
        except FileNotFoundError:
            continue
        except StoredDataDamaged as error:
            problem = problem or _damaged(f"{candidate}: {error.message}")
    if problem is not None:
        raise problem
    return None


def parse_table(data: bytes) -> dict[str, Any]:
    """Parse a JSON object whose keys may be unquoted numbers. Raises STORE_TABLE_DAMAGED."""
    try:
        found = json.loads(_BARE_KEY.sub(_quoted, data.decode()))
    except (ValueError, RecursionError) as error:
        raise _damaged(str(error)[:200]) from None
    return _typed(found, dict, "the file")


def _quoted(found: re.Match[str]) -> str:
    return found[0] if found["key"] is None else f'{found["before"]}"{found["key"]}":'


def topics_of(table: Mapping[str, Any]) -> dict[str, TopicConfig]:
    """Parse topics.json into topics by name. Raises STORE_TABLE_DAMAGED."""
    found = {}
    for name, value in _member(table, "topicConfigTable", dict).items():
        where = f"topic {name!r}"
        entry = _typed(value, dict, where)
        attributes = _attributes(entry)
        stored_type = attributes.pop(MESSAGE_TYPE, "") or attributes.pop(f"+{MESSAGE_TYPE}", "")
        message_type = "" if stored_type.upper() == UNSPECIFIED else stored_type.upper()
        if message_type not in MESSAGE_TYPES:  # added by a later RocketMQ
            attributes[MESSAGE_TYPE], message_type = stored_type, ""
        found[name] = TopicConfig(
            name,
            _number(entry, "readQueueNums", 16, where),
            _number(entry, "writeQueueNums", 16, where),
            _number(entry, "perm", 6, where),
            _number(entry, "topicSysFlag", 0, where),
            _typed(entry.get("order", False), bool, where),
            message_type,
            attributes=tuple(sorted(attributes.items())),
        )
    return found


def groups_of(table: Mapping[str, Any]) -> dict[str, GroupConfig]:
    """Parse subscriptionGroup.json into groups by name. Raises STORE_TABLE_DAMAGED."""
    found = {}
    for name, value in _member(table, "subscriptionGroupTable", dict).items():
        where = f"group {name!r}"
        entry = _typed(value, dict, where)
        found[name] = GroupConfig(
            name,
            _typed(entry.get("consumeEnable", True), bool, where),
            _typed(entry.get("consumeFromMinEnable", True), bool, where),
            _typed(entry.get("consumeBroadcastEnable", True), bool, where),
            _number(entry, "retryQueueNums", 1, where),
            _number(entry, "retryMaxTimes", 16, where),
            _typed(entry.get("consumeMessageOrderly", False), bool, where),
            attributes=tuple(sorted(_attributes(entry).items())),
        )
    return found


def offsets_of(table: Mapping[str, Any]) -> dict[str, list[QueueOffset]]:
    """Parse consumerOffset.json into offsets by group. Raises STORE_TABLE_DAMAGED."""
    found: dict[str, list[QueueOffset]] = {}
    for name, value in _member(table, "offsetTable", dict).items():
        topic, separator, group = name.partition(_SEPARATOR)
        if not separator or not topic or not group:
            raise _damaged(f"the key {name!r} of the offset table is not of the form topic@group")
        for queue_id, offset in _numbers(value, f"offsets of {name!r}").items():
            found.setdefault(group, []).append(QueueOffset(topic, queue_id, offset))
    return found


def delays_of(table: Mapping[str, Any]) -> dict[int, int]:
    """Parse delayOffset.json into the first undelivered offset by level. Raises STORE_TABLE_DAMAGED."""
    return _numbers(_member(table, "offsetTable", dict), "offsets of delays")


def _numbers(value: object, where: str) -> dict[int, int]:
    found = {}
    for key, number in _typed(value, dict, where).items():
        if key.startswith("-") or (key_number := long_of(key)) is None:
            raise _damaged(f"{where}: {key[:32]!r} is not a number, or is too large")
        found[key_number] = max(0, _long(number, where))
    return found


def _attributes(entry: Mapping[str, Any]) -> dict[str, str]:
    """Return all attributes. Unknown ones are included, because they are written back for RocketMQ."""
    found = _member(entry, "attributes", dict)
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in found.items()}


def _member(table: Mapping[str, Any], name: str, kind: type[_Value]) -> _Value:
    """Return a member of the table, or an empty value if the member is missing or null."""
    value = table.get(name)
    return kind() if value is None else _typed(value, kind, name)


def _number(entry: Mapping[str, Any], name: str, default: int, where: str) -> int:
    return _long(entry.get(name, default), f"{where}: {name}")


def _long(value: object, where: str) -> int:
    number = _typed(value, int, where)
    if number not in LONGS:
        raise _damaged(f"{where}: the number does not fit into Java's long")
    return number


def _typed(value: object, kind: type[_Value], where: str) -> _Value:
    if type(value) is not kind:
        raise _damaged(f"{where}: expected {kind.__name__}, found {type(value).__name__}")
    return value


def _damaged(problem: str) -> StoredDataDamaged:
    return StoredDataDamaged(Status.STORE_TABLE_DAMAGED, problem)
