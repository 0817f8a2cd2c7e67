"""Ends the command in good order: what it has started ends, what it has made is removed."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
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
        self.code = 128 + number


class WorkFolderError(Exception):
    """There is no place for tables; the text says why."""


def said_of(ended: Terminated) -> str:
    """What the command says then."""
    return f"ended by {ended}; this says nothing about the run"


@contextmanager
def signals_raise(patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Within, each of `SIGNALS` raises `Terminated`, once: what is done then is not disturbed again.

    An exception out of nowhere may be lost (in a `__del__`), or leave a lock behind that others wait for. So
    a thread ends the process for certain where that has not ended the block `patience_s` later.
    """
    told, tell = os.pipe()

    def end(number: int, _frame: FrameType | None) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        os.write(tell, bytes([number]))
        raise Terminated(number)

    # Whoever ignores a signal, as `nohup` does, wants it to be ignored.
    before = {each: signal.getsignal(each) for each in SIGNALS}
    for each, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(each, end)
    Thread(target=_end_for_certain, args=(told, patience_s), daemon=True).start()
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        os.close(tell)


def _end_for_certain(told: int, patience_s: float) -> None:
    """Once `told` says the number of a signal, unless its other end is closed soon after."""
    number = os.read(told, 1)
    in_good_order = not number or bool(select.select([told], [], [], patience_s)[0])
    os.close(told)
    if in_good_order:
        return
    for pid in child_processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for folder in list(_folders):
        shutil.rmtree(folder, ignore_errors=True)
    ended = Terminated(number[0])
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
