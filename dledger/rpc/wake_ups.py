"""How gRPC's thread wakes an event loop: one byte through a socket for each event.

Each time the loop finds bytes there gRPC takes a single one, and all events that have come. So a busy loop
asks the kernel again, and goes round once more, for every event that it has dealt with already: several times
for each call.
"""

from __future__ import annotations

import fcntl
import socket
import sys
import termios
from collections.abc import Callable
from functools import partial
from typing import Any, Final

#: What gRPC gives an event loop to be called when there are bytes.
_HANDLER: Final = "PollerCompletionQueue._handle_events"
_INT_BYTES = 4


def sparing_reader(fd: Any, callback: Callable[..., Any]) -> Callable[..., Any]:
    """What to call instead of `callback` when `fd` is readable: that itself, unless it is gRPC's."""
    function = callback.func if isinstance(callback, partial) else callback
    if not isinstance(fd, socket.socket) or getattr(function, "__qualname__", "") != _HANDLER:
        return callback

    def read(*arguments: Any) -> None:
        # Before gRPC looks for events: what is written from here on belongs to one that it may not find.
        if (come := _readable_bytes(fd)) > 1:
            fd.recv(come - 1)
        callback(*arguments)

    return read


def _readable_bytes(readable: socket.socket) -> int:
    found = fcntl.ioctl(readable, termios.FIONREAD, bytes(_INT_BYTES))
    return int.from_bytes(found, sys.byteorder)
