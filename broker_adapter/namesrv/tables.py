"""The tables of a NameServer. Callers pass the time, and methods return the changes.

They are RocketMQ's tables: topicQueueTable, brokerAddrTable, clusterAddrTable, brokerLiveTable. The rules for
registrations differ, because with RocketMQ's rules, a NameServer may publish two masters of a name until one
of them expires:

- A registration with a lower role_epoch than the registered one of the same node is refused. A node that lost
  its directory starts with a random incarnation, the upper half of its role_epochs. Between two incarnations
  the higher term wins, and an equal term is accepted. A node can be unregistered only by its own incarnation.
- If two nodes claim id 0 of a name, the node with the higher *term* gets it. The other node loses its id
  immediately, until it registers with its new role. A claim with a lower term is refused. The highest term is
  remembered for a while after its master has gone, so that a deposed master cannot replace it.
- A node with an unknown role (id -1) is alive but not published.
- RocketMQ's brokers have no terms (-1). Of two claims without a term, the newer one wins, as in RocketMQ.

The topics of a name are the topics of its accepted master. They remain while any node of the name is
published, so that consumers can read from slaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from broker_adapter.api import PERM_WRITE, TopicConfig
from broker_adapter.errors import NameServerBusy, NameServerRefused, Status
from broker_adapter.namesrv.values import (
    ANY_EPOCH,
    NO_TERM,
    UNKNOWN_ID,
    BrokerEntry,
    PublishedRoute,
    Registration,
    RegistrationAnswer,
    SendName,
    TableLimits,
    check_registration,
    send_name,
)
from broker_adapter.wire.broker_ids import MASTER_ID
from dledger.core.term_allowance import MAX_TERM_ADVANCE

#: The session of a registration that was not made over a connection.
NO_SESSION = 0

#: (broker name, node id)
NodeKey: TypeAlias = tuple[str, str]

_NO_VERSION = (NO_TERM, -1)
_ROLES = {MASTER_ID: "MASTER", UNKNOWN_ID: "UNKNOWN"}
#: The layout of role_epochs, see `dledger.core.raft`.
_EPOCHS_PER_INCARNATION = 1 << 32


@dataclass(slots=True)
class _LiveNode:
    """A row of the brokerLiveTable: the last registration of one node."""

    registration: Registration  # topics omitted
    broker_id: int  # as published; -1: not published
    session: int
    updated_ms: int
    expire_ms: int


@dataclass(slots=True)
class _Broker:
    """A row of the brokerAddrTable: one broker name."""

    cluster: str
    origin: str  # address that first registered the name, "" if unknown
    nodes: dict[str, _LiveNode] = field(default_factory=dict)  # by node id
    ids: dict[int, str] = field(default_factory=dict)  # node id by broker id, for published nodes
    topics: set[str] = field(default_factory=set)
    topics_version: tuple[int, int] = _NO_VERSION  # (term, data_version)
    write_wiped: bool = False
    #: Members of the log, which have write-only names, with the time of their removal (ms), or None.
    members: dict[str, int | None] = field(default_factory=dict)

    def addresses(self) -> dict[int, str]:
        return {i: self.nodes[self.ids[i]].registration.address for i in sorted(self.ids)}

    def send_names(self, name: str) -> list[SendName]:
        """Return the write-only names of all members.

        Clients keep a connection for each name. The name of a member that has no published send-only port
        therefore points to the port of the master, or of a slave if there is no master. The master itself
        receives messages under the broker name.
        """
        published = [self.nodes[self.ids[broker_id]].registration for broker_id in sorted(self.ids)]
        ports = {given.node_id: given.send_address for given in published if given.send_address}
        if not ports:
            return []
        substitute, master = next(iter(ports.values())), self.ids.get(MASTER_ID)
        return [
            SendName(
                send_name(name, node_id),
                ports.get(node_id, substitute),
                is_writable=node_id in ports and node_id != master and self.members.get(node_id) is None,
            )
            for node_id in sorted({*self.members, *ports})
        ]

    def update_members(self, given: Registration, now_ms: int) -> None:
        """Update the members. A master's list replaces the previous one; slaves only add members."""
        if given.broker_id == MASTER_ID and given.members:
            for node_id, removed_ms in self.members.items():
                if node_id not in given.members and removed_ms is None:
                    self.members[node_id] = now_ms
            self.members.update(dict.fromkeys(given.members))
        else:
            for node_id in given.members:
                self.members.setdefault(node_id, None)

    def shown(self, name: str) -> object:
        """Return the addresses, the master's term and the write-only names in routes.

        If the result differs, the routes have changed.
        """
        return self.published(), self.send_names(name)

    def master(self) -> _LiveNode | None:
        node_id = self.ids.get(MASTER_ID)
        return None if node_id is None else self.nodes[node_id]

    def published(self) -> tuple[dict[int, str], int]:
        """Return the published addresses and the master's term."""
        master = self.master()
        return self.addresses(), NO_TERM if master is None else master.registration.term


