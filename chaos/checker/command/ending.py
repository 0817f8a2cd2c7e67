"""Ends the command in good order: what it has started ends, what it has made is removed."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread, main_thread
from types import FrameType

from chaos.checker.children import child_processes
from chaos.checker.paths import shown

SIGNALS = (signal.SIGTERM, signal.SIGHUP)
#: How long an end in good order may take, in seconds.
PATIENCE_S = 10.0
#: Directories to remove in the end.
_folders: set[Path] = set()


#: Spark splits the path at commas, and Hadoop takes the others for patterns.
_UNFIT = re.compile(r"[,{}\[\]*?\\\n]")


class Terminated(BaseException):
    """A signal told the command to end. `code`: what a shell says of a process that a signal ended."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.code = 128 + number


class WorkFolderError(Exception):
    """There is no place for tables; the text says why."""


def said_of(ended: Terminated) -> str:
    """What the command says then."""
    return f"ended by {ended}; this says nothing about the run"


class _Ending:
    """What is known of the end that a signal has asked for."""

    def __init__(self, tell: int) -> None:
        """`tell`: the pipe to `_end_for_certain`."""
        self._tell = tell
        self._is_raised = self._is_told = False
        self._hook_before = sys.unraisablehook

    def raise_it(self, number: int, frame: FrameType | None) -> None:
        """The handler of each signal."""
        if self._is_raised:
            return
        if not self._is_told:
            self._is_told = True
            os.write(self._tell, bytes([number]))
        if self._is_in_hook(frame):
            os.write(self._tell, bytes([number]))  # nobody hears what is raised there: later, then
        else:
            self._is_raised = True
            raise Terminated(number)

    def raise_lost_again(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Asks for the signal once more where `Terminated` was raised in a `__del__`, which nobody hears."""
        if isinstance(unraisable.exc_value, Terminated):
            self._is_raised = False
            os.write(self._tell, bytes([unraisable.exc_value.number]))
        else:
            self._hook_before(unraisable)

    def _is_in_hook(self, frame: FrameType | None) -> bool:
        """Whether `frame` is that of `raise_lost_again`, or of what it has called."""
        while frame is not None and frame.f_code is not _Ending.raise_lost_again.__code__:
            frame = frame.f_back
        return frame is not None


@contextmanager
def signals_raise(patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Within, each of `SIGNALS` raises `Terminated`, once: what is done then is not disturbed again.

    An exception out of nowhere may be lost, or leave a lock behind that others wait for. Where it is seen to
    be lost, it is raised again; and a thread ends the process for certain where that has not ended the block
    `patience_s` later.
    """
    told, tell = os.pipe()
    ending = _Ending(tell)
    # Whoever ignores a signal, as `nohup` does, wants it to be ignored.
    before = {each: signal.getsignal(each) for each in SIGNALS}
    hook_before, sys.unraisablehook = sys.unraisablehook, ending.raise_lost_again
    for each, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(each, ending.raise_it)
    Thread(target=_end_for_certain, args=(told, patience_s), daemon=True).start()
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        sys.unraisablehook = hook_before
        os.close(tell)


def _end_for_certain(told: int, patience_s: float) -> None:
    """Once `told` says the number of a signal, unless its other end is closed soon after.

    A number that comes again asks for that signal again.
    """
    numbers = os.read(told, 1)
    deadline = time.monotonic() + patience_s
    while numbers and select.select([told], [], [], max(0.0, deadline - time.monotonic()))[0]:
        if not (again := os.read(told, 1)):
            numbers = b""  # the block has ended in good order
        else:
            signal.pthread_kill(main_thread().ident or 0, again[0])
    os.close(told)
    if not numbers:
        return
    for pid in child_processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for folder in list(_folders):
        shutil.rmtree(folder, ignore_errors=True)
    ended = Terminated(numbers[0])
    os.write(2, f"{said_of(ended)}\n".encode())
    os._exit(ended.code)


@contextmanager
def work_folder(parent: Path | None) -> Iterator[Path]:
    """A directory for tables, which is gone in the end.

    Raises:
        WorkFolderError: none can be made there.
    """
    place = Path(parent or tempfile.gettempdir()).absolute()
    if unfit := _UNFIT.search(str(place)):
        raise WorkFolderError(
            f"Spark takes the {unfit[0]} of {shown(place)} for a pattern; name another directory with --work"
        )
    try:
        made = Path(tempfile.mkdtemp(prefix="dledger-check-", dir=place))
    except OSError as error:
        raise WorkFolderError(
            f"no tables can be written below {place} ({error.strerror}); name another directory with --work"
        ) from error
    _folders.add(made)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        _folders.discard(made)
