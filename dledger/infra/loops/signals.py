"""Handles SIGTERM and SIGINT, which stop a program."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def stop_signal() -> asyncio.Future[signal.Signals]:
    """Return a future for the first stop signal. From now on the running loop handles these signals."""
    loop = asyncio.get_running_loop()
    first: asyncio.Future[signal.Signals] = loop.create_future()

    def note(number: signal.Signals) -> None:
        if not first.done():
            first.set_result(number)

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, note, number)
    return first


@contextmanager
def calling_at_stop(call: Callable[[], object]) -> Iterator[None]:
    """Run `call` on the loop for each stop signal."""
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, call)
    try:
        yield
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
