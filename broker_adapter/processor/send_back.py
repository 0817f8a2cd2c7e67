"""CONSUMER_SEND_MSG_BACK: a message that was not consumed comes again later, or becomes a dead letter."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from broker_adapter.api import BrokerApi, OutgoingMessage
from broker_adapter.errors import ResponseCode
from broker_adapter.format.delay_levels import level_ms
from broker_adapter.format.message import decode
from broker_adapter.format.properties import UNIQ_KEY, PropertiesText, replaced, split_properties
from broker_adapter.format.sys_flag import TRANSACTION_MASK
from broker_adapter.format.topic_names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from broker_adapter.pop.api import DeliveryApi
from broker_adapter.processor import fields as read
from broker_adapter.processor.delays import DELAYS
from broker_adapter.processor.pulls import CheckRead, reconsume_times
from broker_adapter.processor.request import RemotingRequest
from broker_adapter.processor.sends import RECONSUME_TIME
from broker_adapter.proxy.messages.context import CallContext
from broker_adapter.remoting.command import RemotingCommand

_RETRY_TOPIC, _ORIGIN_ID = "RETRY_TOPIC", "ORIGIN_MESSAGE_ID"
_DLQ_TOPIC, _DLQ_ID = "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"
#: The first of RocketMQ's levels for what comes again: 10 s.
_FIRST_LEVEL = 3


class SendBackProcessor:
    """`know_group` makes one for a client at host:port, if it may come into being by use; `make_topic` one of
    the broker's own, if there is none; `max_times` of a group; `check_read` as of PullProcessor."""

    def __init__(
        self,
        broker: BrokerApi,
        delivery: DeliveryApi,
        know_group: Callable[[str, str], Awaitable[None]],
        make_topic: Callable[[str], Awaitable[None]],
        max_times: Callable[[str], int],
        check_read: CheckRead,
    ) -> None:
        self._broker = broker
        self._delivery = delivery
        self._know_group = know_group
        self._make_topic = make_topic
        self._max_times = max_times
        self._check_read = check_read

    async def send_back(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        fields = request.fields
        group, level = read.text(fields, "group"), read.number(fields, "delayLevel", 0)
        record = await self._broker.message_at(read.number(fields, "offset"), remote=context.remote)
        message = decode(record, verify_body=False)
        self._check_read(context, message.topic)
        times = reconsume_times(record)
        most = read.number(fields, "maxReconsumeTimes", -1)
        is_dead = level < 0 or times >= (most if most >= 0 else self._max_times(group))
        properties = split_properties(message.properties)
        origin = properties.get(_RETRY_TOPIC, message.topic)
        origin_id = properties.get(_ORIGIN_ID) or properties.get(UNIQ_KEY) or message.offset_id
        changes = {_RETRY_TOPIC: origin, _ORIGIN_ID: origin_id, RECONSUME_TIME: str(times + 1)}
        if is_dead:
            changes |= {_DLQ_TOPIC: origin, _DLQ_ID: origin_id}
        again = OutgoingMessage(
            message.body,
            PropertiesText(replaced(message.properties, changes, without=DELAYS)),
            message.flag,
            message.sys_flag & ~TRANSACTION_MASK,
            message.born_timestamp,
        )
        topic = (DEAD_LETTER_PREFIX if is_dead else RETRY_PREFIX) + group
        # Groups are limited, for each client, too; topics are made for each of them, and for nobody else.
        await self._know_group(group, context.remote)
        await self._make_topic(topic)
        born_host = str(message.born_host)
        # Not under its id: it comes back under the same one each time.
        if is_dead:
            await self._delivery.send(topic, again, message_id="", queue_id=0, born_host=born_host)
        else:
            level = level or _FIRST_LEVEL + times
            await self._delivery.send_delayed(
                topic,
                again,
                message_id="",
                deliver_at_ms=time.time_ns() // 1_000_000 + level_ms(level),
                level=level,
                queue_id=0,
                born_host=born_host,
            )
        return request.command.answer(ResponseCode.SUCCESS)
