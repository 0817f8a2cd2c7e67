"""Where clients are told to find a topic.

Every node takes every call, so a route only says to whom a client speaks. Most clients get *one* broker
whose addresses are those of all nodes: their channel goes on to the next address automatically, so even an
ordered message reaches the master while a node is down. Clients in Node.js cannot have several addresses in
one place: they get a broker for each node, with the queues of all nodes in turn, so the next try of a send
goes to another node. So do those in Python with TLS: they would look for all addresses, as one name, in the
certificate.

Clients compare routes by their whole content: it depends on nothing but the configuration and the topic.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address

from broker_adapter.api import TopicConfig
from broker_adapter.format.broker_ids import MASTER_ID
from broker_adapter.proxy.messages.context import GO, JAVA, NODE_JS, PYTHON, CallContext
from broker_adapter.proxy.messages.directory import message_type_of
from broker_adapter.proxy.v2 import definition_pb2 as pb
from dledger.platform import split_address

#: In an assignment: all queues of the broker.
_ALL_QUEUES = -1

_KINDS = {
    "NORMAL": pb.MessageType.NORMAL,
    "FIFO": pb.MessageType.FIFO,
    "DELAY": pb.MessageType.DELAY,
    "TRANSACTION": pb.MessageType.TRANSACTION,
    "PRIORITY": pb.MessageType.PRIORITY,
}
_MIXED = (pb.MessageType.NORMAL, pb.MessageType.FIFO, pb.MessageType.DELAY, pb.MessageType.TRANSACTION)
#: Clients that take one address in one place, and with TLS.
_ONE_ADDRESS = frozenset({NODE_JS})
_ONE_NAME = frozenset({NODE_JS, PYTHON})
#: From which version on clients take a route with PRIORITY in it; all others may refuse the whole route.
_KNOW_PRIORITY = {PYTHON: (0,), NODE_JS: (0,), GO: (0,), JAVA: (5, 2)}
#: No version has parts of more digits; a header may be anything.
_VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,2}(?![0-9])")


def accepts(config: TopicConfig, kind: pb.MessageType) -> bool:
    """Whether messages of this type may be sent to the topic."""
    wanted = _KINDS.get(message_type_of(config))
    return wanted is None or wanted == kind


class Routes:
    """`members`: host:port by node id; `advertised` takes precedence. One instance for all topics, of a port
    that has TLS or not."""

    def __init__(
        self,
        broker_name: str,
        members: Mapping[str, str],
        advertised: Mapping[str, str],
        *,
        has_tls: bool = False,
    ) -> None:
        places = {node_id: advertised.get(node_id, members[node_id]) for node_id in sorted(members)}
        addresses = [_split(address) for address in places.values()]
        self._each = [
            _broker(f"{broker_name}-{node_id}", [address])
            for node_id, address in zip(places, addresses, strict=True)
        ]
        schemes = {_scheme(host) for host, _ in addresses}
        # Names, and addresses of two kinds, cannot stand in one place.
        is_one_place = len(addresses) == 1 or schemes in ({pb.AddressScheme.IPv4}, {pb.AddressScheme.IPv6})
        self._shared = _broker(broker_name, addresses) if is_one_place else None
        self._apart = _ONE_NAME if has_tls else _ONE_ADDRESS

    def shape(self, client: CallContext) -> tuple[bool, bool]:
        """What a route depends on, of a client."""
        return self._shared is None or client.language in self._apart, _knows_priority(client)

    def queues(self, topic: pb.Resource, config: TopicConfig, client: CallContext) -> list[pb.MessageQueue]:
        """All queues of a topic, for clients of this language and version."""
        brokers = self._brokers_for(client.language)
        count = max(config.read_queues, config.write_queues)
        return [
            self._queue(topic, config, queue_id, broker, client)
            for queue_id in range(count)
            for broker in brokers
        ]

    def assignments(
        self, topic: pb.Resource, config: TopicConfig, client: CallContext, *, in_order: bool
    ) -> list[pb.Assignment]:
        """What a push consumer is to receive from: each broker, or, `in_order`, each queue that it may read,
        once: the brokers are the same one."""
        brokers = self._brokers_for(client.language)
        if in_order:
            places = [(queue_id, brokers[queue_id % len(brokers)]) for queue_id in range(config.read_queues)]
        else:
            places = [(_ALL_QUEUES, broker) for broker in brokers]
        return [
            pb.Assignment(message_queue=self._queue(topic, config, queue_id, broker, client))
            for queue_id, broker in places
        ]

    def _brokers_for(self, language: str) -> list[pb.Broker]:
        return self._each if language in self._apart or self._shared is None else [self._shared]

    def _queue(
        self, topic: pb.Resource, config: TopicConfig, queue_id: int, broker: pb.Broker, client: CallContext
    ) -> pb.MessageQueue:
        return pb.MessageQueue(
            topic=topic,
            id=queue_id,
            permission=_permission(config, queue_id),
            broker=broker,
            accept_message_types=_accepted(config, client),
        )


def _permission(config: TopicConfig, queue_id: int) -> pb.Permission:
    may_read = config.is_readable and queue_id < config.read_queues
    may_write = config.is_writable and queue_id < config.write_queues
    if may_read and may_write:
        return pb.Permission.READ_WRITE
    if may_read:
        return pb.Permission.READ
    return pb.Permission.WRITE if may_write else pb.Permission.NONE


def _accepted(config: TopicConfig, client: CallContext) -> list[pb.MessageType]:
    wanted = _KINDS.get(message_type_of(config))
    if wanted is None:
        return [*_MIXED, pb.MessageType.PRIORITY] if _knows_priority(client) else list(_MIXED)
    if wanted == pb.MessageType.PRIORITY and not _knows_priority(client):
        # A list has to have a type that the client knows: with this one it consumes, and what it sends is
        # refused.
        return [pb.MessageType.NORMAL]
    return [wanted]


def _knows_priority(client: CallContext) -> bool:
    since = _KNOW_PRIORITY.get(client.language)
    return since is not None and _version(client.client_version) >= since


def _version(text: str) -> tuple[int, ...]:
    """Of "5.2.0", also with more behind it; (0,) if it is none. A snapshot counts as the release."""
    found = _VERSION.match(text)
    return (0,) if found is None else tuple(int(part) for part in found[0].split("."))


def _broker(name: str, addresses: list[tuple[str, int]]) -> pb.Broker:
    return pb.Broker(
        name=name,
        id=MASTER_ID,  # by which clients look for "the" queue of a broker: they use no other
        endpoints=pb.Endpoints(
            scheme=_scheme(addresses[0][0]),
            addresses=[pb.Address(host=host, port=port) for host, port in addresses],
        ),
    )


def _split(address: str) -> tuple[str, int]:
    host, port = split_address(address)
    return host, int(port)


def _scheme(host: str) -> pb.AddressScheme:
    try:
        version = ip_address(host).version
    except ValueError:
        return pb.AddressScheme.DOMAIN_NAME
    return pb.AddressScheme.IPv4 if version == 4 else pb.AddressScheme.IPv6
