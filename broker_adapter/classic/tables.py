"""The tables of a store: topics.json, subscriptionGroup.json, consumerOffset.json, delayOffset.json.

Facts: ConfigManager, TopicConfigManager, SubscriptionGroupManager, ConsumerOffsetManager and
ScheduleMessageService of RocketMQ. It keeps the version before in a file with `.bak` behind its name, and
takes that if the other one is missing or no JSON. Numbers are keys there, with or without quotes (fastjson).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from broker_adapter.api import MESSAGE_TYPES, GroupConfig, QueueOffset, TopicConfig
from broker_adapter.errors import Status, StoredDataDamaged

#: A text, which stays as it is, or a key that is a number.
_BARE_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|(?P<before>[{,]\s*)(?P<key>[0-9]{1,19})\s*:')
_SEPARATOR = "@"
_Value = TypeVar("_Value")


def table_at(path: Path) -> dict[str, Any]:
    """Of the file, or of the one before it; empty without both. STORE_TABLE_DAMAGED."""
    problem: StoredDataDamaged | None = None
    for candidate in (path, path.with_name(path.name + ".bak")):
        try:
            return parse_table(candidate.read_bytes())
        except FileNotFoundError:
            continue
        except StoredDataDamaged as error:
            problem = problem or _damaged(f"{candidate}: {error.message}")
    if problem is not None:
        raise problem
    return {}


def parse_table(data: bytes) -> dict[str, Any]:
    """STORE_TABLE_DAMAGED if it is no JSON object; numbers may be keys without quotes."""
    try:
        found = json.loads(_BARE_KEY.sub(_quoted, data.decode()))
    except (ValueError, RecursionError) as error:
        raise _damaged(str(error)[:200]) from None
    return _typed(found, dict, "the file")


def _quoted(found: re.Match[str]) -> str:
    return found[0] if found["key"] is None else f'{found["before"]}"{found["key"]}":'


def topics_of(table: Mapping[str, Any]) -> dict[str, TopicConfig]:
    """Of topics.json, by name. STORE_TABLE_DAMAGED."""
    found = {}
    for name, value in _member(table, "topicConfigTable", dict).items():
        where = f"topic {name!r}"
        entry = _typed(value, dict, where)
        attributes = _member(entry, "attributes", dict)
        message_type = str(attributes.get("message.type") or attributes.get("+message.type") or "").upper()
        if message_type == "UNSPECIFIED":
            message_type = ""
        if message_type not in MESSAGE_TYPES:
            raise _damaged(f"{where}: message.type {message_type[:32]!r} is not known")
        found[name] = TopicConfig(
            name,
            _number(entry, "readQueueNums", 16, where),
            _number(entry, "writeQueueNums", 16, where),
            _number(entry, "perm", 6, where),
            _number(entry, "topicSysFlag", 0, where),
            _typed(entry.get("order", False), bool, where),
            message_type,
        )
    return found


def groups_of(table: Mapping[str, Any]) -> dict[str, GroupConfig]:
    """Of subscriptionGroup.json, by name. STORE_TABLE_DAMAGED."""
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
        )
    return found


def offsets_of(table: Mapping[str, Any]) -> dict[str, list[QueueOffset]]:
    """Of consumerOffset.json, by group. STORE_TABLE_DAMAGED."""
    found: dict[str, list[QueueOffset]] = {}
    for name, value in _member(table, "offsetTable", dict).items():
        topic, separator, group = name.partition(_SEPARATOR)
        if not separator or not topic or not group:
            raise _damaged(f"offsets of {name!r}: no topic@group")
        for queue_id, offset in _numbers(value, f"offsets of {name!r}").items():
            found.setdefault(group, []).append(QueueOffset(topic, queue_id, offset))
    return found


def delays_of(table: Mapping[str, Any]) -> dict[int, int]:
    """Of delayOffset.json: by level, the first offset that is not delivered. STORE_TABLE_DAMAGED."""
    return _numbers(_member(table, "offsetTable", dict), "offsets of delays")


def _numbers(value: object, where: str) -> dict[int, int]:
    found = {}
    for key, number in _typed(value, dict, where).items():
        if not (key.isascii() and key.isdecimal()):
            raise _damaged(f"{where}: {key[:32]!r} is no number")
        found[int(key)] = max(0, _typed(number, int, where))
    return found


def _member(table: Mapping[str, Any], name: str, kind: type[_Value]) -> _Value:
    """Missing or null is empty."""
    value = table.get(name)
    return kind() if value is None else _typed(value, kind, name)


def _number(entry: Mapping[str, Any], name: str, default: int, where: str) -> int:
    return _typed(entry.get(name, default), int, f"{where}: {name}")


def _typed(value: object, kind: type[_Value], where: str) -> _Value:
    if type(value) is not kind:
        raise _damaged(f"{where}: {type(value).__name__} where {kind.__name__} belongs")
    return value


def _damaged(problem: str) -> StoredDataDamaged:
    return StoredDataDamaged(Status.STORE_TABLE_DAMAGED, problem)
