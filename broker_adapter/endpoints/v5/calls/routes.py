"""Routes, which contain the addresses at which clients find a topic.

Every node accepts every call, so a route only determines the nodes to which a client connects. Most clients
get *one* broker with the addresses of all nodes. Their channel fails over to the next address automatically,
so that even an ordered message reaches the master while a node is down. Node.js clients support only one
address per broker. They get a broker for each node, with the queues of all nodes interleaved, so that the
next attempt of a send uses another node. The same applies to Python clients with TLS, which would require the
list of all addresses as a name in the certificate.

Clients compare whole routes, so a route must depend only on the configuration, the topic, and the endpoints
that the client itself sends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import copy
from ipaddress import ip_address

from broker_adapter.api import TopicConfig
from broker_adapter.endpoints.context import GO, JAVA, NODE_JS, PYTHON, CallContext
from broker_adapter.endpoints.directory import message_type_of
from broker_adapter.endpoints.rejected import Code, Rejected
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.wire.broker_ids import MASTER_ID
from dledger.infra.addresses import split_address

#: Maximum size of the endpoints that a client sends, which its routes repeat for each queue (bytes).
_MAX_ENDPOINTS_BYTES = 512
_HOST = re.compile(r"[^\s/@]+")
_SCHEMES = frozenset({pb.AddressScheme.IPv4, pb.AddressScheme.IPv6, pb.AddressScheme.DOMAIN_NAME})
#: The queue id in an assignment that stands for all queues of the broker.
_ALL_QUEUES = -1

_KINDS = {
    "NORMAL": pb.MessageType.NORMAL,
    "FIFO": pb.MessageType.FIFO,
    "DELAY": pb.MessageType.DELAY,
    "TRANSACTION": pb.MessageType.TRANSACTION,
    "PRIORITY": pb.MessageType.PRIORITY,
}
_MIXED = (pb.MessageType.NORMAL, pb.MessageType.FIFO, pb.MessageType.DELAY, pb.MessageType.TRANSACTION)
#: Languages of clients that support only one address per broker: always, and with TLS.
_ONE_ADDRESS = frozenset({NODE_JS})
_ONE_NAME = frozenset({NODE_JS, PYTHON})
#: The first version of each client that supports PRIORITY in a route. Other clients may reject the whole
#: route.
_KNOW_PRIORITY = {PYTHON: (0,), NODE_JS: (0,), GO: (0,), JAVA: (5, 2)}
#: A version. Parts are limited to 9 digits, because the header may contain any text.
_VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,2}(?![0-9])")


def accepts(config: TopicConfig, kind: pb.MessageType) -> bool:
    """Return True if the topic accepts messages of this type."""
    wanted = _KINDS.get(message_type_of(config))
    return wanted is None or wanted == kind


class Routes:
    """Builds the routes of all topics for one port, with or without TLS.

    `members`: host:port by node id, which may change; addresses in `advertised` take precedence. `listen`:
    all members serve these clients at its port; "": at their own ports. `by_request`: the endpoints of a
    request replace all.
    """

    _known: Mapping[str, str] | None = None  # as of the last call

    def __init__(
        self,
        broker_name: str,
        members: Mapping[str, str],
        advertised: Mapping[str, str],
        *,
        listen: str = "",
        has_tls: bool = False,
        by_request: bool = False,
    ) -> None:
        self._broker_name, self._has_tls, self._by_request = broker_name, has_tls, by_request
        self._members, self._advertised = members, advertised
        self._port = listen.rpartition(":")[2]
        self._follow_members()

    def _follow_members(self) -> None:
        known = dict(self._members)
        if known == self._known:
            return
        self._known = known
        places = {node_id: _split(address) for node_id, address in sorted(known.items())}
        if self._port:
            places = {node_id: (host, int(self._port)) for node_id, (host, _) in places.items()}
        advertised = {node_id: _split(address) for node_id, address in self._advertised.items()}
        self._set({node_id: advertised.get(node_id, place) for node_id, place in places.items()})

    def requested(self, endpoints: pb.Endpoints) -> Routes:
        """Return the routes for a client that sends these endpoints, which it has connected to.

        These are the same routes unless `by_request` is set. Raises Rejected (ILLEGAL_ACCESS_POINT) if the
        endpoints are invalid.
        """
        if not self._by_request or not endpoints.addresses:
            self._follow_members()
            return self
        _check(endpoints)
        routes = copy(self)
        routes._set(
            {str(number): (place.host, place.port) for number, place in enumerate(endpoints.addresses)},
            endpoints.scheme,
        )
        return routes

    def _set(self, places: Mapping[str, tuple[str, int]], scheme: pb.AddressScheme | None = None) -> None:
        addresses = list(places.values())
        schemes = {_scheme(host) for host, _ in addresses} if scheme is None else {scheme}
        self._each = [
            _broker(f"{self._broker_name}-{name}", [address], scheme or _scheme(address[0]))
            for name, address in places.items()
        ]
        # A list of addresses cannot contain host names, or both IPv4 and IPv6 addresses.
        is_one_place = len(addresses) == 1 or schemes in ({pb.AddressScheme.IPv4}, {pb.AddressScheme.IPv6})
        self._shared = _broker(self._broker_name, addresses, min(schemes)) if is_one_place else None
        self._apart = _ONE_NAME if self._has_tls else _ONE_ADDRESS
        #: Distinguishes routes with different addresses.
        self.key = (scheme, self._has_tls, tuple(places.items()))

    def shape(self, client: CallContext) -> tuple[bool, bool]:
        """Return the properties of a client that determine its route."""
        return self._shared is None or client.language in self._apart, _knows_priority(client)

    def queues(self, topic: pb.Resource, config: TopicConfig, client: CallContext) -> list[pb.MessageQueue]:
        """Return all queues of a topic, in a form that suits the language and version of the client."""
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
        """Return the assignments of a push consumer.

        The consumer receives from each broker in the route. With `in_order`, it receives from each readable
        queue once, because all brokers in the route are the same broker.
        """
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
        # The list must contain a type that the client knows. With NORMAL, the client can consume, and its
        # sends are rejected.
        return [pb.MessageType.NORMAL]
    return [wanted]


def _knows_priority(client: CallContext) -> bool:
    since = _KNOW_PRIORITY.get(client.language)
    return since is not None and _version(client.client_version) >= since


def _version(text: str) -> tuple[int, ...]:
    """Parse a version such as "5.2.0".

    Ignores a suffix, so a snapshot counts as the release. Returns (0,) if the text is invalid.
    """
    found = _VERSION.match(text)
    return (0,) if found is None else tuple(int(part) for part in found[0].split("."))


def _check(endpoints: pb.Endpoints) -> None:
    are_valid = all(_HOST.fullmatch(place.host) and 0 < place.port < 65536 for place in endpoints.addresses)
    if endpoints.scheme not in _SCHEMES or not are_valid:
        raise Rejected(Code.ILLEGAL_ACCESS_POINT, "the endpoints of the request are not hosts with ports")
    if endpoints.ByteSize() > _MAX_ENDPOINTS_BYTES:
        text = f"the endpoints of the request have more than {_MAX_ENDPOINTS_BYTES} bytes"
        raise Rejected(Code.ILLEGAL_ACCESS_POINT, text)


def _broker(name: str, addresses: list[tuple[str, int]], scheme: pb.AddressScheme) -> pb.Broker:
    return pb.Broker(
        name=name,
        id=MASTER_ID,  # clients use only the queue under this id
        endpoints=pb.Endpoints(
            scheme=scheme,
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
