"""The way to another member, at the end of a node's life."""

from __future__ import annotations

import asyncio
from typing import Any

from dledger.core.messages import Message, VoteRequest
from dledger.node.peers import PeerLink
from dledger.rpc.envelope import Identity

QUESTION = VoteRequest(2, "n1", 7, 1, pre_vote=False, transfer=False, round=1)


class NoEvents:
    def peer_answered(self, peer: str, message: Message) -> None:
        raise AssertionError(f"{peer} answered {message}")

    def stream_up(self, peer: str, stream_id: int, incarnation: int) -> None: ...
    def stream_down(self, peer: str, stream_id: int) -> None: ...


async def test_what_the_core_asks_for_after_a_link_was_closed_goes_nowhere_and_raises_nothing() -> None:
    """While a node stops, its core goes on until the disk has ended: it may stand for election, or win."""
    raised: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    identity = Identity("c", "g", "n1", ("n1", "n2"), 1)
    link = PeerLink("n2", "127.0.0.1:1", identity, NoEvents(), role_epoch=lambda: 1, call_timeout_ms=100)
    link.connect()
    await link.close()
    before = asyncio.all_tasks()
    link.ask(QUESTION)
    link.lead()
    assert asyncio.all_tasks() == before, "nothing was begun"
    await link.close()
    assert not raised
