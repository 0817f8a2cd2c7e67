"""The same seed is the same run, byte for byte: otherwise no failure could be looked at twice."""

from __future__ import annotations

import asyncio
import inspect
import io
import subprocess
import sys
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from random import Random

import pytest

from dledger.testing import QUIET, Simulation, run_seed
from dledger.testing.virtual.clock import VirtualClock
from dledger.testing.virtual.event_loop import virtual_loop

ROOT = Path(__file__).resolve().parents[2]


def _trace(seed: int) -> str:
    sink = io.StringIO()
    result = run_seed(seed, sink=sink)
    assert result.failure is None, result.failure
    return sink.getvalue()


def _assert_same(trace: str, other: str) -> None:
    """Name the first line that differs: pytest's comparison of two whole traces takes minutes."""
    for number, (line, other_line) in enumerate(zip_longest(trace.splitlines(), other.splitlines()), 1):
        assert line == other_line, f"line {number}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 7, pytest.param(12, marks=pytest.mark.long)])
def test_same_seed_same_trace(seed: int) -> None:
    trace = _trace(seed)
    assert trace.count("\n") > 1000
    _assert_same(_trace(seed), trace)


def test_nothing_of_a_run_is_left_to_the_garbage_collector() -> None:
    """What it ended would run in the middle of the next run, and on that one's loop."""
    simulation = Simulation(replace(QUIET, readers=2), seed=7)
    simulation.start()
    simulation.run_until(lambda: simulation.leader() is not None, limit_ms=5_000)
    left = [task.get_coro() for loop in simulation.loops() for task in loop.tasks()]
    assert len(left) > 5
    simulation.close()
    assert {inspect.getcoroutinestate(coroutine) for coroutine in left} == {inspect.CORO_CLOSED}
    assert not any(loop.tasks() for loop in simulation.loops())


def test_what_is_left_of_a_loop_ends_on_that_loop() -> None:
    clock = VirtualClock()
    loop = virtual_loop(clock.after, lambda: clock.now_ms, Random(1))
    ended: list[asyncio.AbstractEventLoop] = []

    async def wait() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(asyncio.get_running_loop())
            ended[-1].call_soon(ended.clear)

    loop.entered(lambda: loop.create_task(wait()))
    clock.run_until(10)
    loop.die()
    assert ended == []  # a process that was killed does nothing any more
    loop.close()
    clock.run_until(20)
    assert ended == [loop]


@pytest.mark.slow
def test_other_seed_other_trace() -> None:
    assert _trace(1) != _trace(2)


@pytest.fixture(scope="module")
def trace_of_7() -> str:
    """With the hashes of this process."""
    return _trace(7)


@pytest.mark.slow
@pytest.mark.parametrize("hash_seed", ["0", pytest.param("1", marks=pytest.mark.long), "4711"])
def test_trace_does_not_depend_on_hashes(hash_seed: str, trace_of_7: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    done = subprocess.run(
        [sys.executable, "-m", "dledger.testing", "--first", "7", "--trace", str(path)],
        env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    _assert_same(path.read_text(encoding="utf-8"), trace_of_7)
