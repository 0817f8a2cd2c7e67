"""Bounded queues, and watchers that are told the newest once."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from broker_adapter.errors import NameServerBusy, Status
from broker_adapter.namesrv.admission import CallExecutor
from broker_adapter.namesrv.watching import Watchers


async def test_one_call_more_than_the_queue_holds_is_told_busy() -> None:
    refused: Counter[str] = Counter()
    executor = CallExecutor("route", running=1, waiting=2, on_refused=lambda name: refused.update([name]))
    release, inside = asyncio.Event(), []

    async def call(number: int) -> None:
        async with executor.admitted():
            inside.append(number)
            await release.wait()

    calls = [asyncio.create_task(call(number)) for number in range(4)]
    done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
    [late] = done
    with pytest.raises(NameServerBusy) as caught:
        late.result()
    assert caught.value.status is Status.NAMESRV_BUSY and caught.value.response_code == 2
    assert late is calls[3] and refused == {"route": 1}
    release.set()
    await asyncio.gather(*calls[:3])
    assert inside == [0, 1, 2]
    async with executor.admitted():
        pass  # there is room again


async def test_a_caller_that_hangs_up_gives_its_place_back() -> None:
    executor = CallExecutor("route", running=1, waiting=0, on_refused=lambda name: None)

    async def call() -> None:
        async with executor.admitted():
            await asyncio.Event().wait()

    for _ in range(3):
        task = asyncio.create_task(call())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    async with executor.admitted():
        pass


def told(watcher: object) -> list[str]:
    found = []
    while (topic := watcher.take()) is not None:  # type: ignore[attr-defined]
        found.append(topic)
    return found


async def test_a_slow_watcher_is_told_each_topic_once() -> None:
    watchers = Watchers(2)
    watcher = watchers.add(None, ["a", "b"])
    assert told(watcher) == ["a", "b"]
    for _ in range(1000):
        watchers.mark({"a"})
        watchers.mark({"c"})
    assert watcher.is_behind
    assert told(watcher) == ["a", "c"]
    assert not watcher.is_behind


async def test_a_watcher_of_some_topics_hears_of_no_others() -> None:
    watchers = Watchers(2)
    watcher = watchers.add(["a", "z"], ["a", "b"])
    assert told(watcher) == ["a", "z"]
    watchers.mark({"b"})
    assert not watcher.is_behind
    watchers.mark({"a", "b"})
    assert told(watcher) == ["a"]


async def test_waiting_ends_with_a_change() -> None:
    watchers = Watchers(1)
    watcher = watchers.add(["a"], [])
    told(watcher)
    waiting = asyncio.create_task(watcher.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    watchers.mark({"a"})
    await waiting


async def test_what_changes_while_many_watchers_are_told_is_told_to_each_of_them() -> None:
    watchers = Watchers(100)
    many = [watchers.add(None, ()) for _ in range(50)]
    for topic in "abc":
        watchers.mark([topic])
    async with asyncio.timeout(60):
        for one in many:
            for topic in "abc":
                await one.wait()
                assert one.take() == topic


def test_watchers_are_limited() -> None:
    watchers = Watchers(1)
    first = watchers.add(None, [])
    with pytest.raises(NameServerBusy) as caught:
        watchers.add(None, [])
    assert caught.value.status is Status.NAMESRV_LIMIT
    watchers.remove(first)
    watchers.add(None, [])
