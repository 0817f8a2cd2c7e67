"""QUERY_ASSIGNMENT: which queues a member of a group consumes, decided by the broker, and how: by POP.

RocketMQ 5's Java consumers ask so if `clientRebalance` is false.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from broker_adapter.api import TopicConfig
from broker_adapter.errors import IllegalMessage, ResponseCode, Status
from broker_adapter.format.topic_names import RETRY_PREFIX
from broker_adapter.processor import bodies
from broker_adapter.processor.bodies import QueueName
from broker_adapter.processor.clients import RemotingClients
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Dispatch, Executor
from broker_adapter.remoting.json_bodies import dump

_ANY_QUEUE = -1


class Assignments:
    """`topic`: its settings, None if there is no such; `broker_name`: under which queues are read."""

    def __init__(
        self, clients: RemotingClients, topic: Callable[[str], TopicConfig | None], broker_name: str
    ) -> None:
        self._clients = clients
        self._topic = topic
        self._broker_name = broker_name

    def register_with(self, dispatch: Dispatch, executor: Executor) -> None:
        dispatch.register([RequestCode.QUERY_ASSIGNMENT], self._query, executor)
        dispatch.register([RequestCode.SET_MESSAGE_REQUEST_MODE], self._set_mode, executor)

    async def _query(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        """Any queue, to be popped: the broker shares the messages out. What was sent back by consumers that
        pull is pulled, each queue by one member, as in RocketMQ."""
        group, topic, client_id = bodies.assignment_request(request.body)
        config = self._topic(topic)
        if not topic.startswith(RETRY_PREFIX):
            return _told(request, [self._assigned(topic, _ANY_QUEUE, "POP")])
        members = self._clients.consumers.get(group, {})
        queues = range(0 if config is None else config.read_queues)
        own = share(queues, members, client_id)
        return _told(request, [self._assigned(topic, queue, "PULL") for queue in own])

    async def _set_mode(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        """IllegalMessage (FIELD_OUT_OF_RANGE) for another one than there is."""
        mode = bodies.parse(request.body).get("mode")
        if mode != "POP":
            text = "consumers that leave the assignment to the broker pop here; for PULL let them assign"
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, text)
        return request.answer(ResponseCode.SUCCESS)

    def _assigned(self, topic: str, queue_id: int, mode: str) -> dict[str, Any]:
        return {"messageQueue": QueueName(topic, self._broker_name, queue_id).to_json(), "mode": mode}


def share(queues: Sequence[int], members: Collection[str], client_id: str) -> list[int]:
    """Those of one member, by turns in the order of their ids; none if it is no member. Of tens of thousands
    nothing is sorted for it."""
    if client_id not in members:
        return []
    first = sum(member < client_id for member in members)
    return [queue for queue in queues if queue % len(members) == first]


def _told(request: RemotingCommand, assignments: list[dict[str, Any]]) -> RemotingCommand:
    return request.answer(ResponseCode.SUCCESS, body=dump({"messageQueueAssignments": assignments}))
