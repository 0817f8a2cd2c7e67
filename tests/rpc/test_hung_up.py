"""Clients that hang up leave no tracebacks in the log."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import grpc.aio
import pytest

from dledger.infra.transport.channels import new_server
from dledger.infra.transport.hung_up import HungUp, hung_up, is_hung_up
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
            writer = asyncio.ensure_future(write(_, context))
            writer.add_done_callback(lambda task: task.cancelled() or task.exception())
            await asyncio.shield(writer)
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
