"""The administration client: topics, routes, groups and offsets."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from broker_adapter.api import GroupConfig, QueueStats, TopicConfig
from broker_adapter.client import group_requests
from broker_adapter.client.consumer_calls import ConsumerRequests
from broker_adapter.client.core import requests
from broker_adapter.client.core.admin_bodies import (
    changed_group_body,
    group_body,
    parse_consume_stats,
    parse_groups,
    parse_runtime,
    parse_topic,
    parse_topic_stats,
    parse_topics,
)
from broker_adapter.client.core.checks import check_offset, check_type
from broker_adapter.client.core.route_data import (
    BrokerAddresses,
    TopicRoute,
    distinct,
    parse_clusters,
)
from broker_adapter.client.core.values import (
    MessageExt,
    MessageQueue,
    check_queue,
    decode_one,
    first_messages,
)
from broker_adapter.client.instance import ClientInstance, RemotingClient, is_absent
from broker_adapter.client.options import ClientOptions
from broker_adapter.client.steps import run_in_steps
from broker_adapter.errors import (
    AnswerMissing,
    BrokerError,
    GroupRefused,
    NameServerUnavailable,
    PutRefused,
    ReadFailed,
    RemotingFailed,
    Status,
    TopicRefused,
    error_for,
)
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.wire.message_id import parse_offset_id
from broker_adapter.wire.topic_names import check_topic_name

T = TypeVar("T")

_PAUSE_S = 0.05
_SHOWN_MEMBERS = 5
_END_MS = (1 << 63) - 1


class Admin(RemotingClient):
    """An administration client for asyncio.

    Use `async with`, or `start` and `close`. All calls may raise BrokerErrors.
    """

    def __init__(
        self,
        name_servers: Sequence[str] | str,
        *,
        options: ClientOptions | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._client = ClientInstance(name_servers, options, tls)

    async def clusters(self) -> dict[str, list[BrokerAddresses]]:
        """Return the brokers of each cluster that the NameServer knows."""
        answer = await self._client.call_name_server(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
        return parse_clusters(answer.body)

    async def broker_runtime(self, address: str) -> dict[str, str]:
        """Return the runtime information of the broker at a remoting address, under the names that RocketMQ
        uses.
        """
        answer = await self._client.call(address, RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO))
        return parse_runtime(answer.body)

    async def route(self, topic: str) -> TopicRoute:
        """Return the current route of a topic from the NameServer. Raises TopicRefused (TOPIC_UNKNOWN)."""
        return await self._client.routes.refresh(topic)

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int | None = None,
        permission: int | None = None,
        cluster: str = "",
        attributes: Mapping[str, str] | None = None,
        is_forced: bool = False,
    ) -> TopicConfig:
        """Create the topic, or change the given settings of an existing one, on every master.

        Returns the resulting config. `cluster`: change only the masters of this cluster; "": all masters.

        By default, a new topic has 4 queues and permission 6 (4 readable, 2 writable). `attributes`: changes
        in mqadmin's syntax, for example {"+message.type": "FIFO"} or {"-message.type": ""}.

        Returns after the NameServer has received the change. Raises TopicRefused: QUEUES_NOT_EMPTY if the
        change would hide queues that contain messages, unless `is_forced`; QUEUE_UNKNOWN if there is no
        broker or the master of a broker is unknown; TOPIC_UNKNOWN if the topic does not reach the NameServer
        in time.
        """
        check_topic_name(topic)

        async def change(master: str) -> TopicConfig:
            config = await self._topic_at(master, topic) or TopicConfig(topic)
            if queues is not None:
                config = config._replace(read_queues=queues, write_queues=queues)
            if permission is not None:
                config = config._replace(perm=permission)
            request = requests.create_topic(config, attributes or {}, is_forced=is_forced)
            await self._client.call(master, request)
            return await self._topic_at(master, topic) or config

        configs = await self._at_each_master(change, cluster)
        names = {broker.name for broker in await self._brokers(cluster) if broker.master is not None}
        await self._until_known(topic, names, {config.write_queues for config in configs})
        return configs[0]

    async def _topic_at(self, master: str, topic: str) -> TopicConfig | None:
        try:
            request = RemotingCommand(RequestCode.GET_TOPIC_CONFIG, {"topic": topic})
            return parse_topic((await self._client.call(master, request)).body)
        except TopicRefused as error:
            if error.status is not Status.TOPIC_UNKNOWN:
                raise
            return None

    async def delete_topic(self, topic: str, *, cluster: str = "") -> None:
        """Delete the topic on every master, or only on the masters of `cluster`.

        Raises TopicRefused: TOPIC_UNKNOWN if no master has the topic, TOPIC_RESERVED if the topic belongs to
        the broker itself.
        """
        found = await self._at_each_master(lambda master: self._topic_at(master, topic), cluster)
        if not any(found):
            raise error_for(Status.TOPIC_UNKNOWN, f"topic {topic[:255]!r} does not exist on any broker")
        request = RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        await self._each_master(request, cluster)

    async def topics(self) -> list[TopicConfig]:
        """Return the topics of all masters, sorted by name.

        For brokers without a known master, reads from a slave.
        """
        answers = await self._each_reader(RemotingCommand(RequestCode.GET_ALL_TOPIC_CONFIG))
        by_name = {one.name: one for answer in answers for one in parse_topics(answer.body)}
        return [by_name[name] for name in sorted(by_name)]

    async def topic_stats(self, topic: str) -> dict[MessageQueue, QueueStats]:
        """Return the offsets of all queues. Raises TopicRefused (TOPIC_UNKNOWN)."""
        request = RemotingCommand(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
        return await self._merge_by_queue(await self._each_reader(request), parse_topic_stats)

    async def create_group(
        self,
        name: str,
        *,
        consume_enable: bool | None = None,
        consume_orderly: bool | None = None,
        retry_max_times: int | None = None,
        retry_queues: int | None = None,
    ) -> None:
        """Create the group, or change the given settings of an existing one, on every master.

        A new group has the defaults of GroupConfig.
        """
        given = {
            "consumeEnable": consume_enable,
            "consumeMessageOrderly": consume_orderly,
            "retryMaxTimes": retry_max_times,
            "retryQueueNums": retry_queues,
        }
        changes = {key: value for key, value in given.items() if value is not None}

        async def change(master: str) -> None:
            present = await self._group_at(master, name) or group_body(GroupConfig(name))
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            request = RemotingCommand(code, body=changed_group_body(present, changes))
            await self._client.call(master, request)

        await self._at_each_master(change)

    async def _group_at(self, master: str, name: str) -> bytes | None:
        """Return the group's config at a master as a JSON body, or None if the master does not know the
        group.
        """
        request = RemotingCommand(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": name})
        try:
            return (await self._client.call(master, request)).body
        except GroupRefused as error:
            if error.status is not Status.GROUP_UNKNOWN:
                raise
            return None

    async def group_members(self, name: str) -> list[str]:
        """Return the client ids of the group's connected members, sorted."""

        async def members_at(master: str) -> list[str]:
            try:
                answer = await self._client.call(master, group_requests.members_of(name))
            except RemotingFailed:  # RocketMQ's brokers have no other response for a group without members
                return []
            return group_requests.parse_members(answer.body) if answer.body else []

        return sorted({member for ids in await self._at_each_master(members_at) for member in ids})

    async def delete_group(self, name: str, *, is_forced: bool = False) -> None:
        """Delete the group and its offsets on every master.

        Raises GroupRefused: GROUP_UNKNOWN if no master has the group; GROUP_IN_USE if the group has connected
        members, which would recreate it without offsets, unless `is_forced`.
        """
        if not any(await self._at_each_master(lambda master: self._group_at(master, name))):
            raise error_for(Status.GROUP_UNKNOWN, f"group {name[:255]!r} does not exist on any broker")
        if not is_forced and (members := await self.group_members(name)):
            shown = ", ".join(members[:_SHOWN_MEMBERS])
            raise error_for(Status.GROUP_IN_USE, f"{name} has {len(members)} connected members: {shown}")
        fields = {"groupName": name, "cleanOffset": "true"}
        await self._each_master(RemotingCommand(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields))

    async def groups(self) -> list[GroupConfig]:
        """Return the groups of all masters, sorted by name.

        For brokers without a known master, reads from a slave.
        """
        answers = await self._each_reader(RemotingCommand(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
        by_name = {one.name: one for answer in answers for one in parse_groups(answer.body)}
        return [by_name[name] for name in sorted(by_name)]

    async def group_offsets(self, group: str) -> dict[MessageQueue, int]:
        """Return the group's committed offsets.

        The result contains all queues of the topics in which the group has an offset, with 0 for queues
        without one. Raises GroupRefused (GROUP_UNKNOWN).
        """
        request = RemotingCommand(RequestCode.GET_CONSUME_STATS, {"consumerGroup": group})
        committed = await self._merge_by_queue(await self._each_reader(request), parse_consume_stats)
        # Masters send the same response for an unknown group and for one without offsets.
        if not committed and all(config.name != group for config in await self.groups()):
            raise error_for(Status.GROUP_UNKNOWN, f"there is no group {group[:255]!r}")
        return committed

    async def _merge_by_queue(
        self, answers: Sequence[RemotingCommand], parse: Callable[[bytes], dict[MessageQueue, T]]
    ) -> dict[MessageQueue, T]:
        merged: dict[MessageQueue, T] = {}
        for answer in answers:
            merged |= parse(answer.body)
        return dict(sorted(merged.items()))

    async def _brokers(self, cluster: str) -> list[BrokerAddresses]:
        clusters = await self.clusters()
        return [one for name, brokers in clusters.items() if cluster in ("", name) for one in brokers]

    async def _each_master(self, request: RemotingCommand, cluster: str = "") -> list[RemotingCommand]:
        """Send the request to all masters and return the responses.

        Raises the errors of `_at_each_master`.
        """
        return await self._at_each_master(lambda master: self._client.call(master, replace(request)), cluster)

    async def _each_reader(self, request: RemotingCommand) -> list[RemotingCommand]:
        """Send the query to all masters, and to a slave of each broker whose master is unknown."""
        return await self._at_each(
            lambda broker: broker.reader, lambda address: self._client.call(address, replace(request))
        )

    async def _at_each_master(self, call: Callable[[str], Awaitable[T]], cluster: str = "") -> list[T]:
        """Call each master, or each master of `cluster`, and return the results.

        The call must be idempotent, because it may be repeated. Raises TopicRefused (QUEUE_UNKNOWN) if there
        is no broker or the master of a broker is unknown.
        """
        return await self._at_each(lambda broker: broker.master, call, cluster)

    async def _at_each(
        self,
        choose: Callable[[BrokerAddresses], str | None],
        call: Callable[[str], Awaitable[T]],
        cluster: str = "",
    ) -> list[T]:
        """Call the chosen address of each broker and return the results.

        If an address is unknown, does not respond or rejects the call temporarily, retries all calls until
        the timeout.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._client.options.timeout
        while True:
            try:
                addresses = [choose(broker) for broker in distinct(await self._brokers(cluster))]
                if not addresses or None in addresses:
                    raise TopicRefused(Status.QUEUE_UNKNOWN, f"no master of cluster {cluster!r} is known")
                return [await call(str(address)) for address in addresses]
            except (AnswerMissing, PutRefused, NameServerUnavailable, TopicRefused) as error:
                is_final = isinstance(error, TopicRefused) and error.status is not Status.QUEUE_UNKNOWN
                if is_final or loop.time() + _PAUSE_S > deadline:
                    raise
            await asyncio.sleep(_PAUSE_S)

    async def _until_known(self, topic: str, brokers: set[str], queues: Collection[int]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._client.options.timeout
        while True:
            try:
                found = (await self.route(topic)).queues
                if brokers <= {one.broker_name for one in found if one.write_queues in queues}:
                    return
            except TopicRefused as error:
                if error.status is not Status.TOPIC_UNKNOWN:
                    raise
            if loop.time() > deadline:
                raise TopicRefused(
                    Status.TOPIC_UNKNOWN,
                    f"{topic} was created, but the NameServer did not register it in time",
                )
            await asyncio.sleep(_PAUSE_S)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest available message."""
        return await self._offset(queue, requests.of_queue(RequestCode.GET_MIN_OFFSET, queue))

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset after the last message."""
        return await self._offset(queue, requests.of_queue(RequestCode.GET_MAX_OFFSET, queue))

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int, *, is_upper: bool = False) -> int:
        """Return the offset of the first message stored at or after a time (ms since 1970).

        `is_upper`: return the offset of the last message stored at or before the time, or the minimum offset
        if there is none. RocketMQ 4 does not support this.
        """
        request = requests.of_queue(
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            queue,
            timestamp=str(timestamp_ms),
            boundaryType="UPPER" if is_upper else "LOWER",
        )
        return await self._offset(queue, request)

    async def view_message(self, offset_message_id: str) -> MessageExt:
        """Return the message with an offset message id, from the broker whose address the id contains.

        If that broker does not respond, queries the others, because each node of a group with a replicated
        log has the record at the same position. Raises IllegalMessage (MESSAGE_ID_INVALID) if the id is
        invalid, ReadFailed or RemotingFailed if there is no such message, and PutRefused or AnswerMissing if
        no broker that stores the message responds.
        """
        check_type("a message id", offset_message_id, str)
        message_id = parse_offset_id(offset_message_id)
        request = RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(message_id.physical_offset)})
        address = str(message_id.store_host)
        try:
            return decode_one((await self._client.call(address, request)).body, "")
        except (PutRefused, AnswerMissing):
            found = await self._view_elsewhere(offset_message_id.upper(), request, address)
            if found is None:
                raise
            return found

    async def _view_elsewhere(
        self, offset_message_id: str, request: RemotingCommand, absent: str
    ) -> MessageExt | None:
        """Return the message from any broker except the one at `absent`, provided that it stores the very
        same message.
        """
        for broker in await self._brokers(""):
            for address in sorted(set(broker.addresses.values()) - {absent}):
                try:
                    answer = await self._client.call(address, replace(request))
                    message = decode_one(answer.body, broker.name)
                except BrokerError:
                    continue
                if message.offset_message_id == offset_message_id:
                    return message
        return None

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
        """Return messages with a key from all brokers of the topic. The messages of each broker are sorted,
        newest first.

        `begin_ms`, `end_ms`: range of store times, ms since 1970. `is_unique`: `key` is a producer's message
        id. Raises StoredDataDamaged (BODY_UNREADABLE) if the compressed body of a message is invalid.
        """
        request = requests.query(
            topic, key, max_messages=max_messages, begin_ms=begin_ms, end_ms=end_ms, is_unique=is_unique
        )
        messages: list[MessageExt] = []
        for name in self._readable(await self.route(topic)):
            try:
                answer = await self._client.call(await self._client.reader_of(topic, name), request)
            except ReadFailed as error:
                if not is_absent(error):
                    raise
            else:
                found, _ = await run_in_steps(first_messages(answer.body, name, max_messages))
                if errors := [message.body_error for message in found if message.body_error is not None]:
                    raise errors[0]
                messages += found
        return messages[:max_messages]

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """Return the group's offset in a queue, or None if it has none."""
        return await ConsumerRequests(self._client, group).committed(queue)

    async def reset_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Set the group's offset in a queue, forward or backward. Connected members continue at this offset.

        RocketMQ brokers before version 5 do not support this. Raises GroupRefused (GROUP_UNKNOWN).
        """
        check_offset(offset)
        check_queue(queue)
        address = await self._client.master_of(queue.topic, queue.broker_name)
        if await self._group_at(address, group) is None:
            raise error_for(Status.GROUP_UNKNOWN, f"there is no group {group[:255]!r}")
        await self._client.call(address, requests.reset_offset(group, queue, offset))

    def _readable(self, route: TopicRoute) -> list[str]:
        """Return the names of the brokers whose queues of a topic are readable."""
        return list(dict.fromkeys(queue.broker_name for queue in route.subscribe_queues("")))

    async def _offset(self, queue: MessageQueue, request: RemotingCommand) -> int:
        address = await self._client.reader_of(queue.topic, queue.broker_name)
        return requests.number(await self._client.call(address, request), "offset")
