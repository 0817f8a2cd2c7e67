"""Admin: topics, routes and offsets, as programs and tools ask for them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from typing import Self

from broker_adapter.errors import Status, TopicRefused
from broker_adapter.format.message_id import parse_offset_id
from broker_adapter.format.topic_names import check_topic_name
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting_client.core import requests
from broker_adapter.remoting_client.core.route_data import BrokerAddresses, TopicRoute, parse_clusters
from broker_adapter.remoting_client.core.values import MessageExt, MessageQueue, decode_messages
from broker_adapter.remoting_client.instance import ClientInstance
from broker_adapter.remoting_client.options import ClientOptions

_PAUSE_S = 0.05


class Admin:
    """For asyncio. Use it with `async with`, or `start` and `close`. Errors are BrokerError's."""

    def __init__(
        self,
        name_servers: Sequence[str] | str,
        *,
        options: ClientOptions | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._client = ClientInstance(name_servers, options, tls)

    async def start(self) -> None:
        self._client.start()

    async def close(self) -> None:
        await self._client.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def clusters(self) -> dict[str, list[BrokerAddresses]]:
        """Cluster -> its brokers, as the NameServer knows them."""
        answer = await self._client.call_name_server(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
        return parse_clusters(answer.body)

    async def route(self, topic: str) -> TopicRoute:
        """Asked for anew. TopicRefused (TOPIC_UNKNOWN)."""
        return await self._client.routes.ask(topic)

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        permission: int = 6,
        cluster: str = "",
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        """Create or change it at every master, of `cluster` if one is named. `permission`: 4 readable, 2
        writable. `attributes`: as mqadmin names them.

        The NameServer is waited for, which learns of it from the brokers. TopicRefused: QUEUE_UNKNOWN if no
        master is known, TOPIC_UNKNOWN if the NameServer does not know it in time.
        """
        check_topic_name(topic)
        masters = {
            broker.name: broker.master
            for name, brokers in (await self.clusters()).items()
            for broker in brokers
            if broker.master is not None and cluster in ("", name)
        }
        if not masters:
            raise TopicRefused(Status.QUEUE_UNKNOWN, f"no master of cluster {cluster!r} is known")
        for master in masters.values():
            await self._client.call(
                master,
                requests.create_topic(
                    topic,
                    read_queues=queues,
                    write_queues=queues,
                    permission=permission,
                    attributes=attributes or {},
                ),
            )

        await self._until_known(topic, set(masters), queues)

    async def _until_known(self, topic: str, brokers: set[str], queues: int) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._client.options.timeout_s
        while True:
            try:
                found = (await self.route(topic)).queues
                if brokers <= {one.broker_name for one in found if one.write_queues == queues}:
                    return
            except TopicRefused as error:
                if error.status is not Status.TOPIC_UNKNOWN:
                    raise
            if loop.time() > deadline:
                raise TopicRefused(
                    Status.TOPIC_UNKNOWN, f"{topic} was created, and the NameServer does not know it in time"
                )
            await asyncio.sleep(_PAUSE_S)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Of the first message that is still there."""
        return await self._offset(queue, requests.of_queue(RequestCode.GET_MIN_OFFSET, queue))

    async def max_offset(self, queue: MessageQueue) -> int:
        """The one after the last message."""
        return await self._offset(queue, requests.of_queue(RequestCode.GET_MAX_OFFSET, queue))

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Of the first message that was stored then or later (ms since 1970)."""
        request = requests.of_queue(
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue, timestamp=str(timestamp_ms)
        )
        return await self._offset(queue, request)

    async def view_message(self, offset_message_id: str) -> MessageExt:
        """The message of a broker's id, from the broker whose address is in it. IllegalMessage
        (MESSAGE_ID_INVALID); ReadFailed or RemotingFailed if it is not there."""
        found = parse_offset_id(offset_message_id)
        request = RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(found.physical_offset)})
        answer = await self._client.call(str(found.store_host), request)
        return decode_messages(answer.body, "")[0]

    async def _offset(self, queue: MessageQueue, request: RemotingCommand) -> int:
        address = await self._client.master_of(queue.topic, queue.broker_name)
        return requests.number(await self._client.call(address, request), "offset")
