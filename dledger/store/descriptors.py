"""File descriptors: how many this process may have, what they are for, and a reserve for files.

Connections and files take descriptors out of one budget. When it is used up, a file that cannot be opened is
no damage and no reason to stop: the reserve gives one up, and after that the caller waits.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from time import monotonic, sleep

from dledger.errors import Code, ConfigError

#: A process is not started with fewer.
LEAST = 1024
RESERVE = 64
#: Modes of what is made here: for its owner only.
PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700
_RETRY_S = 0.05
_TELL_S = 1.0
_NONE_LEFT = (errno.EMFILE, errno.ENFILE)


def raise_limit() -> int:
    """Let this process have as many descriptors as it may. ConfigError if these are too few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # no less than before
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft != resource.RLIM_INFINITY and soft < LEAST:
        text = (
            f"this process may open {soft} files and connections, and needs {LEAST}: raise the limit, "
            f"with `ulimit -n {LEAST}` or more before it is started, or LimitNOFILE= in its systemd unit"
        )
        raise ConfigError(text, code=Code.CONFIG_INVALID)
    return soft


class DescriptorReserve:
    """From any thread. Without `hold`, `open_file` fails as `os.open` does."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._count = 0
        self._kept: list[int] = []
        self._on_shortage: Callable[[Path], None] = lambda _: None
        self._tells_again_s = 0.0

    def hold(self, count: int = RESERVE, on_shortage: Callable[[Path], None] = lambda _: None) -> None:
        """Keep so many for files. `on_shortage` is told, once a second, which one there was none for."""
        self._count, self._on_shortage = count, on_shortage
        self.refill()

    def let_go(self) -> None:
        self._count = 0
        while self._give_up_one():
            pass

    def open_file(self, path: Path, flags: int, mode: int = PRIVATE_FILE) -> int:
        """As `os.open`; waits for a descriptor if the process or the machine has none left."""
        while True:
            try:
                return os.open(path, flags | os.O_CLOEXEC, mode)
            except OSError as error:
                if error.errno not in _NONE_LEFT or not self._count:
                    raise
            self._tell(path)
            if not self._give_up_one():
                sleep(_RETRY_S)

    def refill(self) -> None:
        """Whenever one may have become free."""
        if len(self._kept) >= self._count:
            return
        with self._lock:
            while len(self._kept) < self._count:
                try:
                    self._kept.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
                except OSError:
                    return

    def _give_up_one(self) -> bool:
        with self._lock:
            if self._kept:
                os.close(self._kept.pop())
                return True
        return False

    def _tell(self, path: Path) -> None:
        now_s = monotonic()
        if now_s >= self._tells_again_s:
            self._tells_again_s = now_s + _TELL_S
            self._on_shortage(path)


#: Of this process.
descriptors = DescriptorReserve()
