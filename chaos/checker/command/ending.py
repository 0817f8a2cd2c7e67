"""Orderly termination of the command: end its child processes and remove its temporary directories."""

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
#: Maximum duration of an orderly termination, in seconds.
PATIENCE_S = 10.0
#: Interval at which a signal is repeated, in seconds.
_AGAIN_S = 0.1
#: Directories to remove at exit.
_folders: set[Path] = set()


#: Characters that Spark (comma) or Hadoop (the others) interpret in a path.
_UNFIT = re.compile(r"[,{}\[\]*?\\\n]")


class TerminationRequest(BaseException):
    """Raised when a signal requests termination. `code`: the exit code that a shell reports for that
    signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.code = 128 + number


class WorkFolderError(Exception):
    """Raised if the directory for tables is unusable. The text states the reason."""


def termination_message(ended: TerminationRequest) -> str:
    """Return the message for the user."""
    return f"terminated by {ended}; this is no verdict on the run"


class _Ending:
    """Tracks a termination that a signal requested."""

    def __init__(self) -> None:
        self._is_raised = False
        self._repeating = Lock()
        self._hook_before = sys.unraisablehook

    def raise_request(self, number: int, frame: FrameType | None) -> None:
        """Raise `TerminationRequest`, unless the exception would be lost here. The thread that repeats the
        signal then causes another call."""
        if not self._is_raised and not self._is_in_hook(frame):
            self._is_raised = True
            raise TerminationRequest(number)

    def was_lost(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Handle an exception that was lost in a `__del__`. This is the hook for unraisable exceptions."""
        if isinstance(unraisable.exc_value, TerminationRequest):
            self._is_raised = False
        else:
            self._hook_before(unraisable)

    def repeat(self, number: int) -> None:
        """Send the signal again, unless the exception has been raised."""
        with self._repeating:
            if not self._is_raised:
                signal.pthread_kill(main_thread().ident or 0, number)

    def end(self) -> None:
        """Stop raising and repeating signals."""
        self._is_raised = True
        with self._repeating:
            pass

    def _is_in_hook(self, frame: FrameType | None) -> bool:
        """Return True if `frame` belongs to `was_lost` or a function it called: exceptions are lost there."""
        while frame is not None and frame.f_code is not _Ending.was_lost.__code__:
            frame = frame.f_back
        return frame is not None


@contextmanager
def signals_raise(patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Raise `TerminationRequest` in the block on the first of `SIGNALS`. Later signals are ignored.

    A handler does not run if the signal arrived just before the main thread started to wait for a lock. An
    asynchronous exception may also be lost, or it may leave a lock held for which other threads wait.
    Therefore a thread sends the signal again until the exception is raised, and also after the exception was
    lost. If the block has not ended `patience_s` later, the thread terminates the process.
    """
    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    ending = _Ending()
    # A process that ignores a signal, for example under `nohup`, must continue to ignore it.
    before = {each: signal.getsignal(each) for each in SIGNALS}
    hook_before, sys.unraisablehook = sys.unraisablehook, ending.was_lost
    # The interpreter writes to this descriptor when a signal arrives, not when the handler runs.
    wakeup_before = signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
    for each, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(each, ending.raise_request)
    Thread(target=_terminate_unless_ended, args=(wakeup_read, ending, patience_s), daemon=True).start()
    try:
        yield
    finally:
        ending.end()
        for each, handler in before.items():
            signal.signal(each, handler)
        signal.set_wakeup_fd(wakeup_before)
        sys.unraisablehook = hook_before
        os.close(wakeup_write)


def _terminate_unless_ended(wakeup_read: int, ending: _Ending, patience_s: float) -> None:
    """Terminate the process after a signal, unless the block ends and closes the pipe within `patience_s`."""
    numbers = os.read(wakeup_read, 1)
    while numbers and numbers[0] not in SIGNALS:
        numbers = os.read(wakeup_read, 1)
    deadline = time.monotonic() + patience_s
    while numbers and (left_s := deadline - time.monotonic()) > 0:
        if not select.select([wakeup_read], [], [], min(left_s, _AGAIN_S))[0]:
            ending.repeat(numbers[0])
        elif not os.read(wakeup_read, 4096):
            numbers = b""  # the block ended in time
    os.close(wakeup_read)
    if not numbers:
        return
    for pid in child_processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for folder in list(_folders):
        shutil.rmtree(folder, ignore_errors=True)
    ended = TerminationRequest(numbers[0])
    os.write(2, f"{termination_message(ended)}\n".encode())
    os._exit(ended.code)


@contextmanager
def work_folder(parent: Path | None) -> Iterator[Path]:
    """Create a temporary directory for tables, and remove it at exit.

    Raises:
        WorkFolderError: the directory cannot be created.
    """
    place = Path(parent or tempfile.gettempdir()).absolute()
    if unfit := _UNFIT.search(str(place)):
        raise WorkFolderError(
            f"Spark interprets {unfit[0]} in the path {shown(place)} as a pattern; use another directory "
            "(--work)"
        )
    try:
        made = Path(tempfile.mkdtemp(prefix="dledger-check-", dir=place))
    except OSError as error:
        raise WorkFolderError(
            f"cannot write tables below {place} ({error.strerror}); choose another directory with --work"
        ) from error
    _folders.add(made)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        _folders.discard(made)
