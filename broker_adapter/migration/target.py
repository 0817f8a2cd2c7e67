"""Client of the group that receives the migrated messages (remoting protocol)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.client.core import requests
from broker_adapter.client.core.admin_bodies import group_body, parse_topics
from broker_adapter.client.core.outcomes import error_of
from broker_adapter.client.core.route_data import parse_clusters
from broker_adapter.client.core.values import MessageQueue
from broker_adapter.client.instance import ClientInstance
from broker_adapter.client.options import ClientOptions
from broker_adapter.errors import BrokerError, ReadFailed, ResponseCode, Status, TopicRefused
from broker_adapter.log.classic.commit_log import MAX_BODY_BYTES
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.wire.attributes import (
    MESSAGE_TYPE,
    UNSPECIFIED,
    known_group_attributes,
    known_topic_attributes,
)
from broker_adapter.wire.message import MessageRecord, record_size_at

_SUBSCRIPTION = 4
_CALL_S = 10.0
_PAUSES_S = (0.1, 0.2, 0.5, 1.0)
# Errors that a retry cannot overcome.
_FINAL = frozenset(
    {
        Status.TOPIC_UNKNOWN,
        Status.GROUP_UNKNOWN,
        Status.QUEUE_UNKNOWN,
        Status.QUEUE_NOT_NEW,
        Status.CHANGE_NOT_ALLOWED,
        Status.CODE_UNKNOWN,
        Status.OFFSET_OUT_OF_RANGE,
        Status.TOPIC_RESERVED,
    }
)


class QueuePart(NamedTuple):
    """Some records of a queue, and the queue's first offset and end offset."""

    begin: int
    end: int
    records: list[bytes]


