"""The event loop that asks the kernel for events less often."""

from __future__ import annotations

import asyncio
import selectors
import socket

from dledger.node.polling import SparingSelector


def ready(selector: SparingSelector, timeout: float | None) -> list[object]:
    return [key.data for key, _ in selector.select(timeout)]


def test_the_question_is_put_off_three_times_in_a_row_and_no_more() -> None:
    with SparingSelector() as selector, socket.socketpair()[0] as ours:
        selector.register(ours, selectors.EVENT_WRITE, "writable")
        for _ in range(2):
            assert [ready(selector, 0) for _ in range(4)] == [[], [], [], ["writable"]]


def test_whoever_may_wait_asks_at_once() -> None:
    left, right = socket.socketpair()
    with SparingSelector() as selector, left, right:
        selector.register(left, selectors.EVENT_READ, "readable")
        right.send(b"x")
        assert ready(selector, None) == ["readable"]
        assert ready(selector, 0) == []
        assert ready(selector, 0.001) == ["readable"]
        assert [ready(selector, 0) for _ in range(4)] == [[], [], [], ["readable"]], "counted from there"


def test_a_loop_that_never_rests_still_hears_of_events() -> None:
    async def answered() -> bytes:
        loop = asyncio.get_running_loop()
        left, right = socket.socketpair()
        with left, right:
            left.setblocking(False)
            reading = asyncio.create_task(loop.sock_recv(left, 1))
            await asyncio.sleep(0)
            right.send(b"x")
            for _ in range(20):
                await asyncio.sleep(0)  # there is always something to run: the loop never waits
            return reading.result()

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(SparingSelector())) as runner:
        assert runner.run(answered()) == b"x"
