"""A process whose event loop has stopped turning ends, and says where it was."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from dledger.infra.loops.watchdog import EXIT_STUCK, StallDetector

#: A loop that runs something for ever, and says so.
_STUCK = """
import asyncio, signal, sys
from dledger.infra.loops.watchdog import LoopWatchdog

def occupy_the_loop():
    print("stuck", flush=True)
    while True:
        pass

async def main():
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, print, "asked")
    LoopWatchdog(float(sys.argv[1]), grace_s=0.2).watch(loop, [signal.SIGTERM])
    loop.call_soon(occupy_the_loop)
    await asyncio.sleep(60)

asyncio.run(main())
"""
#: One that ends when it is asked to.
_FREE = """
import asyncio, signal
from dledger.infra.loops.watchdog import LoopWatchdog

async def main():
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, asked.set)
    watchdog = LoopWatchdog(20, grace_s=20)
    watchdog.watch(loop, [signal.SIGTERM])
    print("free", flush=True)
    await asked.wait()
    watchdog.stop()

asyncio.run(main())
"""


def started(program: str, *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() in ("stuck", "free")
    return process


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, errors


def test_a_process_whose_loop_is_stuck_ends_with_a_trace_of_all_threads() -> None:
    code, errors = ended(started(_STUCK, "0.3"))
    assert code == EXIT_STUCK
    assert "occupy_the_loop" in errors and "most recent call first" in errors


def test_a_signal_ends_a_process_whose_loop_is_stuck() -> None:
    process = started(_STUCK, "0")
    process.send_signal(signal.SIGTERM)
    code, errors = ended(process)
    assert code == EXIT_STUCK and "occupy_the_loop" in errors


def test_a_loop_that_turns_handles_the_signal_itself() -> None:
    process = started(_FREE)
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 0


def judged(judge: StallDetector, times: list[float], turns: list[int], signals: list[int]) -> list[str]:
    return [judge.check(*one) for one in zip(times, turns, signals, strict=True)]


def test_a_loop_that_turns_now_and_then_is_not_stuck() -> None:
    judge = StallDetector(4.0, 2.0)
    times = [judge.tick_s * i for i in range(100)]
    assert not any(judged(judge, times, [i // 7 for i in range(100)], [0] * 100))


def test_a_process_that_was_stopped_is_not_taken_for_stuck() -> None:
    judge = StallDetector(4.0, 2.0)
    times = [0.0, judge.tick_s, 3600.0, 3600.0 + judge.tick_s]
    assert judged(judge, times, [1, 2, 2, 3], [0] * 4) == [""] * 4


def test_more_signals_give_a_loop_that_is_stuck_no_more_time() -> None:
    judge = StallDetector(0, 2.0)
    times = [judge.tick_s * i for i in range(10)]
    assert any(judged(judge, times, [1] * 10, list(range(10))))


def test_a_signal_that_the_loop_has_turned_after_is_the_business_of_the_loop() -> None:
    judge = StallDetector(0, 2.0)
    times = [judge.tick_s * i for i in range(100)]
    assert not any(judged(judge, times, [1, 1, 1] + [2] * 97, [0, 0] + [1] * 98))


@pytest.mark.parametrize(
    ("stall_s", "grace_s", "signals", "at_s"), [(4.0, 2.0, 0, 4.0), (4.0, 2.0, 1, 2.0), (0, 2, 0, 0)]
)
def test_the_limits(stall_s: float, grace_s: float, signals: int, at_s: float) -> None:
    judge = StallDetector(stall_s, grace_s)
    judge.check(0.0, 1, 0)
    found = [(i * judge.tick_s, judge.check(i * judge.tick_s, 1, signals)) for i in range(1, 60)]
    ends = [at for at, reason in found if reason]
    assert ends[:1] == ([] if not at_s else [pytest.approx(at_s, abs=3 * judge.tick_s)])
