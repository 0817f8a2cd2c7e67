"""Requests of consumer group members, and the decoding of responses. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from broker_adapter.client.consumer_calls import ConsumeFromWhere
from broker_adapter.client.core.subscription import Subscription
from broker_adapter.client.core.values import RETRY_TOPIC, MessageExt, MessageQueue
from broker_adapter.errors import FrameRefused
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.json_bodies import check_limits

#: Lists of members and queues are parsed on the event loop, in up to 40 ms.
_MAX_BODY_BYTES, _MAX_BODY_VALUES = 4 << 20, 1 << 18
#: The `delay_level` with which a message becomes a dead letter immediately.
DEAD_LETTER: Final = -1


class MessageModel(Enum):
    """How a message is delivered: to one member of the group, or to all members."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


def heartbeat(
    client_id: str,
    *,
    producers: Iterable[str] = (),
    group: str = "",
    model: MessageModel = MessageModel.CLUSTERING,
    where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
    subscriptions: Iterable[Subscription] = (),
) -> RemotingCommand:
    """Build HEART_BEAT for any number of producer groups and at most one consumer group."""
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": model.value,
        "consumeFromWhere": where.value,
        "subscriptionDataSet": [one.to_json() for one in subscriptions],
        "unitMode": False,
    }
    body = {
        "clientID": client_id,
        "producerDataSet": [{"groupName": name} for name in producers],
        "consumerDataSet": [consumer] if group else [],
    }
    return RemotingCommand(RequestCode.HEART_BEAT, body=_dump(body))


def check_subscription(client_id: str, group: str, subscription: Subscription) -> RemotingCommand:
    """Build CHECK_CLIENT_CONFIG."""
    body = {"clientId": client_id, "group": group, "subscriptionData": subscription.to_json()}
    return RemotingCommand(RequestCode.CHECK_CLIENT_CONFIG, body=_dump(body))


def unregister(client_id: str, *, producer: str = "", consumer: str = "") -> RemotingCommand:
    fields = {"clientID": client_id}
    if producer:
        fields["producerGroup"] = producer
    if consumer:
        fields["consumerGroup"] = consumer
    return RemotingCommand(RequestCode.UNREGISTER_CLIENT, fields)


def members_of(group: str) -> RemotingCommand:
    return RemotingCommand(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})


def parse_members(body: bytes) -> list[str]:
    """Decode the ids of members. Raises FrameRefused (FRAME_INVALID)."""
    return [str(one) for one in _list(body, "consumerIdList")]


def lock(
    group: str, client_id: str, queues: Iterable[MessageQueue], *, unlock: bool = False
) -> RemotingCommand:
    """Build LOCK_BATCH_MQ or UNLOCK_BATCH_MQ."""
    body = {
        "consumerGroup": group,
        "clientId": client_id,
        "mqSet": [
            {"topic": one.topic, "brokerName": one.broker_name, "queueId": one.queue_id} for one in queues
        ],
    }
    code = RequestCode.UNLOCK_BATCH_MQ if unlock else RequestCode.LOCK_BATCH_MQ
    return RemotingCommand(code, body=_dump(body))


def parse_locked(body: bytes) -> set[MessageQueue]:
    """Decode the queues locked by this client. Raises FrameRefused (FRAME_INVALID)."""
    try:
        return {
            MessageQueue(str(one["topic"]), str(one["brokerName"]), int(one["queueId"]))
            for one in _list(body, "lockOKMQSet")
        }
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FrameRefused(f"the response to a lock request is invalid: {error!r}") from None


def send_back(group: str, message: MessageExt, *, delay_level: int, max_attempts: int) -> RemotingCommand:
    """Build CONSUMER_SEND_MSG_BACK.

    The broker stores the message in the group's retry topic, or as a dead letter after `max_attempts`.
    `delay_level` 0: the delay grows with each attempt; DEAD_LETTER: the message becomes a dead letter
    immediately.
    """
    fields = {
        "group": group,
        "offset": str(message.physical_offset),
        "delayLevel": str(delay_level),
        "originMsgId": message.offset_message_id,
        "originTopic": message.properties.get(RETRY_TOPIC, message.topic),
        "unitMode": "false",
        "maxReconsumeTimes": str(max_attempts),
        "brokerName": message.queue.broker_name,
    }
    return RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, fields)


def _list(body: bytes, name: str) -> Sequence[Any]:
    try:
        check_limits(body, _MAX_BODY_BYTES, _MAX_BODY_VALUES)
        value: Mapping[str, Any] = json.loads(body)
        listed = value.get(name) or []
    except (ValueError, RecursionError, AttributeError) as error:
        raise FrameRefused(f"the response for a consumer group is invalid: {str(error)[:100]}") from None
    if not isinstance(listed, list):
        raise FrameRefused(f"the response for a consumer group is invalid: {name} is not a list")
    return listed


def _dump(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
