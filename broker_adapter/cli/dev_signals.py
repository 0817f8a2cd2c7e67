"""Signals before and after the part of `dledger dev` that handles them itself.

An event loop, or the supervisor of several nodes, handles SIGTERM and SIGINT while it runs. Imports before it
take a second. During that time a handler must end the process itself: the import of an extension, or the
creation of a class, may convert an exception of a handler into another error.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopping_by_signals(directory: Path | None) -> Iterator[Path]:
    """Return `directory`, or create a temporary one that is removed at the end.

    SIGTERM and SIGINT end the process with exit code 0, unless the block handles them. SIGHUP, which a closed
    terminal sends, has the effect of SIGTERM, except under nohup.
    """
    temporary: list[Path] = []

    def end(_number: int, _frame: FrameType | None) -> None:
        for path in temporary:
            shutil.rmtree(path, ignore_errors=True)
        os._exit(0)

    previous = {number: signal.signal(number, end) for number in _STOP_SIGNALS}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        previous[signal.SIGHUP] = signal.signal(signal.SIGHUP, _terminate)
    try:
        if directory is not None:
            yield directory
            return
        path = Path(tempfile.mkdtemp(prefix="dledger-dev-"))
        temporary.append(path)
        try:
            yield path
        finally:
            for number in _STOP_SIGNALS:
                signal.signal(number, signal.SIG_IGN)  # the removal is the last step
            shutil.rmtree(path, ignore_errors=True)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
