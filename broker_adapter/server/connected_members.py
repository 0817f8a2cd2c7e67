"""Group members that are connected, as needed by the reset barriers."""

from __future__ import annotations

from collections.abc import Callable, Set

from broker_adapter.endpoints.v4 import admin_bodies
from broker_adapter.endpoints.v4.bodies import QueueName
from broker_adapter.endpoints.v4.clients import Member, RemotingClients
from broker_adapter.metadata.reset_barriers import ResetStyle
from broker_adapter.remoting.codes import Language, RequestCode
from broker_adapter.remoting.command import RemotingCommand

#: ResetOffsetRequestHeader.timestamp: reset to the end, or to an offset of one queue.
_NO_TIME = "-1"


class ConnectedMembers:
    """The connected members of groups. Runs on the event loop.

    Implements `broker_adapter.metadata.reset_barriers.GroupClients`.
    """

    def __init__(
        self, clients: RemotingClients, broker_name: str, other_groups: Callable[[], Set[str]]
    ) -> None:
        """`other_groups`: returns the groups of connected RocketMQ 5 clients."""
        self._clients = clients
        self._broker_name = broker_name
        self._other_groups = other_groups

    def reset_style(self, group: str, client_id: str) -> ResetStyle:
        member = self._member(group, client_id)
        if member is None or member.is_broadcasting:
            return ResetStyle.NONE
        return ResetStyle.BY_NOTICE if member.language == Language.CPP else ResetStyle.BY_PULL

    def groups(self) -> Set[str]:
        return self._clients.consumers.keys() | self._other_groups()

    def send_reset(self, group: str, client_id: str, topic: str, queue_id: int, offset: int) -> None:
        member = self._member(group, client_id)
        if member is None:
            return
        fields = {"topic": topic, "group": group, "timestamp": _NO_TIME, "isForce": "true"}
        body = admin_bodies.reset_offsets_for_c([(QueueName(topic, self._broker_name, queue_id), offset)])
        member.connection.notify(
            RemotingCommand.oneway(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body)
        )

    def _member(self, group: str, client_id: str) -> Member | None:
        return self._clients.consumers.get(group, {}).get(client_id)
