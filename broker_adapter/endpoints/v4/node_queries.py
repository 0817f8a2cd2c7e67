"""Processors for requests that a node answers itself: connections and settings, connected group members, and
the queues of a member.

Lists of members are encoded on threads, because a group may have tens of thousands of members.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from broker_adapter.api import TopicConfig
from broker_adapter.config.settings import BrokerSettings
from broker_adapter.endpoints.traffic import Traffic
from broker_adapter.endpoints.v4 import admin_bodies, bodies
from broker_adapter.endpoints.v4.bodies import QueueName
from broker_adapter.endpoints.v4.clients import Member, RemotingClients
from broker_adapter.endpoints.v4.request import text
from broker_adapter.errors import IllegalMessage, ResponseCode, Status
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.json_bodies import dump
from broker_adapter.wire.message_id import parse_offset_id
from broker_adapter.wire.topic_names import RETRY_PREFIX
from dledger.infra.loops.threads import SharedThreads
from dledger.infra.quotas import client_address

T = TypeVar("T")

#: Maximum length of request text quoted in responses.
_SHOWN = 255
#: The version of RocketMQ with this protocol, for tools that depend on the version.
_VERSION = "V5_3_3"

#: Timeout for a member's response, because administrators wait 5 s.
_SAY_S = 4.0
#: RocketMQ's timeout for a listener.
_CONSUME_S = 10.0
_OF_STATE = ("consumerGroup", "clientId", "jstackEnable")
_OF_MESSAGE = ("consumerGroup", "clientId", "msgId", "topic", "topicSysFlag", "groupSysFlag")

#: Sends a request of this connection to the master.
CallMaster = Callable[[RemotingConnection, RemotingCommand], Awaitable[RemotingCommand]]
#: Returns the number of a topic's readable queues by broker name, as far as the NameServers know it.
ReadableQueues = Callable[[str], Awaitable[Mapping[str, int]]]
_ANY_QUEUE = -1


class NodeReport:
    """The settings and counters of a node, under RocketMQ's names."""

    def __init__(
        self,
        settings: BrokerSettings,
        broker_id: Callable[[], int],
        traffic: Traffic,
        log_settings: Callable[[], Mapping[str, str]],
        log_rows: Callable[[], Mapping[str, str]],
    ) -> None:
        """`log_rows`: counters of the log and its disk."""
        self.traffic = traffic
        self._settings = settings
        self._broker_id = broker_id
        self._log_settings = log_settings
        self._log_rows = log_rows
        self._boot_ms = time.time_ns() // 1_000_000

    def settings(self) -> dict[str, str]:
        settings = self._settings
        return {
            "brokerClusterName": settings.cluster,
            "brokerName": settings.name,
            "brokerId": str(self._broker_id()),
            "listenPort": settings.remoting.listen.rpartition(":")[2],
            "namesrvAddr": ";".join(settings.namesrv),
            "autoCreateTopicEnable": str(settings.auto_create_topics).lower(),
            "defaultTopicQueueNums": str(settings.default_queues),
            **self._log_settings(),
        }

    def runtime(self, traffic: Traffic, queue_rows: Mapping[str, str]) -> dict[str, str]:
        """Return the runtime table. `queue_rows`: statistics of the executors' queues."""
        boot = {"brokerVersionDesc": _VERSION, "brokerVersion": "479", "bootTimestamp": str(self._boot_ms)}
        return {**boot, **admin_bodies.traffic_rows(traffic), **queue_rows, **self._log_rows()}


