"""A command that installs the checker's dependencies while a run goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from dledger.cli.output import human_bytes
from dledger.errors import ConfigError

_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")  # of `pip install --progress-bar raw`
_NOTICE_S = 5.0
#: Lines of pip that users need not see.
_NOISE = (
    "Requirement already satisfied",
    "Preparing metadata",
    "Using cached",
    "Looking in",
    "DEPRECATION",
    "WARNING: Running pip",
    "[notice]",
)
_TAIL_LINES = 10


class CheckerSetup:
    """Runs a shell command in the background, if there is one, and reports its output line by line.

    The command ends with the block at the latest.
    """

    def __init__(self, command: str | None, report: Callable[[str], object]) -> None:
        self._report = report
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._next_notice = 0.0
        self._process: subprocess.Popen[str] | None = None
        self._reader = threading.Thread(target=self._read, name="checker-setup", daemon=True)
        if command is not None:
            # Its own session, so that all its processes can be stopped. A low priority, because the run
            # needs the processor for its timing.
            self._process = subprocess.Popen(
                ["nice", "-n", "10", "sh", "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the command and its processes, if it still runs."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait(self) -> None:
        """Wait until the command has ended. Raises ConfigError, with the end of its output, if it failed."""
        if self._process is None:
            return
        self._reader.join()
        if code := self._process.wait():
            tail = "\n".join(self._tail)
            raise ConfigError(f"the installation of the checker failed (exit code {code}):\n{tail}")

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            text = line.strip()
            if progress := _PROGRESS.fullmatch(text):
                self._report_download(int(progress[1]), int(progress[2]))
            elif text and not text.startswith(_NOISE):
                self._tail.append(text)
                self._report(text)

    def _report_download(self, done: int, total: int) -> None:
        """Report the progress of a large download every few seconds."""
        now = time.monotonic()
        if total and now >= self._next_notice:
            self._next_notice = now + _NOTICE_S
            self._report(f"{100 * done // total} % of {human_bytes(total)}")
