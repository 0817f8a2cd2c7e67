"""Where clients are told to go: two shapes, always the same."""

from __future__ import annotations

import asyncio

import pytest

from broker_adapter.api import GroupConfig, TopicConfig
from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.rejected import Rejected
from broker_adapter.endpoints.v5.calls.client_calls import RouteCalls
from broker_adapter.endpoints.v5.calls.routes import Routes, accepts
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from tests.broker_adapter.v5.world import MEMBERS, resource

TOPIC = resource("t")
CONFIG = TopicConfig("t", 2, 2)


def routes(members: dict[str, str] | None = None, advertised: dict[str, str] | None = None) -> Routes:
    return Routes("broker-a", members or dict(MEMBERS), advertised or {})


def client(language: str, version: str = "") -> CallContext:
    return CallContext("c", language=language, client_version=version)


def accepted(config: TopicConfig, language: str, version: str = "") -> list[pb.MessageType]:
    return list(routes().queues(TOPIC, config, client(language, version))[0].accept_message_types)


def endpoints(*hosts: str, scheme: pb.AddressScheme = pb.AddressScheme.DOMAIN_NAME) -> pb.Endpoints:
    return pb.Endpoints(
        scheme=scheme, addresses=[pb.Address(host=host, port=49_000 + i) for i, host in enumerate(hosts)]
    )


def places(queues: list[pb.MessageQueue]) -> list[tuple[str, int]]:
    return [(queue.broker.name, queue.id) for queue in queues]


def ports(broker: pb.Broker) -> list[int]:
    return [address.port for address in broker.endpoints.addresses]


def test_most_clients_get_one_broker_with_the_addresses_of_all_nodes() -> None:
    """Quirk: a group of ordered messages is bound to a queue, so to whatever serves it."""
    queues = routes().queues(TOPIC, CONFIG, client("PYTHON"))
    assert places(queues) == [("broker-a", 0), ("broker-a", 1)]
    assert ports(queues[0].broker) == [10911, 10912, 10913]
    assert queues[0].broker.endpoints.scheme == pb.AddressScheme.IPv4


def test_node_js_gets_a_broker_for_each_node_with_queues_in_turn() -> None:
    """Quirk: it takes one address for each place, and goes on to the next queue when a try has failed."""
    queues = routes().queues(TOPIC, CONFIG, client("NODE_JS"))
    names = ["broker-a-n1", "broker-a-n2", "broker-a-n3"]
    assert places(queues) == [(name, queue) for queue in (0, 1) for name in names]
    assert [ports(queue.broker) for queue in queues[:3]] == [[10911], [10912], [10913]]


def test_with_tls_python_gets_a_broker_for_each_node() -> None:
    """Quirk: it would look for the addresses of all nodes, as one name, in the certificate."""
    over_tls = Routes("broker-a", MEMBERS, {}, has_tls=True)
    assert len(places(over_tls.queues(TOPIC, CONFIG, client("PYTHON")))) == 6
    assert len(places(over_tls.queues(TOPIC, CONFIG, client("JAVA")))) == 2


@pytest.mark.parametrize("language", ["PYTHON", "NODE_JS", "JAVA", ""])
def test_every_queue_is_usable(language: str) -> None:
    """Quirk: a broker's id other than 0, a missing queue 0 or type make queues useless."""
    queues = routes().queues(TOPIC, CONFIG, client(language))
    assert {queue.broker.id for queue in queues} == {0}
    assert 0 in {queue.id for queue in queues}
    for queue in queues:
        assert queue.topic == TOPIC and queue.permission == pb.Permission.READ_WRITE
        assert pb.MessageType.NORMAL in queue.accept_message_types
        assert pb.MessageType.MESSAGE_TYPE_UNSPECIFIED not in queue.accept_message_types


def test_routes_do_not_depend_on_who_is_asked_or_when() -> None:
    """Quirk: clients compare all of a route, and begin anew with what is not equal."""
    other = routes(dict(reversed(MEMBERS.items())))
    for language in ("JAVA", "NODE_JS"):
        first = routes().queues(TOPIC, CONFIG, client(language))
        assert (
            other.queues(TOPIC, CONFIG, client(language))
            == first
            == routes().queues(TOPIC, CONFIG, client(language))
        )


def test_advertised_addresses_take_precedence() -> None:
    queues = routes(None, {"n2": "10.0.0.2:80"}).queues(TOPIC, CONFIG, client("JAVA"))
    addresses = queues[0].broker.endpoints.addresses
    assert [(a.host, a.port) for a in addresses] == [
        ("127.0.0.1", 10911),
        ("10.0.0.2", 80),
        ("127.0.0.1", 10913),
    ]


@pytest.mark.parametrize(
    "members", [{"a": "host-1:1", "b": "host-2:1"}, {"a": "127.0.0.1:1", "b": "[::1]:1"}]
)
def test_names_and_mixed_addresses_stand_alone(members: dict[str, str]) -> None:
    """Quirk: several names in one place, or addresses of two kinds, are an error to clients."""
    queues = routes(members).queues(TOPIC, CONFIG, client("JAVA"))
    assert all(len(queue.broker.endpoints.addresses) == 1 for queue in queues)
    assert {queue.broker.name for queue in queues} == {"broker-a-a", "broker-a-b"}


