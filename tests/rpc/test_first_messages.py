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

from dledger.errors import Overloaded
from dledger.infra.transport import host
from dledger.infra.transport.channels import new_server, open_channel
from dledger.infra.transport.first_messages import FirstMessages
from dledger.infra.transport.host import GrpcHost, GrpcService
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
async def served(reads: FirstMessages) -> AsyncIterator[str]:
    server = new_server()
    server.add_generic_rpc_handlers((reads.over(echo()),))
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


@pytest.mark.slow
@pytest.mark.parametrize("path", [UNARY, STREAM])
@pytest.mark.parametrize("sent", [b"", half_of(1000), half_of(4 << 20)])
async def test_a_call_whose_request_does_not_come_in_time_is_ended(path: str, sent: bytes) -> None:
    hits: list[int] = []
    async with served(FirstMessages(lambda: hits.append(1), timeout_s=1.0)) as address:
        client = await RawClient.connect(address)
        streams = [client.begin(path) for _ in range(3)]
        await asyncio.gather(*[client.send(stream, sent) for stream in streams])
        await until(lambda: client.ended == set(streams))
        assert len(hits) == 3
        assert client.is_open, "the connection may have good calls"
        await answers(address)
        await client.close()


async def test_past_the_number_the_one_that_has_been_on_its_way_for_the_longest_goes() -> None:
    reads = FirstMessages(limit=2, timeout_s=600, long_s=0)
    async with served(reads) as address:
        client = await RawClient.connect(address)
        for count in range(1, 6):
            client.begin(UNARY)
            await until(lambda count=count: len(client.ended) == max(0, count - 2))  # type: ignore[misc]
        assert client.ended == {1, 3, 5}
        await answers(address)
        await client.close()


async def test_the_address_with_the_most_loses_its_own() -> None:
    """A slow client lost its call to a client that began as many as it could."""
    reads = FirstMessages(limit=3, timeout_s=600, long_s=0)
    async with served(reads) as address:
        slow = await RawClient.connect(address, local_host="127.0.0.2")
        stream = slow.begin(UNARY)
        await until(lambda: reads.waiting == 1)
        flood = await RawClient.connect(address)
        for count in range(1, 11):
            flood.begin(UNARY)
            await until(lambda count=count: len(flood.ended) == max(0, count - 2))  # type: ignore[misc]
        assert not slow.ended
        await slow.send(stream, message(b"late"), end=True)
        await until(lambda: stream in slow.ended)
        assert slow.received[stream], "it is answered"
        await slow.close()
        await flood.close()


async def test_too_many_that_have_come_together_are_few_when_they_are_not_young_any_more() -> None:
    reads = FirstMessages(limit=2, timeout_s=600, long_s=0.2)
    async with served(reads) as address:
        client = await RawClient.connect(address)
        for _ in range(20):
            client.begin(UNARY)
        await until(lambda: client.ended == set(range(1, 37, 2)))
        assert reads.waiting == 2
        await answers(address)
        await client.close()


async def test_young_calls_are_no_reason_to_end_one_however_many_come_together() -> None:
    reads = FirstMessages(limit=2, timeout_s=600, long_s=600)
    async with served(reads) as address:
        client = await RawClient.connect(address)
        streams = [client.begin(UNARY) for _ in range(20)]
        await until(lambda: reads.waiting == 20)
        for stream in streams:
            await client.send(stream, message(b"late"), end=True)
        await until(lambda: client.ended == set(streams))
        assert all(client.received[stream] for stream in streams), "all are answered"
        assert reads.waiting == 0
        await client.close()


async def test_streams_of_requests_may_be_silent() -> None:
    reads = FirstMessages(limit=1, timeout_s=1.0, long_s=0)
    async with served(reads) as address, open_channel(address) as channel:
        call = channel.stream_stream(OPEN)()
        assert await channel.unary_unary(UNARY)(b"x") == b"x"
        client = await RawClient.connect(address)
        stuck = client.begin(UNARY)
        await until(lambda: stuck in client.ended)
        await call.write(b"still there")
        assert await call.read() == b"still there"
        call.cancel()
        await client.close()


async def test_a_call_that_ends_without_its_request_is_answered() -> None:
    async with served(FirstMessages()) as address, open_channel(address) as channel:
        nothing: Any = channel.stream_unary(UNARY)(iter(()))
        assert await nothing.code() is grpc.StatusCode.INTERNAL
        await answers(address)


async def test_clients_that_hang_up_before_their_request_leave_no_trace() -> None:
    reads = FirstMessages(limit=3, timeout_s=600, long_s=600)
    async with served(reads) as address:
        for _ in range(10):
            client = await RawClient.connect(address)
            client.begin(UNARY)
            await until(lambda: reads.waiting > 0)
            await client.close()
        late = await RawClient.connect(address)
        streams = [late.begin(UNARY) for _ in range(3)]
        await until(lambda: reads.waiting <= 4)
        assert late.ended == set()
        assert len(streams) == 3
        await late.close()


async def test_ports_for_clients_alone_end_such_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "FirstMessages", partial(FirstMessages, timeout_s=1.0))
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


class _Silent:
    """The context of a call whose first message never arrives."""

    async def read(self) -> bytes:
        return await asyncio.get_running_loop().create_future()

    def peer(self) -> str:
        return "ipv4:10.0.0.1:4711"


async def test_a_cancelled_call_is_cancelled_and_not_refused() -> None:
    reads = FirstMessages(timeout_s=600)
    call = asyncio.create_task(reads.read(_Silent()))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled() and reads.waiting == 0


async def test_a_call_that_is_ended_and_cancelled_in_one_step_is_cancelled() -> None:
    reads = FirstMessages(lambda: call.cancel(), timeout_s=0, long_s=0)
    call = asyncio.create_task(reads.read(_Silent()))
    await asyncio.wait([call])
    assert call.cancelled() and reads.waiting == 0


async def test_a_task_whose_call_was_ended_can_still_be_cancelled() -> None:
    reads = FirstMessages(limit=1, timeout_s=600, long_s=0)

    async def read_twice() -> None:
        with pytest.raises(Overloaded):
            await reads.read(_Silent())
        await reads.read(_Silent())

    task = asyncio.create_task(read_twice())
    await asyncio.sleep(0)
    newer = asyncio.create_task(reads.read(_Silent()))
    with pytest.raises(Overloaded):  # the second read of the other task ends this one
        await newer
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
