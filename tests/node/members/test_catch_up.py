"""Ranges for followers that are far behind: one is read ahead, and only what fits is used."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dledger.client import AsyncClient
from dledger.node.members.catch_up import CatchUp, PushReadRequest
from dledger.node.members.catch_up_throttle import NO_APPENDS, AppendTotals
from dledger.store.api import Frames
from tests.node.local import GROUP, running_nodes


class Reads:
    """Ranges of ten entries each, read when the test says so."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.begun = asyncio.Event()
        self._futures: list[asyncio.Future[Frames | None]] = []

    def __call__(self, first: int, last: int, max_bytes: int) -> asyncio.Future[Frames | None]:
        self.asked.append(first)
        self.begun.set()
        self._futures.append(asyncio.get_running_loop().create_future())
        return self._futures[-1]

    def finish(self, number: int, *, lost: bool = False) -> None:
        first = self.asked[number]
        self._futures[number].set_result(None if lost else Frames(first, first + 9, b"x" * 100))


class Follower:
    """Asks, and keeps what it is given."""

    def __init__(self, bytes_per_second: int = 0) -> None:
        self.reads = Reads()
        self.got: list[int | None] = []
        self.appends = NO_APPENDS
        self._catch_up = CatchUp(bytes_per_second, self.reads, lambda: self.appends)
        self._given = asyncio.Event()

    def ask(self, first: int, last: int = 99, *, stream: int = 1, peer: str = "n2") -> None:
        self._catch_up.load(PushReadRequest(peer, stream, first, last, 1000), self._take)

    def _take(self, frames: Frames | None) -> None:
        self.got.append(None if frames is None else frames.first_index)
        self._given.set()

    async def given(self) -> None:
        await self._given.wait()
        self._given.clear()

    def lose_stream(self) -> None:
        self._catch_up.forget("n2")


async def test_the_next_range_is_read_before_it_is_asked_for() -> None:
    follower = Follower()
    follower.ask(0)
    follower.reads.finish(0)
    await follower.given()
    assert follower.reads.asked == [0, 10]
    follower.ask(10)
    follower.reads.finish(1)
    await follower.given()
    assert follower.reads.asked == [0, 10, 20]
    assert follower.got == [0, 10]


async def test_nothing_is_read_beyond_what_was_asked_for() -> None:
    follower = Follower()
    follower.ask(0, last=9)
    follower.reads.finish(0)
    await follower.given()
    assert follower.reads.asked == [0]


@pytest.mark.parametrize("ask", [{"first": 20}, {"first": 10, "stream": 2}, {"first": 10, "peer": "n3"}])
async def test_what_was_read_ahead_serves_only_who_asks_for_it(ask: dict[str, int]) -> None:
    """Another stream may be that of another leadership: what lies at an index may have changed."""
    follower = Follower()
    follower.ask(0)
    follower.reads.finish(0)
    await follower.given()
    follower.ask(**ask)  # type: ignore[arg-type]
    assert follower.reads.asked == [0, 10, ask["first"]]
    follower.reads.finish(2)
    await follower.given()
    assert follower.got == [0, ask["first"]]


async def test_what_was_read_ahead_goes_with_its_stream() -> None:
    follower = Follower()
    follower.ask(0)
    follower.reads.finish(0)
    await follower.given()
    follower.lose_stream()
    follower.ask(10)
    assert follower.reads.asked == [0, 10, 10]


async def test_what_could_not_be_read_ahead_is_read_when_it_is_asked_for() -> None:
    follower = Follower()
    follower.ask(0)
    follower.reads.finish(0)
    await follower.given()
    follower.reads.finish(1, lost=True)
    follower.ask(10)
    await asyncio.sleep(0)
    assert follower.reads.asked == [0, 10, 10]
    follower.reads.finish(2, lost=True)
    await follower.given()
    assert follower.got == [0, None]


async def test_catching_up_begins_with_a_pause_if_clients_append() -> None:
    follower = Follower()
    follower.appends = AppendTotals(1000, 4.0, 1_000_000)
    follower.ask(0)
    assert follower.reads.asked == []
    await follower.reads.begun.wait()
    follower.reads.finish(0)
    await follower.given()
    assert follower.got == [0]


@pytest.mark.parametrize("yields", [True, False])
async def test_the_configuration_says_whether_catching_up_yields(tmp_path: Path, yields: bool) -> None:
    settings = {"limits": {"catch_up_yields": yields}}
    async with running_nodes(tmp_path, settings=settings) as (node,):
        async with AsyncClient([node.config.address], group=GROUP) as client:
            await client.append(b"x")
        assert (node._shell._appends() == NO_APPENDS) is not yields
