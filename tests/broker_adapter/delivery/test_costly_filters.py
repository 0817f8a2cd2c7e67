"""What a client's filter costs is shared among its receives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from threading import Event, current_thread
from typing import Any

import pytest

from broker_adapter.delivery.api import MAX_FILTER_STEPS, Filter
from broker_adapter.wire.message import decode
from tests.broker_adapter.cluster import brokers, in_step, messages
from tests.broker_adapter.sending import send_to


@pytest.mark.parametrize("what", ["fresh messages", "fresh messages of two queues", "messages given before"])
async def test_a_costly_filter_is_looked_at_in_pieces(what: str, tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        for number, body in enumerate("abcdef"):
            queue_id = number % 2 if what == "fresh messages of two queues" else 0
            await send_to(program, "t", messages(body), queue_id=queue_id)
        await in_step(program)
        seen: list[Mapping[str, str]] = []

        def matches(properties: Mapping[str, str]) -> bool:
            seen.append(properties)
            return True

        wanted = Filter(matches=matches, steps=MAX_FILTER_STEPS // 2)
        receive = partial(program.delivery.receive, "g", "t", client_id="c", max_messages=9, wait_ms=20_000)
        if what == "messages given before":
            assert len(await receive(invisible_ms=1)) == 6
        found: list[str] = []
        for _ in range(3):
            got = await receive(invisible_ms=60_000, wanted=wanted)
            assert 0 < len(got) <= 2, "two messages use the steps of one look up"
            found += [decode(one.record).body.decode() for one in got]
        assert sorted(found) == list("abcdef") and len(seen) == 6


async def test_a_large_message_takes_more_of_the_steps_than_a_small_one(tmp_path: Path) -> None:
    """How long a filter looks at a message depends on how much there is to look at."""
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        for body in ("small", "large", "small", "last"):
            text = "x" * 3000 if body == "large" else "x"
            await send_to(program, "t", messages(body, text=text), queue_id=0)
        await in_step(program)
        wanted = Filter(matches=lambda _: True, steps=MAX_FILTER_STEPS // 3)
        receive = partial(program.delivery.receive, "g", "t", client_id="c", max_messages=9, wait_ms=20_000)
        found = [len(await receive(invisible_ms=60_000, wanted=wanted)) for _ in range(2)]
        assert found == [2, 2], "the large one ends the first look"


async def test_filters_take_neither_the_loop_nor_the_threads_that_read(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        await send_to(program, "t", messages("a"), queue_id=0)
        await in_step(program)
        where: list[str] = []

        def matches(properties: Mapping[str, str]) -> bool:
            where.append(current_thread().name.partition("_")[0])
            return True

        receive = partial(program.delivery.receive, "g", "t", client_id="c", max_messages=9, wait_ms=20_000)
        for _ in range(2):  # fresh, and given before
            assert len(await receive(invisible_ms=1, wanted=Filter(matches=matches, steps=1))) == 1
        assert where == ["filter"] * 2


async def test_reads_and_filters_of_receives_count_for_the_address_of_their_client(tmp_path: Path) -> None:
    """Addresses take turns with both: whoever is not named would keep all others waiting."""
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        await send_to(program, "t", messages("a"), queue_id=0)
        await in_step(program)
        receiver = program.delivery._receiver
        seen: list[tuple[str, str]] = []

        def noting(what: str, run: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            def noted(work: Callable[[], Any], address: str) -> Awaitable[Any]:
                seen.append((what, address))
                return run(work, address)

            return noted

        receiver._run = noting("read", receiver._run)
        receiver._read = noting("read", receiver._read)
        receiver._run_filter = noting("filter", receiver._run_filter)
        receive = partial(program.delivery.receive, topic="t", client_id="c", max_messages=9, wait_ms=20_000)
        for _ in range(2):
            await receive("g1", invisible_ms=60_000, attempt_id="a", remote="10.0.0.1:1")
        wanted = Filter(matches=lambda _: True, steps=1)
        await receive("g2", invisible_ms=60_000, wanted=wanted, remote="10.0.0.2:1")
        assert seen == [("read", "10.0.0.1")] * 2 + [("filter", "10.0.0.2")]


async def test_filters_of_pulls_count_for_the_address_of_their_client(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster:
        broker = (await cluster.master()).broker
        gate, done = Event(), list[str]()
        remotes = [*(f"10.0.0.1:{port}" for port in range(20)), "10.0.0.2:1"]
        busy = asyncio.create_task(broker.filter(gate.wait, ""))
        await asyncio.sleep(0)
        filters = [asyncio.create_task(broker.filter(partial(done.append, one), one)) for one in remotes]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(busy, *filters)
        assert done == [remotes[0], remotes[-1], *remotes[1:-1]]