class ImportTarget:
    """Client of the target, and an async context manager.

    While the master changes, calls are retried for `timeout_s`; a retry has no additional effect. Calls raise
    BrokerErrors.
    """

    def __init__(
        self, name_servers: Sequence[str], broker_name: str = "", *, timeout_s: float = 30.0
    ) -> None:
        """Create a client.

        `broker_name` selects the group. "" selects the only group that is registered with the NameServers.
        """
        self._client = ClientInstance(name_servers, ClientOptions(request_timeout=_CALL_S))
        self._broker_name = broker_name
        self._timeout_s = timeout_s
        self._address = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    # -- topics and queues -------------------------------------------------------------------------------

    async def topics(self) -> set[str]:
        """Return the names of all topics."""
        answer = await self._call(RemotingCommand(RequestCode.GET_ALL_TOPIC_CONFIG))
        return set(json.loads(answer.body)["topicConfigTable"])

    async def put_topic(self, config: TopicConfig) -> None:
        """Create the topic or replace its whole config, even if this removes queues with messages."""
        attributes = {f"+{name}": value for name, value in known_topic_attributes(config.attributes)}
        attributes[f"+{MESSAGE_TYPE}"] = config.message_type or UNSPECIFIED
        await self._call(requests.create_topic(config, attributes, is_forced=True))

    async def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return (first offset, end offset) of a queue."""
        fields = {"topic": topic, "queueId": str(queue_id)}
        least = await self._call(RemotingCommand(RequestCode.GET_MIN_OFFSET, dict(fields)))
        end = await self._call(RemotingCommand(RequestCode.GET_MAX_OFFSET, dict(fields)))
        return requests.number(least, "offset"), requests.number(end, "offset")

    async def configs(self) -> dict[str, TopicConfig]:
        """Return all topics by name."""
        answer = await self._call(RemotingCommand(RequestCode.GET_ALL_TOPIC_CONFIG))
        return {config.name: config for config in parse_topics(answer.body)}

    async def read_queue(self, topic: str, queue_id: int, offset: int) -> QueuePart:
        """Read records regardless of the topic's permissions. Offset -1 reads the last message."""
        fields = {"topic": topic, "queueId": str(queue_id), "offset": str(offset)}
        answer = await self._call(RemotingCommand(RequestCode.READ_QUEUE, fields))
        begin, end = requests.number(answer, "minOffset"), requests.number(answer, "maxOffset")
        return QueuePart(begin, end, _split(answer.body))

    async def begin_queue(self, topic: str, queue_id: int, offset: int) -> None:
        fields = {"topic": topic, "queueId": str(queue_id), "offset": str(offset)}
        await self._call(RemotingCommand(RequestCode.BEGIN_QUEUE, fields))

    async def store(self, records: Iterable[bytes]) -> None:
        """Store records without retries. They may be stored even if this method raises an error."""
        await self._request(RemotingCommand(RequestCode.IMPORT_MESSAGES, {}, b"".join(records)))

    async def store_again(self, record: bytes, topic: str, queue_id: int, offset: int) -> None:
        """Store one record at `offset`, with retries."""
        deadline, attempt = asyncio.get_running_loop().time() + self._timeout_s, 0
        while True:
            try:
                await self.store([record])
                return
            except BrokerError as error:
                if error.status in _FINAL or asyncio.get_running_loop().time() > deadline:
                    raise
            await pause(attempt)
            attempt += 1
            if (await self.bounds(topic, queue_id))[1] > offset:
                return

    async def send(self, topic: str, queue_id: int, message: MessageRecord, properties: str) -> None:
        """Send a message with these properties, like a producer.

        If a response is lost, the message may be stored twice, unless it has a UNIQ_KEY and its topic is not
        a retry topic.
        """
        fields = {
            "topic": topic,
            "queueId": str(queue_id),
            "sysFlag": str(message.sys_flag),
            "bornTimestamp": str(message.born_timestamp),
            "flag": str(message.flag),
            "properties": properties,
            "reconsumeTimes": str(message.reconsume_times),
        }
        await self._call(RemotingCommand(RequestCode.SEND_MESSAGE, fields, message.body))

    async def pull(self, topic: str, queue_id: int, offset: int) -> list[bytes]:
        """Return some records starting at `offset`, or none at the end of the queue."""
        fields = {
            "consumerGroup": "",
            "topic": topic,
            "queueId": str(queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": "1024",
            "sysFlag": str(_SUBSCRIPTION),
            "subscription": "*",
        }
        request = RemotingCommand(RequestCode.PULL_MESSAGE, fields)
        answer = await self._call(request, also=ResponseCode.PULL_NOT_FOUND)
        return _split(answer.body)

    # -- groups ------------------------------------------------------------------------------------------

    async def put_group(self, config: GroupConfig) -> None:
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        known = config._replace(attributes=known_group_attributes(config.attributes))
        await self._call(RemotingCommand(code, {}, group_body(known)))

    async def commit(self, group: str, offset: QueueOffset) -> None:
        """Commit an offset. If the target has a greater offset, that offset does not change."""
        fields = {
            "consumerGroup": group,
            "topic": offset.topic,
            "queueId": str(offset.queue_id),
            "commitOffset": str(offset.offset),
        }
        await self._call(RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, fields))

    # -- internals ---------------------------------------------------------------------------------------

    async def reset(self, group: str, offset: QueueOffset) -> None:
        """Set an offset, which may be lower than the current one."""
        queue = MessageQueue(offset.topic, self._broker_name, offset.queue_id)
        await self._call(requests.reset_offset(group, queue, offset.offset, is_import=True))

    async def _call(self, request: RemotingCommand, *, also: int = ResponseCode.SUCCESS) -> RemotingCommand:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        attempt = 0
        while True:
            try:
                return await self._request(request, also=also)
            except BrokerError as error:
                if error.status in _FINAL or loop.time() > deadline:
                    raise
            await pause(attempt)
            attempt += 1

    async def _request(
        self, request: RemotingCommand, *, also: int = ResponseCode.SUCCESS
    ) -> RemotingCommand:
        try:
            address = self._address or await self._find_master()
            answer = await self._client.connections.invoke(address, request, _CALL_S)
        except BrokerError:
            self._address = ""
            raise
        if answer.code not in (ResponseCode.SUCCESS, also):
            self._address = ""
            raise error_of(answer, f"{address}: request {request.code}")
        return answer

    async def _find_master(self) -> str:
        request = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
        clusters = parse_clusters((await self._client.call_name_server(request)).body)
        known = {broker.name: broker for brokers in clusters.values() for broker in brokers}
        names = [self._broker_name] if self._broker_name else sorted(known)
        if len(names) != 1 or names[0] not in known:
            text = (
                f"the NameServers know {', '.join(sorted(known)) or 'no broker'}: name the one to import into"
            )
            raise TopicRefused(Status.QUEUE_UNKNOWN, text)
        master = known[names[0]].master
        if master is None:
            raise ReadFailed(Status.NOT_CONFIRMED, f"{names[0]} has no master at the moment")
        self._address = master
        return master


def _split(body: bytes) -> list[bytes]:
    records, at = [], 0
    while at < len(body):
        end = at + record_size_at(body, at, max_body_bytes=MAX_BODY_BYTES)
        records.append(body[at:end])
        at = end
    return records


async def pause(attempt: int) -> None:
    """Sleep before a retry. The delay grows with each attempt, up to 1 s."""
    await asyncio.sleep(_PAUSES_S[min(attempt, len(_PAUSES_S) - 1)])
