"""Responses of a group member to administrators, in the format of RocketMQ's clients. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from broker_adapter.client.core.process_queue import CachedMessages
from broker_adapter.client.core.subscription import Subscription
from broker_adapter.client.core.values import MessageQueue


class QueueInfo(NamedTuple):
    """The state of a queue that is assigned to the member. Times are in ms since 1970; 0 means never."""

    cached: CachedMessages
    commit_offset: int
    is_locked: bool
    locked_ms: int
    pulled_ms: int
    consumed_ms: int


def running_info(
    properties: Mapping[str, str],
    subscriptions: Iterable[Subscription],
    queues: Mapping[MessageQueue, QueueInfo],
) -> bytes:
    """Encode RocketMQ's ConsumerRunningInfo. Its status table of rates and times is empty, because this
    client does not measure them.
    """
    rows = (f"{_dump(_queue(queue))}:{_dump(_process_queue(info))}" for queue, info in queues.items())
    rest = {
        "properties": dict(properties),
        "statusTable": {},
        "subscriptionSet": [one.to_json() for one in subscriptions],
    }
    # The keys of these JSON objects are objects in RocketMQ.
    return f'{{"mqTable":{{{",".join(rows)}}},{_dump(rest)[1:]}'.encode()


def consumed_directly(result: str, *, is_ordered: bool, spent_ms: int, remark: str | None = None) -> bytes:
    """Encode RocketMQ's ConsumeMessageDirectlyResult."""
    return _dump(
        {
            "autoCommit": True,
            "consumeResult": result,
            "order": is_ordered,
            "remark": remark,
            "spentTimeMills": spent_ms,
        }
    ).encode()


def _queue(queue: MessageQueue) -> dict[str, object]:
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def _process_queue(info: QueueInfo) -> dict[str, object]:
    return {
        "cachedMsgCount": info.cached.messages,
        "cachedMsgMaxOffset": info.cached.last,
        "cachedMsgMinOffset": info.cached.first,
        "cachedMsgSizeInMiB": info.cached.size >> 20,
        "commitOffset": info.commit_offset,
        "droped": False,  # RocketMQ's spelling
        "lastConsumeTimestamp": info.consumed_ms,
        "lastLockTimestamp": info.locked_ms,
        "lastPullTimestamp": info.pulled_ms,
        "locked": info.is_locked,
    }


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
