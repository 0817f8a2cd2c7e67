"""Pull requests and responses. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from broker_adapter.client.core.outcomes import error_of
from broker_adapter.client.core.requests import number
from broker_adapter.client.core.subscription import Subscription
from broker_adapter.client.core.values import MessageExt, MessageQueue, Steps, first_messages
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand

_SUSPEND: Final = 2
_SUBSCRIPTION: Final = 4


class PullStatus(IntEnum):
    """The outcome of a pull, with RocketMQ's response code."""

    FOUND = 0
    NO_NEW_MSG = 19
    NO_MATCHED_MSG = 20
    OFFSET_ILLEGAL = 21


@dataclass(frozen=True, slots=True)
class PullResult:
    """The result of a pull.

    `next_offset`: offset of the next pull, after the messages of this one. `suggested_broker`: broker id for
    the next pull; 0 is the master. `unreadable`: messages whose compressed body is invalid or too large
    (`MessageExt.body_error`); `messages` does not contain them.
    """

    status: PullStatus
    messages: tuple[MessageExt, ...]
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker: int = 0
    unreadable: tuple[MessageExt, ...] = ()


def pull_request(
    group: str,
    queue: MessageQueue,
    offset: int,
    subscription: Subscription,
    *,
    max_messages: int,
    wait_s: float,
) -> RemotingCommand:
    """Build PULL_MESSAGE. `wait_s`: how long the broker waits if no message is available."""
    fields = {
        "consumerGroup": group,
        "topic": queue.topic,
        "queueId": str(queue.queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(max_messages),
        "sysFlag": str(_SUBSCRIPTION | (_SUSPEND if wait_s > 0 else 0)),
        "commitOffset": "0",
        "suspendTimeoutMillis": str(round(wait_s * 1000)),
        "subscription": subscription.text,
        "subVersion": str(subscription.version),
        "expressionType": subscription.kind,
        "brokerName": queue.broker_name,
    }
    return RemotingCommand(RequestCode.PULL_MESSAGE, fields)


def pull_result(
    answer: RemotingCommand, queue: MessageQueue, subscription: Subscription, max_messages: int
) -> Steps[PullResult]:
    """Decode the response to a pull.

    Raises BrokerError for an error response, and the errors of `first_messages`.
    """
    if answer.code not in PullStatus.__members__.values():
        raise error_of(answer, f"pull of {queue}")
    messages: list[MessageExt] = []
    next_offset = number(answer, "nextBeginOffset")
    if answer.code == PullStatus.FOUND:
        messages, is_all = yield from first_messages(answer.body, queue.broker_name, max_messages)
        if not is_all:
            next_offset = min(next_offset, messages[-1].queue_offset + 1)
    matching = [message for message in messages if subscription.wants(message)]
    return PullResult(
        PullStatus(answer.code),
        tuple(message for message in matching if message.body_error is None),
        next_offset,
        number(answer, "minOffset"),
        number(answer, "maxOffset"),
        number(answer, "suggestWhichBrokerId") if "suggestWhichBrokerId" in answer.fields else 0,
        tuple(message for message in matching if message.body_error is not None),
    )
