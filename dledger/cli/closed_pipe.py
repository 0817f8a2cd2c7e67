"""Stdout that is a pipe, after its reader, such as `head`, has ended."""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_STDOUT: Final = 1


@contextmanager
def ending_with_reader() -> Iterator[None]:
    """Cancel this task once the reader of stdout ends, and raise BrokenPipeError. A write that would find
    this out may never come."""
    if not _is_pipe(_STDOUT):
        yield
        return
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    has_ended = False

    def end() -> None:
        nonlocal has_ended
        has_ended = True
        loop.remove_reader(_STDOUT)
        task.cancel()

    loop.add_reader(_STDOUT, end)  # a pipe that can only be written is ready to be read if nobody reads it
    try:
        yield
    except asyncio.CancelledError:
        if has_ended and task.uncancel() == 0:
            raise BrokenPipeError from None
        raise
    finally:
        loop.remove_reader(_STDOUT)


def _is_pipe(out: int) -> bool:
    is_fifo = stat.S_ISFIFO(os.fstat(out).st_mode)
    return is_fifo and fcntl.fcntl(out, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY


def give_up_stdout() -> None:
    """Redirect stdout to the null device, because Python would fail again while it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
