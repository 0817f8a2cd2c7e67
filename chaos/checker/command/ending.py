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
from threading import Lock, Thread, main_thread
from types import FrameType

from chaos.checker.children import child_processes
from chaos.checker.paths import shown

SIGNALS = (signal.SIGTERM, signal.SIGHUP)
#: How long an end in good order may take, in seconds.
PATIENCE_S = 10.0
#: A signal is repeated after so long, in seconds.
_AGAIN_S = 0.1
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

    def __init__(self) -> None:
        self._is_raised = False
        self._repeating = Lock()
        self._hook_before = sys.unraisablehook

    def raise_it(self, number: int, frame: FrameType | None) -> None:
        """The handler of each signal, which is repeated until it has raised where somebody hears that."""
        if not self._is_raised and not self._is_in_hook(frame):
            self._is_raised = True
            raise Terminated(number)

    def was_lost(self, unraisable: sys.UnraisableHookArgs) -> None:
        """The hook of what was raised in a `__del__`, which nobody hears."""
        if isinstance(unraisable.exc_value, Terminated):
            self._is_raised = False
        else:
            self._hook_before(unraisable)

    def repeat(self, number: int) -> None:
        """Send the signal again, unless it has been raised."""
        with self._repeating:
            if not self._is_raised:
                signal.pthread_kill(main_thread().ident or 0, number)

    def end(self) -> None:
        """From now on nothing is raised or repeated."""
        self._is_raised = True
        with self._repeating:
            pass

    def _is_in_hook(self, frame: FrameType | None) -> bool:
        """Whether `frame` is that of `was_lost`, or of what it called: nobody hears what is raised there."""
        while frame is not None and frame.f_code is not _Ending.was_lost.__code__:
            frame = frame.f_back
        return frame is not None


@contextmanager
def signals_raise(patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Within, each of `SIGNALS` raises `Terminated`, once: what is done then is not disturbed again.

    A handler does not run while the main thread waits for a lock, if the signal came just before that; and an
    exception out of nowhere may be lost, or leave a lock behind that others wait for. So a thread repeats the
    signal until the exception was raised, and again where it is seen to be lost; and it ends the process for
    certain where that has not ended the block `patience_s` later.
    """
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    ending = _Ending()
    # Whoever ignores a signal, as `nohup` does, wants it to be ignored.
    before = {each: signal.getsignal(each) for each in SIGNALS}
    hook_before, sys.unraisablehook = sys.unraisablehook, ending.was_lost
    # Written to when a signal comes, not when its handler runs.
    wakeup_before = signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    for each, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(each, ending.raise_it)
    Thread(target=_end_for_certain, args=(told, ending, patience_s), daemon=True).start()
    try:
        yield
    finally:
        ending.end()
        for each, handler in before.items():
            signal.signal(each, handler)
        signal.set_wakeup_fd(wakeup_before)
        sys.unraisablehook = hook_before
        os.close(tell)


def _end_for_certain(told: int, ending: _Ending, patience_s: float) -> None:
    """Once `told` says the number of a signal, unless its other end is closed soon after."""
    numbers = os.read(told, 1)
    while numbers and numbers[0] not in SIGNALS:
        numbers = os.read(told, 1)
    deadline = time.monotonic() + patience_s
    while numbers and (left_s := deadline - time.monotonic()) > 0:
        if not select.select([told], [], [], min(left_s, _AGAIN_S))[0]:
            ending.repeat(numbers[0])
        elif not os.read(told, 4096):
            numbers = b""  # the block has ended in good order
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
