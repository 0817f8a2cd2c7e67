"""The secret of a cluster: who does not know it is no member, whatever it says; and nobody is told it."""

from __future__ import annotations

import logging
import stat
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest

from dledger.client import AsyncClient
from dledger.errors import Code, ConfigError, InvalidRequest
from dledger.infra.transport.channels import open_channel
from dledger.node.server import NodeServer
from dledger.node.setup.secret_file import load_secret, make_secret
from dledger.rpc.cluster_secret import ClusterSecret
from dledger.rpc.envelope import PeerIdentity
from dledger.v1 import peer_pb2 as pb
from dledger.v1 import peer_pb2_grpc
from tests.node.local import CLUSTER, GROUP, make_server, running_nodes
from tests.process.cluster import free_ports

OLD, NEW, OTHER = b"o" * 32, b"n" * 32, b"x" * 32
IDENTITY = PeerIdentity("c", "g", "n1", ("n1", "n2"), 1)


def of(node_id: str, *secrets: bytes) -> PeerIdentity:
    return replace(IDENTITY, node_id=node_id, secret=ClusterSecret(secrets) if secrets else None)


@pytest.mark.parametrize("sent", [(), (OTHER,), (OLD + b"o",), (OLD[:-1],), (OTHER, OLD)])
def test_an_envelope_without_the_secret_is_refused_and_does_not_show_it(sent: tuple[bytes, ...]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        of("n1", OLD).check(of("n2", *sent).envelope("n1"))
    assert caught.value.code is Code.SECRET_REFUSED
    assert all(secret.decode() not in str(caught.value) for secret in (OLD, OTHER))


def test_it_is_checked_before_anything_else_is_said_of_the_cluster() -> None:
    envelope = of("n2", OTHER).envelope("n1")
    envelope.cluster_id = "another"
    with pytest.raises(InvalidRequest) as caught:
        of("n1", OLD).check(envelope)
    assert caught.value.code is Code.SECRET_REFUSED


def test_at_each_step_of_a_change_all_nodes_understand_each_other() -> None:
    steps = [(OLD,), (OLD, NEW), (NEW, OLD), (NEW,)]
    for before, after in pairwise(steps):
        of("n1", *before).check(of("n2", *after).envelope("n1"))
        of("n1", *after).check(of("n2", *before).envelope("n1"))


def test_no_representation_shows_it() -> None:
    identity = of("n1", OLD)
    for text in (repr(identity), str(identity), repr(identity.secret), str(identity.secret)):
        assert OLD.decode() not in text


def test_a_new_secret_is_for_its_owner_only_and_made_once(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    make_secret(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_secret(path).accepts(path.read_bytes().strip())
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="exists"):
        make_secret(path)
    assert path.read_bytes() == before
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError):
        make_secret(link)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "0 lines"),
        (b"short\n", "32 to 1024 characters"),
        (OLD + b"\n" + NEW + b"\n" + OTHER, "3 lines"),
        (b"y" * 1025, "32 to 1024 characters"),
        (OLD + b"\nshort\n", "32 to 1024 characters"),
        (None, "dledger init --new-secret"),
    ],
)
def test_files_that_hold_no_secret(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        load_secret(path)
    assert not content or content.decode() not in str(caught.value)


def test_a_file_that_everybody_may_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(OLD)
    path.chmod(0o602)
    with pytest.raises(ConfigError, match="chmod"):
        load_secret(path)


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[NodeServer]:
    """n1 of three, alone, with a secret."""
    (tmp_path / "secret").write_bytes(OLD + b"\n")
    (tmp_path / "secret").chmod(0o600)
    members = {f"n{i}": f"127.0.0.1:{port}" for i, port in enumerate(free_ports(3), 1)}
    settings = {
        "timing": {"heartbeat_ms": 1000, "election_min_ms": 60_000, "election_max_ms": 90_000},
        "cluster_secret_file": str(tmp_path / "secret"),
    }
    server = make_server(tmp_path, "n1", members, settings)
    await server.start()
    yield server
    await server.stop()


async def test_every_peer_call_wants_the_secret(
    guarded: NodeServer, caplog: pytest.LogCaptureFixture
) -> None:
    forged = PeerIdentity(CLUSTER, GROUP, "n2", ("n1", "n2", "n3"), 0).envelope("n1")
    forged.secret = OTHER
    with caplog.at_level(logging.DEBUG):
        async with open_channel(guarded.address) as channel:
            stub: Any = peer_pb2_grpc.PeerServiceStub(channel)
            answers = [
                await stub.Vote(pb.VoteRequest(envelope=forged, term=9)),
                await stub.Heartbeat(pb.HeartbeatRequest(envelope=forged, term=9)),
                await stub.TakeLeadership(pb.TakeLeadershipRequest(envelope=forged, term=9)),
                await stub.Position(pb.PositionRequest(envelope=forged, term=9)),
                await stub.Fetch(pb.FetchRequest(envelope=forged, max_bytes=1)).read(),
            ]
            push = stub.Push()
            await push.write(pb.PushRequest(envelope=forged, term=9, stream_id=1))
            answers.append(await push.read())
            assert await push.read() is grpc.aio.EOF
            assert [answer.refusal.code for answer in answers] == [Code.SECRET_REFUSED] * 6
            known = pb.Envelope()
            known.CopyFrom(forged)
            known.secret = OLD
            vote = pb.VoteRequest(envelope=known, term=1, ledger_end_index=-1, ledger_end_term=-1)
            assert (await stub.Vote(vote)).refusal.code == 0
    status = guarded.node_status()
    assert status.term == 1 and status.limits_hit["cluster_secret"] == 6
    assert OLD.decode() not in str(status) + caplog.text + str(guarded.config)
    assert OTHER.decode() not in caplog.text


async def test_a_cluster_with_a_secret_elects_and_appends(tmp_path: Path) -> None:
    make_secret(tmp_path / "secret")
    settings = {"cluster_secret_file": str(tmp_path / "secret")}
    async with (
        running_nodes(tmp_path, 3, settings) as servers,
        AsyncClient([s.address for s in servers], group=GROUP) as client,
    ):
        await client.append(b"x")
