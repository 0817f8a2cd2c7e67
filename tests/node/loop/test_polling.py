"""The event loop that asks the kernel for events less often."""

from __future__ import annotations

import asyncio
import selectors
import socket

import pytest

from dledger.infra.loops import polling
from dledger.infra.loops.polling import MAX_BUSY_S, NodeLoop, SparingSelector, when_idle


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

    with asyncio.Runner(loop_factory=NodeLoop) as runner:
        assert runner.run(answered()) == b"x"


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_loop_is_idle_when_it_has_neither_work_nor_an_event() -> None:
    left, right = socket.socketpair()
    with SparingSelector(Clock()) as selector, left, right:
        selector.register(left, selectors.EVENT_READ, "readable")
        right.send(b"x")
        called: list[str] = []
        selector.when_idle(lambda: called.append("a"))
        for _ in range(8):
            selector.select(0)
        assert ready(selector, None) == ["readable"]
        assert not called
        left.recv(1)
        selector.when_idle(lambda: called.append("b"))
        assert ready(selector, None) == [], "it does not wait: the callback may have made work"
        assert called == ["a", "b"]
        selector.select(0.001)
        assert called == ["a", "b"], "once each"


@pytest.mark.parametrize("timeout", [0, None])
def test_a_loop_that_is_never_idle_is_not_waited_for_for_ever(timeout: float | None) -> None:
    clock = Clock()
    left, right = socket.socketpair()
    with SparingSelector(clock) as selector, left, right:
        selector.register(left, selectors.EVENT_READ, "readable")
        right.send(b"x")
        called: list[str] = []
        selector.when_idle(lambda: called.append("a"))
        for _ in range(8):
            selector.select(timeout)
        assert not called
        clock.now_s += MAX_BUSY_S
        selector.when_idle(lambda: called.append("b"))
        assert ready(selector, timeout) == ["readable"]
        assert called == ["a", "b"], "they are called together"


def test_what_waits_for_an_idle_loop_runs_after_all_that_makes_work_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(polling, "MAX_BUSY_S", 1e9)

    async def order() -> list[object]:
        done: list[object] = []
        idle = asyncio.Event()
        when_idle(idle.set)
        for turn in range(10):
            done.append(turn)
            await asyncio.sleep(0)
            assert not idle.is_set()
        await idle.wait()
        return done

    with asyncio.Runner(loop_factory=NodeLoop) as runner:
        assert runner.run(order()) == list(range(10))


async def test_a_loop_of_somebody_else_counts_as_idle_at_once() -> None:
    called = asyncio.Event()
    when_idle(called.set)
    await asyncio.sleep(0)
    assert called.is_set()
