"""Starts commands. Their imports take up to a second, and Ctrl-C must not print a traceback during that time.

Imports only small modules itself, so that the handler of Ctrl-C is set first.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import Final

_INTERRUPTED: Final = 130


@contextmanager
def importing() -> Iterator[None]:
    """Let Ctrl-C end the process during the block, which must only import.

    The import of a C extension, or the creation of a class, may convert a KeyboardInterrupt into another
    error.
    """
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_default or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(_number: int, _frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(_INTERRUPTED)


def run(module: str, function: str) -> None:
    """Import and run a command. Console scripts call this."""
    with importing():
        start = getattr(import_module(module), function)
    start()


def command() -> None:
    """Run the installed `dledger` command."""
    run("dledger.cli.main", "command")
