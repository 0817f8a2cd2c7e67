"""One address that opens all the streams it can leaves some to others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from dledger.errors import Code
from dledger.infra.transport.channels import open_channel
from dledger.node.server import NodeServer
from dledger.v1 import log_pb2, log_pb2_grpc
from tests.node.local import GROUP, running_nodes, until
from tests.rpc.other_address import seen_from

LIMITS = {"max_append_streams": 4, "max_read_streams": 4}


@asynccontextmanager
async def two_addresses(tmp_path: Path) -> AsyncIterator[tuple[NodeServer, Any, Any]]:
    """A node, and clients that come to it from two addresses."""
    async with (
        running_nodes(tmp_path, 1, {"limits": LIMITS}) as (node,),
        seen_from("127.0.0.2", node.address) as other,
        open_channel(node.address) as channel,
        open_channel(other) as others,
    ):
        yield node, log_pb2_grpc.LogServiceStub(channel), log_pb2_grpc.LogServiceStub(others)


async def opened(log: Any) -> tuple[Any, log_pb2.Status]:
    """An append stream, and what it says to an append."""
    stream = log.AppendStream()
    await stream.write(log_pb2.AppendRequest(group=GROUP, request_id=7, bodies=[b"x"]))
    answer = await stream.read()
    assert answer.request_id == 7
    return stream, answer.status


async def following(log: Any) -> tuple[Any, log_pb2.Status]:
    """A read stream that follows, and the status of its first message."""
    stream = log.ReadStream(log_pb2.ReadRequest(group=GROUP, follow=True))
    return stream, (await stream.read()).status


async def test_append_streams_are_shared_by_address(tmp_path: Path) -> None:
    async with two_addresses(tmp_path) as (node, log, elsewhere):
        streams = [await opened(log) for _ in range(3)]
        assert [status.code for _, status in streams] == [0, 0, 0]
        _, refused = await opened(log)
        assert refused.code == Code.TOO_MANY_CONNECTIONS
        assert "3 of 4" in refused.message and "raise limits.max_append_streams" in refused.message
        kept, status = await opened(elsewhere)
        assert status.code == 0, status
        assert (await opened(elsewhere))[1].message.startswith("4 append streams are open")
        assert node.node_status().limits_hit["max_append_streams"] == 2
        kept.cancel()
        streams[0][0].cancel()
        assert node._grpc is not None
        service = node._grpc.appends
        await until(lambda: service.open_streams == 2)
        assert (await opened(log))[1].code == 0


async def test_read_streams_are_shared_by_address(tmp_path: Path) -> None:
    async with two_addresses(tmp_path) as (node, log, elsewhere):
        assert (await log.Append(log_pb2.AppendRequest(group=GROUP, bodies=[b"x"]))).status.code == 0
        streams = [await following(log) for _ in range(3)]
        assert [status.code for _, status in streams] == [0, 0, 0]
        _, refused = await following(log)
        assert refused.code == Code.TOO_MANY_CONNECTIONS
        assert "3 of 4" in refused.message and "raise limits.max_read_streams" in refused.message
        kept, status = await following(elsewhere)
        assert status.code == 0, status
        streams[0][0].cancel()
        assert node._grpc is not None
        service = node._grpc.reads
        await until(lambda: service.open_streams == 3)
        kept.cancel()
        await until(lambda: service.open_streams == 2)
        assert (await following(log))[1].code == 0