@dataclass(slots=True)
class _Fence:
    """The highest term in which a node was accepted as master of a name."""

    term: int
    node_id: str
    seen_ms: int  # when that master was last seen
    origin: str  # see `_Broker.origin`


class RouteTables:
    """Routes and registrations. Methods with changes return the topics whose routes may have changed."""

    def __init__(self, limits: TableLimits | None = None) -> None:
        self._limits = limits or TableLimits()
        self.topic_queue_table: dict[str, dict[str, TopicConfig]] = {}  # queues by topic and broker name
        self.cluster_addr_table: dict[str, set[str]] = {}  # broker names by cluster
        self._broker_addr_table: dict[str, _Broker] = {}
        self._fences: dict[str, _Fence] = {}

    # -- brokers ------------------------------------------------------------------------------------------

    @property
    def limits(self) -> TableLimits:
        return self._limits

    def register(
        self, given: Registration, now_ms: int, session: int = NO_SESSION, origin: str = ""
    ) -> set[str]:
        """Accept a registration, or refuse it without changing anything. `origin`: its source address.

        Raises NameServerRefused (NAMESRV_INVALID, NAMESRV_STALE_EPOCH, NAMESRV_STALE_TERM,
        NAMESRV_TERM_REFUSED, NAMESRV_CONFLICT) or NameServerBusy (NAMESRV_LIMIT).
        """
        check_registration(given, self._limits)
        self._check_claim(given)
        self._check_room(given, origin)
        broker = self._broker_addr_table.get(given.broker_name)
        if broker is None:
            broker = self._broker_addr_table[given.broker_name] = _Broker(
                given.cluster, self._origin_of(given.broker_name) or origin
            )
            self.cluster_addr_table.setdefault(given.cluster, set()).add(given.broker_name)
        before = broker.shown(given.broker_name)
        for other in _nodes_at(broker, given.address):
            self._withdraw(broker, other)
            if other != given.node_id:
                del broker.nodes[other]
        self._withdraw(broker, given.node_id)
        if given.broker_id == MASTER_ID:
            if (deposed := broker.ids.get(MASTER_ID)) is not None:
                self._withdraw(broker, deposed)
            self._fences[given.broker_name] = _Fence(given.term, given.node_id, now_ms, broker.origin)
        broker.nodes[given.node_id] = _LiveNode(
            given._replace(topics=()),
            given.broker_id,
            session,
            now_ms,
            self._limits.expire_ms(given.expire_ms),
        )
        if given.broker_id != UNKNOWN_ID:
            broker.ids[given.broker_id] = given.node_id
        broker.update_members(given, now_ms)
        changed = self._replace_topics(broker, given) if given.broker_id == MASTER_ID else set()
        if broker.shown(given.broker_name) != before:
            changed |= broker.topics
        return changed | self._drop_unpublished_topics(given.broker_name, broker)

    def _check_claim(self, given: Registration) -> None:
        """Refuse an outdated role_epoch, an id or a cluster that belongs to other nodes, and the master of a
        past term.
        """
        name, node_id = given.broker_name, given.node_id
        fence, broker = self._fences.get(name), self._broker_addr_table.get(name)
        self._check_term_advance(given)
        if broker is not None:
            known = broker.nodes.get(node_id)
            if known is not None and _is_older(given, known.registration):
                raise NameServerRefused(
                    Status.NAMESRV_STALE_EPOCH,
                    f"{node_id} of {name}: role_epoch {given.role_epoch} in term {given.term} is older than "
                    f"the registered {known.registration.role_epoch} in term {known.registration.term}",
                )
            if broker.cluster != given.cluster:
                raise NameServerRefused(
                    Status.NAMESRV_CONFLICT,
                    f"broker name {name} belongs to cluster {broker.cluster}, not to {given.cluster}",
                )
            holder = broker.ids.get(given.broker_id, node_id) if given.broker_id != MASTER_ID else node_id
            if holder != node_id and broker.nodes[holder].registration.address != given.address:
                raise NameServerRefused(
                    Status.NAMESRV_CONFLICT,
                    f"{holder} at {broker.nodes[holder].registration.address} has broker id "
                    f"{given.broker_id} of {name}; {node_id} needs a different id",
                )
        if given.broker_id != MASTER_ID or fence is None:
            return
        if given.term < fence.term:
            raise NameServerRefused(
                Status.NAMESRV_STALE_TERM,
                f"{node_id} claims to be master of {name} in term {given.term}; {fence.node_id} was in "
                f"term {fence.term}",
            )
        if given.term == fence.term != NO_TERM and node_id != fence.node_id:
            raise NameServerRefused(
                Status.NAMESRV_CONFLICT,
                f"{node_id} and {fence.node_id} both claim to be master of {name} in term {given.term}: "
                "do two groups have this name?",
            )

    def _check_term_advance(self, given: Registration) -> None:
        """Refuse a term that is far above all known terms of a name, because it would lock out the real
        master forever.
        """
        name = given.broker_name
        fence, broker = self._fences.get(name), self._broker_addr_table.get(name)
        known = [node.registration.term for node in broker.nodes.values()] if broker is not None else []
        if fence is not None:
            known.append(fence.term)
        if known and given.term - max(known) > MAX_TERM_ADVANCE:
            raise NameServerRefused(
                Status.NAMESRV_TERM_REFUSED,
                f"{given.node_id} of {name} registers with term {given.term}, which elections cannot have "
                f"produced: the highest known term is {max(known)}",
            )

    def _origin_of(self, name: str) -> str:
        """Return the address that first registered the name; "" if the name or the address is unknown."""
        row = self._broker_addr_table.get(name) or self._fences.get(name)
        return "" if row is None else row.origin

    def _check_room(self, given: Registration, origin: str) -> None:
        limits, broker = self._limits, self._broker_addr_table.get(given.broker_name)
        if broker is None:
            names = self._broker_addr_table.keys() | self._fences.keys()
            if given.broker_name not in names and len(names) >= limits.max_broker_names:
                raise _too_many(f"the limit of {limits.max_broker_names} broker names is reached")
            if origin and given.broker_name not in names:
                brought_up = sum(self._origin_of(name) == origin for name in names)
                if brought_up >= limits.max_names_per_address:
                    raise _too_many(
                        f"{origin} has already registered {brought_up} broker names, the maximum for one "
                        "caller"
                    )
        elif given.node_id not in broker.nodes and len(broker.nodes) >= limits.max_nodes_per_name:
            raise _too_many(
                f"broker name {given.broker_name} already has {limits.max_nodes_per_name} nodes, the maximum"
            )
        if given.broker_id == MASTER_ID:
            table = self.topic_queue_table
            new = sum(topic.name not in table for topic in given.topics)
            if len(table) + new > limits.max_topics:
                raise _too_many(f"the limit of {limits.max_topics} topics is reached")

    @staticmethod
    def _withdraw(broker: _Broker, node_id: str) -> None:
        """Stop publishing a node."""
        node = broker.nodes.get(node_id)
        if node is not None:
            broker.ids.pop(node.broker_id, None)
            node.broker_id = UNKNOWN_ID

    def _replace_topics(self, broker: _Broker, given: Registration) -> set[str]:
        version = (given.term, given.data_version)
        if version < broker.topics_version and given.term != NO_TERM:
            return set()
        broker.topics_version = version
        name, table = given.broker_name, self.topic_queue_table
        registered = {topic.name: topic for topic in given.topics}
        changed = self._drop_topics(name, broker, broker.topics - registered.keys())
        for topic, config in registered.items():
            rows = table.setdefault(topic, {})
            if rows.get(name) != config:
                rows[name] = config
                changed.add(topic)
        broker.topics = set(registered)
        return changed

    def _drop_topics(self, name: str, broker: _Broker, topics: set[str]) -> set[str]:
        for topic in topics:
            rows = self.topic_queue_table[topic]
            del rows[name]
            if not rows:
                del self.topic_queue_table[topic]
        broker.topics = broker.topics - topics
        return set(topics)

    def _drop_unpublished_topics(self, name: str, broker: _Broker) -> set[str]:
        if broker.ids:
            return set()
        broker.topics_version = _NO_VERSION
        return self._drop_topics(name, broker, broker.topics)

    # -- removal of brokers -------------------------------------------------------------------------------

    def unregister(self, broker_name: str, node_id: str, role_epoch: int, now_ms: int) -> set[str]:
        """Unregister a node.

        Raises NameServerRefused (NAMESRV_BROKER_UNKNOWN, or NAMESRV_STALE_EPOCH if the node has registered
        again since).
        """
        broker = self._broker(broker_name)
        node = broker.nodes.get(node_id)
        if node is None:
            raise NameServerRefused(
                Status.NAMESRV_BROKER_UNKNOWN, f"{node_id} of {broker_name} is not registered"
            )
        newest = node.registration.role_epoch
        if role_epoch != ANY_EPOCH and (not _is_same_incarnation(role_epoch, newest) or role_epoch < newest):
            raise NameServerRefused(
                Status.NAMESRV_STALE_EPOCH,
                f"{node_id} of {broker_name} has since registered again with role_epoch "
                f"{node.registration.role_epoch}; the request has {role_epoch}",
            )
        return self._remove(broker_name, node_id, now_ms)

    def end_session(self, session: int, key: NodeKey, now_ms: int) -> set[str] | None:
        """Remove the node whose connection has closed.

        Returns None if the node has since registered over another connection.
        """
        name, node_id = key
        broker = self._broker_addr_table.get(name)
        node = None if broker is None else broker.nodes.get(node_id)
        if node is None or node.session != session:
            return None
        return self._remove(name, node_id, now_ms)

    def renew(self, key: NodeKey, now_ms: int) -> bool:
        """Renew a registration without changes. Return False if the node is not registered."""
        name, node_id = key
        broker = self._broker_addr_table.get(name)
        node = None if broker is None else broker.nodes.get(node_id)
        if node is None:
            return False
        node.updated_ms = now_ms
        return True

    def drop_topic(self, topic: str) -> set[str]:
        """Drop the topic's routes until a broker registers with it again."""
        for name in list(self.topic_queue_table.get(topic, ())):
            self._drop_topics(name, self._broker_addr_table[name], {topic})
        return {topic}

    def expire(self, now_ms: int) -> tuple[list[NodeKey], set[str]]:
        """Remove expired nodes and old terms. Return the removed nodes and the changed topics."""
        late = [
            (name, node_id)
            for name, broker in self._broker_addr_table.items()
            for node_id, node in broker.nodes.items()
            if now_ms - node.updated_ms > node.expire_ms
        ]
        changed: set[str] = set()
        for name, node_id in late:
            changed |= self._remove(name, node_id, now_ms)
        for known in self._broker_addr_table.values():
            for member, removed_ms in list(known.members.items()):
                if removed_ms is not None and now_ms - removed_ms > self._limits.removed_member_ms:
                    del known.members[member]
                    changed |= known.topics
        for name, fence in list(self._fences.items()):
            broker = self._broker_addr_table.get(name)
            if broker is not None and broker.master() is not None:
                fence.seen_ms = now_ms
            elif now_ms - fence.seen_ms > self._limits.default_expire_ms:
                # After this time without a master, the name may be reused for a new log.
                del self._fences[name]
                if broker is not None:
                    broker.topics_version = _NO_VERSION
        return late, changed

    def _remove(self, name: str, node_id: str, now_ms: int) -> set[str]:
        broker = self._broker_addr_table[name]
        before = broker.shown(name)
        if broker.ids.get(MASTER_ID) == node_id:
            self._fences[name].seen_ms = now_ms
        self._withdraw(broker, node_id)
        del broker.nodes[node_id]
        changed = set(broker.topics) if broker.shown(name) != before else set()
        changed |= self._drop_unpublished_topics(name, broker)
        if not broker.nodes:
            del self._broker_addr_table[name]
            names = self.cluster_addr_table[broker.cluster]
            names.discard(name)
            if not names:
                del self.cluster_addr_table[broker.cluster]
        return changed

    def wipe_write_permission(self, broker_name: str, *, give_back: bool = False) -> set[str]:
        """Remove or restore the write permission of the name's queues in routes.

        Raises NameServerRefused (NAMESRV_BROKER_UNKNOWN).
        """
        broker = self._broker(broker_name)
        if broker.write_wiped is not give_back:
            return set()
        broker.write_wiped = not give_back
        table = self.topic_queue_table
        return {topic for topic in broker.topics if table[topic][broker_name].perm & PERM_WRITE}

    def _broker(self, name: str) -> _Broker:
        broker = self._broker_addr_table.get(name)
        if broker is None:
            raise NameServerRefused(Status.NAMESRV_BROKER_UNKNOWN, f"no broker named {name} is registered")
        return broker

    # -- queries -----------------------------------------------------------------------------------------

    def route(self, topic: str) -> PublishedRoute:
        """Return the topic's current route. If the topic has no route, the result has no queues."""
        queues: dict[str, TopicConfig] = {}
        brokers: dict[str, dict[int, str]] = {}
        terms: dict[str, int] = {}
        clusters: dict[str, str] = {}
        filters: dict[str, Sequence[str]] = {}
        send_names: dict[str, Sequence[SendName]] = {}
        for name, config in sorted(self.topic_queue_table.get(topic, {}).items()):
            broker = self._broker_addr_table[name]
            if broker.write_wiped:
                config = config._replace(perm=config.perm & ~PERM_WRITE)
            queues[name] = config
            brokers[name], term = broker.published()
            if term != NO_TERM:
                terms[name] = term
            clusters[name] = broker.cluster
            if names := broker.send_names(name):
                send_names[name] = names
            for node_id in broker.ids.values():
                given = broker.nodes[node_id].registration
                if given.filter_servers:
                    filters[given.address] = given.filter_servers
        return PublishedRoute(topic, queues, brokers, terms, clusters, filters, send_names)

    def send_names(self) -> dict[str, list[SendName]]:
        """Return all write-only names, by cluster."""
        by_cluster: dict[str, list[SendName]] = {}
        for name, broker in self._broker_addr_table.items():
            by_cluster.setdefault(broker.cluster, []).extend(broker.send_names(name))
        return by_cluster

    def topics(self) -> list[str]:
        return sorted(self.topic_queue_table)

    def registration_answer(self, broker_name: str) -> RegistrationAnswer:
        """Return the response to a registration."""
        broker = self._broker_addr_table.get(broker_name)
        master = None if broker is None else broker.master()
        if master is None:
            return RegistrationAnswer()
        given = master.registration
        return RegistrationAnswer(given.address, given.term, given.ha_address)

    def brokers(self, now_ms: int) -> list[BrokerEntry]:
        """Return the brokerLiveTable, sorted by cluster, name and node."""
        entries = [
            _entry(node, now_ms)
            for broker in self._broker_addr_table.values()
            for node in broker.nodes.values()
        ]
        return sorted(entries, key=lambda entry: (entry.cluster, entry.broker_name, entry.node_id))

    def entry(self, key: NodeKey, now_ms: int) -> BrokerEntry | None:
        """Return one row of the brokerLiveTable."""
        name, node_id = key
        broker = self._broker_addr_table.get(name)
        node = None if broker is None else broker.nodes.get(node_id)
        return None if node is None else _entry(node, now_ms)

    def write_wiped(self) -> list[str]:
        """Return the broker names whose write permission is wiped."""
        return sorted(name for name, broker in self._broker_addr_table.items() if broker.write_wiped)


def _is_same_incarnation(role_epoch: int, other: int) -> bool:
    return role_epoch // _EPOCHS_PER_INCARNATION == other // _EPOCHS_PER_INCARNATION


def _is_older(given: Registration, known: Registration) -> bool:
    if _is_same_incarnation(given.role_epoch, known.role_epoch):
        return given.role_epoch < known.role_epoch
    return given.term < known.term


def _nodes_at(broker: _Broker, address: str) -> list[str]:
    return [node_id for node_id, node in broker.nodes.items() if node.registration.address == address]


def _entry(node: _LiveNode, now_ms: int) -> BrokerEntry:
    given = node.registration
    return BrokerEntry(
        given.cluster,
        given.broker_name,
        given.node_id,
        node.broker_id,
        # A deposed master appears in its published role, not in the role that it claimed last.
        _ROLES.get(node.broker_id, "SLAVE"),
        given.address,
        given.http_address,
        given.term,
        given.role_epoch,
        now_ms - node.updated_ms,
        node.expire_ms,
        node.session != NO_SESSION,
        given.node_address,
    )


def _too_many(what: str) -> NameServerBusy:
    return NameServerBusy(Status.NAMESRV_LIMIT, f"{what}: this NameServer is at its limit")
