"""Messages that a consumer group failed to consume. They are stored again for a retry, or as dead letters.

They arrive in two ways. CONSUMER_SEND_MSG_BACK names a stored message. Ordered Java consumers, and Java
consumers whose CONSUMER_SEND_MSG_BACK has failed, send the message to the retry topic of the group, with the
number of retries and their maximum in the header (RocketMQ's AbstractSendMessageProcessor and
SendMessageProcessor.handleRetryAndDLQ). A retry is a delayed message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from broker_adapter.api import BrokerApi, GroupConfig, OutgoingMessage, TopicConfig
from broker_adapter.delivery.api import DeliveryApi
from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.v4 import bodies
from broker_adapter.endpoints.v4 import request as read
from broker_adapter.endpoints.v4.pulls import CheckRead, reconsume_times
from broker_adapter.endpoints.v4.request import RemotingRequest
from broker_adapter.errors import ResponseCode
from broker_adapter.put.sender import Send, SendApi
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.wire.delay_levels import DELAYS, level_ms
from broker_adapter.wire.message import decode
from broker_adapter.wire.properties import (
    MAX_PROPERTIES_BYTES,
    RECONSUME_TIME,
    UNIQ_KEY,
    PropertiesText,
    replaced,
    split_properties,
    text_of,
    with_those_that_fit,
)
from broker_adapter.wire.sys_flag import TRANSACTION_MASK
from broker_adapter.wire.topic_names import DEAD_LETTER_PREFIX, RETRY_PREFIX

_DEFAULT_MAXIMUM = GroupConfig("").retry_max_times
_NOT_GIVEN = -1
_PREPARED = "TRAN_MSG"
_RETRY_TOPIC, _ORIGIN_ID = "RETRY_TOPIC", "ORIGIN_MESSAGE_ID"
_DLQ_TOPIC, _DLQ_ID = "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"
#: RocketMQ's first delay level for retries: 10 s.
_FIRST_LEVEL = 3
#: Bytes reserved for the properties of a waiting retry: queue, level, and the topic in addition to its name.
_ROOM_TO_WAIT = 40


class RetryTarget(NamedTuple):
    """The topic, message and queue to store for a send to a retry topic."""

    topic: str
    message: OutgoingMessage
    queue_id: int


class Retries:
    """Decides whether a message is retried or becomes a dead letter. Runs on the master."""

    def __init__(
        self,
        config: Callable[[str], GroupConfig | None],
        has_locks: Callable[[str], bool],
        know_group: Callable[[str, str], Awaitable[None]],
        make_topic: Callable[[str], Awaitable[TopicConfig]],
    ) -> None:
        """`config` returns a group's settings.

        `has_locks` returns True if a member of the group consumes a queue in order. `know_group` creates the
        group for a client at host:port, if the settings permit it. `make_topic` creates one of the broker's
        own topics.
        """
        self._config = config
        self._has_locks = has_locks
        self._know_group = know_group
        self._make_topic = make_topic

    def is_last(self, group: str, times: int, maximum: int) -> bool:
        """Return True if a message that is sent back after `times` retries becomes a dead letter.

        `maximum`: the limit that the client set; negative if none.
        """
        config = self._config(group)
        if config is not None and config.retry_queues == 0:
            return True  # the group has no retries
        if maximum < 0:
            maximum = _DEFAULT_MAXIMUM if config is None else config.retry_max_times
        return 0 <= maximum <= times

    async def prepare(self, group: str, *, is_dead: bool, context: CallContext) -> TopicConfig:
        """Create the group and its retry or dead-letter topic, and return the topic."""
        topic = (DEAD_LETTER_PREFIX if is_dead else RETRY_PREFIX) + group
        # The number of groups that a client may create also limits the number of these topics.
        await self._know_group(group, context.remote)
        return await self._make_topic(topic)

    async def retried(
        self,
        topic: str,
        message: OutgoingMessage,
        queue_id: int,
        header: Mapping[str, str],
        context: CallContext,
    ) -> RetryTarget:
        """Decide what happens to a message that was sent to a retry topic. Raises the errors of `prepare`."""
        group = topic.removeprefix(RETRY_PREFIX)
        # Clients before 4.6.1 leave this property in a transactional message. Its transaction has ended, so a
        # half message would wait forever for its end.
        text = replaced(text_of(message.properties), {}, without=(_PREPARED,))
        times = read.number(header, "reconsumeTimes", 0)
        maximum = read.number(header, "maxReconsumeTimes", _NOT_GIVEN)
        # `times` includes the failure that this send reports, unless the sender is an ordered consumer. An
        # ordered consumer, which has a lock, only sends messages that have reached the maximum (RocketMQ's
        # rule).
        is_dead = self._has_locks(group) or self.is_last(group, times - 1, maximum)
        if is_dead:
            topic, queue_id = (await self.prepare(group, is_dead=True, context=context)).name, 0
            text = replaced(text, {}, without=DELAYS)
        return RetryTarget(topic, message._replace(properties=PropertiesText(text)), queue_id)


class SendBackProcessor:
    """Handles messages that consumers send back. For `check_read`, see ReadRules."""

    def __init__(
        self,
        broker: BrokerApi,
        sends: SendApi,
        delivery: DeliveryApi,
        retries: Retries,
        check_read: CheckRead,
    ) -> None:
        self._broker = broker
        self._sends = sends
        self._delivery = delivery
        self._retries = retries
        self._check_read = check_read

    async def heartbeat(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """Create the topics that the groups in a heartbeat need before messages can be sent back."""
        for data in bodies.heartbeat(request.command.body).without_invalid_groups().consumers:
            await self._retries.prepare(data.group, is_dead=False, context=context)
        return request.command.answer(ResponseCode.SUCCESS)

    async def send_back(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        fields = request.fields
        group, level = read.text(fields, "group"), read.number(fields, "delayLevel", 0)
        record = await self._broker.message_at(read.number(fields, "offset"), remote=context.remote)
        message = decode(record, verify_body=False)
        self._check_read(context, message.topic)
        times = reconsume_times(record)
        most = read.number(fields, "maxReconsumeTimes", -1)
        properties = split_properties(message.properties)
        origin = properties.get(_RETRY_TOPIC, message.topic)
        origin_id = properties.get(_ORIGIN_ID) or properties.get(UNIQ_KEY) or message.offset_id
        changes = {RECONSUME_TIME: str(times + 1), _RETRY_TOPIC: origin, _ORIGIN_ID: origin_id}
        text = replaced(message.properties, changes, without=DELAYS)
        room_to_wait = _ROOM_TO_WAIT + len(RETRY_PREFIX + group)
        has_room = len(text.encode()) <= MAX_PROPERTIES_BYTES - room_to_wait
        is_dead = level < 0 or self._retries.is_last(group, times, most) or not has_room
        if is_dead:
            # The consumer cannot discard the message in another way, so a dead letter gets all properties
            # that fit.
            changes |= {_DLQ_TOPIC: origin, _DLQ_ID: origin_id}
            text = with_those_that_fit(replaced(message.properties, {}, without=DELAYS), changes)
        again = OutgoingMessage(
            message.body,
            PropertiesText(text),
            message.flag,
            message.sys_flag & ~TRANSACTION_MASK,
            message.born_timestamp,
        )
        config = await self._retries.prepare(group, is_dead=is_dead, context=context)
        born_host = str(message.born_host)
        # Without the message id, because each attempt is sent back under the same id.
        if is_dead:
            await self._sends.send_one(Send(config, [again], queue_id=0, born_host=born_host))
        else:
            level = level or _FIRST_LEVEL + times
            await self._delivery.send_delayed(
                config.name,
                again,
                message_id="",
                deliver_at_ms=self._delivery.now_ms() + level_ms(level),
                level=level,
                queue_id=0,
                born_host=born_host,
                config=config,
            )
        return request.command.answer(ResponseCode.SUCCESS)
