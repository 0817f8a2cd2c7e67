"""The clients that are connected to this node, according to their heartbeats.

Every client sends heartbeats to all nodes in its routes, so each node knows all clients. When a connection
closes, the data from its heartbeats is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from operator import attrgetter
from typing import NamedTuple, TypeAlias, TypeVar

from broker_adapter.endpoints.v4.bodies import BROADCASTING, ConsumerData, HeartbeatData, SubscriptionData
from broker_adapter.errors import Busy, Status
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from dledger.infra.loops.turns import wake_queue
from dledger.infra.quotas import Quota, client_of

#: Maximum number of groups per connection.
_MAX_GROUPS = 2_048
_MAX_SAME_ID = 4
#: Maximum number of group members to search for the subscription of a pull. A group may have tens of
#: thousands.
_MAX_LOOKED_AT = 256
#: Maximum bytes of stored heartbeat data of all connections. Client addresses share the limit.
_MAX_BYTES = 64 << 20
#: Approximate overhead of a group and of a subscription, in addition to their texts (bytes).
_GROUP_BYTES, _SUBSCRIPTION_BYTES = 600, 300
#: Number of members notified per step of the event loop, which takes 1 to 2 ms.
_NOTICES_PER_TURN = 32
#: Groups whose subscriptions are searched per turn of the event loop: about 1 ms if they are small.
_GROUPS_PER_TURN = 1_024

_M = TypeVar("_M")
_Key: TypeAlias = tuple[str, str, bool]  # group, client id, whether it consumes


class Member(NamedTuple):
    """A member of a consumer group."""

    connection: RemotingConnection
    data: ConsumerData
    language: int
    version: int

    @property
    def is_broadcasting(self) -> bool:
        """Return True if the member stores its own offsets."""
        return self.data.message_model == BROADCASTING


class RemotingClients:
    """The connected clients. Implements ChannelEvents.

    The members of a group are notified when others join or leave. The notices are sent in several steps of
    the event loop. One notice covers all changes up to the time when it is sent.
    """

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        """`max_bytes`: limit for stored heartbeat data."""
        self.consumers: dict[str, dict[str, Member]] = {}  # by group and client id
        self.producers: dict[str, dict[str, RemotingConnection]] = {}  # by group and client id
        #: Members whose id a newer connection also uses, by connection. The most recent is last.
        self._earlier: dict[_Key, dict[RemotingConnection, Member | None]] = {}
        self._groups_of: dict[RemotingConnection, dict[_Key, int]] = {}  # with sizes in bytes
        self._quota = Quota(max_bytes)
        self._sizes_kept: dict[RemotingConnection, int] = {}
        self._changed: dict[str, None] = {}  # groups with a pending notice
        self._notifying: tuple[str, deque[RemotingConnection]] | None = None
        self._ids: dict[RemotingConnection, str] = {}
        self._accounts: dict[RemotingConnection, str] = {}
        # connections by client id; the most recent is last
        self._of_id: dict[str, dict[RemotingConnection, None]] = {}
        self._send_only: set[RemotingConnection] = set()

    def heard_of(
        self,
        connection: RemotingConnection,
        beat: HeartbeatData,
        language: int = 0,
        version: int = 0,
        account: str = "",
    ) -> None:
        """Record a heartbeat, signed by `account`.

        Raises Busy (TOO_MANY_MEMBERS) if the connection names too many groups, or if its address exceeds its
        share of the limit.
        """
        client_id = beat.client_id
        known = {**self._groups_of.get(connection, {}), **_sizes(beat)}
        if len(known) > _MAX_GROUPS:
            raise Busy(
                Status.TOO_MANY_MEMBERS, f"too many groups on this connection: the limit is {_MAX_GROUPS}"
            )
        if not self._resize(connection, sum(known.values())):
            text = f"clients of {client_of(connection.peer)} send too much heartbeat data; subscribe to less"
            raise Busy(Status.TOO_MANY_MEMBERS, text)
        self._groups_of[connection] = known
        self._forget_id(connection)
        self._ids[connection] = client_id
        self._of_id.setdefault(client_id, {})[connection] = None
        self._accounts[connection] = account
        for group in beat.producer_groups:
            producers = self.producers.setdefault(group, {})
            key, known_by = (group, client_id, False), producers.get(client_id)
            if self._yields(connection, known_by):
                self._replace(key, connection, connection, None)
                self._earlier.setdefault(key, {})[connection] = None
            else:
                self._replace(key, connection, known_by, None)
                producers[client_id] = connection
        for data in beat.consumers:
            members = self.consumers.setdefault(data.group, {})
            before, key = members.get(client_id), (data.group, client_id, True)
            if (said := self._described(key, connection)) is not None:
                data = data.with_newer_of(said.data)
            member = Member(connection, data, language, version)
            if before is not None and self._yields(connection, before.connection):
                self._replace(key, connection, connection, None)
                self._earlier.setdefault(key, {})[connection] = member
                member = before._replace(data=data.with_newer_of(before.data))
            else:
                self._replace(key, connection, before and before.connection, before)
            members[client_id] = member
            if before is None or before.data.subscriptions.keys() != data.subscriptions.keys():
                self._schedule_notices(data.group)

    def consumes(self, group: str, client_id: str) -> bool:
        """Return True if the client is a connected member of the group."""
        return client_id in self.consumers.get(group, {})

    async def groups_subscribed_to(self, topic: str) -> list[str]:
        """Return the groups with a member that subscribes to the topic, in turns of the event loop."""
        found = []
        for number, group in enumerate(list(self.consumers)):
            if number % _GROUPS_PER_TURN == 0:
                await wake_queue().turn(topic)
            members = islice(self.consumers.get(group, {}).values(), _MAX_LOOKED_AT)
            if any(topic in member.data.subscriptions for member in members):
                found.append(group)
        return found

    def client_id(self, connection: RemotingConnection) -> str:
        """Return the client id in the last heartbeat on a connection, or the address of the client before its
        first heartbeat.
        """
        return self._ids.get(connection, connection.peer)

    def connections(self, client_id: str) -> list[RemotingConnection]:
        """Return a few connections with this client id, the connections to the main port first.

        Newer connections precede older ones. Client ids are not authenticated.
        """
        newest = islice(reversed(self._of_id.get(client_id, {})), 2 * _MAX_SAME_ID)
        return sorted(newest, key=self._send_only.__contains__)[:_MAX_SAME_ID]

    def account(self, connection: RemotingConnection) -> str:
        """Return the account that signed the last heartbeat, or "" if there is no access control."""
        return self._accounts.get(connection, "")

    def gone(self, connection: RemotingConnection, group: str, client_id: str, *, consumes: bool) -> None:
        """Remove a client that has unregistered. Does nothing if it is not registered."""
        key = (group, client_id, consumes)
        if key in self._groups_of.get(connection, {}):
            size = self._groups_of[connection].pop(key)
            self._resize(connection, self._sizes_kept[connection] - size)
            self._remove(connection, *key)

    def subscription(self, connection: RemotingConnection, group: str, topic: str) -> SubscriptionData | None:
        """Return the newest subscription of this client to a topic, or another member's subscription if the
        client has none.

        A client may have several connections, whose heartbeats arrive in any order. In RocketMQ all members
        of a group share one subscription.
        """
        client_id, members = self.client_id(connection), self.consumers.get(group, {})
        own = members.get(client_id)
        earlier = self._earlier.get((group, client_id, True), {}).values()
        return _newest(topic, (own, *earlier)) or _newest(topic, islice(members.values(), _MAX_LOOKED_AT))

    def is_broadcasting(self, connection: RemotingConnection, group: str) -> bool:
        """Return True if this client is a broadcasting member of the group."""
        own = self.consumers.get(group, {}).get(self.client_id(connection))
        return own is not None and own.is_broadcasting

    def channel_connected(self, connection: RemotingConnection) -> None:
        """Do nothing, because the client is unknown until its first heartbeat."""

    def add_send_only(self, connection: RemotingConnection) -> None:
        """Mark a send-only connection.

        Notices are sent on such a connection only if the client has no connection to the main port.
        """
        self._send_only.add(connection)

    def channel_closed(self, connection: RemotingConnection, reason: str) -> None:
        self._send_only.discard(connection)
        self._forget_id(connection)
        self._accounts.pop(connection, None)
        self._resize(connection, 0)
        for key in self._groups_of.pop(connection, {}):
            self._remove(connection, *key)

    def _resize(self, connection: RemotingConnection, size: int) -> bool:
        """Change the number of bytes reserved for a connection. Return False if they exceed the limit.

        Shrinking always succeeds.
        """
        before = self._sizes_kept.get(connection, 0)
        if not self._quota.resize(client_of(connection.peer), before, size):
            return False
        if size:
            self._sizes_kept[connection] = size
        else:
            self._sizes_kept.pop(connection, None)
        return True

    def _forget_id(self, connection: RemotingConnection) -> None:
        client_id = self._ids.pop(connection, None)
        if client_id is not None:
            del self._of_id[client_id][connection]
            if not self._of_id[client_id]:
                del self._of_id[client_id]

    def _described(self, key: _Key, connection: RemotingConnection) -> Member | None:
        """Return the member that earlier heartbeats on this connection described."""
        member = self.consumers.get(key[0], {}).get(key[1])
        is_newest = member is not None and member.connection is connection
        return member if is_newest else self._earlier.get(key, {}).get(connection)

    def _yields(self, connection: RemotingConnection, to: RemotingConnection | None) -> bool:
        """Return True if the client is still registered through a connection to the main port."""
        return (
            to is not None
            and to is not connection
            and connection in self._send_only
            and to not in self._send_only
        )

    def _replace(
        self,
        key: _Key,
        connection: RemotingConnection,
        before: RemotingConnection | None,
        member: Member | None,
    ) -> None:
        """Register a connection for a client id.

        Client ids are not authenticated. The previous holder of the id therefore remains a member while its
        connection is open.
        """
        self._forget_earlier(key, connection)
        if before is not None and before is not connection:
            self._earlier.setdefault(key, {})[before] = member

    def _forget_earlier(self, key: _Key, connection: RemotingConnection) -> None:
        earlier = self._earlier.get(key, {})
        if connection in earlier:
            del earlier[connection]
            if not earlier:
                del self._earlier[key]

    def _pop_earlier(self, key: _Key) -> tuple[RemotingConnection | None, Member | None]:
        """Remove and return the most recent of the other connections with this id."""
        earlier = self._earlier.get(key)
        if earlier is None:
            return None, None
        newest = next(
            (one for one in reversed(earlier) if one not in self._send_only), next(reversed(earlier))
        )
        found = newest, earlier.pop(newest)
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
                return  # it is registered through another connection
            _put(members, client_id, self._pop_earlier(key)[1])
            self._schedule_notices(group)
            if not members:
                del self.consumers[group]
        elif self.producers.get(group, {}).get(client_id) is connection:
            producers = self.producers[group]
            _put(producers, client_id, self._pop_earlier(key)[0])
            if not producers:
                del self.producers[group]

    def notify_group(
        self, group: str, command: RemotingCommand, concerns: Callable[[Member], bool] = lambda member: True
    ) -> None:
        """Send a one-way request to the members for which `concerns` is true.

        Sends the request once per connection, and to a few connections per step of the event loop. A group
        may have tens of thousands of members, and the request has a row per queue.
        """
        members = self.consumers.get(group, {})
        connections = list(_each_once(one.connection for one in members.values() if concerns(one)))

        def notify_member(connection: RemotingConnection) -> bool:
            connection.notify(command)
            return True

        wake_queue().each("members", connections, notify_member)

    def _schedule_notices(self, group: str) -> None:
        """Schedule notices to a group's members.

        One heartbeat may change 2,000 groups of thousands of members each.
        """
        was_pending = self.has_pending_notices
        self._changed[group] = None
        if not was_pending:
            wake_queue().add("members", self._send_notices)

    @property
    def has_pending_notices(self) -> bool:
        """Return whether notices are pending."""
        return bool(self._changed) or self._notifying is not None

    def _send_notices(self) -> None:
        if self._notifying is None:
            group = next(iter(self._changed))
            del self._changed[group]
            members = self.consumers.get(group, {})
            self._notifying = group, deque(_each_once(member.connection for member in members.values()))
        group, left = self._notifying
        for _ in range(min(_NOTICES_PER_TURN, len(left))):
            fields = {"consumerGroup": group}
            left.popleft().notify(RemotingCommand.oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields))
        if not left:
            self._notifying = None
        if self.has_pending_notices:
            wake_queue().add("members", self._send_notices)


def _newest(topic: str, members: Iterable[Member | None]) -> SubscriptionData | None:
    """Return the subscription to the topic with the highest version.

    If several have this version, return the first one.
    """
    found = (member.data.subscriptions.get(topic) for member in members if member is not None)
    return max((one for one in found if one is not None), key=attrgetter("version"), default=None)


def _put(members: dict[str, _M], client_id: str, member: _M | None) -> None:
    """Store a member. None deletes it."""
    if member is None:
        del members[client_id]
    else:
        members[client_id] = member


def _each_once(connections: Iterable[RemotingConnection]) -> Iterable[RemotingConnection]:
    return dict.fromkeys(connections)


def _sizes(beat: HeartbeatData) -> dict[_Key, int]:
    """Return the approximate size in bytes of a stored heartbeat, by (group, client id, is consumer)."""
    own = _GROUP_BYTES + len(beat.client_id)
    found = {(group, beat.client_id, False): own + len(group) for group in beat.producer_groups}
    for data in beat.consumers:
        texts = sum(len(topic) + len(one.expression) for topic, one in data.subscriptions.items())
        size = own + len(data.group) + texts + _SUBSCRIPTION_BYTES * len(data.subscriptions)
        found[data.group, beat.client_id, True] = size
    return found
