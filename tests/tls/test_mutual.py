"""Three nodes with mutual TLS: who may talk to them, and in whose name."""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from dledger.cli.local.certificates import Authority
from dledger.client import TlsFiles
from dledger.core.messages import Heartbeat, PositionRequest, PushResponse, TakeLeadership, VoteRequest
from dledger.errors import Code, DLedgerError, InvalidRequest, NotLeader
from dledger.infra.port_kinds import ALPN, PortKind, port_kind_at
from dledger.infra.transport.channels import ChannelSecurity
from dledger.infra.transport.tls import ClientTls, channel_security, load
from dledger.node.server import NodeServer
from dledger.node.setup.secret_file import load_secret, make_secret
from dledger.rpc.envelope import PeerIdentity
from dledger.rpc.log_client import LogClient, NetworkFailure, TlsFailure
from dledger.rpc.peer_client import PeerClient
from dledger.rpc.ports import ImageQuestion
from tests.node.local import CLUSTER, GROUP, PATIENT, make_server, until
from tests.process.cluster import free_ports

from .world import NODES, TlsWorld, running, terms


async def test_three_nodes_elect_append_and_read(world: TlsWorld) -> None:
    async with running(*map(world.server, NODES)) as servers, world.client(world.client_files()) as client:
        results = await client.append_many([b"a", b"b"])
        await client.append(b"c")
        assert [entry.body async for entry in client.read(results[0].index)] == [b"a", b"b", b"c"]
        # A follower asks the leader for the read point, over TLS as well.
        follower = next(s for s in servers if not s.node_status().is_leader)
        read = client.read(results[0].index, server=follower.address)
        assert [entry.body async for entry in read] == [b"a", b"b", b"c"]
        leader = await client.leader()
        assert all(f.connected for f in leader.followers)


REFUSED_CLIENTS: list[tuple[str, Callable[[TlsWorld], TlsFiles | None], str]] = [
    ("plain text", lambda _: None, "has no CA"),
    ("no certificate", lambda w: TlsFiles(w.ca), "may require a certificate"),
    (
        "certificate of another CA",
        lambda w: w.files("app", authority=Authority("other")),
        "of a CA that the server does not trust",
    ),
    (
        "trusts another CA",
        lambda w: TlsFiles(Authority("other").save(w.folder / "other")),
        "not signed by a CA that this side trusts",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "words"), [c[1:] for c in REFUSED_CLIENTS], ids=[c[0] for c in REFUSED_CLIENTS]
)
async def test_clients_that_are_refused_are_told_why(
    world: TlsWorld, files: Callable[[TlsWorld], TlsFiles | None], words: str
) -> None:
    async with running(*map(world.server, NODES)):
        async with world.client(files(world), timeout=1.0) as client:
            with pytest.raises(NotLeader, match=words):
                await client.append(b"never")
            with pytest.raises(DLedgerError, match=words):
                await client.leader()
            answers = await client.status()
            assert all(words in str(answer) for answer in answers.values())
        async with world.client(world.client_files()) as client:  # the cluster lives
            assert (await client.append(b"fine")).index >= 0
            assert [entry.body async for entry in client.read()] == [b"fine"]


async def test_an_expired_client_is_refused_by_itself_and_by_the_node(world: TlsWorld) -> None:
    expired = world.files("app", seconds=-60)
    with pytest.raises(DLedgerError, match="expired"):
        world.client(expired)
    security = unchecked(expired)
    async with running(*map(world.server, NODES)) as servers:
        client = LogClient(servers[0].address, GROUP, security)
        with pytest.raises(NetworkFailure, match="may be expired"):
            await client.get_status(2.0)
        await client.close()


def unchecked(files: TlsFiles, server_name: str = "") -> ChannelSecurity:
    """As somebody without our checks would do it."""
    ca, certificate, key = (Path(str(p)).read_bytes() for p in (files.ca, files.certificate, files.key))
    return ChannelSecurity(
        grpc.ssl_channel_credentials(ca, key, certificate), server_name, has_certificate=True
    )


async def test_a_server_with_another_name_or_without_tls(world: TlsWorld) -> None:
    single = {"n1": world.members["n1"]}
    elsewhere = world.files("n1", hosts=("elsewhere",))
    node = make_server(world.folder, "n1", single, {"tls": world.section(elsewhere)})
    async with running(node):
        client = LogClient(node.address, GROUP, channel_security(load(world.client_files(), "client")))
        with pytest.raises(TlsFailure, match=r"does not name 127\.0\.0\.1") as caught:
            await client.get_status(2.0)
        assert caught.value.code is Code.CERTIFICATE_REFUSED
        await client.close()
    async with running(make_server(world.folder, "n1", single)) as (plain,):
        client = LogClient(plain.address, GROUP, channel_security(load(world.client_files(), "client")))
        with pytest.raises(TlsFailure, match="the server uses plain text") as caught:
            await client.get_status(2.0)
        assert caught.value.code is Code.PLAINTEXT_REFUSED
        await client.close()


