"""How late the loop is, is measured, counted and told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dledger.infra.loops import lag as loop_lag
from dledger.infra.loops.lag import LoopLag
from tests.node.local import running_nodes, until


def occupy(loop: asyncio.AbstractEventLoop) -> None:
    """For as long as is a stall, whenever the timer was set."""
    end = loop.time() + loop_lag._EVERY_S + loop_lag.STALL_S
    while loop.time() < end:
        pass


async def test_a_step_that_takes_long_is_noticed() -> None:
    lag = LoopLag()
    lag.start()
    await asyncio.sleep(0)
    occupy(asyncio.get_running_loop())
    await until(lambda: lag.stalls > 0)
    assert lag.longest_s >= loop_lag.STALL_S
    lag.stop()


async def test_a_node_without_a_program_tells_it(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 1) as (node,):
        occupy(asyncio.get_running_loop())
        await until(lambda: node.metrics.loop_stalls() > 0)
        text = node.status.metrics_text().decode()
    figures = dict(line.split() for line in text.splitlines() if line.startswith("dledger_loop_"))
    assert float(figures["dledger_loop_lag_seconds"]) >= loop_lag.STALL_S
    assert float(figures["dledger_loop_stalls_total"]) >= 1
    stopped = node._loop_lag._timer
    assert stopped is not None and stopped.cancelled()


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
