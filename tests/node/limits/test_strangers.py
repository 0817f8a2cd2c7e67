"""Clients that pose as members of a node that cannot tell members from clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dledger.client import AsyncClient
from dledger.core.membership_change import ChangeKind, MembershipChange, MemberStep
from dledger.core.values import RULES_VERSION
from dledger.errors import Code, ConfigError, DLedgerError
from dledger.infra.transport.channels import open_channel
from dledger.node.server import NodeServer
from dledger.node.setup.config import parse_config
from dledger.node.setup.secret_file import make_secret
from dledger.store.identity import Identity, first_incarnation, init_directory, joined
from dledger.v1 import peer_pb2 as pb
from dledger.v1 import peer_pb2_grpc
from tests.node.local import CLUSTER, GROUP, first_leader, make_server
from tests.process.cluster import free_ports


def envelope(**fields: Any) -> pb.Envelope:
    values = {"version": 3, "features": 1, "rules_version": RULES_VERSION, "incarnation": 1, "uid": 1 << 20}
    names = {"cluster_id": CLUSTER, "group": GROUP, "local_id": "stranger", "remote_id": "n1"}
    return pb.Envelope(**{**values, **names, **fields})


class Single:
    """A single node that others can reach in plain text, without a secret."""

    def __init__(self, folder: Path) -> None:
        port = free_ports(1)[0]
        self.settings = {"listen": f"0.0.0.0:{port}", "allow_plaintext": True}
        self.ended: list[DLedgerError] = []
        self.folder = folder
        self.server = make_server(folder, "n1", {"n1": f"127.0.0.1:{port}"}, self.settings)
        self.server._on_fatal = self.ended.append

    def client(self) -> AsyncClient:
        return AsyncClient([self.server.config.address], group=GROUP)


@pytest.fixture
async def single(tmp_path: Path) -> AsyncIterator[Single]:
    made = Single(tmp_path)
    await made.server.start()
    await first_leader([made.server])
    yield made
    await made.server.stop()


CLAIMS: list[dict[str, Any]] = [
    {},
    {"known_uid": 7},  # the node would take itself for replaced, and end
    {"known_directory": 1 << 61},
    {"uid": 0, "members": ["n1", "stranger"]},
    {"uid": -1},
]


@pytest.mark.parametrize("claims", CLAIMS, ids=str)
async def test_a_single_node_follows_no_stranger(single: Single, claims: dict[str, Any]) -> None:
    forged = envelope(**claims)
    async with single.client() as client, open_channel(single.server.config.address) as channel:
        await client.append(b"kept")
        stub: Any = peer_pb2_grpc.PeerServiceStub(channel)
        push = stub.Push()
        await push.write(pb.PushRequest(envelope=forged, term=9, stream_id=1))
        answers = [
            await stub.Vote(pb.VoteRequest(envelope=forged, term=9, transfer=True, ledger_end_index=99)),
            await stub.Heartbeat(pb.HeartbeatRequest(envelope=forged, term=9)),
            await stub.TakeLeadership(pb.TakeLeadershipRequest(envelope=forged, term=9)),
            await stub.Position(pb.PositionRequest(envelope=forged, term=9)),
            await stub.Fetch(pb.FetchRequest(envelope=forged, max_bytes=1)).read(),
            await stub.Image(pb.ImageRequest(envelope=forged)),
            await push.read(),
        ]
        expected = Code.MEMBERS_DIFFER if "members" in claims else Code.UNKNOWN_MEMBER
        assert [answer.refusal.code for answer in answers] == [expected] * 7
        await client.append(b"too")
        assert [entry.body async for entry in client.read(0)] == [b"kept", b"too"]
    assert single.server.node_status().term == 1 and not single.ended


async def test_a_node_that_cannot_tell_members_from_clients_gets_no_others(single: Single) -> None:
    async with single.client() as client:
        addition = MemberStep(ChangeKind.ADD, "n2", "10.0.0.2:20911")
        with pytest.raises(DLedgerError, match="cluster_secret_file") as caught:
            await client.change_members(MembershipChange((addition,)))
        assert caught.value.code is Code.PLAINTEXT_REFUSED
        move = MemberStep(ChangeKind.MOVE, "n1", "10.0.0.1:20911")
        await client.change_members(MembershipChange((move,)))  # it is still the only one
        assert [member.node_id for member in single.server.node_status().members] == ["n1"]


def test_members_beyond_this_machine_need_plain_text_allowed_and_a_secret(tmp_path: Path) -> None:
    content: dict[str, Any] = {
        "directory": str(tmp_path),
        "node_id": "n1",
        "cluster_id": CLUSTER,
        "members": {"n1": "127.0.0.1:1"},
    }
    near, far = {"n2": "127.0.0.1:2"}, {"n2": "10.0.0.2:2"}
    parse_config(content).refuse_plaintext(near)
    with pytest.raises(ConfigError, match=r"members\.n2 is 10\.0\.0\.2:2"):
        parse_config(content).refuse_plaintext(far)
    content["allow_plaintext"] = True
    with pytest.raises(ConfigError, match="cluster_secret_file"):
        parse_config(content).refuse_plaintext(far)
    make_secret(tmp_path / "secret")
    parse_config({**content, "cluster_secret_file": str(tmp_path / "secret")}).refuse_plaintext(far)


async def test_a_group_that_has_grown_needs_its_secret_at_each_start(tmp_path: Path) -> None:
    """The configuration file may still name the node alone."""
    made = Single(tmp_path)
    make_secret(tmp_path / "secret")
    guarded = make_server(
        tmp_path,
        "n1",
        dict(made.server.config.members),
        {**made.settings, "cluster_secret_file": str(tmp_path / "secret")},
    )
    await guarded.start()
    await first_leader([guarded])
    other = await _joining(tmp_path, guarded)
    async with made.client() as client:
        step = MemberStep(ChangeKind.ADD, "n2", other.config.address)
        await client.change_members(MembershipChange((step,)))
    await other.stop()
    await guarded.stop()
    with pytest.raises(ConfigError, match="cluster_secret_file") as caught:
        await made.server.start()
    assert caught.value.code is Code.PLAINTEXT_REFUSED


async def _joining(folder: Path, first: NodeServer) -> NodeServer:
    identity = joined(Identity(CLUSTER, GROUP, "n2", data_file_size=4 << 20))
    init_directory(folder / "n2", identity, incarnation=first_incarnation())
    members = {**first.config.members, "n2": f"127.0.0.1:{free_ports(1)[0]}"}
    settings = {"cluster_secret_file": str(folder / "secret")}
    server = make_server(folder, "n2", members, settings)
    await server.start()
    return server
