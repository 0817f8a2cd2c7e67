"""Large requests that come together are handled one in a turn of the event loop, whatever the service."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest

from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.v5 import front
from broker_adapter.endpoints.v5.front import MessagingService
from broker_adapter.endpoints.v5.telemetry import LARGE_COMMAND_BYTES
from broker_adapter.v2 import definition_pb2 as proxy
from broker_adapter.v2 import service_pb2 as calls
from dledger.infra.loops.turns import LARGE_BYTES
from dledger.rpc import append_service
from dledger.rpc.append_service import AppendService, small_append_of
from dledger.rpc.ports import ServiceLimits
from dledger.v1 import log_pb2 as log
from tests.node.loop.test_turns import Turns

_CLIENTS, _EACH = 16, 3


class _Call:
    """A client's call whose requests are all there at once."""

    def __init__(self, received: list[Any], host: str = "127.0.0.1") -> None:
        self._received = list(received)
        self._host = host
        self.answered = list[Any]()

    def peer(self) -> str:
        return f"ipv4:{self._host}:{id(self)}"

    async def read(self) -> Any:
        return self._received.pop(0) if self._received else grpc.aio.EOF

    async def write(self, answer: Any) -> None:
        self.answered.append(answer)


class _Noted:
    """In which turns of the loop a function was called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, where: Any, name: str) -> None:
        self.turns: Counter[int] = Counter()
        turns, function = Turns(monkeypatch), getattr(where, name)

        def noted(*arguments: Any) -> Any:
            self.turns[turns.now] += 1
            return function(*arguments)

        monkeypatch.setattr(where, name, noted)

    async def during(self, serve: Callable[[], Coroutine[Any, Any, object]]) -> None:
        await asyncio.gather(*[serve() for _ in range(_CLIENTS)])
        assert (self.turns.total(), max(self.turns.values())) == (_CLIENTS * _EACH, 1)


async def test_appends(monkeypatch: pytest.MonkeyPatch) -> None:
    data = log.AppendRequest(group="other", bodies=[bytes(LARGE_BYTES)]).SerializeToString()
    port = SimpleNamespace(group="g", limits=ServiceLimits(), limit_hit=None)
    service = AppendService(port)  # type: ignore[arg-type]
    found = _Noted(monkeypatch, append_service, "append_request_of")
    calls_made: list[_Call] = []

    async def serve() -> None:
        call = _Call([small_append_of(data)] * _EACH)
        calls_made.append(call)
        await service.append_stream(None, call)  # type: ignore[arg-type]

    await found.during(serve)
    assert all(len(call.answered) == _EACH for call in calls_made)


async def test_settings_of_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = [proxy.Resource(name="t" * 100)] * (LARGE_COMMAND_BYTES // 100)
    settings = proxy.Settings(publishing=proxy.Publishing(topics=topics))
    data = calls.TelemetryCommand(settings=settings).SerializeToString()
    heard = list[calls.TelemetryCommand]()
    conversation, reader = SimpleNamespace(heard=heard.append), SimpleNamespace(_guard=None)
    reader._handle_command = partial(MessagingService._handle_command, reader)
    context = CallContext("c", language="JAVA", namespace="", remote="127.0.0.1:1")
    found = _Noted(monkeypatch, front, "command_of")

    async def serve() -> None:
        await MessagingService._read_all(reader, conversation, context, _Call([data] * _EACH))  # type: ignore[arg-type]

    await found.during(serve)
    assert len(heard) == _CLIENTS * _EACH


async def _until_after(flood: list[Awaitable[None]], other: Awaitable[None], processed: list[str]) -> int:
    """How many of the flood's requests were processed before the other one, which arrived last."""
    tasks = [asyncio.ensure_future(one) for one in [*flood, other]]
    await asyncio.gather(*tasks)
    return processed.index("other")


@pytest.mark.parametrize("is_stream", [True, False])
async def test_large_appends_of_one_address_do_not_precede_those_of_another(
    monkeypatch: pytest.MonkeyPatch, is_stream: bool
) -> None:
    """Each of its streams had turns of its own, and an address may have 768 of them."""
    processed: list[str] = []

    def parsed(data: bytes, _: int) -> None:
        processed.append("other" if b"other" in data else "flood")

    monkeypatch.setattr(append_service, "append_request_of", parsed)
    port = SimpleNamespace(group="g", limits=ServiceLimits(), limit_hit=None)
    service = AppendService(port)  # type: ignore[arg-type]

    async def serve(group: str, host: str) -> None:
        data = log.AppendRequest(group=group, bodies=[bytes(LARGE_BYTES)]).SerializeToString()
        if is_stream:
            await service.append_stream(None, _Call([data], host))  # type: ignore[arg-type]
        else:
            await service.append(data, _Call([], host))  # type: ignore[arg-type]

    flood = [serve("flood", "10.0.0.1") for _ in range(50)]
    assert await _until_after(flood, serve("other", "10.0.0.2"), processed) <= 2


async def test_large_settings_of_one_address_do_not_precede_those_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processed: list[str] = []
    monkeypatch.setattr(front, "command_of", lambda data: processed.append(data.strip(b" ").decode()))
    reader = SimpleNamespace(_guard=None)

    async def serve(name: str, host: str, port: int) -> None:
        context = CallContext("c", language="JAVA", namespace="", remote=f"{host}:{port}")
        data = name.encode().ljust(LARGE_COMMAND_BYTES)
        await MessagingService._handle_command(reader, data, SimpleNamespace(), context)  # type: ignore[arg-type]

    flood = [serve("flood", "10.0.0.1", port) for port in range(50)]
    assert await _until_after(flood, serve("other", "10.0.0.2", 1), processed) <= 2
