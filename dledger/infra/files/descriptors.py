"""Limit on the file descriptors of this process, and a reserve of descriptors for files.

Connections and files share the descriptors of the process. Failing to open a file because no descriptor is
left does not mean that the file is damaged, and must not stop the process. The reserve then provides a
descriptor. If the reserve is empty, the caller waits.
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

#: Minimum limit to start a process.
MIN_LIMIT = 1024
RESERVE = 64
#: Modes of created files and directories: accessible to their owner only.
PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700
_RETRY_S = 0.05
_NOTIFY_S = 1.0
_NONE_LEFT = (errno.EMFILE, errno.ENFILE)


def raise_limit() -> int:
    """Set the soft limit of descriptors to the hard limit. Raises ConfigError if the hard limit is too
    low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # the limit remains unchanged
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft != resource.RLIM_INFINITY and soft < MIN_LIMIT:
        text = (
            f"this process may open {soft} files and connections, and needs {MIN_LIMIT}: raise the limit, "
            f"with `ulimit -n {MIN_LIMIT}` or more before the start, or LimitNOFILE= in its systemd unit"
        )
        raise ConfigError(text, code=Code.CONFIG_INVALID)
    return soft


class DescriptorReserve:
    """Descriptors that are reserved for files. Thread-safe. Before `hold` is called, `open_file` fails like
    `os.open`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._count = 0
        self._reserve: list[int] = []
        self._on_shortage: Callable[[Path], None] = lambda _: None
        self._next_notice_s = 0.0

    def hold(self, count: int = RESERVE, on_shortage: Callable[[Path], None] = lambda _: None) -> None:
        """Reserve `count` descriptors for files. `on_shortage` is called, at most once a second, with the
        path of a file for which no descriptor was free."""
        self._count, self._on_shortage = count, on_shortage
        self.refill()

    def release_all(self) -> None:
        self._count = 0
        while self._release_one():
            pass

    def open_file(self, path: Path, flags: int, mode: int = PRIVATE_FILE) -> int:
        """Like `os.open`, but waits for a descriptor if the process or the machine has none left."""
        while True:
            try:
                return os.open(path, flags | os.O_CLOEXEC, mode)
            except OSError as error:
                if error.errno not in _NONE_LEFT or not self._count:
                    raise
            self._notify_shortage(path)
            if not self._release_one():
                sleep(_RETRY_S)

    def refill(self) -> None:
        """Refill the reserve. Call it whenever a descriptor may have become free."""
        if len(self._reserve) >= self._count:
            return
        with self._lock:
            while len(self._reserve) < self._count:
                try:
                    self._reserve.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
                except OSError:
                    return

    def _release_one(self) -> bool:
        with self._lock:
            if self._reserve:
                os.close(self._reserve.pop())
                return True
        return False

    def _notify_shortage(self, path: Path) -> None:
        now_s = monotonic()
        if now_s >= self._next_notice_s:
            self._next_notice_s = now_s + _NOTIFY_S
            self._on_shortage(path)


#: The reserve of this process.
descriptors = DescriptorReserve()
