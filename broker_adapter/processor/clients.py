"""The clients that are connected to this node, by their heartbeats.

Every client sends them to every node that its routes name, so each node knows all. What a connection has
said ends with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from broker_adapter.errors import Busy, Status
from broker_adapter.processor.bodies import ConsumerData, Heartbeat, Subscription
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection

#: Groups that the clients of one connection may be in.
_MAX_GROUPS = 1_024
_MAX_SAME_ID = 4


class Member(NamedTuple):
    """Of a group of consumers."""

    connection: RemotingConnection
    data: ConsumerData
    language: int
    version: int


class RemotingClients:
    """A ChannelEvents. Members of one group are told when others come or go."""

    def __init__(self) -> None:
        self.consumers: dict[str, dict[str, Member]] = {}  # by group and client id
        self.producers: dict[str, dict[str, RemotingConnection]] = {}  # likewise
        self._groups_of: dict[RemotingConnection, dict[tuple[str, str, bool], None]] = {}
        self._ids: dict[RemotingConnection, str] = {}
        self._accounts: dict[RemotingConnection, str] = {}
        self._of_id: dict[str, dict[RemotingConnection, None]] = {}  # the one that spoke last is the last

    def heard_of(
        self,
        connection: RemotingConnection,
        beat: Heartbeat,
        language: int = 0,
        version: int = 0,
        account: str = "",
    ) -> None:
        """`account`: that has signed it. Busy (TOO_MANY_MEMBERS) if one connection names too many groups."""
        known = self._groups_of.setdefault(connection, {})
        client_id = beat.client_id
        if len(known) + len(beat.consumers) + len(beat.producer_groups) > 2 * _MAX_GROUPS:
            raise Busy(Status.TOO_MANY_MEMBERS, f"one connection is of {_MAX_GROUPS} groups at most")
        self._forget_id(connection)
        self._ids[connection] = client_id
        self._of_id.setdefault(client_id, {})[connection] = None
        self._accounts[connection] = account
        for group in beat.producer_groups:
            self.producers.setdefault(group, {})[client_id] = connection
            known[group, client_id, False] = None
        for data in beat.consumers:
            members = self.consumers.setdefault(data.group, {})
            before = members.get(client_id)
            members[client_id] = Member(connection, data, language, version)
            known[data.group, client_id, True] = None
            if before is None or before.data.subscriptions.keys() != data.subscriptions.keys():
                self._tell_members(data.group)

    def client_id(self, connection: RemotingConnection) -> str:
        """Of its last heartbeat; where it comes from, if there was none."""
        return self._ids.get(connection, connection.peer)

    def connections(self, client_id: str) -> list[RemotingConnection]:
        """Whose heartbeats have this id: the newest first, a few. Ids prove nothing."""
        return list(islice(reversed(self._of_id.get(client_id, {})), _MAX_SAME_ID))

    def account(self, connection: RemotingConnection) -> str:
        """Who has signed its last heartbeat; "" without access control."""
        return self._accounts.get(connection, "")

    def gone(self, connection: RemotingConnection, group: str, client_id: str, *, consumes: bool) -> None:
        """By its own word. Nothing, if it was not here."""
        key = (group, client_id, consumes)
        if key in self._groups_of.get(connection, {}):
            del self._groups_of[connection][key]
            self._remove(connection, *key)

    def subscription(self, connection: RemotingConnection, group: str, topic: str) -> Subscription | None:
        """Of this client; of another member of the group, if it has not said its own."""
        members = self.consumers.get(group, {})
        own = members.get(self.client_id(connection))
        for member in (*([own] if own else []), *members.values()):
            if (found := member.data.subscriptions.get(topic)) is not None:
                return found
        return None

    def channel_connected(self, connection: RemotingConnection) -> None:
        """Nothing is known of it yet."""

    def channel_closed(self, connection: RemotingConnection, reason: str) -> None:
        self._forget_id(connection)
        self._accounts.pop(connection, None)
        for key in self._groups_of.pop(connection, {}):
            self._remove(connection, *key)

    def _forget_id(self, connection: RemotingConnection) -> None:
        client_id = self._ids.pop(connection, None)
        if client_id is not None:
            del self._of_id[client_id][connection]
            if not self._of_id[client_id]:
                del self._of_id[client_id]

    def _remove(self, connection: RemotingConnection, group: str, client_id: str, consumes: bool) -> None:
        if consumes:
            members = self.consumers.get(group, {})
            member = members.get(client_id)
            if member is None or member.connection is not connection:
                return  # it has come back over another connection
            del members[client_id]
            self._tell_members(group)
            if not members:
                del self.consumers[group]
        elif self.producers.get(group, {}).get(client_id) is connection:
            del self.producers[group][client_id]
            if not self.producers[group]:
                del self.producers[group]

    def _tell_members(self, group: str) -> None:
        fields = {"consumerGroup": group}
        for connection in _each_once(member.connection for member in self.consumers[group].values()):
            connection.notify(RemotingCommand.oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields))


def _each_once(connections: Iterable[RemotingConnection]) -> Iterable[RemotingConnection]:
    return dict.fromkeys(connections)
