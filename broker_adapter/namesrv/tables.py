"""The tables of a NameServer, pure: time is handed in, and what changed is handed out.

They are RocketMQ's: topicQueueTable, brokerAddrTable, clusterAddrTable, brokerLiveTable. What differs is who
is believed, as RocketMQ may show two masters of a name until one is forgotten:

- of one node, a registration with a lower role_epoch than the registered one is refused. A node that has lost
  its directory begins with a random incarnation, the upper half of its role_epochs: between two incarnations
  the term decides, and the same term is believed. Only its own incarnation un-registers a node;
- of two nodes that claim id 0 of a name, the one with the higher *term* has it. The other loses it at once
  and stays without an id until it registers as what it is; a claim with a lower term is refused. The highest
  term is remembered for a while after its master has gone, so that a deposed one cannot take its place;
- a node whose role is not known (id -1) lives, and is not published;
- brokers of RocketMQ's own have no terms (-1): of two claims without one the newer is believed, as there.

Topics are those of the accepted master. They stay, for slaves to be read from, while any node of the name is
published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from broker_adapter.api import PERM_WRITE, TopicConfig
from broker_adapter.errors import NameServerBusy, NameServerRefused, Status
from broker_adapter.format.broker_ids import MASTER_ID
from broker_adapter.namesrv.values import (
    ANY_EPOCH,
    NO_TERM,
    UNKNOWN_ID,
    BrokerEntry,
    Registration,
    RegistrationAnswer,
    RemotingNode,
    Route,
    TableLimits,
    check_registration,
)
from dledger.platform import MAX_TERM_ADVANCE

#: Registered by a call of its own, not over a stream.
NO_SESSION = 0

#: (broker name, node id)
NodeKey: TypeAlias = tuple[str, str]

_NO_VERSION = (NO_TERM, -1)
#: As `dledger.core.raft` counts role_epochs.
_EPOCHS_PER_INCARNATION = 1 << 32


@dataclass(slots=True)
class _Live:
    """A row of the brokerLiveTable: one node, as it last registered."""

    registration: Registration  # without topics
    broker_id: int  # as published; -1: not
    session: int
    updated_ms: int
    expire_ms: int


@dataclass(slots=True)
class _Broker:
    """A row of the brokerAddrTable: one broker name."""

    cluster: str
    origin: str  # the address that brought the name up, "" if it is not known
    nodes: dict[str, _Live] = field(default_factory=dict)  # by node id
    ids: dict[int, str] = field(default_factory=dict)  # broker id -> node id; only what is published
    topics: set[str] = field(default_factory=set)
    topics_version: tuple[int, int] = _NO_VERSION  # (term, data_version)
    write_wiped: bool = False

    def addresses(self) -> dict[int, str]:
        return {i: self.nodes[self.ids[i]].registration.address for i in sorted(self.ids)}

    def remoting(self) -> list[RemotingNode]:
        """The published nodes that clients of the remoting protocol reach elsewhere than at their address."""
        nodes = ((broker_id, self.nodes[self.ids[broker_id]].registration) for broker_id in sorted(self.ids))
        return [
            RemotingNode(given.node_id, broker_id, given.remoting_address)
            for broker_id, given in nodes
            if given.remoting_address
        ]

    def master(self) -> _Live | None:
        node_id = self.ids.get(MASTER_ID)
        return None if node_id is None else self.nodes[node_id]

    def published(self) -> tuple[dict[int, str], int]:
        """What routes show of it besides queues."""
        master = self.master()
        return self.addresses(), NO_TERM if master is None else master.registration.term


@dataclass(slots=True)
class _Fence:
    """The highest term in which a node was accepted as master of a name."""

    term: int
    node_id: str
    seen_ms: int  # when that master was there last
    origin: str  # as of the name


class RouteTables:
    """Methods that change something return the topics whose routes may have changed by it."""

    def __init__(self, limits: TableLimits | None = None) -> None:
        self._limits = limits or TableLimits()
        self.topic_queue_table: dict[str, dict[str, TopicConfig]] = {}  # topic -> broker name -> queues
        self.cluster_addr_table: dict[str, set[str]] = {}  # cluster -> broker names
        self._broker_addr_table: dict[str, _Broker] = {}
        self._fences: dict[str, _Fence] = {}

    # -- brokers ------------------------------------------------------------------------------------------

    @property
    def limits(self) -> TableLimits:
        return self._limits

    def register(
        self, given: Registration, now_ms: int, session: int = NO_SESSION, origin: str = ""
    ) -> set[str]:
        """Believe a registration, or refuse it and change nothing. `origin`: the address that it came from.

        NameServerRefused (NAMESRV_INVALID, _STALE_EPOCH, _STALE_TERM, _CONFLICT); NameServerBusy
        (NAMESRV_LIMIT).
        """
        check_registration(given, self._limits)
        self._check_believable(given)
        self._check_room(given, origin)
        broker = self._broker_addr_table.get(given.broker_name)
        if broker is None:
            broker = self._broker_addr_table[given.broker_name] = _Broker(
                given.cluster, self._origin_of(given.broker_name) or origin
            )
            self.cluster_addr_table.setdefault(given.cluster, set()).add(given.broker_name)
        before = broker.published()
        for other in _nodes_at(broker, given.address):
            self._withdraw(broker, other)
            if other != given.node_id:
                del broker.nodes[other]
        self._withdraw(broker, given.node_id)
        if given.broker_id == MASTER_ID:
            if (deposed := broker.ids.get(MASTER_ID)) is not None:
                self._withdraw(broker, deposed)
            self._fences[given.broker_name] = _Fence(given.term, given.node_id, now_ms, broker.origin)
        broker.nodes[given.node_id] = _Live(
            given._replace(topics=()),
            given.broker_id,
            session,
            now_ms,
            self._limits.expire_ms(given.expire_ms),
        )
        if given.broker_id != UNKNOWN_ID:
            broker.ids[given.broker_id] = given.node_id
        changed = self._take_topics(broker, given) if given.broker_id == MASTER_ID else set()
        if broker.published() != before:
            changed |= broker.topics
        return changed | self._drop_unpublished_topics(given.broker_name, broker)

    def _check_believable(self, given: Registration) -> None:
        name, node_id = given.broker_name, given.node_id
        fence, broker = self._fences.get(name), self._broker_addr_table.get(name)
        self._check_term(given)
        if broker is not None:
            known = broker.nodes.get(node_id)
            if known is not None and _is_older(given, known.registration):
                raise NameServerRefused(
                    Status.NAMESRV_STALE_EPOCH,
                    f"{node_id} of {name}: role_epoch {given.role_epoch} in term {given.term}, and "
                    f"{known.registration.role_epoch} in term {known.registration.term} is registered",
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
                    f"{given.broker_id} of {name}; {node_id} needs one of its own",
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

    def _check_term(self, given: Registration) -> None:
        """A term far beyond all that is known of a name would keep its real master out for ever."""
        name = given.broker_name
        fence, broker = self._fences.get(name), self._broker_addr_table.get(name)
        known = [node.registration.term for node in broker.nodes.values()] if broker is not None else []
        if fence is not None:
            known.append(fence.term)
        if known and given.term - max(known) > MAX_TERM_ADVANCE:
            raise NameServerRefused(
                Status.NAMESRV_TERM_REFUSED,
                f"{given.node_id} of {name} names term {given.term}; the greatest known one is {max(known)}: "
                "no elections lead there",
            )

    def _origin_of(self, name: str) -> str:
        """ "" also if nobody knows the name."""
        row = self._broker_addr_table.get(name) or self._fences.get(name)
        return "" if row is None else row.origin

    def _check_room(self, given: Registration, origin: str) -> None:
        limits, broker = self._limits, self._broker_addr_table.get(given.broker_name)
        if broker is None:
            names = self._broker_addr_table.keys() | self._fences.keys()
            if given.broker_name not in names and len(names) >= limits.max_broker_names:
                raise _too_many(f"{limits.max_broker_names} broker names are known")
            if origin and given.broker_name not in names:
                brought_up = sum(self._origin_of(name) == origin for name in names)
                if brought_up >= limits.max_names_per_address:
                    raise _too_many(f"{brought_up} of the known broker names came from {origin}")
        elif given.node_id not in broker.nodes and len(broker.nodes) >= limits.max_nodes_per_name:
            raise _too_many(f"{given.broker_name} has {limits.max_nodes_per_name} nodes")
        if given.broker_id == MASTER_ID:
            table = self.topic_queue_table
            new = sum(topic.name not in table for topic in given.topics)
            if len(table) + new > limits.max_topics:
                raise _too_many(f"{limits.max_topics} topics are known")

    @staticmethod
    def _withdraw(broker: _Broker, node_id: str) -> None:
        """The node is not published any more."""
        node = broker.nodes.get(node_id)
        if node is not None:
            broker.ids.pop(node.broker_id, None)
            node.broker_id = UNKNOWN_ID

    def _take_topics(self, broker: _Broker, given: Registration) -> set[str]:
        version = (given.term, given.data_version)
        if version < broker.topics_version and given.term != NO_TERM:
            return set()
        broker.topics_version = version
        name, table = given.broker_name, self.topic_queue_table
        wanted = {topic.name: topic for topic in given.topics}
        changed = self._drop_topics(name, broker, broker.topics - wanted.keys())
        for topic, config in wanted.items():
            rows = table.setdefault(topic, {})
            if rows.get(name) != config:
                rows[name] = config
                changed.add(topic)
        broker.topics = set(wanted)
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

    # -- brokers that go ----------------------------------------------------------------------------------

    def unregister(self, broker_name: str, node_id: str, role_epoch: int, now_ms: int) -> set[str]:
        """NameServerRefused (NAMESRV_BROKER_UNKNOWN; NAMESRV_STALE_EPOCH: it has registered anew since)."""
        broker = self._broker(broker_name)
        node = broker.nodes.get(node_id)
        if node is None:
            raise NameServerRefused(
                Status.NAMESRV_BROKER_UNKNOWN, f"{node_id} of {broker_name} is not registered"
            )
        newest = node.registration.role_epoch
        if role_epoch != ANY_EPOCH and (not _is_same_life(role_epoch, newest) or role_epoch < newest):
            raise NameServerRefused(
                Status.NAMESRV_STALE_EPOCH,
                f"{node_id} of {broker_name} has registered with role_epoch {node.registration.role_epoch} "
                f"since {role_epoch}",
            )
        return self._remove(broker_name, node_id, now_ms)

    def end_session(self, session: int, key: NodeKey, now_ms: int) -> set[str] | None:
        """The stream is gone: so is the node, unless it has registered in another way since (None)."""
        name, node_id = key
        broker = self._broker_addr_table.get(name)
        node = None if broker is None else broker.nodes.get(node_id)
        if node is None or node.session != session:
            return None
        return self._remove(name, node_id, now_ms)

    def renew(self, key: NodeKey, now_ms: int) -> bool:
        """The node lives, and nothing has changed there. False: it is not registered."""
        name, node_id = key
        broker = self._broker_addr_table.get(name)
        node = None if broker is None else broker.nodes.get(node_id)
        if node is None:
            return False
        node.updated_ms = now_ms
        return True

    def drop_topic(self, topic: str) -> set[str]:
        """Until a broker registers with it again."""
        for name in list(self.topic_queue_table.get(topic, ())):
            self._drop_topics(name, self._broker_addr_table[name], {topic})
        return {topic}

    def expire(self, now_ms: int) -> tuple[list[NodeKey], set[str]]:
        """Forget nodes that have not registered in time: which, and the topics. Forgets old terms, too."""
        late = [
            (name, node_id)
            for name, broker in self._broker_addr_table.items()
            for node_id, node in broker.nodes.items()
            if now_ms - node.updated_ms > node.expire_ms
        ]
        changed: set[str] = set()
        for name, node_id in late:
            changed |= self._remove(name, node_id, now_ms)
        for name, fence in list(self._fences.items()):
            broker = self._broker_addr_table.get(name)
            if broker is not None and broker.master() is not None:
                fence.seen_ms = now_ms
            elif now_ms - fence.seen_ms > self._limits.default_expire_ms:
                # No master for so long: it is another log, made anew under an old name.
                del self._fences[name]
                if broker is not None:
                    broker.topics_version = _NO_VERSION
        return late, changed

    def _remove(self, name: str, node_id: str, now_ms: int) -> set[str]:
        broker = self._broker_addr_table[name]
        before = broker.published()
        if broker.ids.get(MASTER_ID) == node_id:
            self._fences[name].seen_ms = now_ms
        self._withdraw(broker, node_id)
        del broker.nodes[node_id]
        changed = set(broker.topics) if broker.published() != before else set()
        changed |= self._drop_unpublished_topics(name, broker)
        if not broker.nodes:
            del self._broker_addr_table[name]
            names = self.cluster_addr_table[broker.cluster]
            names.discard(name)
            if not names:
                del self.cluster_addr_table[broker.cluster]
        return changed

    def wipe_write_permission(self, broker_name: str, *, give_back: bool = False) -> set[str]:
        """Routes show the name's queues without write permission, or with it again.

        NameServerRefused (NAMESRV_BROKER_UNKNOWN).
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
            raise NameServerRefused(
                Status.NAMESRV_BROKER_UNKNOWN, f"no broker of the name {name} is registered"
            )
        return broker

    # -- what can be asked --------------------------------------------------------------------------------

    def route(self, topic: str) -> Route:
        """Where the topic is now; without queues if nowhere."""
        queues: dict[str, TopicConfig] = {}
        brokers: dict[str, dict[int, str]] = {}
        terms: dict[str, int] = {}
        clusters: dict[str, str] = {}
        filters: dict[str, Sequence[str]] = {}
        remoting: dict[str, Sequence[RemotingNode]] = {}
        for name, config in sorted(self.topic_queue_table.get(topic, {}).items()):
            broker = self._broker_addr_table[name]
            if broker.write_wiped:
                config = config._replace(perm=config.perm & ~PERM_WRITE)
            queues[name] = config
            brokers[name], term = broker.published()
            if term != NO_TERM:
                terms[name] = term
            clusters[name] = broker.cluster
            if nodes := broker.remoting():
                remoting[name] = nodes
            for node_id in broker.ids.values():
                given = broker.nodes[node_id].registration
                if given.filter_servers:
                    filters[given.address] = given.filter_servers
        return Route(topic, queues, brokers, terms, clusters, filters, remoting)

    def topics(self) -> list[str]:
        return sorted(self.topic_queue_table)

    def answer(self, broker_name: str) -> RegistrationAnswer:
        """What a node that has registered should know."""
        broker = self._broker_addr_table.get(broker_name)
        master = None if broker is None else broker.master()
        if master is None:
            return RegistrationAnswer()
        given = master.registration
        return RegistrationAnswer(given.address, given.term, given.ha_address)

    def brokers(self, now_ms: int) -> list[BrokerEntry]:
        """The brokerLiveTable, by cluster, name and node."""
        found = [
            _entry(node, now_ms)
            for broker in self._broker_addr_table.values()
            for node in broker.nodes.values()
        ]
        return sorted(found, key=lambda entry: (entry.cluster, entry.broker_name, entry.node_id))

    def entry(self, key: NodeKey, now_ms: int) -> BrokerEntry | None:
        """One row of the brokerLiveTable."""
        name, node_id = key
        broker = self._broker_addr_table.get(name)
        node = None if broker is None else broker.nodes.get(node_id)
        return None if node is None else _entry(node, now_ms)

    def write_wiped(self) -> list[str]:
        """Broker names whose write permission is wiped."""
        return sorted(name for name, broker in self._broker_addr_table.items() if broker.write_wiped)


def _is_same_life(role_epoch: int, other: int) -> bool:
    return role_epoch // _EPOCHS_PER_INCARNATION == other // _EPOCHS_PER_INCARNATION


def _is_older(given: Registration, known: Registration) -> bool:
    if _is_same_life(given.role_epoch, known.role_epoch):
        return given.role_epoch < known.role_epoch
    return given.term < known.term


def _nodes_at(broker: _Broker, address: str) -> list[str]:
    return [node_id for node_id, node in broker.nodes.items() if node.registration.address == address]


def _entry(node: _Live, now_ms: int) -> BrokerEntry:
    given = node.registration
    return BrokerEntry(
        given.cluster,
        given.broker_name,
        given.node_id,
        node.broker_id,
        # A deposed master is shown as what it is published as, not as what it last claimed to be.
        str(given.role) if node.broker_id == given.broker_id else "UNKNOWN",
        given.address,
        given.http_address,
        given.term,
        given.role_epoch,
        now_ms - node.updated_ms,
        node.expire_ms,
        node.session != NO_SESSION,
        given.remoting_address,
    )


def _too_many(what: str) -> NameServerBusy:
    return NameServerBusy(Status.NAMESRV_LIMIT, f"{what}: this NameServer takes no more")
