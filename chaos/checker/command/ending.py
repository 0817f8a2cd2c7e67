"""Ends the command in good order: what it has started ends, what it has made is removed."""

from __future__ import annotations

import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from chaos.checker.paths import shown

SIGNALS = (signal.SIGTERM, signal.SIGHUP)


#: Spark splits the path at commas, and Hadoop takes the others for patterns.
_UNFIT = re.compile(r"[,{}\[\]*?\\\n]")


class Terminated(BaseException):
    """A signal told the command to end. `code`: what a shell says of a process that a signal ended."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


class WorkFolderError(Exception):
    """There is no place for tables; the text says why."""


@contextmanager
def signals_raise() -> Iterator[None]:
    """Within, each of `SIGNALS` raises `Terminated`, once: what is done then is not disturbed again."""

    def end(number: int, _frame: FrameType | None) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise Terminated(number)

    # Whoever ignores a signal, as `nohup` does, wants it to be ignored.
    before = {each: signal.getsignal(each) for each in SIGNALS}
    for each, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(each, end)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


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
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
