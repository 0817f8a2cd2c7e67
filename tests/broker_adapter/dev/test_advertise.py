"""`dledger dev --advertise client` and `later`, with clients that know only mapped ports."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker_adapter.client import BlockingAdmin, BlockingProducer, BlockingPullConsumer, Message
from broker_adapter.endpoints.v5.messages.methods import METHODS, SERVICE_NAME
from broker_adapter.errors import IllegalMessage, Status
from broker_adapter.server import advertising
from broker_adapter.server.advertising import Advertising, parse_ports
from broker_adapter.testing import DevProcess
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from broker_adapter.wire.message_id import parse_offset_id
from dledger.infra.transport.channels import open_channel
from tests.broker_adapter.dev.port_mapping import PortMapping, advertised_broker, mapped_broker, put
from tests.broker_adapter.v5.world import HEADERS, resource

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("dev-advertise")]
#: The fewest ports that clients of both versions need.
NEEDED = ("name_server", "broker", "grpc")


@pytest.fixture(scope="module")
def mapped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DevProcess, PortMapping]]:
    with advertised_broker(tmp_path_factory.mktemp("mapped"), *NEEDED) as made:
        yield made


def health(page: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{page}health", timeout=20) as response:
            return response.status, json.load(response)["reason"]
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["reason"]


def addresses(name_server: str, topic: str) -> set[str]:
    with BlockingAdmin(name_server) as admin:
        brokers = admin.route(topic).brokers.values()
        return {address for broker in brokers for address in broker.addresses.values()}


def exchange(name_server: str, topic: str) -> str:
    """Send a message and receive it. Return its offset id."""
    with BlockingProducer("p", name_server) as producer:
        sent = producer.send(Message(topic, b"hello"))
    with BlockingPullConsumer("g", name_server) as consumer:
        [message] = consumer.pull(sent.queue, sent.queue_offset, timeout=20).messages
        assert message.body == b"hello"
    return sent.offset_message_ids[0]


async def route(endpoints: str, topic: str) -> pb.Endpoints:
    """Return the endpoints in the route of a RocketMQ 5 client that dials `endpoints`."""
    host, _, port = endpoints.rpartition(":")
    dialed = pb.Endpoints(
        scheme=pb.AddressScheme.DOMAIN_NAME, addresses=[pb.Address(host=host, port=int(port))]
    )
    request = calls.QueryRouteRequest(topic=resource(topic), endpoints=dialed)
    async with open_channel(endpoints) as channel:
        unary: Any = channel.unary_unary(f"/{SERVICE_NAME}/QueryRoute")
        answer = await unary(request.SerializeToString(), metadata=tuple(HEADERS.items()), timeout=20)
    queues = METHODS["QueryRoute"].answer.FromString(answer).message_queues
    found = {queue.broker.endpoints.SerializeToString() for queue in queues}
    assert len(found) == 1
    return pb.Endpoints.FromString(found.pop())


def test_nothing_is_advertised_until_it_is_given_and_then_all_clients_work(tmp_path: Path) -> None:
    with mapped_broker(tmp_path, "later", [*NEEDED, "page"]) as (broker, mapping):
        page, name_server = f"http://{mapping.address('page')}/", mapping.address("name_server")
        status, reason = health(page)
        assert status == 503 and "waiting for the advertised address" in reason
        with BlockingAdmin(name_server) as admin:
            assert admin.clusters() == {}

        wrong = {"host": "localhost", "broker": 0}
        assert put(page, wrong)[0] == 400 and health(page)[0] == 503

        outside = mapping.address("broker")
        given = {"host": "localhost", "broker": mapping.ports["broker"]}
        assert put(page, given) == (200, {"broker": outside, "send_only": ""})
        assert health(page) == (200, "ok")
        message_id = exchange(name_server, "t")
        assert addresses(name_server, "t") == {outside}
        host = parse_offset_id(message_id).store_host
        assert str(host) == f"127.0.0.1:{mapping.ports['broker']}"
        with BlockingAdmin(name_server) as admin:
            assert admin.view_message(message_id).body == b"hello"
        assert mapping.connections["broker"] > 0

        # Another mapping replaces the first one; an error replaces nothing.
        mapping.add({"broker": broker.broker, "send_only": broker.addresses["send_only"]})
        again = {name: mapping.ports[name] for name in ("broker", "send_only")}
        new = {name: mapping.address(name) for name in again}
        assert put(page, {"host": "localhost", **again}) == (200, new)
        assert addresses(name_server, "t") == set(new.values())
        assert put(page, {**wrong, "broker": "1"})[0] == 400
        assert addresses(name_server, "t") == set(new.values())
        exchange(name_server, "t")


def test_a_route_of_rocketmq_5_contains_what_the_client_has_dialed(
    mapped: tuple[DevProcess, PortMapping],
) -> None:
    broker, mapping = mapped
    for dialed in (mapping.address("grpc"), broker.endpoints):
        host, _, port = dialed.rpartition(":")
        [address] = asyncio.run(route(dialed, "v5")).addresses
        assert (address.host, address.port) == (host, int(port))


def test_a_host_that_the_broker_cannot_resolve_is_advertised_all_the_same(
    mapped: tuple[DevProcess, PortMapping],
) -> None:
    """Message ids then contain the address that the broker had before."""
    broker, mapping = mapped
    before = exchange(mapping.address("name_server"), "t")
    port = mapping.ports["broker"]
    assert put(broker.page, {"host": "docker.invalid", "broker": port})[0] == 200
    assert addresses(broker.name_server, "t") == {f"docker.invalid:{port}"}
    assert put(broker.page, {"host": "localhost", "broker": port})[0] == 200
    after = exchange(mapping.address("name_server"), "t")
    assert parse_offset_id(after).store_host == parse_offset_id(before).store_host


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        (b"", 400, "737 REQUEST_MALFORMED"),
        (b'{"host": "h", "broker": 1', 400, "737 REQUEST_MALFORMED"),
        (b"[]", 400, "737 REQUEST_MALFORMED"),
        ({"host": "h"}, 400, "735 FIELD_OUT_OF_RANGE: broker: Field required"),
        ({"host": "h", "broker": 1, "vip": 2}, 400, "735 FIELD_OUT_OF_RANGE: vip"),
        (b" " * 5_000, 413, "a body has at most 4096 bytes"),
    ],
    ids=["empty", "cut off", "list", "no port", "other field", "too large"],
)
def test_an_invalid_request_changes_nothing(
    mapped: tuple[DevProcess, PortMapping], body: object, status: int, error: str
) -> None:
    broker, _ = mapped
    exchange(broker.name_server, "t")
    before = addresses(broker.name_server, "t")
    code, answer = put(broker.page, body)
    assert code == status and error in answer["error"]
    assert addresses(broker.name_server, "t") == before


def test_addresses_can_be_put_only_where_the_user_chose_so(tmp_path: Path) -> None:
    with mapped_broker(tmp_path, "client", ["grpc"]) as (broker, mapping):
        [address] = asyncio.run(route(mapping.address("grpc"), "t")).addresses
        assert (address.host, address.port) == ("localhost", mapping.ports["grpc"])
        exchange(broker.name_server, "t")
        assert addresses(broker.name_server, "t") == {broker.broker, broker.addresses["send_only"]}
        code, answer = put(broker.page, {"host": "h", "broker": 1})
        assert code == 404 and "/advertise" not in answer["paths"]


@pytest.mark.parametrize("method", ["GET", "OPTIONS"])
def test_other_methods_are_refused(mapped: tuple[DevProcess, PortMapping], method: str) -> None:
    """A browser sends OPTIONS before a PUT by the page of another site, and does not send the PUT then."""
    request = urllib.request.Request(f"{mapped[0].page}advertise", method=method)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=20)
    assert refused.value.code == 405 and refused.value.headers["Allow"] == "PUT"
    assert "Access-Control-Allow-Origin" not in refused.value.headers


def test_a_web_page_is_refused_also_if_its_name_leads_here(
    mapped: tuple[DevProcess, PortMapping],
) -> None:
    """DNS rebinding: any Host header is accepted, because a container does not know its names."""
    broker, mapping = mapped
    exchange(mapping.address("name_server"), "t")
    before = addresses(broker.name_server, "t")
    page = {"Host": "rebound.example", "Origin": "http://rebound.example"}
    for headers in (page, {"Origin": "null"}):
        assert put(broker.page, {"host": "attacker.example", "broker": 1}, headers)[0] == 403
    assert addresses(broker.name_server, "t") == before


def test_each_of_many_requests_at_the_same_time_is_registered(
    mapped: tuple[DevProcess, PortMapping],
) -> None:
    broker, mapping = mapped
    hosts = [f"h{number}" for number in range(20)]
    with ThreadPoolExecutor(len(hosts)) as pool:
        answers = list(pool.map(lambda host: put(broker.page, {"host": host, "broker": 1}), hosts))
    assert answers == [(200, {"broker": f"{host}:1", "send_only": ""}) for host in hosts]
    assert put(broker.page, {"host": "localhost", "broker": mapping.ports["broker"]})[0] == 200
    exchange(mapping.address("name_server"), "t")


@dataclass
class _Status:
    health: str


async def test_a_broker_whose_nameserver_does_not_respond_keeps_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    routes = {name: SimpleNamespace(registered=False) for name in ("first", "second")}
    registered = list[tuple[str, str]]()

    def advertise(*ports: str) -> None:
        remoting.ports, remoting.advertised = ports, ports[0]

    remoting = SimpleNamespace(advertise=advertise)
    broker = SimpleNamespace(
        remoting=remoting,
        writer=SimpleNamespace(set_store_host=lambda _: None),
        register=lambda: registered.append(remoting.ports),
        registrations=lambda: routes,
    )
    status = _Status("ok")
    node = SimpleNamespace(status=SimpleNamespace(node_status=lambda: status))
    advertised = Advertising(cast(Any, broker), cast(Any, node))
    assert remoting.ports == ("", "")

    ports = parse_ports(b'{"host": "127.0.0.1", "broker": 1, "send_only": 2}')
    monkeypatch.setattr(advertising, "_REGISTERED_S", 0.05)
    routes["first"].registered = True
    with pytest.raises(TimeoutError):
        await advertised.advertise(ports)
    assert registered == [("127.0.0.1:1", "127.0.0.1:2")]
    assert "PUT /advertise" in advertised.node_status().health
    status.health = "the disk is full"
    assert advertised.node_status().health == status.health

    # The NameServer responds after the client has been refused.
    routes["second"].registered = True
    status.health = "ok"
    assert advertised.node_status().health == "ok"
    await advertised.advertise(ports)
    assert advertised.node_status().health == "ok"


@pytest.mark.parametrize("host", ["h", "docker", "192.168.0.7", "::1", "a_b.example.com", "h.", "x" * 63])
@pytest.mark.parametrize("port", [1, 65_535])
def test_hosts_and_ports_of_clients_are_accepted(host: str, port: int) -> None:
    ports = parse_ports(json.dumps({"host": host, "broker": port, "send_only": port}).encode())
    assert ports.address == ports.send_address == (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


@pytest.mark.parametrize(
    "changed",
    [
        {"host": ""},
        {"host": "a b"},
        {"host": "h:1"},
        {"host": "h\n"},
        {"host": "[::1]"},
        {"host": "x" * 64},
        {"host": ".".join(["x" * 60] * 5)},
        {"host": "a..b"},
        {"host": "..."},
        {"host": "0.0.0.0"},
        {"host": "::"},
        {"host": "1:2"},
        {"host": "999.1.1.1"},
        {"host": "fe80::1%eth0"},
        {"host": 1},
        {"host": None},
        {"broker": 0},
        {"broker": 65_536},
        {"broker": "1"},
        {"broker": 1.5},
        {"broker": True},
        {"send_only": 0},
        {"namesrv": 1},
    ],
)
def test_other_hosts_and_ports_are_refused(changed: dict[str, object]) -> None:
    with pytest.raises(IllegalMessage) as refused:
        parse_ports(json.dumps({"host": "h", "broker": 1, **changed}).encode())
    assert refused.value.status is Status.FIELD_OUT_OF_RANGE
    assert next(iter(changed)) in refused.value.message
