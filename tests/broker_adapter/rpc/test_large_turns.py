"""Large requests that come together are handled one in a turn of the event loop, whatever the service."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest

from broker_adapter.proxy import front
from broker_adapter.proxy.front import MessagingService
from broker_adapter.proxy.messages.context import CallContext
from broker_adapter.proxy.telemetry import LARGE_COMMAND_BYTES
from broker_adapter.proxy.v2 import definition_pb2 as proxy
from broker_adapter.proxy.v2 import service_pb2 as calls
from dledger.platform import LARGE_BYTES
from dledger.rpc import append_service
from dledger.rpc.append_service import AppendService, small_append_of
from dledger.rpc.ports import ServiceLimits
from dledger.v1 import log_pb2 as log
from tests.node.loop.test_turns import Turns

_CLIENTS, _EACH = 16, 3


class _Call:
    """A client's call whose requests are all there at once."""

    def __init__(self, received: list[Any]) -> None:
        self._received = list(received)
        self.answered = list[Any]()

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

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
    reader._hear = partial(MessagingService._hear, reader)
    context = CallContext("c", language="JAVA", namespace="", remote="127.0.0.1:1")
    found = _Noted(monkeypatch, front, "command_of")

    async def serve() -> None:
        await MessagingService._read_all(reader, conversation, context, _Call([data] * _EACH))  # type: ignore[arg-type]

    await found.during(serve)
    assert len(heard) == _CLIENTS * _EACH
