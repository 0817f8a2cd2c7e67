"""Copies of the log and of images whose receivers do not read, and requests that make a node connect."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from dledger.client import AsyncClient
from dledger.core.membership_change import ChangeKind, MembershipChange, MemberStep
from dledger.errors import Code, DLedgerError
from dledger.infra.transport.channels import open_channel
from dledger.node.server import NodeServer
from dledger.replica.log_state import span_of
from dledger.rpc.envelope import PeerIdentity
from dledger.store.image_files import ImageMark
from dledger.v1 import admin_pb2, peer_pb2, peer_pb2_grpc
from tests.node.local import CLUSTER, GROUP, running_nodes, until
from tests.process.cluster import free_ports
from tests.rpc.raw_http2 import RawClient

_CALLS = 60


def envelope() -> peer_pb2.Envelope:
    sender = PeerIdentity(CLUSTER, GROUP, "n2", (), 1, uid_of={"n1": 0, "n2": 1 << 20}.__getitem__)
    return sender.envelope("n1")


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[NodeServer]:
    """With a log, and an image of 3 MiB."""
    async with running_nodes(tmp_path) as [server]:
        async with AsyncClient([server.config.address], group=GROUP) as client:
            for _ in range(10):
                await client.append(bytes(100_000))
        mark = ImageMark(5, 1, server.store.entry(5).pos)

        def write() -> None:
            writer = server.store.images.writer(mark, b"sessions")
            writer.write(os.urandom(3 << 20))
            server._parts.replica.admission.state.image = span_of(writer.finish())

        await asyncio.to_thread(write)
        yield server


def hits(node: NodeServer, name: str) -> int:
    return node.node_status().limits_hit.get(name, 0)


COPIES: list[tuple[str, Message, str, int]] = [
    ("PeerService/Image", peer_pb2.ImageRequest(index=5, term=1, chunk=1), "copies", 12),
    (
        "PeerService/Fetch",
        peer_pb2.FetchRequest(first_index=1, last_index=9, max_bytes=1 << 30),
        "copies",
        12,
    ),
    ("AdminService/Backup", admin_pb2.BackupRequest(), "backups", 6),
]


@pytest.mark.parametrize(("method", "request_", "limit", "most"), COPIES, ids=lambda value: str(value)[:24])
async def test_rule_13_receivers_that_do_not_read_occupy_little(
    node: NodeServer, method: str, request_: Any, limit: str, most: int
) -> None:
    if limit == "copies":
        request_.envelope.CopyFrom(envelope())
    data = request_.SerializeToString()
    raw = await RawClient.connect(node.config.address, window=2000)  # the refusals, and no copy
    streams = []
    for _ in range(_CALLS):
        streams.append(raw.begin(f"/dledger.v1.{method}"))
        await raw.send(streams[-1], b"\0" + struct.pack(">I", len(data)) + data, end=True)
    await until(lambda: len(raw.ended) >= _CALLS - most)
    assert hits(node, limit) > 0
    async with AsyncClient([node.config.address], group=GROUP) as client:
        await client.append(b"the node works")
    await raw.close()
    service = node._grpc._admin._backups if limit == "backups" else node._grpc._peers._copies
    await until(lambda: service._calls.used == 0)


async def test_a_member_that_reads_gets_all_chunks_one_after_the_other(node: NodeServer) -> None:
    async with open_channel(node.config.address) as channel:
        stub: Any = peer_pb2_grpc.PeerServiceStub(channel)
        for _ in range(_CALLS):
            request = peer_pb2.ImageRequest(envelope=envelope(), index=5, term=1, chunk=0)
            part = await stub.Image(request)
            assert not part.refusal.code and len(part.data) == 1 << 20


IMPOSSIBLE: list[dict[str, int]] = [
    {"index": 5, "term": 1, "chunk": 4},
    {"index": 5, "term": 1, "chunk": -1},
    {"index": 5, "term": 1, "chunk": (1 << 63) - 1},
    {"least_index": 6},
    {"least_index": (1 << 63) - 1},
]


@pytest.mark.parametrize("question", IMPOSSIBLE, ids=str)
async def test_impossible_chunks_are_refused_with_a_number(
    node: NodeServer, question: dict[str, int]
) -> None:
    async with open_channel(node.config.address) as channel:
        stub: Any = peer_pb2_grpc.PeerServiceStub(channel)
        part = await stub.Image(peer_pb2.ImageRequest(envelope=envelope(), **question))
        assert part.refusal.code in (Code.UNEXPECTED_ARGUMENT, Code.INDEX_OUT_OF_RANGE)
        assert not part.data and not part.manifest


async def test_additions_of_a_silent_server_occupy_few_connections(node: NodeServer) -> None:
    connections = 0

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    silent = "{}:{}".format(*server.sockets[0].getsockname())
    async with server, AsyncClient([node.config.address], group=GROUP) as client:

        async def add(number: int) -> DLedgerError:
            step = MemberStep(ChangeKind.ADD, f"m{number}", silent)
            with pytest.raises(DLedgerError) as caught:
                await client.change_members(MembershipChange((step,)))
            return caught.value

        errors = await asyncio.gather(*map(add, range(_CALLS)))
        codes = [error.code for error in errors]
        assert set(codes) == {Code.CHANGE_RUNNING, Code.LEARNER_NOT_READY}
        assert codes.count(Code.LEARNER_NOT_READY) == 8 and connections <= 16
        await client.append(b"the node works")
        free = f"127.0.0.1:{free_ports(1)[0]}"
        step = MemberStep(ChangeKind.ADD, "m1", free)
        with pytest.raises(DLedgerError) as caught:
            await client.change_members(MembershipChange((step,)))
        assert caught.value.code is Code.LEARNER_NOT_READY, "the slots are free again"
