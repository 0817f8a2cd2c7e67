"""The clients that are connected to this node, by their heartbeats.

Every client sends them to every node that its routes name, so each node knows all. What a connection has
said ends with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple, TypeAlias, TypeVar

from broker_adapter.errors import Busy, Status
from broker_adapter.processor.bodies import ConsumerData, Heartbeat, Subscription
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.shares import Shares
from dledger.platform import client_of, wake_queue

#: Groups that the clients of one connection may be in.
_MAX_GROUPS = 2_048
_MAX_SAME_ID = 4
#: Members of a group that are looked at for what a pull wants: there may be tens of thousands.
_MAX_LOOKED_AT = 256
#: What heartbeats said, as it is kept: of all connections; addresses have shares.
_MAX_BYTES = 64 << 20
#: What a group, and a subscription, take beside their texts, about.
_GROUP_BYTES, _SUBSCRIPTION_BYTES = 600, 300
#: Members that are told in one go: 1 to 2 ms.
_TOLD_AT_ONCE = 32

_M = TypeVar("_M")
_Key: TypeAlias = tuple[str, str, bool]  # group, client id, whether it consumes


class Member(NamedTuple):
    """Of a group of consumers."""

    connection: RemotingConnection
    data: ConsumerData
    language: int
    version: int


class RemotingClients:
    """A ChannelEvents. Members of one group are told when others come or go: in turns of the event loop, and
    once for all that has changed until then."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        """`max_bytes`: of what clients say of themselves."""
        self.consumers: dict[str, dict[str, Member]] = {}  # by group and client id
        self.producers: dict[str, dict[str, RemotingConnection]] = {}  # likewise
        #: Members whose id another connection has said since, by connection: the last one spoke last.
        self._earlier: dict[_Key, dict[RemotingConnection, Member | None]] = {}
        self._groups_of: dict[RemotingConnection, dict[_Key, int]] = {}  # and its bytes
        self._room = Shares(max_bytes)
        self._taken: dict[RemotingConnection, int] = {}
        self._changed: dict[str, None] = {}  # groups whose members are to be told
        self._telling: tuple[str, deque[RemotingConnection]] | None = None
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
        """`account`: that has signed it. Busy (TOO_MANY_MEMBERS) if one connection names too many groups, or
        its address too much."""
        client_id = beat.client_id
        known = {**self._groups_of.get(connection, {}), **_sizes(beat)}
        if len(known) > _MAX_GROUPS:
            raise Busy(Status.TOO_MANY_MEMBERS, f"one connection is of {_MAX_GROUPS} groups at most")
        if not self._take(connection, sum(known.values())):
            text = f"clients of {client_of(connection.peer)} say too much of themselves: ask for less"
            raise Busy(Status.TOO_MANY_MEMBERS, text)
        self._groups_of[connection] = known
        self._forget_id(connection)
        self._ids[connection] = client_id
        self._of_id.setdefault(client_id, {})[connection] = None
        self._accounts[connection] = account
        for group in beat.producer_groups:
            producers = self.producers.setdefault(group, {})
            self._replace((group, client_id, False), connection, producers.get(client_id), None)
            producers[client_id] = connection
        for data in beat.consumers:
            members = self.consumers.setdefault(data.group, {})
            before = members.get(client_id)
            self._replace((data.group, client_id, True), connection, before and before.connection, before)
            members[client_id] = Member(connection, data, language, version)
            if before is None or before.data.subscriptions.keys() != data.subscriptions.keys():
                self._tell_members(data.group)

    def consumes(self, group: str, client_id: str) -> bool:
        """Whether it is a member of the group by a connection that lives."""
        return client_id in self.consumers.get(group, {})

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
            size = self._groups_of[connection].pop(key)
            self._take(connection, self._taken[connection] - size)
            self._remove(connection, *key)

    def subscription(self, connection: RemotingConnection, group: str, topic: str) -> Subscription | None:
        """Of this client; of another member of the group, one of the first, if it has not said its own."""
        members = self.consumers.get(group, {})
        own = members.get(self.client_id(connection))
        for member in (*([own] if own else []), *islice(members.values(), _MAX_LOOKED_AT)):
            if (found := member.data.subscriptions.get(topic)) is not None:
                return found
        return None

    def channel_connected(self, connection: RemotingConnection) -> None:
        """Nothing is known of it yet."""

    def channel_closed(self, connection: RemotingConnection, reason: str) -> None:
        self._forget_id(connection)
        self._accounts.pop(connection, None)
        self._take(connection, 0)
        for key in self._groups_of.pop(connection, {}):
            self._remove(connection, *key)

    def _take(self, connection: RemotingConnection, size: int) -> bool:
        """Room for what it has said by now, in place of what it has. Less always fits."""
        before = self._taken.get(connection, 0)
        if not self._room.replace(client_of(connection.peer), before, size):
            return False
        if size:
            self._taken[connection] = size
        else:
            self._taken.pop(connection, None)
        return True

    def _forget_id(self, connection: RemotingConnection) -> None:
        client_id = self._ids.pop(connection, None)
        if client_id is not None:
            del self._of_id[client_id][connection]
            if not self._of_id[client_id]:
                del self._of_id[client_id]

    def _replace(
        self,
        key: _Key,
        connection: RemotingConnection,
        before: RemotingConnection | None,
        member: Member | None,
    ) -> None:
        """Ids prove nothing: who had this one stays a member as long as its connection lives."""
        self._forget_earlier(key, connection)
        if before is not None and before is not connection:
            self._earlier.setdefault(key, {})[before] = member

    def _forget_earlier(self, key: _Key, connection: RemotingConnection) -> None:
        earlier = self._earlier.get(key, {})
        if connection in earlier:
            del earlier[connection]
            if not earlier:
                del self._earlier[key]

    def _take_earlier(self, key: _Key) -> tuple[RemotingConnection | None, Member | None]:
        """The one that spoke last, of others with this id."""
        earlier = self._earlier.get(key)
        if earlier is None:
            return None, None
        found = earlier.popitem()
        if not earlier:
            del self._earlier[key]
        return found

    def _remove(self, connection: RemotingConnection, group: str, client_id: str, consumes: bool) -> None:
        key = (group, client_id, consumes)
        self._forget_earlier(key, connection)
        if consumes:
            members = self.consumers.get(group, {})
            member = members.get(client_id)
            if member is None or member.connection is not connection:
                return  # it has come back over another connection
            _put(members, client_id, self._take_earlier(key)[1])
            self._tell_members(group)
            if not members:
                del self.consumers[group]
        elif self.producers.get(group, {}).get(client_id) is connection:
            producers = self.producers[group]
            _put(producers, client_id, self._take_earlier(key)[0])
            if not producers:
                del self.producers[group]

    def tell_group(self, group: str, command: RemotingCommand) -> None:
        """Hand the members of a group a one-way request: each connection once, a few in each turn of the
        event loop. A group may have tens of thousands of members, and the request a row for each queue."""
        members = self.consumers.get(group, {})
        connections = list(_each_once(member.connection for member in members.values()))

        def tell(connection: RemotingConnection) -> bool:
            connection.notify(command)
            return True

        wake_queue().each("members", connections, tell)

    def _tell_members(self, group: str) -> None:
        """A heartbeat may change two thousand groups, of thousands of members each."""
        was_telling = self.is_telling
        self._changed[group] = None
        if not was_telling:
            wake_queue().add("members", self._tell_some)

    @property
    def is_telling(self) -> bool:
        """Whether members are still to be told of something."""
        return bool(self._changed) or self._telling is not None

    def _tell_some(self) -> None:
        if self._telling is None:
            group = next(iter(self._changed))
            del self._changed[group]
            members = self.consumers.get(group, {})
            self._telling = group, deque(_each_once(member.connection for member in members.values()))
        group, left = self._telling
        for _ in range(min(_TOLD_AT_ONCE, len(left))):
            fields = {"consumerGroup": group}
            left.popleft().notify(RemotingCommand.oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields))
        if not left:
            self._telling = None
        if self.is_telling:
            wake_queue().add("members", self._tell_some)


def _put(members: dict[str, _M], client_id: str, member: _M | None) -> None:
    """None: it is there no more."""
    if member is None:
        del members[client_id]
    else:
        members[client_id] = member


def _each_once(connections: Iterable[RemotingConnection]) -> Iterable[RemotingConnection]:
    return dict.fromkeys(connections)


def _sizes(beat: Heartbeat) -> dict[_Key, int]:
    """What is kept of a heartbeat by (group, client id, whether it consumes): about so many bytes."""
    own = _GROUP_BYTES + len(beat.client_id)
    found = {(group, beat.client_id, False): own + len(group) for group in beat.producer_groups}
    for data in beat.consumers:
        texts = sum(len(topic) + len(one.expression) for topic, one in data.subscriptions.items())
        size = own + len(data.group) + texts + _SUBSCRIPTION_BYTES * len(data.subscriptions)
        found[data.group, beat.client_id, True] = size
    return found
