"""The queue in front of a gRPC stream."""

from __future__ import annotations

import asyncio
import gc

import pytest

from dledger.infra.transport.outbox import Outbox
from tests.node.local import until


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


async def test_the_first_step_of_a_write_is_taken_inside_put() -> None:
    outbox: Outbox[int] = Outbox()
    begun: list[int] = []

    async def write(item: int) -> None:
        begun.append(item)

    running = asyncio.create_task(outbox.run(write))
    await asyncio.wait([running], timeout=0)
    outbox.put(1)
    assert begun == [1]
    outbox.finish()
    await running


async def test_a_write_that_merely_lets_others_run_goes_on_in_the_next_round() -> None:
    outbox: Outbox[int] = Outbox()
    steps: list[str] = []

    async def write(item: int) -> None:
        steps.append(f"{item} begins")
        await asyncio.sleep(0)
        steps.append(f"{item} ends")

    outbox.put(1)
    outbox.put(2)
    outbox.finish()
    await outbox.run(write)
    assert steps == ["1 begins", "1 ends", "2 begins", "2 ends"]


async def test_a_write_that_fails_late_ends_it_and_begins_no_other() -> None:
    outbox: Outbox[int] = Outbox()
    gate = asyncio.get_running_loop().create_future()
    begun: list[int] = []

    async def write(item: int) -> None:
        begun.append(item)
        await gate

    running = asyncio.create_task(outbox.run(write))
    await asyncio.wait([running], timeout=0)
    outbox.put(1)
    outbox.put(2)
    gate.set_exception(ConnectionError("gone"))
    with pytest.raises(ConnectionError):
        await running
    outbox.put(3)
    assert begun == [1]


async def test_whoever_cancels_the_run_closes_the_write_under_way() -> None:
    outbox: Outbox[int] = Outbox()
    seen: list[str] = []

    async def write(item: int) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            seen.append("closed")

    running = asyncio.create_task(outbox.run(write))
    await asyncio.wait([running], timeout=0)
    outbox.put(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    outbox.put(2)
    assert seen == ["closed"]


async def test_a_cancelled_call_cancels_the_run() -> None:
    outbox: Outbox[int] = Outbox()

    async def write(item: int) -> None:
        raise asyncio.CancelledError

    outbox.put(1)
    with pytest.raises(asyncio.CancelledError):
        await outbox.run(write)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
async def test_what_is_to_stop_the_process_goes_past_it(stop: type[BaseException]) -> None:
    outbox: Outbox[int] = Outbox()

    async def write(item: int) -> None:
        raise stop

    running = asyncio.create_task(outbox.run(write))
    await asyncio.wait([running], timeout=0)
    with pytest.raises(stop):
        outbox.put(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_the_error_of_a_write_that_was_given_up_is_not_missed() -> None:
    """gRPC tells it to the future for which the write waited, after whoever wrote has gone."""
    missed: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: missed.append(context["message"]))
    sent: list[asyncio.Future[None]] = [loop.create_future()]

    async def write(_: int) -> None:
        await sent[0]

    outbox: Outbox[int] = Outbox()
    outbox.put(1)
    running = asyncio.ensure_future(outbox.run(write))
    await until(lambda: not len(outbox))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    sent.pop().set_exception(ConnectionError("the call is over"))
    turned = loop.create_future()
    loop.call_soon(turned.set_result, None)
    await turned
    gc.collect()
    assert missed == []
