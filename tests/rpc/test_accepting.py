"""A server asks gRPC for many calls at once, and ends as any other."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import grpc
import grpc.aio
import pytest

from dledger.infra.transport import accepting
from dledger.infra.transport.accepting import AT_ONCE, AcceptingServer
from dledger.infra.transport.channels import new_server, open_channel
from tests.rpc.grpc_versions import VERSIONS
from tests.test_tidy import PRODUCT, python_files

_FAR_LESS_S = 30.0


class _Counting(AcceptingServer):
    """How many calls it has asked for that have not come."""

    asked = 0

    async def _request_call(self) -> Any:
        _Counting.asked += 1
        try:
            return await super()._request_call()
        finally:
            _Counting.asked -= 1


def _added(server: grpc.aio.Server, behaviour: Any) -> int:
    """The port of a server with one method."""
    methods = {"Unary": grpc.unary_unary_rpc_method_handler(behaviour)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.Echo", methods),))
    return server.add_insecure_port("127.0.0.1:0")


def test_one_module_names_what_is_private() -> None:
    private = re.compile(r"^\s*(from|import) grpc\._cython|\bcygrpc\.", re.MULTILINE)
    found = [path.name for path in python_files(*PRODUCT) if private.search(path.read_text())]
    assert found == ["accepting.py"]


def test_this_version_is_known_and_has_what_was_tried_of_it() -> None:
    minor = ".".join(grpc.__version__.split(".")[:2])
    assert minor in VERSIONS, f"grpcio {minor} is new: add it to VERSIONS, and run `make test-grpc`"
    assert accepting.supports_advance_requests() == grpc.__version__.startswith(accepting.TRIED)


@pytest.mark.parametrize("has_internals", [True, False])
async def test_a_server_answers_with_and_without_what_is_private(
    has_internals: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_internals:
        monkeypatch.setattr(accepting, "cygrpc", None)
        assert not accepting.supports_advance_requests()

    async def behaviour(request: bytes, _: object) -> bytes:
        return request

    server = new_server()
    port = _added(server, behaviour)
    await server.start()
    async with open_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary("/t.Echo/Unary")
        requests = [b"%d" % number for number in range(100)]
        assert list(await asyncio.gather(*map(call, requests))) == requests
    await server.stop(None)


@pytest.mark.skipif(
    not accepting.supports_advance_requests(),
    reason=f"ACCEPTING SERVER DID NOT RUN: gRPC {grpc.__version__} is none of {accepting.TRIED}",
)
async def test_as_many_calls_are_asked_for_again_as_have_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "AcceptingServer", _Counting)
    seen: list[int] = []
    together = asyncio.Event()

    async def behaviour(request: bytes, _: object) -> bytes:
        seen.append(_Counting.asked)
        if len(seen) == 2 * AT_ONCE:
            together.set()
        await together.wait()
        return request

    server = new_server()
    port = _added(server, behaviour)
    await server.start()
    async with open_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/t.Echo/Unary")
        requests = [str(n).encode() for n in range(2 * AT_ONCE)]
        async with asyncio.timeout(_FAR_LESS_S):
            assert await asyncio.gather(*map(call, requests)) == requests
        assert await call(b"alone") == b"alone"
    assert 1 < max(seen) <= AT_ONCE
    await server.stop(0)
    assert _Counting.asked == 0


async def test_a_server_that_stops_answers_what_is_under_way_and_leaves_nothing_behind() -> None:
    troubles: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: troubles.append(fault))
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def behaviour(request: bytes, _: object) -> bytes:
        begun.set()
        await go_on.wait()
        return request

    server = new_server()
    port = _added(server, behaviour)
    await server.start()
    before = asyncio.all_tasks()
    async with open_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/t.Echo/Unary")
        answer = asyncio.ensure_future(call(b"late"))
        async with asyncio.timeout(_FAR_LESS_S):
            await begun.wait()
            stopping = asyncio.create_task(server.stop(_FAR_LESS_S))
            await asyncio.wait(
                before - {asyncio.current_task()}
            )  # the server's own: it asks for no more calls
            go_on.set()
            assert await answer == b"late"
            await stopping
        with pytest.raises(grpc.aio.AioRpcError):
            await call(b"too late")
    assert not troubles


async def test_a_server_stops_while_calls_keep_coming() -> None:
    async def behaviour(request: bytes, _: object) -> bytes:
        return request

    server = new_server()
    port = _added(server, behaviour)
    await server.start()
    answered = 0
    is_busy = asyncio.Event()

    async def caller(call: Any) -> None:
        nonlocal answered
        while True:
            await call(b"x")
            answered += 1
            if answered == 4 * AT_ONCE:
                is_busy.set()

    async with open_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary("/t.Echo/Unary")
        callers = [asyncio.create_task(caller(call)) for _ in range(4 * AT_ONCE)]
        async with asyncio.timeout(_FAR_LESS_S):
            await is_busy.wait()
            await server.stop(0)
            ends = await asyncio.gather(*callers, return_exceptions=True)
    assert all(isinstance(end, grpc.aio.AioRpcError) for end in ends)


async def test_a_call_that_is_there_already_is_taken_without_another_turn_of_the_loop() -> None:
    loop = asyncio.get_running_loop()
    there, later = accepting._IncomingCall(loop=loop), accepting._IncomingCall(loop=loop)
    there.set_result("a call")
    turns: list[int] = []
    loop.call_soon(turns.append, 1)
    done, _ = await asyncio.wait({there, later}, return_when=asyncio.FIRST_COMPLETED)
    assert (done, turns) == ({there}, [])
    loop.call_soon(later.set_result, "another")
    done, _ = await asyncio.wait({later}, return_when=asyncio.FIRST_COMPLETED)
    assert (done, turns) == ({later}, [1])


async def test_calls_that_arrive_while_the_loop_is_busy_are_all_answered() -> None:
    """More of them than gRPC keeps by default. It would cancel some, also of other clients."""
    count, under_way, sent = 3_500, threading.Event(), threading.Event()

    async def behaviour(data: bytes, _: Any) -> bytes:
        if data == b"first":
            under_way.set()
            sent.wait(_FAR_LESS_S)  # keeps the event loop busy until all others have been sent
        return data

    def send_all(address: str) -> list[grpc.StatusCode]:
        with grpc.insecure_channel(address) as channel:
            call = channel.unary_unary("/t.Echo/Unary")
            calls = [call.future(b"first")]
            assert under_way.wait(_FAR_LESS_S)
            calls += [call.future(b"x") for _ in range(count)]
            sent.set()
            return [one.code() for one in calls]  # waits for each

    server = new_server()
    port = _added(server, behaviour)
    await server.start()
    try:
        codes = await asyncio.to_thread(send_all, f"127.0.0.1:{port}")
    finally:
        await server.stop(0)
    assert codes == [grpc.StatusCode.OK] * (1 + count)


async def test_a_version_that_was_not_tried_gets_the_plain_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc, "__version__", "1.999.0")
    plain, made = accepting.cygrpc.AioServer, []
    monkeypatch.setattr(grpc.aio, "server", lambda options: made.append(accepting.cygrpc.AioServer))
    accepting.accepting_server([])
    assert made == [plain]


async def test_where_grpc_is_made_otherwise_there_is_the_plain_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grpc, "__version__", f"{accepting.TRIED[0]}0")

    class Another:
        pass

    monkeypatch.setattr(accepting.cygrpc, "AioServer", Another)
    made: list[object] = []
    monkeypatch.setattr(grpc.aio, "server", lambda options: made.append(accepting.cygrpc.AioServer))
    accepting.accepting_server([])
    assert made == [Another]
