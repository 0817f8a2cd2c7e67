"""A stream that waits for its client's next request keeps nothing of the last one."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest

from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from dledger.rpc.append_service import AppendService
from dledger.rpc.ports import ServiceLimits
from dledger.v1 import log_pb2
from tests.broker_adapter.v5.world import World

#: Of the attribute of the context, and of the argument of getrefcount.
NOBODY_ELSE = 2


class Context:
    """Gives one request, and at the next read counts who has it."""

    def __init__(self, request: Any) -> None:
        self.request: Any = request
        self.references: list[int] = []
        self._has_given = False

    async def read(self) -> Any:
        if not self._has_given:
            self._has_given = True
            return self.request
        for _ in range(5):  # what was begun with it ends
            await asyncio.sleep(0)
        self.references.append(sys.getrefcount(self.request))
        return grpc.aio.EOF

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def write(self, answer: object) -> None: ...


async def test_of_appends() -> None:
    port: Any = SimpleNamespace(limits=ServiceLimits(), group="g", limit_hit=lambda name: None)
    context: Any = Context(log_pb2.AppendRequest(group="another", bodies=[bytes(1_000)]))
    await AppendService(port).append_stream(None, context)
    assert context.references == [NOBODY_ELSE]


@pytest.mark.parametrize("size", [300_000, 100], ids=["refused", "taken"])
async def test_of_commands(size: int) -> None:
    settings = calls.TelemetryCommand(settings=pb.Settings(client_type=pb.ClientType.PRODUCER))
    settings.settings.publishing.topics.add(name="n" * size)
    context: Any = Context(settings.SerializeToString())
    told: list[object] = []
    conversation: Any = SimpleNamespace(queue_command=told.append, heard=lambda command: None)
    call: Any = SimpleNamespace(remote="127.0.0.1:1")
    await World().service._read_all(conversation, call, context)
    assert context.references == [NOBODY_ELSE] and bool(told) == (size > 1_000)
