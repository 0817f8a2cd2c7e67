"""Suppresses log records about disconnected clients.

gRPC logs every exception of its own operations in a servicer as an error with a traceback, even if the client
has merely disconnected. Clients may disconnect at any time, so this is not an error of this process.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import grpc.aio

_LOGGER: Final = "grpc._cython.cygrpc"
_OVER: Final = ("RPC already finished", "RPC is cancelled")


def is_hung_up(error: object) -> bool:
    """Return True if `error` only reports that the client has ended the call."""
    if isinstance(error, grpc.aio.InternalError):  # a batch of operations that failed
        return True
    is_about_state = isinstance(error, grpc.aio.UsageError | asyncio.InvalidStateError)
    return is_about_state and any(text in str(error) for text in _OVER)


class HungUp(logging.Filter):
    """Drops log records about disconnected clients, and counts them in `count`."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if not isinstance(record.exc_info, tuple) or not is_hung_up(record.exc_info[1]):
            return True
        self.count += 1
        return False


#: The filter of this process.
hung_up: Final = HungUp()


def install() -> None:
    """Install the filter. Idempotent."""
    logging.getLogger(_LOGGER).addFilter(hung_up)
