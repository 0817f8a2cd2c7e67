"""Calls whose client has hung up end quietly.

gRPC logs whatever its own calls raise in a servicer as an error with a traceback, also that nobody is left to
write to. Clients hang up as they like, so that is no error of this process.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import grpc.aio

_LOGGER: Final = "grpc._cython.cygrpc"
_OVER: Final = ("RPC already finished", "RPC is cancelled")


def is_hung_up(error: object) -> bool:
    """Whether `error` says no more than that a call is over at its other end."""
    if isinstance(error, grpc.aio.InternalError):  # a batch of operations that did not come about
        return True
    is_about_state = isinstance(error, grpc.aio.UsageError | asyncio.InvalidStateError)
    return is_about_state and any(text in str(error) for text in _OVER)


class HungUp(logging.Filter):
    """Keeps such ends of calls out of the log; `count` has them."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if not isinstance(record.exc_info, tuple) or not is_hung_up(record.exc_info[1]):
            return True
        self.count += 1
        return False


#: Of this process.
hung_up: Final = HungUp()


def install() -> None:
    """Repeatable."""
    logging.getLogger(_LOGGER).addFilter(hung_up)
