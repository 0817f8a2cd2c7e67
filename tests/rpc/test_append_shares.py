"""Addresses share the bytes of appends that wait for a commit."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dledger.core.values import ENTRY_HEADER_SIZE
from dledger.errors import Code, NotLeader
from dledger.rpc.append_service import AppendService
from dledger.rpc.ports import AppendToken, ServiceLimits
from dledger.v1 import log_pb2 as pb
from tests.node.local import until

FLOOD, OTHER = "ipv4:10.0.0.1:", "ipv4:10.0.0.2:"


class Node:
    """A leader that commits nothing until a test answers the tokens."""

    def __init__(self, body_bytes: int) -> None:
        """It has room for 16 pending appends, in bytes and in number."""
        size = 1000 + ENTRY_HEADER_SIZE
        most = 65_536 if body_bytes else 16
        self.group = "g"
        self.limits = ServiceLimits(max_pending_bytes=16 * size, max_pending_appends=most)
        self.tokens: list[AppendToken] = []
        self.hits: list[str] = []
        self.limit_hit = self.hits.append

    def append(self, token: AppendToken, *_: object) -> None:
        self.tokens.append(token)

    def answer_all(self) -> None:
        tokens, self.tokens = self.tokens, []
        for token in tokens:
            token.answer(NotLeader("no"))


class Stream:
    """A client that sends 20 appends. `codes`: of the responses."""

    def __init__(self, peer: str, body: bytes) -> None:
        self._peer, self._body, self._left = peer, body, 20
        self.codes: list[int] = []
        self.end = asyncio.Event()

    def peer(self) -> str:
        return self._peer

    async def read(self) -> Any:
        if not self._left:
            await self.end.wait()
        self._left -= 1
        return pb.AppendRequest(group="g", bodies=[self._body])

    async def write(self, response: pb.AppendResponse) -> None:
        self.codes.append(response.status.code)


@pytest.mark.parametrize("body_bytes", [1000, 0])
@pytest.mark.parametrize("is_stream", [True, False])
async def test_appends_of_one_address_leave_room_for_those_of_another(
    is_stream: bool, body_bytes: int
) -> None:
    """They filled limits.max_pending_bytes or max_pending_appends, and the leader refused all clients."""
    node: Any = Node(body_bytes)
    service, body = AppendService(node), bytes(body_bytes)

    async def append(peer: str) -> int:
        request = pb.AppendRequest(group="g", bodies=[body])
        context: Any = SimpleNamespace(peer=lambda: peer)
        return (await service.append(request, context)).status.code

    tasks: list[asyncio.Task[Any]] = []
    for address, expected in ((FLOOD, 12), (OTHER, 15)):
        if is_stream:
            stream: Any = Stream(address + "1", body)
            tasks.append(asyncio.create_task(service.append_stream(None, stream)))
            await until(
                lambda stream=stream, expected=expected: len(node.tokens) == expected and stream.codes
            )
            assert set(stream.codes) == {Code.LEADER_PENDING_FULL}
        else:
            calls = [asyncio.create_task(append(f"{address}{port}")) for port in range(20)]
            await until(
                lambda calls=calls, expected=expected: (
                    len(node.tokens) == expected and any(call.done() for call in calls)
                )
            )
            tasks += calls
    assert set(node.hits) == {"max_pending_bytes"}
    node.answer_all()
    again = asyncio.create_task(append(FLOOD + "9"))
    await until(lambda: len(node.tokens) == 1)
    node.answer_all()
    assert await again == Code.NOT_LEADER, "answered appends have released their bytes"
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
