"""Admin: topics, routes and offsets, as programs and tools ask for them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from broker_adapter.api import GroupConfig, QueueStats, TopicConfig
from broker_adapter.client.consumer_calls import ConsumerCalls
from broker_adapter.client.core import requests
from broker_adapter.client.core.admin_bodies import (
    group_body,
    parse_consume_stats,
    parse_groups,
    parse_runtime,
    parse_topic_stats,
    parse_topics,
)
from broker_adapter.client.core.route_data import (
    BrokerAddresses,
    TopicRoute,
    distinct,
    parse_clusters,
)
from broker_adapter.client.core.values import MessageExt, MessageQueue, decode_messages
from broker_adapter.client.instance import ClientInstance, RemotingClient, is_absent
from broker_adapter.client.options import ClientOptions
from broker_adapter.errors import (
    AnswerMissing,
    NameServerUnavailable,
    PutRefused,
    ReadFailed,
    Status,
    StoredDataDamaged,
    TopicRefused,
)
from broker_adapter.format.message_id import parse_offset_id
from broker_adapter.format.topic_names import check_topic_name
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand

T = TypeVar("T")

_PAUSE_S = 0.05
_END_MS = (1 << 63) - 1


class Admin(RemotingClient):
    """For asyncio. Use it with `async with`, or `start` and `close`. Errors are BrokerError's."""

    def __init__(
        self,
        name_servers: Sequence[str] | str,
        *,
        options: ClientOptions | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._client = ClientInstance(name_servers, options, tls)

    async def clusters(self) -> dict[str, list[BrokerAddresses]]:
        """Cluster -> its brokers, as the NameServer knows them."""
        answer = await self._client.call_name_server(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
        return parse_clusters(answer.body)

    async def broker_runtime(self, address: str) -> dict[str, str]:
        """What the broker with this remoting address says of itself, by RocketMQ's names."""
        answer = await self._client.call(address, RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO))
        return parse_runtime(answer.body)

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
        request = requests.create_topic(
            topic,
            read_queues=queues,
            write_queues=queues,
            permission=permission,
            attributes=attributes or {},
        )
        await self._each_master(request, cluster)
        names = {broker.name for broker in await self._brokers(cluster) if broker.master is not None}
        await self._until_known(topic, names, queues)

    async def delete_topic(self, topic: str, *, cluster: str = "") -> None:
        """At every master, of `cluster` if one is named."""
        request = RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        await self._each_master(request, cluster)

    async def topics(self) -> list[TopicConfig]:
        """As the masters have them, sorted by name."""
        answers = await self._each_master(RemotingCommand(RequestCode.GET_ALL_TOPIC_CONFIG))
        found = {one.name: one for answer in answers for one in parse_topics(answer.body)}
        return [found[name] for name in sorted(found)]

    async def topic_stats(self, topic: str) -> dict[MessageQueue, QueueStats]:
        """Ends of all queues. TopicRefused (TOPIC_UNKNOWN)."""
        request = RemotingCommand(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
        return await self._of_all_queues(await self._each_master(request), parse_topic_stats)

    async def put_group(self, config: GroupConfig) -> None:
        """Create or change it at every master."""
        request = RemotingCommand(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group_body(config))
        await self._each_master(request)

    async def delete_group(self, name: str) -> None:
        """At every master, with its offsets."""
        fields = {"groupName": name, "cleanOffset": "true"}
        await self._each_master(RemotingCommand(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields))

    async def groups(self) -> list[GroupConfig]:
        """As the masters have them, sorted by name."""
        answers = await self._each_master(RemotingCommand(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
        found = {one.name: one for answer in answers for one in parse_groups(answer.body)}
        return [found[name] for name in sorted(found)]

    async def group_offsets(self, group: str) -> dict[MessageQueue, int]:
        """What the group has committed, of all queues of topics in which it has anything; 0 for queues in
        which it has nothing. GroupRefused (GROUP_UNKNOWN)."""
        request = RemotingCommand(RequestCode.GET_CONSUME_STATS, {"consumerGroup": group})
        return await self._of_all_queues(await self._each_master(request), parse_consume_stats)

    async def _of_all_queues(
        self, answers: Sequence[RemotingCommand], parse: Callable[[bytes], dict[MessageQueue, T]]
    ) -> dict[MessageQueue, T]:
        found: dict[MessageQueue, T] = {}
        for answer in answers:
            found |= parse(answer.body)
        return dict(sorted(found.items()))

    async def _brokers(self, cluster: str) -> list[BrokerAddresses]:
        clusters = await self.clusters()
        return [one for name, brokers in clusters.items() if cluster in ("", name) for one in brokers]

    async def _each_master(self, request: RemotingCommand, cluster: str = "") -> list[RemotingCommand]:
        """The answers of all masters, of `cluster` if one is named. What fails for want of a master is asked
        again until the time-out: a change may then be made twice, with the same result.

        TopicRefused (QUEUE_UNKNOWN) if no master is known.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._client.options.timeout_s
        while True:
            try:
                masters = [one.master for one in distinct(await self._brokers(cluster))]
                if not masters or None in masters:
                    raise TopicRefused(Status.QUEUE_UNKNOWN, f"no master of cluster {cluster!r} is known")
                return [await self._client.call(str(master), replace(request)) for master in masters]
            except (AnswerMissing, PutRefused, NameServerUnavailable, TopicRefused) as error:
                is_final = isinstance(error, TopicRefused) and error.status is not Status.QUEUE_UNKNOWN
                if is_final or loop.time() + _PAUSE_S > deadline:
                    raise
            await asyncio.sleep(_PAUSE_S)

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
        messages = decode_messages(answer.body, "")
        if not messages:
            raise StoredDataDamaged(Status.RECORD_TRUNCATED, "an answer without a message")
        return messages[0]

    async def query(
        self,
        topic: str,
        key: str,
        *,
        max_messages: int = 32,
        begin_ms: int = 0,
        end_ms: int = _END_MS,
        is_unique: bool = False,
    ) -> list[MessageExt]:
        """Messages with this key, stored between the times (ms since 1970), the newest first, of all brokers
        of the topic. `is_unique`: `key` is a producer's message id."""
        request = requests.query(
            topic, key, most=max_messages, begin_ms=begin_ms, end_ms=end_ms, is_unique=is_unique
        )
        found: list[MessageExt] = []
        for name in self._readable(await self.route(topic)):
            try:
                answer = await self._client.call(await self._client.master_of(topic, name), request)
            except ReadFailed as error:
                if not is_absent(error):
                    raise
            else:
                found += decode_messages(answer.body, name)
        return found[:max_messages]

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """The group's offset in a queue; None: it has none."""
        return await ConsumerCalls(self._client, group).committed(queue)

    async def reset_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Set the group's offset in a queue, backwards too. Members that are connected go on from there.

        Brokers of RocketMQ before 5 do not know it."""
        address = await self._client.master_of(queue.topic, queue.broker_name)
        await self._client.call(address, requests.reset_offset(group, queue, offset))

    def _readable(self, route: TopicRoute) -> list[str]:
        """Names of brokers whose queues of a topic can be read."""
        return list(dict.fromkeys(queue.broker_name for queue in route.subscribe_queues("")))

    async def _offset(self, queue: MessageQueue, request: RemotingCommand) -> int:
        address = await self._client.master_of(queue.topic, queue.broker_name)
        return requests.number(await self._client.call(address, request), "offset")
