"""Ports for clients alone: with TLS and without, certificates renewed, routes that fit."""

from __future__ import annotations

import shutil
from pathlib import Path

import grpc.aio
import pytest

from broker_adapter.config.settings import parse_settings
from broker_adapter.server.program import BrokerProgram
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from dledger import Code, ConfigError
from dledger.infra.transport.channels import ChannelSecurity
from dledger.node.setup.config import parse_config
from tests.broker_adapter.cluster import brokers
from tests.broker_adapter.v5.forwarding.node_calls import NodeCalls, client_of
from tests.broker_adapter.v5.world import HEADERS, resource
from tests.process.cluster import free_ports
from tests.tls.world import TlsWorld


def trusting(ca: Path) -> ChannelSecurity:
    return ChannelSecurity(grpc.ssl_channel_credentials(ca.read_bytes()))


async def broker_names(client: NodeCalls) -> set[str]:
    answer = await client.call("QueryRoute", calls.QueryRouteRequest(topic=resource("t")))
    return {queue.broker.name for queue in answer.message_queues}


async def test_the_nodes_own_port_with_tls_has_a_broker_for_each_node_for_python(tmp_path: Path) -> None:
    """Quirk: over TLS Python looks for all addresses of one place, as one name, in the certificate."""
    tls = TlsWorld(tmp_path)
    section = tls.section(tls.files("n1"), client_auth="none")
    python = {**HEADERS, "x-mq-language": "PYTHON"}
    async with brokers(tmp_path, 1, tls_of={"n1": section}) as cluster:
        own, security = cluster.members["n1"], trusting(tls.ca)
        async with client_of(own, security=security) as client:
            (shared,) = await broker_names(client)
        async with client_of(own, python, security) as client:
            assert await broker_names(client) == {f"{shared}-n1"}
    async with brokers(tmp_path / "plain", 1) as cluster, client_of(cluster.members["n1"], python) as client:
        assert await broker_names(client) == {shared}


async def route_ports(client: NodeCalls) -> set[int]:
    answer = await client.call("QueryRoute", calls.QueryRouteRequest(topic=resource("t")))
    assert answer.status.code == pb.Code.OK
    return {address.port for queue in answer.message_queues for address in queue.broker.endpoints.addresses}


async def test_routes_lead_to_the_port_that_a_client_has_come_to(tmp_path: Path) -> None:
    tls = TlsWorld(tmp_path)
    files = tls.files("clients")
    plain, secure, advertised = free_ports(3)
    settings = {
        "listen": f"127.0.0.1:{plain}",
        "tls_listen": f"127.0.0.1:{secure}",
        "tls_certificate": str(files.certificate),
        "tls_key": str(files.key),
        "tls_ca": str(tls.ca),
    }
    async with brokers(tmp_path, 1, {"rocketmq_v2": settings}) as cluster:
        own = cluster.members["n1"]
        async with client_of(own) as client:
            assert await route_ports(client) == {int(own.rpartition(":")[2])}
        async with client_of(f"127.0.0.1:{plain}") as client:
            assert await route_ports(client) == {plain}
            assert (await client.send("id-1")).status.code == pb.Code.OK
        async with client_of(f"127.0.0.1:{secure}", security=trusting(tls.ca)) as client:
            assert await route_ports(client) == {secure}
            assert (await client.send("id-2")).status.code == pb.Code.OK
        async with client_of(f"127.0.0.1:{secure}") as client:
            with pytest.raises(grpc.aio.AioRpcError):
                await client.send("id-3")
        await cluster.stop("n1")
        cluster._settings["rocketmq_v2"] = {**settings, "tls_advertise": {"n1": f"127.0.0.1:{advertised}"}}
        await cluster.start("n1")
        async with client_of(f"127.0.0.1:{secure}", security=trusting(tls.ca)) as client:
            assert await route_ports(client) == {advertised}


async def test_a_new_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    old, new = TlsWorld(tmp_path / "old"), TlsWorld(tmp_path / "new")
    here = tmp_path / "here"
    here.mkdir()

    def put(world: TlsWorld) -> None:
        files = world.files("clients")
        for source, name in ((world.ca, "ca.pem"), (files.certificate, "own.pem"), (files.key, "own.key")):
            fresh = here / f"{name}.new"
            shutil.copy(str(source), fresh)
            fresh.rename(here / name)

    put(old)
    (port,) = free_ports(1)
    settings = {
        "tls_listen": f"127.0.0.1:{port}",
        "tls_certificate": str(here / "own.pem"),
        "tls_key": str(here / "own.key"),
        "tls_ca": str(here / "ca.pem"),
    }
    async with brokers(tmp_path, 1, {"rocketmq_v2": settings}):

        async def is_served(world: TlsWorld) -> bool:
            async with client_of(f"127.0.0.1:{port}", security=trusting(world.ca)) as client:
                try:
                    return (await client.send("id")).status.code == pb.Code.OK
                except grpc.aio.AioRpcError:
                    return False

        assert await is_served(old) and not await is_served(new)
        put(new)
        while not await is_served(new):
            pass
        assert not await is_served(old)


def program(folder: Path, **settings: object) -> BrokerProgram:
    content = {
        "directory": str(folder),
        "node_id": "n1",
        "cluster_id": "c",
        "members": {"n1": "127.0.0.1:1"},
    }
    return BrokerProgram(parse_config(content), parse_settings({"rocketmq_v2": settings}))


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"listen": "0.0.0.0:0"}, Code.PLAINTEXT_REFUSED),
        ({"tls_listen": "0.0.0.0:0"}, Code.CONFIG_INVALID),
        ({"tls_advertise": {"n9": "127.0.0.1:1"}}, Code.CONFIG_INVALID),
    ],
)
def test_ports_that_cannot_be_had_are_refused(
    tmp_path: Path, settings: dict[str, object], code: Code
) -> None:
    with pytest.raises(ConfigError) as caught:
        program(tmp_path, **settings).make_node()
    assert caught.value.code is code


@pytest.mark.parametrize(
    "settings",
    [
        {"tls_certificate": "/a.pem"},
        {"tls_ca": "/a.pem"},
        {"access_control": "accounts.toml"},
        {"listen": "nowhere"},
    ],
)
def test_settings_that_do_not_fit_are_named(tmp_path: Path, settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="rocketmq_v2"):
        program(tmp_path, **settings)
