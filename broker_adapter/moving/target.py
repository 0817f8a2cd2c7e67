"""The group of ours that messages move into, asked by way of the remoting protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.classic.commit_log import MAX_BODY_BYTES
from broker_adapter.client.core import requests
from broker_adapter.client.core.admin_bodies import group_body, parse_topics
from broker_adapter.client.core.outcomes import error_of
from broker_adapter.client.core.route_data import parse_clusters
from broker_adapter.client.core.values import MessageQueue
from broker_adapter.client.instance import ClientInstance
from broker_adapter.client.options import ClientOptions
from broker_adapter.errors import BrokerError, ReadFailed, ResponseCode, Status, TopicRefused
from broker_adapter.format.message import Message, record_size_at
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand

_SUBSCRIPTION = 4
_CALL_S = 10.0
_PAUSES_S = (0.1, 0.2, 0.5, 1.0)
#: Errors that stay, however long one waits.
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
    """Some records of a queue, which has messages `begin` to `end`."""

    begin: int
    end: int
    records: list[bytes]


class ImportTarget:
    """Use it with `async with`. Calls are repeated for `timeout_s` while the master changes; what is repeated
    changes nothing a second time. BrokerErrors."""

    def __init__(
        self, name_servers: Sequence[str], broker_name: str = "", *, timeout_s: float = 30.0
    ) -> None:
        """`broker_name`: of the group; "": the only one that the NameServers know."""
        self._client = ClientInstance(name_servers, ClientOptions(request_timeout_s=_CALL_S))
        self._broker_name = broker_name
        self._timeout_s = timeout_s
        self._address = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    # -- topics and queues --------------------------------------------------------------------------------

    async def topics(self) -> set[str]:
        """Names of all."""
        answer = await self._call(RemotingCommand(RequestCode.GET_ALL_TOPIC_CONFIG))
        return set(json.loads(answer.body)["topicConfigTable"])

    async def put_topic(self, config: TopicConfig) -> None:
        request = requests.create_topic(
            config.name,
            read_queues=config.read_queues,
            write_queues=config.write_queues,
            permission=config.perm,
            attributes={"+message.type": config.message_type} if config.message_type else {},
        )
        request.fields |= {"topicSysFlag": str(config.sys_flag), "order": str(config.order).lower()}
        await self._call(request)

    async def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(the first offset, the one behind the last) of a queue."""
        fields = {"topic": topic, "queueId": str(queue_id)}
        least = await self._call(RemotingCommand(RequestCode.GET_MIN_OFFSET, dict(fields)))
        end = await self._call(RemotingCommand(RequestCode.GET_MAX_OFFSET, dict(fields)))
        return requests.number(least, "offset"), requests.number(end, "offset")

    async def configs(self) -> dict[str, TopicConfig]:
        """All topics, by name."""
        answer = await self._call(RemotingCommand(RequestCode.GET_ALL_TOPIC_CONFIG))
        return {one.name: one for one in parse_topics(answer.body)}

    async def read_queue(self, topic: str, queue_id: int, offset: int) -> QueuePart:
        """Whatever the topic permits. -1: the last message."""
        fields = {"topic": topic, "queueId": str(queue_id), "offset": str(offset)}
        answer = await self._call(RemotingCommand(RequestCode.READ_QUEUE, fields))
        begin, end = requests.number(answer, "minOffset"), requests.number(answer, "maxOffset")
        return QueuePart(begin, end, _split(answer.body))

    async def begin_queue(self, topic: str, queue_id: int, offset: int) -> None:
        fields = {"topic": topic, "queueId": str(queue_id), "offset": str(offset)}
        await self._call(RemotingCommand(RequestCode.BEGIN_QUEUE, fields))

    async def store(self, records: Iterable[bytes]) -> None:
        """Once: it may have been done though it fails."""
        await self._ask(RemotingCommand(RequestCode.IMPORT_MESSAGES, {}, b"".join(records)))

    async def store_again(self, record: bytes, topic: str, queue_id: int, offset: int) -> None:
        """One record, until it is there, at this offset."""
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

    async def send(self, topic: str, queue_id: int, message: Message, properties: str) -> None:
        """As a producer does, with these properties. If an answer is lost it may be there twice, unless it
        has a UNIQ_KEY and its topic is none of retries."""
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
        """Some records from an offset on; none at the end of the queue."""
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

    # -- groups -------------------------------------------------------------------------------------------

    async def put_group(self, config: GroupConfig) -> None:
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await self._call(RemotingCommand(code, {}, group_body(config)))

    async def commit(self, group: str, offset: QueueOffset) -> None:
        """The greater offset stays."""
        fields = {
            "consumerGroup": group,
            "topic": offset.topic,
            "queueId": str(offset.queue_id),
            "commitOffset": str(offset.offset),
        }
        await self._call(RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, fields))

    # -- inside -------------------------------------------------------------------------------------------

    async def reset(self, group: str, offset: QueueOffset) -> None:
        """To this offset, also a lower one."""
        queue = MessageQueue(offset.topic, self._broker_name, offset.queue_id)
        await self._call(requests.reset_offset(group, queue, offset.offset))

    async def _call(self, request: RemotingCommand, *, also: int = ResponseCode.SUCCESS) -> RemotingCommand:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        attempt = 0
        while True:
            try:
                return await self._ask(request, also=also)
            except BrokerError as error:
                if error.status in _FINAL or loop.time() > deadline:
                    raise
            await pause(attempt)
            attempt += 1

    async def _ask(self, request: RemotingCommand, *, also: int = ResponseCode.SUCCESS) -> RemotingCommand:
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
    found, at = [], 0
    while at < len(body):
        end = at + record_size_at(body, at, max_body_bytes=MAX_BODY_BYTES)
        found.append(body[at:end])
        at = end
    return found


async def pause(attempt: int) -> None:
    """Longer each time, up to a second."""
    await asyncio.sleep(_PAUSES_S[min(attempt, len(_PAUSES_S) - 1)])