async def test_a_port_with_tls_is_recognized(world: TlsWorld) -> None:
    single = {"n1": world.members["n1"]}
    tls = {"tls": world.section(world.files("n1"))}
    async with running(make_server(world.folder, "n1", single, tls)) as (node,):
        context = ClientTls(world.client_files()).stream_context(ALPN)
        assert await port_kind_at(node.address, context) is PortKind.GRPC
        assert await port_kind_at(node.address) is None, "its server closes plain text"
    assert await port_kind_at(node.address, context) is None, "no server listens"


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"\x00" * 20, b"\xff" * 20, b"[1]" * 20])
async def test_a_server_of_another_kind_is_not_recognized(answer: bytes) -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert await port_kind_at(f"127.0.0.1:{port}") is None


POSERS = [
    ("a client", lambda w: w.client_files(), "n1"),
    ("another node", lambda w: w.files("n3"), "n1"),
    ("a client on the node's host", lambda w: w.files("app", hosts=("127.0.0.1", "localhost")), "n1"),
]


@pytest.mark.parametrize(("files", "claimed"), [p[1:] for p in POSERS], ids=[p[0] for p in POSERS])
async def test_only_a_nodes_own_certificate_speaks_for_it(
    world: TlsWorld, files: Callable[[TlsWorld], TlsFiles], claimed: str
) -> None:
    members = (world.server(node, settings={"timing": PATIENT}) for node in NODES)
    async with running(*members) as servers:
        before = terms(servers)
        target = servers[1]
        identity = PeerIdentity(CLUSTER, GROUP, claimed, NODES, 99)
        poser = PeerClient("n2", target.address, identity, unchecked(files(world), "n2"))
        for message in (
            VoteRequest(99, claimed, 10**6, 99, False, True, 1),
            Heartbeat(99, claimed, 1, -1),
            TakeLeadership(99, claimed, 10**6),
            PositionRequest(99, claimed, 1),
        ):
            with pytest.raises(InvalidRequest, match="to act as node 'n1' it must name n1") as caught:
                await poser.request(message, 5.0)
            assert caught.value.code is Code.CERTIFICATE_REFUSED
        with pytest.raises(InvalidRequest, match="it must name n1") as caught:
            await poser.open_push(10**15).run(no_stream, no_response)
        assert caught.value.code is Code.CERTIFICATE_REFUSED
        with pytest.raises(InvalidRequest, match="it must name n1") as caught:
            [frames async for frames in poser.fetch(0, 0, 1 << 20, 5.0)]
        assert caught.value.code is Code.CERTIFICATE_REFUSED
        await poser.close()
        assert terms(servers) == before
        # The same message with the certificate of the node is listened to.
        rightful = PeerClient("n2", target.address, identity, unchecked(world.files("n1"), "n2"))
        assert await rightful.request(Heartbeat(0, claimed, 1, -1), 5.0)
        await until(lambda: target.node_status().committed_index >= 0)
        assert [frames.first_index async for frames in rightful.fetch(0, 0, 1 << 20, 5.0)] == [0]
        await rightful.close()


async def test_a_client_that_calls_itself_an_added_member_is_refused(world: TlsWorld) -> None:
    """A node follows leaders that its log does not have yet, but not every holder of a certificate."""
    members = (world.server(node, settings={"timing": PATIENT}) for node in NODES)
    async with running(*members) as servers, world.client(world.client_files()) as client:
        await client.append(b"x")
        before = terms(servers)
        target = servers[1]
        stranger = PeerIdentity(CLUSTER, GROUP, "app", (), 99, uid_of={"app": 1 << 20, "n2": 0}.__getitem__)
        poser = PeerClient("n2", target.address, stranger, unchecked(world.client_files(), "n2"))
        refused = "cluster_secret_file|members"
        for message in (
            VoteRequest(99, "app", 10**6, 99, False, True, 1),
            Heartbeat(99, "app", 1, -1),
            TakeLeadership(99, "app", 10**6),
            PositionRequest(99, "app", 1),
        ):
            with pytest.raises(InvalidRequest, match=refused) as caught:
                await poser.request(message, 5.0)
            assert caught.value.code is Code.UNKNOWN_MEMBER
        with pytest.raises(InvalidRequest, match=refused):
            await poser.open_push(10**15).run(no_stream, no_response)
        with pytest.raises(InvalidRequest, match=refused):
            [frames async for frames in poser.fetch(0, 0, 1 << 20, 5.0)]
        with pytest.raises(InvalidRequest, match=refused):
            await poser.image(ImageQuestion(0, 0, 0, 0), 5.0)
        await poser.close()
        assert terms(servers) == before


