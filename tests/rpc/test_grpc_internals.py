"""What is used of grpcio's private parts is there, or a server does without it.

Runs with the grpcio that is installed; `python -m tests.rpc.grpc_versions` (make test-grpc) with each minor
version of the range in pyproject.toml.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import grpc
import grpc.aio
import pytest

from dledger.rpc.transport import grpc_internals
from dledger.rpc.transport.channels import new_server, open_channel
from tests.rpc.grpc_versions import ABILITIES
from tests.test_tidy import PRODUCT, python_files


def test_one_module_names_what_is_private() -> None:
    private = re.compile(r"^\s*(from|import) grpc\._cython|\bcygrpc\.", re.MULTILINE)
    found = [path.name for path in python_files(*PRODUCT) if private.search(path.read_text())]
    assert found == ["grpc_internals.py"]


def test_this_version_can_do_what_is_written_of_it() -> None:
    minor = ".".join(grpc.__version__.split(".")[:2])
    assert minor in ABILITIES, f"grpcio {minor} is new: add it to ABILITIES, and run `make test-grpc`"
    assert (grpc_internals.can_ask_ahead(), grpc_internals.can_end_calls()) == ABILITIES[minor]


async def _echo(count: int) -> list[bytes]:
    async def behaviour(request: bytes, _: object) -> bytes:
        return request

    server = new_server()
    methods = {"Unary": grpc.unary_unary_rpc_method_handler(behaviour)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.Echo", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with open_channel(f"127.0.0.1:{port}") as channel:
            call: Any = channel.unary_unary("/t.Echo/Unary")
            return list(await asyncio.gather(*(call(b"%d" % number) for number in range(count))))
    finally:
        await server.stop(None)


@pytest.mark.parametrize("has_internals", [True, False])
async def test_a_server_answers_with_and_without_them(
    has_internals: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_internals:
        monkeypatch.setattr(grpc_internals, "cygrpc", None)
        assert not grpc_internals.can_ask_ahead() and not grpc_internals.can_end_calls()
    assert await _echo(100) == [b"%d" % number for number in range(100)]


async def test_the_state_of_a_call_is_found_and_ends_it() -> None:
    if not grpc_internals.can_end_calls():
        assert grpc_internals.state_of(asyncio.ensure_future(asyncio.sleep(0))) is None
        return
    found: list[object] = []

    async def behaviour(request: bytes, _: object) -> bytes:
        task = asyncio.current_task()
        assert task is not None
        found.append(grpc_internals.state_of(task))
        await grpc_internals.abort(found[0], grpc.StatusCode.RESOURCE_EXHAUSTED, "612 too late")
        return request

    server = new_server()
    methods = {"Unary": grpc.unary_unary_rpc_method_handler(behaviour)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.Echo", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with open_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary("/t.Echo/Unary")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"x")
    await server.stop(None)
    assert (caught.value.code(), caught.value.details()) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "612 too late",
    )
    assert found[0] is not None
