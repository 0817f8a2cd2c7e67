"""Runs long work in steps on the event loop, so that heartbeats and other calls continue in between."""

from __future__ import annotations

from typing import TypeVar

from broker_adapter.client.core.values import Steps
from dledger.infra.loops.turns import large_turns

T = TypeVar("T")


async def run_in_steps(work: Steps[T]) -> T:
    """Return the result of the work. Between two steps, other tasks of the event loop can run."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
        await large_turns().turn("decoding")
