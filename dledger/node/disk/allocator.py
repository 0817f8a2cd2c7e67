"""Preallocation: a separate thread prepares data files so that no append waits for it.

The allocator also detects when the disk is full, and when space is available again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from dledger.errors import DLedgerError, StorageError
from dledger.infra.logs import get_logger

_log = get_logger("disk")

CHECK_INTERVAL_S = 0.2
_LEAST_PASSED_S = 0.05  # shorter intervals between checks would make the rate meaningless
_MEMORY_S = 30.0


class PreparableStore(Protocol):
    """The part of a LogStore used for preallocation."""

    def prepare(self, ahead_bytes: int) -> bool: ...
    def free_bytes(self) -> int: ...

    @property
    def likely_bytes(self) -> int: ...


class Allocator:
    """Keeps `ahead_bytes` reserved between `start` and `stop`, and more while the log grows fast.

    The simulator replaces `start`, `request_check` and `stop` to use another thread.
    """

    def __init__(
        self,
        store: PreparableStore,
        ahead_bytes: int,
        *,
        on_fatal: Callable[[DLedgerError], None],
        most_bytes: int = 0,
        position: Callable[[], int] = lambda: 0,
        on_prepared: Callable[[], None] = lambda: None,
    ) -> None:
        """`position` returns the end of the log. While the log grows fast, up to `most_bytes` are reserved.

        `on_fatal` and `on_prepared` are called on the allocator's thread, and must only pass the call to
        another thread.
        """
        self._store = store
        self._least_bytes = self.ahead_bytes = ahead_bytes
        self._most_bytes = most_bytes
        self._position = position
        self._on_prepared = on_prepared
        self._last_position: int | None = None
        self._last_check_s = 0.0
        self._on_fatal = on_fatal
        self._wanted = threading.Event()
        self._stopping = False
        self.is_full = False  # the last check found no room for another file
        # A daemon thread: an exiting process must not wait for a thread stuck in the kernel.
        self._thread = threading.Thread(target=self._run, name="allocator", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def request_check(self) -> None:
        """Check now, because space is about to run out. May be called on any thread."""
        self._wanted.set()

    def stop(self, timeout_s: float) -> bool:
        """Stop the thread. Returns False if it is stuck."""
        self._stopping = True
        self._wanted.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self.prepare(monotonic())
                self._wanted.wait(CHECK_INTERVAL_S)
                self._wanted.clear()
        except StorageError as error:
            self._on_fatal(error)
        except Exception as error:  # may leave a partial file that no index refers to
            self._on_fatal(StorageError(f"the allocator failed: {type(error).__name__}: {error}"))

    def reckon(self, now_s: float) -> None:
        """Reserve as many bytes as the log grew in about the last second. The effect of a burst decreases
        over time."""
        position = self._position()
        if self._last_position is not None and now_s > self._last_check_s:
            passed_s = now_s - self._last_check_s
            rate = (position - self._last_position) / max(passed_s, _LEAST_PASSED_S)
            fading = self.ahead_bytes * max(0.0, 1 - passed_s / _MEMORY_S)
            self.ahead_bytes = int(max(self._least_bytes, min(self._most_bytes, max(rate, fading))))
        self._last_position, self._last_check_s = position, now_s

    def serve(self) -> None:
        """Check now if space is about to run out. Call on the loop after each tick."""
        if self._store.likely_bytes < self.ahead_bytes:
            self.request_check()

    def prepare(self, now_s: float) -> None:
        """Check once, on the allocator's thread. Raises StorageError, after which no check may follow."""
        self.reckon(now_s)
        full = not self._store.prepare(self.ahead_bytes)
        self._on_prepared()
        if full == self.is_full:
            return
        self.is_full = full
        if full:
            _log.warning(
                "the disk is full up to its reserve: appends that need more are refused",
                free_bytes=self._store.free_bytes(),
            )
        else:
            _log.info("space is available again", free_bytes=self._store.free_bytes())
