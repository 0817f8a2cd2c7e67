"""Calls whose request does not come as a whole are ended: gRPC holds what has come of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
import grpc.aio
import pytest

from dledger.rpc.transport import host, unsent_requests
from dledger.rpc.transport.channels import new_server, open_channel
from dledger.rpc.transport.host import GrpcHost, GrpcService
from dledger.rpc.transport.unsent_requests import UnsentRequests
from tests.node.local import until
from tests.rpc.raw_http2 import RawClient, half_of, message

UNARY, STREAM, OPEN = "/test.Echo/Unary", "/test.Echo/Stream", "/test.Echo/Open"


def echo() -> grpc.GenericRpcHandler:
    async def unary(request: bytes, context: object) -> bytes:
        return request

    async def stream(request: bytes, context: object) -> AsyncIterator[bytes]:
        yield request

    async def both(_: object, context: Any) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:
            await context.write(request)

    methods = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Stream": grpc.unary_stream_rpc_method_handler(stream),
        "Open": grpc.stream_stream_rpc_method_handler(both),
    }
    return grpc.method_handlers_generic_handler("test.Echo", methods)


@asynccontextmanager
async def served(unsent: UnsentRequests) -> AsyncIterator[str]:
    server = new_server()
    server.add_generic_rpc_handlers((unsent.over(echo()),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def answers(address: str) -> None:
    """A whole call of each kind."""
    async with open_channel(address) as channel:
        assert await channel.unary_unary(UNARY)(b"x") == b"x"
        assert [one async for one in channel.unary_stream(STREAM)(b"y")] == [b"y"]


@pytest.mark.parametrize("path", [UNARY, STREAM])
@pytest.mark.parametrize("sent", [b"", half_of(1000), half_of(4 << 20)])
async def test_a_call_whose_request_does_not_come_in_time_is_ended(path: str, sent: bytes) -> None:
    hits: list[int] = []
    async with served(UnsentRequests(lambda: hits.append(1), timeout_s=1.0)) as address:
        client = await RawClient.connect(address)
        streams = [client.begin(path) for _ in range(3)]
        await asyncio.gather(*[client.send(stream, sent) for stream in streams])
        await until(lambda: client.ended == set(streams))
        assert len(hits) == 3
        assert client.is_open, "the connection may have good calls"
        await answers(address)
        await client.close()


async def test_past_the_number_the_one_that_has_been_on_its_way_for_the_longest_goes() -> None:
    unsent = UnsentRequests(most=2, timeout_s=600, long_s=0)
    async with served(unsent) as address:
        client = await RawClient.connect(address)
        for count in range(1, 6):
            client.begin(UNARY)
            await until(lambda count=count: len(client.ended) == max(0, count - 2))  # type: ignore[misc]
        assert client.ended == {1, 3, 5}
        await answers(address)
        await client.close()


async def test_too_many_that_have_come_together_are_few_when_they_are_not_young_any_more() -> None:
    unsent = UnsentRequests(most=2, timeout_s=600, long_s=0.2)
    async with served(unsent) as address:
        client = await RawClient.connect(address)
        for _ in range(20):
            client.begin(UNARY)
        await until(lambda: client.ended == set(range(1, 37, 2)))
        assert len(unsent) == 2
        await answers(address)
        await client.close()


async def test_young_calls_are_no_reason_to_end_one_however_many_come_together() -> None:
    unsent = UnsentRequests(most=2, timeout_s=600, long_s=600)
    async with served(unsent) as address:
        client = await RawClient.connect(address)
        streams = [client.begin(UNARY) for _ in range(20)]
        await until(lambda: len(unsent) == 20)
        for stream in streams:
            await client.send(stream, message(b"late"), end=True)
        await until(lambda: client.ended == set(streams))
        assert all(client.received[stream] for stream in streams), "all are answered"
        assert len(unsent) == 0
        await client.close()


async def test_streams_of_requests_may_be_silent() -> None:
    unsent = UnsentRequests(most=1, timeout_s=1.0, long_s=0)
    async with served(unsent) as address, open_channel(address) as channel:
        call = channel.stream_stream(OPEN)()
        assert await channel.unary_unary(UNARY)(b"x") == b"x"
        client = await RawClient.connect(address)
        stuck = client.begin(UNARY)
        await until(lambda: stuck in client.ended)
        await call.write(b"still there")
        assert await call.read() == b"still there"
        call.cancel()
        await client.close()


async def test_clients_that_hang_up_before_their_request_leave_no_trace() -> None:
    unsent = UnsentRequests(most=3, timeout_s=600, long_s=600)
    async with served(unsent) as address:
        for _ in range(10):
            client = await RawClient.connect(address)
            client.begin(UNARY)
            await until(lambda: len(unsent) > 0)
            await client.close()
        late = await RawClient.connect(address)
        streams = [late.begin(UNARY) for _ in range(3)]
        await until(lambda: len(unsent) <= 4)
        assert late.ended == set()
        assert len(streams) == 3
        await late.close()


async def test_ports_for_clients_alone_end_such_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "UnsentRequests", partial(UnsentRequests, timeout_s=1.0))
    served_here = GrpcHost({}, others=[GrpcService("test.Echo", echo())])
    await served_here.start("127.0.0.1:0")
    try:
        client = await RawClient.connect(served_here.address)
        streams = [client.begin(UNARY), client.begin("/grpc.health.v1.Health/Check")]
        await until(lambda: client.ended == set(streams))
        await answers(served_here.address)
        await client.close()
    finally:
        await served_here.stop(0)


def test_what_such_calls_can_take_is_what_the_documents_say() -> None:
    assert unsent_requests.MAX_UNSENT * (4.25 * (1 << 20)) == 272 << 20
