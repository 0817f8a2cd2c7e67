"""Remoting requests that a node answers without the master, and the executors of all requests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Literal, NamedTuple

from broker_adapter.config.remoting import RemotingSettings
from broker_adapter.endpoints.directory import Directory
from broker_adapter.endpoints.filters.filters import filter_from
from broker_adapter.endpoints.rejected import Rejected
from broker_adapter.endpoints.v4 import bodies
from broker_adapter.endpoints.v4.calls import Forwarding, NodeClients
from broker_adapter.endpoints.v4.node_queries import NodeQueries
from broker_adapter.endpoints.v4.request import text
from broker_adapter.errors import ResponseCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Executor, Processor
from broker_adapter.wire.topic_names import RETRY_PREFIX, check_group_name

#: Maximum number of members in a list that is encoded on the event loop. Longer lists are encoded on a
#: thread.
_MANY_MEMBERS = 1_024
#: Maximum number of concurrent requests to members. They have their own executor, because members may take
#: arbitrarily long to respond. A message for a member may be in memory twice: in the request and on its way
#: to the member.
_MAX_MEMBER_QUERIES, _MAX_MESSAGES_GIVEN = 64, 16


ExecutorName = Literal[
    "sends",
    "changes",
    "pulls",
    "queries",
    "replies",
    "clients",
    "admin",
    "member queries",
    "messages out of turn",
]
Executors = Mapping[ExecutorName, Executor]


def make_executors(settings: RemotingSettings) -> Executors:
    def executor(
        name: ExecutorName, running: int, waiting: int = 0, *, ends_with_connection: bool = False
    ) -> None:
        found[name] = Executor(name, running, waiting, ends_with_connection=ends_with_connection)

    found: dict[ExecutorName, Executor] = {}
    queries = settings.max_queries
    executor("sends", settings.max_sends)
    # Clients send ends of transactions and offsets one-way, and do not repeat them: a client with too many
    # sends must not lose them.
    executor("changes", settings.max_sends)
    executor("pulls", settings.max_pulls, ends_with_connection=True)
    executor("queries", queries, queries)
    # A client may accept its reply arbitrarily late, so no reply waits behind another.
    executor("replies", 2 * queries)
    executor("clients", queries, queries)
    executor("admin", queries, queries)
    executor("member queries", _MAX_MEMBER_QUERIES, ends_with_connection=True)
    executor("messages out of turn", _MAX_MESSAGES_GIVEN, ends_with_connection=True)
    return found


def queue_rows(executors: Executors) -> dict[str, str]:
    """Return the statistics of RocketMQ's thread pool queues.

    How long the first request has waited is not measured.
    """
    rows: dict[str, str] = {}
    for prefix, executor in (
        ("send", executors["sends"]),
        ("pull", executors["pulls"]),
        ("query", executors["queries"]),
    ):
        rows[f"{prefix}ThreadPoolQueueSize"] = str(max(0, executor.under_way - executor.running))
        rows[f"{prefix}ThreadPoolQueueCapacity"] = str(executor.most)
        rows[f"{prefix}ThreadPoolQueueHeadWaitTimeMills"] = "0"
    return rows


class ClientProcessor:
    """Answers requests of clients about themselves and about the members of their groups."""

    def __init__(self, clients: NodeClients, directory: Directory, forwarding: Forwarding) -> None:
        self._clients = clients.table
        self._member_left = clients.member_left
        self._directory = directory
        self._forwarding = forwarding

    async def heartbeat(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        """Register a client. If a group's retry topic is missing, the master creates it.

        As in RocketMQ, consumers of groups with invalid names are ignored. RocketMQ returns SUCCESS. This
        broker registers the other groups and then reports the invalid name with IllegalMessage
        (GROUP_NAME_INVALID).
        """
        received = bodies.heartbeat(request.body)
        beat = received.without_invalid_groups()
        account = self._forwarding.account_of(request)
        self._clients.heard_of(connection, beat, request.language, request.version, account)
        topics = [RETRY_PREFIX + consumer.group for consumer in beat.consumers]
        if any(self._directory.topic(topic) is None for topic in topics):
            await self._forwarding.call_master(connection, request)
        for consumer in received.consumers:
            check_group_name(consumer.group)
        return request.answer(ResponseCode.SUCCESS)

    async def unregister(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        client_id = text(request.fields, "clientID")
        for name, consumes in (("producerGroup", False), ("consumerGroup", True)):
            if group := request.fields.get(name):
                was_member = consumes and self._clients.consumes(group, client_id)
                self._clients.gone(connection, group, client_id, consumes=consumes)
                if was_member and not self._clients.consumes(group, client_id):
                    await self._member_left(group, client_id)
        return request.answer(ResponseCode.SUCCESS)

    async def consumer_list(
        self, connection: RemotingConnection, request: RemotingCommand
    ) -> RemotingCommand:
        group = text(request.fields, "consumerGroup")
        members = self._clients.consumers.get(group)
        if not members:
            return request.answer(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        names = list(members)
        is_long = len(names) > _MANY_MEMBERS
        body = (
            await asyncio.to_thread(bodies.consumer_list, names) if is_long else bodies.consumer_list(names)
        )
        return request.answer(ResponseCode.SUCCESS, body=body)

    async def check_config(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        """Check the filter of a consumer at its startup.

        If the filter is invalid, the response is SUBSCRIPTION_PARSE_FAILED.
        """
        if (found := bodies.checked_subscription(request.body)) is not None:
            try:
                filter_from(*found)
            except Rejected as error:
                return request.answer(ResponseCode.SUBSCRIPTION_PARSE_FAILED, error.message)
        return request.answer(ResponseCode.SUCCESS)


class NodeProcessors(NamedTuple):
    """The processors of a node. Rows of the table of request codes refer to their methods.

    `commands`: operator requests to this node's log, by code.
    """

    forwarding: Forwarding
    clients: ClientProcessor
    queries: NodeQueries
    commands: Mapping[int, Processor]
