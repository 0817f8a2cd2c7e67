"""All bytes with which gRPC wakes a loop are taken at once, and no event is missed for it."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from functools import partial
from typing import Any

import grpc
import grpc.aio
import pytest

from dledger.node import polling
from dledger.node.polling import NodeLoop
from dledger.rpc.channels import new_server, open_channel
from dledger.rpc.wake_ups import sparing_reader

_FAR_LESS_S = 30.0
_CALLS = 200


class PollerCompletionQueue:
    """As gRPC's: an event is there before its byte is."""

    def __init__(self) -> None:
        self.readable, self.writable = socket.socketpair()
        self.readable.setblocking(False)
        self.events: deque[int] = deque()
        self.handled: list[list[int]] = []

    def put(self, event: int) -> None:
        self.events.append(event)
        self.writable.send(b"1")

    def close(self) -> None:
        self.readable.close()
        self.writable.close()

    def _handle_events(self, loop: object) -> None:
        assert self.readable.recv(1) == b"1"
        self.handled.append(list(self.events))
        self.events.clear()


def is_readable(one: socket.socket) -> bool:
    try:
        return bool(one.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


def test_grpc_looks_for_events_once_however_many_have_come() -> None:
    queue = PollerCompletionQueue()
    read = sparing_reader(queue.readable, partial(queue._handle_events, None))
    for event in range(5):
        queue.put(event)
    read()
    assert queue.handled == [[0, 1, 2, 3, 4]]
    assert not is_readable(queue.readable), "nothing is left that would wake the loop again"
    queue.put(5)
    read()
    assert queue.handled[1:] == [[5]]
    queue.close()


def test_an_event_that_comes_meanwhile_wakes_the_loop_again() -> None:
    queue = PollerCompletionQueue()

    class Later(PollerCompletionQueue):
        def _handle_events(self, loop: object) -> None:
            queue._handle_events(loop)
            queue.put(9)  # behind what was looked at

    Later._handle_events.__qualname__ = PollerCompletionQueue._handle_events.__qualname__
    later = Later()
    read = sparing_reader(queue.readable, partial(later._handle_events, None))
    queue.put(0)
    queue.put(1)
    read()
    assert queue.handled == [[0, 1]]
    assert is_readable(queue.readable)
    queue.close()
    later.close()


def test_what_others_wait_for_is_left_alone() -> None:
    left, right = socket.socketpair()
    with left, right:

        def handler() -> None: ...

        assert sparing_reader(left, handler) is handler
        assert sparing_reader(left.fileno(), PollerCompletionQueue._handle_events).__qualname__ == (
            PollerCompletionQueue._handle_events.__qualname__
        )


def test_grpc_is_known_when_it_comes_to_the_loop_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise all would still work, and be slow."""
    known: list[bool] = []

    def watched(fd: Any, callback: Any) -> Any:
        reader = sparing_reader(fd, callback)
        known.append(reader is not callback)
        return reader

    monkeypatch.setattr(polling, "sparing_reader", watched)

    async def called() -> None:
        async def behaviour(request: bytes, _: object) -> bytes:
            return request

        server = new_server()
        methods = {"Unary": grpc.unary_unary_rpc_method_handler(behaviour)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.Echo", methods),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with open_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/t.Echo/Unary")
            requests = [str(n).encode() for n in range(_CALLS)]
            async with asyncio.timeout(_FAR_LESS_S):
                assert await asyncio.gather(*map(call, requests)) == requests
        await server.stop(0)

    with asyncio.Runner(loop_factory=NodeLoop) as runner:
        runner.run(called())
    assert any(known)