def test_schemes() -> None:
    names = routes({"a": "host-1:1"}).queues(TOPIC, CONFIG, client("JAVA"))[0].broker.endpoints
    assert (names.scheme, names.addresses[0].host) == (pb.AddressScheme.DOMAIN_NAME, "host-1")
    v6 = routes({"a": "[::1]:1"}).queues(TOPIC, CONFIG, client("JAVA"))[0].broker.endpoints
    assert (v6.scheme, v6.addresses[0].host) == (pb.AddressScheme.IPv6, "::1")


@pytest.mark.parametrize(
    ("config", "permissions"),
    [
        (TopicConfig("t", 1, 2), [pb.Permission.READ_WRITE, pb.Permission.WRITE]),
        (TopicConfig("t", 2, 1), [pb.Permission.READ_WRITE, pb.Permission.READ]),
        (TopicConfig("t", 1, 1, perm=4), [pb.Permission.READ]),
        (TopicConfig("t", 1, 1, perm=2), [pb.Permission.WRITE]),
        (TopicConfig("t", 1, 1, perm=0), [pb.Permission.NONE]),
    ],
)
def test_permissions(config: TopicConfig, permissions: list[int]) -> None:
    assert [queue.permission for queue in routes().queues(TOPIC, config, client("JAVA"))] == permissions


@pytest.mark.parametrize(
    ("language", "version", "knows"),
    [
        ("PYTHON", "5.1.2", True),
        ("NODE_JS", "", True),
        ("GO", "5.1.4", True),
        ("JAVA", "5.2.0", True),
        ("JAVA", "5.2", True),
        ("JAVA", "5.10.0-SNAPSHOT", True),
        ("JAVA", "6.0.0", True),
        ("JAVA", "5.1.0", False),
        ("JAVA", "5.0.8", False),
        ("JAVA", "", False),
        ("JAVA", "newest", False),
        ("JAVA", "9" * 255, False),
        ("RUST", "5.2.0", False),
        ("", "", False),
    ],
)
def test_a_type_that_came_later_is_told_to_those_only_who_know_it(
    language: str, version: str, knows: bool
) -> None:
    """Quirk: to Java before 5.2 a route with it is an error."""
    priority, normal = pb.MessageType.PRIORITY, pb.MessageType.NORMAL
    assert (priority in accepted(CONFIG, language, version)) == knows
    only = CONFIG._replace(message_type="PRIORITY")
    assert accepted(only, language, version) == [priority if knows else normal]
    assert accepts(only, priority) and not accepts(only, normal)


def test_the_type_of_a_topic_decides_what_it_accepts() -> None:
    kinds = pb.MessageType
    fifo = TopicConfig("t", message_type="FIFO")
    assert accepted(fifo, "JAVA") == [kinds.FIFO]
    assert accepts(fifo, kinds.FIFO) and not accepts(fifo, kinds.NORMAL)
    for config in (TopicConfig("t"), TopicConfig("t", message_type="MIXED")):
        assert accepted(config, "JAVA") == [kinds.NORMAL, kinds.FIFO, kinds.DELAY, kinds.TRANSACTION]
        assert accepts(config, kinds.NORMAL) and accepts(config, kinds.PRIORITY)


@pytest.mark.parametrize(("language", "brokers"), [("JAVA", 1), ("NODE_JS", 3)])
def test_a_standard_group_receives_from_every_broker_at_once(language: str, brokers: int) -> None:
    found = routes().assignments(TOPIC, CONFIG, client(language), in_order=False)
    assert [one.message_queue.id for one in found] == [-1] * brokers
    assert len({one.message_queue.broker.name for one in found}) == brokers


@pytest.mark.parametrize("language", ["JAVA", "NODE_JS"])
def test_an_ordered_group_receives_from_every_queue_once(language: str) -> None:
    found = routes().assignments(TOPIC, TopicConfig("t", 4, 8), client(language), in_order=True)
    assert [one.message_queue.id for one in found] == [0, 1, 2, 3]


