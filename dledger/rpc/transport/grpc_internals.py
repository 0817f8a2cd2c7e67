"""What this project uses of grpcio that nobody promises: all of it, and no other module names `grpc._cython`.

Each use has a question of its own, asked when a server is made. Where the answer is no, the server is gRPC's
own and works: docs/dependencies.md says what is missing then. `tests/rpc/test_grpc_internals.py` asks both
questions of the grpcio that is installed, and `make test-grpc` of each minor version of the pinned range.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from typing import Any, Final

import grpc
import grpc.aio

try:
    from grpc._cython import cygrpc  # type: ignore[attr-defined]
except ImportError:  # a grpcio without it is one without both abilities
    cygrpc = None

#: Minor versions of which asking ahead was tried: a private method keeps its name and changes its meaning.
TRIED: Final = ("1.84.", "1.85.")
_SERVER_METHODS: Final = (
    "_make_request_call_future",
    "_request_call",
    "_start_shutting_down",
    "is_running",
)
#: How deep in the coroutine of a call its state lies.
_DEPTH: Final = 4

#: What is inside a `grpc.aio.Server`; to be inherited from.
AioServer: Any = getattr(cygrpc, "AioServer", object)


def can_ask_ahead() -> bool:
    """Whether calls can be asked for before the first of them is taken (`accepting`)."""
    inner = getattr(cygrpc, "AioServer", None)
    return grpc.__version__.startswith(TRIED) and all(hasattr(inner, name) for name in _SERVER_METHODS)


def can_end_calls() -> bool:
    """Whether a call whose request has not come can be ended (`unsent_requests`)."""
    return hasattr(cygrpc, "RPCState") and hasattr(cygrpc, "_ServicerContext")


def server_with(inner: type[Any], options: Sequence[tuple[str, str | int]]) -> grpc.aio.Server:
    """As `grpc.aio.server`, with this inside."""
    plain = cygrpc.AioServer
    cygrpc.AioServer = inner
    try:
        return grpc.aio.server(options=options)
    finally:
        cygrpc.AioServer = plain


def state_of(task: asyncio.Task[Any]) -> Any:
    """gRPC's state of the call that a task serves. None: it is not where it is known to be."""
    if not can_end_calls():
        return None
    level: list[Any] = [task.get_coro()]
    for _ in range(_DEPTH):
        level = gc.get_referents(*level)
        for one in level:
            if isinstance(one, cygrpc.RPCState):
                return one
        level = [one for one in level if type(one).__name__.startswith(("__pyx_scope", "coroutine"))]
    return None


async def abort(state: Any, code: grpc.StatusCode, details: str) -> None:
    """The status ends the stream: gRPC lets go of the request. It would not if the task was cancelled."""
    context = cygrpc._ServicerContext(state, None, None, asyncio.get_running_loop())
    try:
        await context.abort(code, details)
    except (grpc.aio.AbortError, grpc.aio.BaseError, asyncio.InvalidStateError):
        return  # it is over, one way or the other
