"""SIGTERM and SIGINT: the first one stops a program, later ones do no harm."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from dledger.infra.loops.signals import STOP_SIGNALS, calling_at_stop, stop_signal


async def handled() -> None:
    """Let the loop read the signals that have arrived and run their handlers."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("number", STOP_SIGNALS)
async def test_the_first_stop_signal_counts_and_later_ones_cause_no_error(number: signal.Signals) -> None:
    loop, errors = asyncio.get_running_loop(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: errors.append(context))
    first = stop_signal()
    assert not first.done()
    signal.raise_signal(number)
    assert await first is number
    for later in STOP_SIGNALS:
        signal.raise_signal(later)
        await handled()
    assert first.result() is number and not errors


async def test_a_call_runs_for_each_stop_signal_until_its_block_ends() -> None:
    loop, calls = asyncio.get_running_loop(), list[str]()
    with pytest.raises(LookupError), calling_at_stop(lambda: calls.append("stop")):
        for number in (*STOP_SIGNALS, signal.SIGTERM):
            signal.raise_signal(number)
            await handled()
        raise LookupError
    assert calls == ["stop"] * 3
    assert not any(loop.remove_signal_handler(number) for number in STOP_SIGNALS)
