"""A registration stream that ends while its next request is read leaves no error that nobody asks for."""

from __future__ import annotations

import asyncio
import gc
from typing import Any, cast

import grpc
import pytest

from broker_adapter.namesrv.name_server import NameServer
from broker_adapter.namesrv.rpc_service import NameServerService


class Broken:
    """A connection whose reading breaks when it is given up: gRPC has an error for that."""

    def __init__(self) -> None:
        self.is_read = asyncio.Event()

    async def read(self) -> Any:
        self.is_read.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise grpc.aio.UsageError("Failed grpc_call_start_batch") from None


@pytest.mark.parametrize("end", ["the server stops", "the handler is cancelled"])
async def test_the_error_of_a_read_that_is_given_up_is_asked_for(end: str) -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    service = NameServerService(cast(NameServer, None), lambda: cast(Any, None))
    context = Broken()
    task = asyncio.create_task(service._next(cast(Any, context)))
    await context.is_read.wait()
    if end == "the server stops":
        service._stopping.set()
        assert await task is grpc.aio.EOF
    else:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    del task
    for _ in range(5):
        await asyncio.sleep(0)
    gc.collect()
    assert told == []
