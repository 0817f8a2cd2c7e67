"""Bodies of what administrators ask and are told: topics, groups, offsets of queues. Pure.

Some are no JSON but what fastjson writes: objects are keys of objects there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from broker_adapter.api import GroupConfig, QueueStats, TopicConfig
from broker_adapter.client.core.values import MessageQueue
from broker_adapter.errors import FrameRefused

_TABLE: Final = re.compile(r'"offsetTable"\s*:\s*\{')
_TYPE: Final = "message.type"


def group_body(config: GroupConfig) -> bytes:
    """For UPDATE_AND_CREATE_SUBSCRIPTIONGROUP."""
    body = {
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
    """Of GET_ALL_TOPIC_CONFIG. FrameRefused (FRAME_INVALID), as of all that follow."""
    try:
        return [
            TopicConfig(
                str(one["topicName"]),
                int(one["readQueueNums"]),
                int(one["writeQueueNums"]),
                int(one["perm"]),
                int(one.get("topicSysFlag", 0)),
                bool(one.get("order", False)),
                str((one.get("attributes") or {}).get(_TYPE, "")),
            )
            for one in _table(body, "topicConfigTable").values()
        ]
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _malformed(error) from None


def parse_groups(body: bytes) -> list[GroupConfig]:
    """Of GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
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
            )
            for one in _table(body, "subscriptionGroupTable").values()
        ]
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _malformed(error) from None


def parse_runtime(body: bytes) -> dict[str, str]:
    """Of GET_BROKER_RUNTIME_INFO: figures by RocketMQ's names for them."""
    return {name: str(value) for name, value in _table(body, "table").items()}


def parse_topic_stats(body: bytes) -> dict[MessageQueue, QueueStats]:
    """Of GET_TOPIC_STATS_INFO."""
    try:
        return {
            queue: QueueStats(
                queue.topic,
                queue.queue_id,
                int(told["minOffset"]),
                int(told["maxOffset"]),
                int(told["lastUpdateTimestamp"]),
            )
            for queue, told in parse_offset_table(body).items()
        }
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise _malformed(error) from None


def parse_consume_stats(body: bytes) -> dict[MessageQueue, int]:
    """Of GET_CONSUME_STATS: what a group has committed."""
    try:
        return {queue: int(told["consumerOffset"]) for queue, told in parse_offset_table(body).items()}
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise _malformed(error) from None


def parse_offset_table(body: bytes) -> dict[MessageQueue, Any]:
    """`{"offsetTable":{{a queue}:what is told of it}}`."""
    text = body.decode(errors="replace")
    read = json.JSONDecoder().raw_decode
    found: dict[MessageQueue, Any] = {}
    try:
        begin = _TABLE.search(text)
        if begin is None:
            raise ValueError("it has no offsetTable")
        at = begin.end()
        while text[at] != "}":
            one, at = read(text, at + (text[at] == ","))
            value, at = read(text, at + 1)
            queue = MessageQueue(str(one["topic"]), str(one["brokerName"]), int(one["queueId"]))
            found[queue] = value
    except (ValueError, LookupError, TypeError, RecursionError, OverflowError) as error:
        raise _malformed(error) from None
    return found


def _table(body: bytes, name: str) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
        table = found.get(name) or {}
    except (ValueError, RecursionError, AttributeError) as error:
        raise _malformed(error) from None
    if not isinstance(table, dict):
        raise _malformed(ValueError(f"{name} is no object"))
    return table


def _malformed(error: Exception) -> FrameRefused:
    return FrameRefused(f"an answer to an administrator: {str(error)[:100]}")
