"""The queue in front of a gRPC stream."""

from __future__ import annotations

import asyncio

import pytest

from dledger.rpc.outbox import Outbox


async def test_everything_is_written_in_order_until_finished() -> None:
    outbox: Outbox[int] = Outbox()
    written: list[int] = []
    gate = asyncio.Event()

    async def write(item: int) -> None:
        await gate.wait()
        written.append(item)

    running = asyncio.create_task(outbox.run(write))
    for item in range(5):
        outbox.put(item)
    assert (len(outbox), outbox.last) == (5, 4)
    drained = asyncio.create_task(outbox.drained())
    await asyncio.wait([drained, running], timeout=0)
    gate.set()
    await drained
    outbox.put(5)
    outbox.finish()
    await running
    assert written == [0, 1, 2, 3, 4, 5]
    assert (len(outbox), outbox.last) == (0, None)


async def test_what_the_write_raises_ends_it() -> None:
    outbox: Outbox[int] = Outbox()

    async def write(item: int) -> None:
        raise ConnectionError("gone")

    outbox.put(1)
    with pytest.raises(ConnectionError):
        await outbox.run(write)