class AllTopics:
    """Every topic is there, with so many queues."""

    def __init__(self, queues: int) -> None:
        self.queues = queues

    def topic(self, name: str) -> TopicConfig:
        return TopicConfig(name, self.queues, self.queues)

    def group(self, name: str) -> GroupConfig | None:
        return GroupConfig(name, consume_orderly=True)

    def topic_or_default(self, name: str) -> TopicConfig:
        return self.topic(name)

    async def ensure_topic(self, name: str, remote: str) -> TopicConfig:
        return self.topic(name)

    async def topic_comes(self, name: str, seconds: float) -> bool:
        return True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was made, and what else the loop did after each."""
    made: list[str] = []

    def noted(name: str) -> None:
        make = getattr(Routes, name)

        def note(*args: object, **more: object) -> object:
            made.append(name)
            asyncio.get_running_loop().call_soon(made.append, "other")
            return make(*args, **more)

        monkeypatch.setattr(Routes, name, note)

    noted("queues")
    noted("assignments")
    return made


def asked(name: str, language: str = "JAVA") -> tuple[calls.QueryRouteRequest, CallContext]:
    return calls.QueryRouteRequest(topic=resource(name)), client(language, "5.2")


async def test_other_work_of_the_loop_comes_between_two_answers_with_many_queues(made: list[str]) -> None:
    """A timer that is due, such as that of a heartbeat, waits for one of them at most."""
    directory = AllTopics(1_024)
    service = RouteCalls(directory, {"": routes()})
    await asyncio.gather(*[service.known_route(*asked(f"t{number}")) for number in range(3)])
    wanted = calls.QueryAssignmentRequest(topic=resource("t"), group=resource("g"))
    await asyncio.gather(*[service.query_assignment(wanted, client("JAVA")) for _ in range(3)])
    await asyncio.sleep(0)
    assert made == ["queues", "other"] * 3 + ["assignments", "other"] * 3


async def test_a_route_is_made_once_until_the_topic_is_another_one(made: list[str]) -> None:
    directory = AllTopics(64)
    service = RouteCalls(directory, {"": routes()})
    answers = await asyncio.gather(*[service.known_route(*asked("t")) for _ in range(3)])
    assert made.count("queues") == 1 and len(set(answers)) == 1
    assert await service.query_route(*asked("t")) == answers[0]
    assert made.count("queues") == 1
    assert await service.known_route(*asked("t", "NODE_JS")) != answers[0]
    directory.queues = 65
    assert await service.known_route(*asked("t")) != answers[0]
    assert made.count("queues") == 3
    for number in range(64):  # only so many are kept
        await service.known_route(*asked(f"t{number}"))
    assert await service.known_route(*asked("t")) != answers[0]
    assert made.count("queues") == 3 + 64 + 1


def by_request() -> RouteCalls:
    return RouteCalls(AllTopics(2), {"": Routes("broker-a", {"n1": "10.0.0.1:8081"}, {}, by_request=True)})


async def brokers_of(service: RouteCalls, dialed: pb.Endpoints, language: str = "JAVA") -> list[pb.Broker]:
    """Return the brokers in the route, and check that those in the assignment are the same."""
    request, context = asked("t", language)
    request.endpoints.CopyFrom(dialed)
    route = calls.QueryRouteResponse.FromString(await service.query_route(request, context))
    wanted = calls.QueryAssignmentRequest(topic=request.topic, group=resource("g"), endpoints=dialed)
    assigned = (await service.query_assignment(wanted, context)).assignments
    brokers = {broker.name: broker for broker in (queue.broker for queue in route.message_queues)}
    assert brokers == {one.message_queue.broker.name: one.message_queue.broker for one in assigned}
    return list(brokers.values())


async def test_a_route_contains_the_endpoints_that_each_client_has_dialed() -> None:
    service = by_request()
    six = endpoints("[::1]", scheme=pb.AddressScheme.IPv6)  # some clients send brackets
    for dialed in (endpoints("localhost"), endpoints("docker"), six):
        assert [broker.endpoints for broker in await brokers_of(service, dialed)] == [dialed]


async def test_a_route_contains_the_configured_address_if_a_request_has_no_endpoints() -> None:
    [broker] = await brokers_of(by_request(), pb.Endpoints())
    assert [(one.host, one.port) for one in broker.endpoints.addresses] == [("10.0.0.1", 8081)]


async def test_endpoints_of_requests_are_ignored_unless_configured() -> None:
    service = RouteCalls(AllTopics(2), {"": routes()})
    [broker] = await brokers_of(service, endpoints("localhost"))
    assert ports(broker) == [10911, 10912, 10913]


async def test_several_dialed_addresses_are_one_broker_or_one_each_for_node_js() -> None:
    dialed = endpoints("10.0.0.1", "10.0.0.2", scheme=pb.AddressScheme.IPv4)
    [broker] = await brokers_of(by_request(), dialed)
    assert broker.endpoints == dialed
    apart = await brokers_of(by_request(), dialed, "NODE_JS")
    assert [ports(one) for one in apart] == [[49_000], [49_001]]


@pytest.mark.parametrize(
    "dialed",
    [
        endpoints(""),
        endpoints("a b"),
        endpoints("x" * 600),
        endpoints(*["10.0.0.1"] * 100, scheme=pb.AddressScheme.IPv4),
        endpoints("h", scheme=pb.AddressScheme.ADDRESS_SCHEME_UNSPECIFIED),
        pb.Endpoints(scheme=pb.AddressScheme.IPv4, addresses=[pb.Address(host="h", port=0)]),
        pb.Endpoints(scheme=pb.AddressScheme.IPv4, addresses=[pb.Address(host="h", port=65_536)]),
    ],
)
async def test_invalid_endpoints_are_rejected(dialed: pb.Endpoints) -> None:
    with pytest.raises(Rejected) as rejected:
        await brokers_of(by_request(), dialed)
    assert rejected.value.code == pb.Code.ILLEGAL_ACCESS_POINT
