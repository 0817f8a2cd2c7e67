"""How late the loop is, is measured, counted and told."""

from __future__ import annotations

import asyncio

import pytest

from broker_adapter.server import loop_lag
from broker_adapter.server.loop_lag import LoopLag
from tests.node.local import until


async def test_a_step_that_takes_long_is_noticed() -> None:
    lag = LoopLag()
    lag.start()
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    end = loop.time() + loop_lag._EVERY_S + loop_lag.STALL_S
    while loop.time() < end:
        pass
    await until(lambda: lag.stalls > 0)
    assert lag.longest_s >= loop_lag.STALL_S
    lag.stop()


def test_the_longest_lag_is_forgotten_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(loop_lag._log, "warning", lambda *_, by_ms, **__: told.append(by_ms))
    lag = LoopLag()
    lag.note(0.0, 0.01)
    lag.note(1.0, 0.5)
    lag.note(2.0, 0.3)  # not told: one was a moment ago
    assert (lag.longest_s, lag.stalls, told) == (0.5, 2, [500])
    lag.note(61.0, 0.02)
    assert lag.longest_s == 0.5
    lag.note(122.0, 0.01)
    assert lag.longest_s == 0.02
    lag.note(183.0, 0.01)
    assert (lag.longest_s, lag.stalls) == (0.01, 2)