@pytest.mark.parametrize("proof", ["members", "secret"])
async def test_a_leader_that_the_log_does_not_have_yet_is_followed(world: TlsWorld, proof: str) -> None:
    members, settings = dict(world.members), {}
    if proof == "secret":
        make_secret(world.folder / "secret")
        settings["cluster_secret_file"] = str(world.folder / "secret")
    else:
        members["n4"] = f"127.0.0.1:{free_ports(1)[0]}"
    content = {"tls": world.section(world.files("n2")), "timing": PATIENT, **settings}
    node = make_server(world.folder, "n2", members, content)
    await node.start()
    try:
        secret = load_secret(world.folder / "secret") if proof == "secret" else None
        uids = {"n4": 1 << 20, "n2": 0}.__getitem__
        added = PeerIdentity(CLUSTER, GROUP, "n4", (), 1, secret, uid_of=uids)
        leader = PeerClient("n2", node.address, added, unchecked(world.files("n4"), "n2"))
        assert await leader.request(Heartbeat(1, "n4", 1, -1), 5.0)
        await leader.close()
        assert node.node_status().leader_id == "n4"
    finally:
        await node.stop()


def no_stream(_incarnation: int) -> None:
    raise AssertionError("the stream was accepted")


def no_response(_response: PushResponse) -> None:
    raise AssertionError("the stream was served")


async def test_a_node_with_a_wrong_certificate_stays_out_and_the_others_live(world: TlsWorld) -> None:
    stranger = world.server("n3", world.files("n4", folder="wrong"))
    members = (world.server(node, settings={"timing": PATIENT}) for node in ("n1", "n2"))
    async with running(*members), world.client(world.client_files()) as client:
        await stranger.start()
        try:
            results = [await client.append(b"%d" % i) for i in range(5)]
            leader = await client.leader()
            await until(lambda: stranger.node_status().term >= 0)
            follower = next(f for f in leader.followers if f.node_id == "n3")
            assert not follower.connected and follower.match_index == -1
            status = stranger.node_status()
            assert status.ledger_end_index == -1 and not status.is_leader
            assert (await client.leader()).term == leader.term
            assert results[-1].term == leader.term
        finally:
            await stranger.stop()


async def test_names_can_be_configured(world: TlsWorld) -> None:
    names = {node: f"spiffe.{node}.example" for node in NODES}
    servers = [
        world.server(node, world.files(node, hosts=("127.0.0.1", names[node])), peer_names=names)
        for node in NODES
    ]
    async with running(*servers), world.client(world.client_files()) as client:
        assert (await client.append(b"x")).index >= 0
        await until(lambda: all(s.node_status().committed_index >= 0 for s in servers))


async def test_without_client_certificates(world: TlsWorld) -> None:
    servers = [world.server(node, client_auth="none") for node in NODES]
    async with running(*servers), world.client(TlsFiles(world.ca)) as client:
        assert (await client.append(b"x")).index >= 0


async def fetch(url: str, files: TlsFiles, *, with_certificate: bool = False) -> Any:
    context = ssl.create_default_context(cafile=str(files.ca))
    if with_certificate:
        assert files.certificate is not None
        context.load_cert_chain(files.certificate, files.key)

    def get() -> Any:
        with urllib.request.urlopen(url, context=context, timeout=5) as answer:
            return json.loads(answer.read())

    return await asyncio.to_thread(get)


def one_node(world: TlsWorld, settings: dict[str, Any], **tls: Any) -> NodeServer:
    content = {"tls": world.section(world.files("n1"), **tls), "http_listen": f"127.0.0.1:{free_ports(1)[0]}"}
    return make_server(world.folder, "n1", {"n1": world.members["n1"]}, {**content, **settings})


async def test_the_status_port_speaks_https(world: TlsWorld) -> None:
    files = world.client_files()
    async with running(one_node(world, {})) as (node,):
        status = await fetch(f"https://{node.config.http_listen}/status", files)
        assert status["node_id"] == "n1"
        with pytest.raises((OSError, urllib.error.URLError)):
            await fetch(f"http://{node.config.http_listen}/status", files)
    async with running(one_node(world, {"http_tls": False})) as (node,):
        assert (await fetch(f"http://{node.config.http_listen}/status", files))["node_id"] == "n1"
    async with running(one_node(world, {}, http_client_auth="require")) as (node,):
        url = f"https://{node.config.http_listen}/status"
        with pytest.raises(OSError):
            await fetch(url, files)
        assert (await fetch(url, files, with_certificate=True))["node_id"] == "n1"