class NodeQueries:
    """The processors of a node, to which rows of the table of request codes refer."""

    def __init__(
        self,
        clients: RemotingClients,
        broker_name: str,
        topic: Callable[[str], TopicConfig | None],
        call_master: CallMaster,
        report: NodeReport,
        queue_rows: Callable[[], Mapping[str, str]],
        readable_queues: ReadableQueues,
    ) -> None:
        """`broker_name`: broker name of the queues.

        `topic` looks up a topic. `queue_rows` returns the statistics of the executors' queues.
        `readable_queues` returns the queues of a topic at all brokers of the cluster.
        """
        self._clients = clients
        self._broker_name = broker_name
        self._topic = topic
        self._ask = call_master
        self._report = report
        self._queue_rows = queue_rows
        self._readable_queues = readable_queues
        # one thread: threads compete with the event loop for the interpreter
        self._texts = SharedThreads(None, 1)

    async def consumers(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        group = text(request.fields, "consumerGroup")
        members = self._clients.consumers.get(group)
        if not members:
            problem = f"the consumer group[{group}] not online"
            return request.answer(ResponseCode.CONSUMER_NOT_ONLINE, problem)
        body = await self._texts.run(
            client_address(connection.host), admin_bodies.consumer_connection, dict(members)
        )
        return request.answer(ResponseCode.SUCCESS, body=body)

    async def groups_of_topic(
        self, connection: RemotingConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """List the groups with offsets in a topic, which the master knows, and those with members here."""
        topic = text(request.fields, "topic")
        answer = await self._ask(connection, request)
        if answer.code != ResponseCode.SUCCESS:
            return request.answer(answer.code, answer.remark)
        groups = {*json.loads(answer.body)["groupList"], *await self._clients.groups_subscribed_to(topic)}
        body = await self._texts.run(client_address(connection.host), dump, {"groupList": sorted(groups)})
        return request.answer(ResponseCode.SUCCESS, body=body)

    async def producers(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        group = text(request.fields, "producerGroup")
        producers = self._clients.producers.get(group)
        if not producers:
            problem = f"the producer group[{group}] not exist"
            return request.answer(ResponseCode.SYSTEM_ERROR, problem)
        body = await self._texts.run(
            client_address(connection.host), admin_bodies.producer_connection, dict(producers)
        )
        return request.answer(ResponseCode.SUCCESS, body=body)

    async def all_producers(
        self, connection: RemotingConnection, request: RemotingCommand
    ) -> RemotingCommand:
        groups = {group: dict(producers) for group, producers in self._clients.producers.items()}
        body = await self._texts.run(
            client_address(connection.host), admin_bodies.all_producers, groups, time.time_ns() // 1_000_000
        )
        return request.answer(ResponseCode.SUCCESS, body=body)

    async def settings(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        lines = (f"{name}={value}\n" for name, value in self._report.settings().items())
        return request.answer(ResponseCode.SUCCESS, body="".join(lines).encode())

    async def stats(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        name, key = text(request.fields, "statsName"), text(request.fields, "statsKey")
        found = self._report.traffic.sums(name, key)
        if found is None:
            problem = f"The stats <{name[:_SHOWN]}> <{key[:_SHOWN]}> not exist"
            return request.answer(ResponseCode.SYSTEM_ERROR, problem)
        return request.answer(ResponseCode.SUCCESS, body=dump(admin_bodies.stats_data(found)))

    async def runtime(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        rows = self._report.runtime(self._report.traffic, self._queue_rows())
        return request.answer(ResponseCode.SUCCESS, body=dump({"table": rows}))

    async def running_info(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        """Forward the query to the member.

        Raises AnswerMissing (ANSWER_MISSING) if it does not respond in time.
        """
        if (member := self._member(request)) is None:
            return _not_online(request)
        return await _member_answer(member, request, _OF_STATE, _SAY_S)

    async def consume_directly(
        self, connection: RemotingConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """Pass a message to a member's listener again, without changing offsets.

        Raises IllegalMessage (MESSAGE_ID_INVALID) or AnswerMissing (ANSWER_MISSING).
        """
        offset = parse_offset_id(text(request.fields, "msgId")).physical_offset
        if (member := self._member(request)) is None:
            return _not_online(request)
        view = RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID, {**request.fields, "offset": str(offset)})
        found = await self._ask(connection, view)
        if found.code != ResponseCode.SUCCESS:
            return request.answer(found.code, found.remark)
        more = {"brokerName": self._broker_name}
        return await _member_answer(member, request, _OF_MESSAGE, _CONSUME_S, more, found.body)

    def _member(self, request: RemotingCommand) -> Member | None:
        group, client_id = text(request.fields, "consumerGroup"), text(request.fields, "clientId")
        return self._clients.consumers.get(group, {}).get(client_id)

    async def assignment(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        """Assign queues to a member.

        A client sends this request to one broker of the topic's route, chosen at random, and drops the queues
        of brokers that are missing in the response. With POP, each member is assigned the whole topic at
        every broker, and the brokers distribute the messages. As in RocketMQ, the retry topic of a pulling
        consumer is assigned by queue.
        """
        group, topic, client_id = bodies.assignment_request(request.body)
        config = self._topic(topic)
        at_brokers = dict(await self._readable_queues(topic)) if config is not None else {}
        # The NameServers learn about changes here later.
        at_brokers[self._broker_name] = 0 if config is None else config.read_queues
        if not topic.startswith(RETRY_PREFIX):
            places = [QueueName(topic, name, _ANY_QUEUE) for name in sorted(at_brokers)]
            return _assignment_answer(request, places, "POP")
        members = self._clients.consumers.get(group, {})
        places = [
            QueueName(topic, name, queue) for name in sorted(at_brokers) for queue in range(at_brokers[name])
        ]
        return _assignment_answer(request, share(places, members, client_id), "PULL")

    async def set_assignment_mode(
        self, connection: RemotingConnection, request: RemotingCommand
    ) -> RemotingCommand:
        """Accept the mode POP. Raises IllegalMessage (FIELD_OUT_OF_RANGE) for any other mode."""
        mode = bodies.parse(request.body).get("mode")
        if mode != "POP":
            text = "broker-side assignment supports only POP; for PULL, let clients assign the queues"
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, text)
        return request.answer(ResponseCode.SUCCESS)


def share(queues: Sequence[T], members: Collection[str], client_id: str) -> list[T]:
    """Return the queues of one member, distributed round-robin by client id.

    The result is empty if the client is not a member. The members are not sorted, because there may be tens
    of thousands.
    """
    if client_id not in members:
        return []
    first = sum(member < client_id for member in members)
    return list(queues[first :: len(members)])


def _assignment_answer(request: RemotingCommand, places: Iterable[QueueName], mode: str) -> RemotingCommand:
    assignments = [{"messageQueue": place.to_json(), "mode": mode} for place in places]
    return request.answer(ResponseCode.SUCCESS, body=dump({"messageQueueAssignments": assignments}))


def _not_online(request: RemotingCommand) -> RemotingCommand:
    group, client_id = request.fields["consumerGroup"], request.fields["clientId"]
    return request.answer(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")


async def _member_answer(
    member: Member,
    request: RemotingCommand,
    names: tuple[str, ...],
    timeout_s: float,
    more: dict[str, str] | None = None,
    body: bytes = b"",
) -> RemotingCommand:
    """Forward the request to the member and return its response."""
    fields = {name: request.fields[name] for name in names if name in request.fields} | (more or {})
    told = await member.connection.invoke(RemotingCommand(request.code, fields, body=body), timeout_s)
    return request.answer(told.code, told.remark, fields=told.fields, body=told.body)
