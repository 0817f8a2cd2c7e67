"""Clients that hang up leave no tracebacks in the log."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from dledger.core.messages import PushResponse
from dledger.rpc.append_service import AppendService
from dledger.rpc.ports import ServiceLimits
from dledger.rpc.push_stream import PushReceiver
from dledger.rpc.transport.channels import new_server
from dledger.rpc.transport.hung_up import CALL_OVER, HungUp, hung_up, is_hung_up
from dledger.v1 import log_pb2
from tests.node.local import until
from tests.rpc.raw_http2 import RawClient, message


async def test_a_client_that_goes_while_it_is_written_to_leaves_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    writing, ended = asyncio.Event(), list[BaseException | None]()

    async def write(_: object, context: Any) -> None:
        try:
            while True:
                writing.set()
                await context.write(bytes(1 << 20))
        except BaseException as error:
            ended.append(error)
            raise

    async def late(_: object, context: Any) -> None:
        """Does not notice that its client has gone."""
        try:
            await asyncio.shield(asyncio.ensure_future(write(_, context)))
        except asyncio.CancelledError:
            await until(lambda: bool(ended))
            await context.write(b"more")

    methods = {
        "Write": grpc.unary_stream_rpc_method_handler(write),
        "Late": grpc.unary_stream_rpc_method_handler(late),
    }
    server = new_server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    for path in ("/test.Echo/Write", "/test.Echo/Late") * 10:
        ended.clear()
        client = await RawClient.connect(f"127.0.0.1:{port}", window=1 << 20)
        await client.send(client.begin(path), message(b""), end=True)
        await writing.wait()
        writing.clear()
        await client.close()
        await until(lambda: bool(ended))
    await server.stop(0)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_what_is_no_end_of_a_call_is_told() -> None:
    found = HungUp()

    def told(error: Exception) -> bool:
        info = (type(error), error, None)
        return bool(found.filter(logging.LogRecord("x", logging.ERROR, "x", 1, "unexpected", (), info)))

    assert told(ZeroDivisionError())
    assert told(grpc.aio.UsageError("a call of ours that is wrong"))
    assert not told(grpc.aio.InternalError("Failed grpc_call_start_batch: 8"))
    assert not told(grpc.aio.UsageError("RPC already finished."))
    assert found.count == 2
    assert not is_hung_up(None)
    assert hung_up.filter(logging.LogRecord("x", logging.ERROR, "x", 1, "no exception", (), None))


class _Gone:
    """The call of a client or leader that goes while it is written to."""

    broken = CALL_OVER

    def __init__(self, *received: object) -> None:
        self._received = list(received)
        self.written = asyncio.Event()

    async def read(self) -> Any:
        if self._received:
            return self._received.pop(0)
        await self.written.wait()
        raise grpc.aio.UsageError("RPC already finished")

    async def write(self, _: object) -> None:
        self.written.set()
        raise grpc.aio.InternalError('Failed "execute_batch"')


async def _missed(serve: Callable[[], Coroutine[Any, Any, object]]) -> list[str]:
    """What asyncio says of errors that nobody has asked for, once nothing of the call is left."""
    found: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context["message"]))
    with pytest.raises(grpc.aio.UsageError):
        await serve()
    gc.collect()
    return found


async def test_the_error_of_an_answer_to_an_append_is_not_missed() -> None:
    def serve() -> Coroutine[Any, Any, object]:
        port = SimpleNamespace(group="g", limits=ServiceLimits(), limit_hit=None)
        call = _Gone(log_pb2.AppendRequest(group="another"))
        return AppendService(port).append_stream(None, call)  # type: ignore[arg-type]

    assert await _missed(serve) == []


async def test_the_error_of_an_answer_to_a_push_is_not_missed() -> None:
    def serve() -> Coroutine[Any, Any, object]:
        receiver, answer = PushReceiver("n1", 1, 0), cast(PushResponse, object())
        port = SimpleNamespace(
            push_opened=lambda stream: stream.respond(answer), push_ended=lambda *_, **__: None
        )
        return receiver.serve(port, _Gone())  # type: ignore[arg-type]

    assert await _missed(serve) == []
