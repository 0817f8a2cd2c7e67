"""The way to another member: after mistakes, and at the end of a node's life."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dledger.client import AsyncClient
from dledger.core.messages import Message, VoteRequest
from dledger.errors import Code, InvalidRequest
from dledger.node.members.peers import PeerLink
from dledger.rpc import convert_peer, peer_client
from dledger.rpc.envelope import PeerIdentity
from dledger.rpc.peer_transport import Question
from tests.node.local import GROUP, running_nodes, until

QUESTION = VoteRequest(2, "n1", 7, 1, pre_vote=False, transfer=False, round=1)


class NoEvents:
    def peer_answered(self, peer: str, message: Message) -> None:
        raise AssertionError(f"{peer} answered {message}")

    def stream_up(self, peer: str, stream_id: int, incarnation: int) -> None: ...
    def stream_down(self, peer: str, stream_id: int) -> None: ...
    def directory_replaced(self, peer: str, reason: str) -> None: ...


@pytest.mark.parametrize(
    ("module", "name"),
    [(peer_client, "serialize_push"), (convert_peer, "push_response_from_pb")],
    ids=["writing a push", "reading an answer"],
)
async def test_a_mistake_costs_a_push_stream_and_not_a_follower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    work, mistakes = getattr(module, name), 0

    def fail_sometimes(*arguments: Any) -> Any:
        nonlocal mistakes
        if mistakes:
            mistakes -= 1
            raise ZeroDivisionError("a mistake")
        return work(*arguments)

    monkeypatch.setattr(module, name, fail_sometimes)
    async with running_nodes(tmp_path, 3) as servers:
        await until(lambda: all(s.node_status().leader_id for s in servers))
        async with AsyncClient([s.address for s in servers], group=GROUP) as client:
            await client.append(b"before")
            mistakes = 1  # two would cost the leader its leadership, which makes all streams anew
            await client.append(b"with a mistake", timeout=60)
            await until(lambda: not mistakes)
            last = await client.append(b"after it", timeout=60)
            await until(lambda: all(s.node_status().ledger_end_index >= last.index for s in servers))


async def test_what_the_core_asks_for_after_a_link_was_closed_goes_nowhere_and_raises_nothing() -> None:
    """While a node stops, its core goes on until the disk has ended: it may stand for election, or win."""
    raised: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    identity = PeerIdentity("c", "g", "n1", ("n1", "n2"), 1)
    client = peer_client.PeerClient("n2", "127.0.0.1:1", identity)
    link = PeerLink("n2", client, NoEvents(), role_epoch=lambda: 1, call_timeout_ms=100)
    link.connect()
    await link.close()
    before = asyncio.all_tasks()
    link.send_request(QUESTION)
    link.lead()
    assert asyncio.all_tasks() == before, "nothing was begun"
    await link.close()
    assert not raised


class RefusedClient(peer_client.PeerClient):
    """All its requests are refused with one error."""

    error: InvalidRequest

    async def request(self, message: Question, timeout_s: float) -> Any:
        raise self.error


@pytest.mark.parametrize("code", [Code.DIRECTORY_REPLACED, Code.UNEXPECTED_MEMBER])
async def test_rule_11_a_node_learns_from_a_refusal_that_its_directory_is_an_earlier_one(code: Code) -> None:
    class Events(NoEvents):
        def directory_replaced(self, peer: str, reason: str) -> None:
            reasons.append(reason)

    reasons = list[str]()
    client = RefusedClient("n2", "127.0.0.1:1", PeerIdentity("c", "g", "n1", ("n1", "n2"), 1))
    client.error = InvalidRequest("refused", code=code)
    link = PeerLink("n2", client, Events(), role_epoch=lambda: 1, call_timeout_ms=100)
    before = asyncio.all_tasks()
    link.send_request(QUESTION)
    await asyncio.wait(asyncio.all_tasks() - before)
    assert reasons == (["refused"] if code is Code.DIRECTORY_REPLACED else [])
    await link.close()


async def test_refusals_of_requests_and_streams_have_the_same_text_so_that_they_are_logged_once(
    tmp_path: Path,
) -> None:
    stranger = PeerIdentity("other", GROUP, "n2", ("n1", "n2"), 1)
    async with running_nodes(tmp_path, 1) as servers:
        client = peer_client.PeerClient("n1", servers[0].address, stranger)
        with pytest.raises(InvalidRequest) as of_request:
            await client.request(QUESTION, 10)
        with pytest.raises(InvalidRequest) as of_stream:
            await client.open_push(1).run(lambda incarnation: None, lambda response: None)
        with pytest.raises(InvalidRequest) as of_fetch:
            await anext(client.fetch(0, 0, 1, 10))
        await client.close()
    assert str(of_request.value) == str(of_stream.value) == str(of_fetch.value)
    assert of_stream.value.code is Code.UNKNOWN_CLUSTER
