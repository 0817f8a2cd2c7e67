"""Shows the progress of a command on one line of stderr, which it redraws."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

_REFRESH_SECONDS = 0.1


class ProgressLine:
    """A progress bar on stderr, or a counter for streams (`size` 0). Prints nothing if stderr is not a
    terminal."""

    def __init__(self, size: int, bytes_read: Callable[[], int], quiet: bool) -> None:
        self._bytes_read = bytes_read
        self._next = 0.0
        self._progress = Progress(
            TextColumn("{task.description}"),
            *((BarColumn(), TimeRemainingColumn()) if size else ()),
            console=Console(stderr=True),
            transient=True,
            disable=quiet or not sys.stderr.isatty(),
        )
        self._task = self._progress.add_task("connecting", total=size or None)

    def __enter__(self) -> ProgressLine:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, describe: Callable[[], str]) -> None:
        """Redraw the line, at most once per refresh interval."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _REFRESH_SECONDS
        self._progress.update(self._task, description=describe(), completed=self._bytes_read())
