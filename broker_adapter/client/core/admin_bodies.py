"""Bodies of administration requests: topics, groups, queue offsets. Pure functions.

Some bodies use fastjson's extended JSON, in which keys of objects may be objects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from broker_adapter.api import GroupConfig, QueueStats, TopicConfig
from broker_adapter.client.core.values import MessageQueue
from broker_adapter.errors import FrameRefused
from broker_adapter.remoting.command import MAX_FRAME
from broker_adapter.remoting.json_bodies import check_limits
from broker_adapter.wire.attributes import MESSAGE_TYPE, known_group_attributes, known_topic_attributes

#: Tables of administrators have up to ten thousand rows.
_MAX_VALUES: Final = 1 << 20
_TABLE: Final = re.compile(r'"offsetTable"\s*:\s*\{')


def group_body(config: GroupConfig) -> bytes:
    """Encode a group for UPDATE_AND_CREATE_SUBSCRIPTIONGROUP."""
    body = {
        "attributes": {f"+{name}": value for name, value in config.attributes},
        "groupName": config.name,
        "consumeEnable": config.consume_enable,
        "consumeFromMinEnable": config.consume_from_min_enable,
        "consumeBroadcastEnable": config.consume_broadcast_enable,
        "consumeMessageOrderly": config.consume_orderly,
        "retryQueueNums": config.retry_queues,
        "retryMaxTimes": config.retry_max_times,
    }
    return json.dumps(body, separators=(",", ":")).encode()


def parse_topics(body: bytes) -> list[TopicConfig]:
    """Decode GET_ALL_TOPIC_CONFIG. Like all decoders below, raises FrameRefused (FRAME_INVALID) for an
    invalid body.
    """
    try:
        return [_topic(one) for one in _table(body, "topicConfigTable").values()]
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _malformed(error) from None


def parse_topic(body: bytes) -> TopicConfig:
    """Decode the response to GET_TOPIC_CONFIG."""
    try:
        return _topic(json.loads(body))
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise _malformed(error) from None


def _topic(one: Mapping[str, Any]) -> TopicConfig:
    attributes = one.get("attributes") or {}
    return TopicConfig(
        str(one["topicName"]),
        int(one["readQueueNums"]),
        int(one["writeQueueNums"]),
        int(one["perm"]),
        int(one.get("topicSysFlag", 0)),
        bool(one.get("order", False)),
        str(attributes.get(MESSAGE_TYPE, "")),
        attributes=known_topic_attributes(attributes.items()),
    )


def changed_group_body(present: bytes, changes: Mapping[str, bool | int]) -> bytes:
    """Build the body of a request that changes a group, from the response to GET_SUBSCRIPTIONGROUP_CONFIG.

    Keeps fields that this client does not know.
    """
    try:
        config = json.loads(present)
        # A change contains only the attributes to set. Without attributes, the broker keeps all.
        config.pop("attributes", None)
        return json.dumps({**config, **changes}, separators=(",", ":")).encode()
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise _malformed(error) from None


def parse_groups(body: bytes) -> list[GroupConfig]:
    """Decode GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
    try:
        return [
            GroupConfig(
                str(one["groupName"]),
                bool(one.get("consumeEnable", True)),
                bool(one.get("consumeFromMinEnable", True)),
                bool(one.get("consumeBroadcastEnable", True)),
                int(one.get("retryQueueNums", 1)),
                int(one.get("retryMaxTimes", 16)),
                bool(one.get("consumeMessageOrderly", False)),
                attributes=known_group_attributes((one.get("attributes") or {}).items()),
            )
            for one in _table(body, "subscriptionGroupTable").values()
        ]
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _malformed(error) from None


def parse_runtime(body: bytes) -> dict[str, str]:
    """Decode GET_BROKER_RUNTIME_INFO: statistics under RocketMQ's names."""
    return {name: str(value) for name, value in _table(body, "table").items()}


def parse_topic_stats(body: bytes) -> dict[MessageQueue, QueueStats]:
    """Decode GET_TOPIC_STATS_INFO."""
    try:
        return {
            queue: QueueStats(
                queue.topic,
                queue.queue_id,
                int(values["minOffset"]),
                int(values["maxOffset"]),
                int(values["lastUpdateTimestamp"]),
            )
            for queue, values in parse_offset_table(body).items()
        }
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise _malformed(error) from None


def parse_consume_stats(body: bytes) -> dict[MessageQueue, int]:
    """Decode GET_CONSUME_STATS: the committed offsets of a group."""
    try:
        return {queue: int(values["consumerOffset"]) for queue, values in parse_offset_table(body).items()}
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise _malformed(error) from None


def parse_offset_table(body: bytes, max_values: int = _MAX_VALUES) -> dict[MessageQueue, Any]:
    """Decode `{"offsetTable":{{a queue}:value, ...}}`."""
    read = json.JSONDecoder().raw_decode
    offsets: dict[MessageQueue, Any] = {}
    try:
        check_limits(body, MAX_FRAME, max_values)
        text = body.decode(errors="replace")
        start = _TABLE.search(text)
        if start is None:
            raise ValueError("offsetTable is missing")
        at = start.end()
        while text[at] != "}":
            one, at = read(text, at + (text[at] == ","))
            value, at = read(text, at + 1)
            queue = MessageQueue(str(one["topic"]), str(one["brokerName"]), int(one["queueId"]))
            offsets[queue] = value
    except (ValueError, LookupError, TypeError, RecursionError, OverflowError) as error:
        raise _malformed(error) from None
    return offsets


def _table(body: bytes, name: str) -> Mapping[str, Any]:
    try:
        check_limits(body, MAX_FRAME, _MAX_VALUES)
        value = json.loads(body)
        table = value.get(name) or {}
    except (ValueError, RecursionError, AttributeError) as error:
        raise _malformed(error) from None
    if not isinstance(table, dict):
        raise _malformed(ValueError(f"{name} is not an object"))
    return table


def _malformed(error: Exception) -> FrameRefused:
    return FrameRefused(f"invalid response to an administrator: {str(error)[:100]}")
