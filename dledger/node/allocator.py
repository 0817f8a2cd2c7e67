"""Space ahead of need: a thread of its own prepares data files, so that no append waits for that.

It is also the one that notices a full disk, and that there is space again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from dledger.errors import DLedgerError, StorageError
from dledger.node.logs import get_logger

_log = get_logger("disk")

_LOOK_EVERY_S = 0.2
#: As much of the reserve is prepared for an image at a time.
_IMAGE_BYTES = 256 << 10


class PreparableStore(Protocol):
    """As much of a LogStore as preparing needs."""

    def prepare(self, ahead_bytes: int, *, use_reserve: bool = False) -> bool: ...
    def free_bytes(self) -> int: ...


class Allocator:
    """Keeps `ahead_bytes` reserved from `start` until `stop`."""

    def __init__(
        self, store: PreparableStore, ahead_bytes: int, *, on_fatal: Callable[[DLedgerError], None]
    ) -> None:
        """`on_fatal` is called on the thread of the allocator: it must only hand over."""
        self._store = store
        self.ahead_bytes = ahead_bytes
        self.use_reserve = False  # what is written now makes room
        self._on_fatal = on_fatal
        self._wanted = threading.Event()
        self._stopping = False
        self.is_full = False  # the last look found no room for another file
        # A daemon: a process that ends never waits for a thread that is stuck in the kernel.
        self._thread = threading.Thread(target=self._run, name="allocator", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def look(self) -> None:
        """Look now: space is about to run out. Any thread."""
        self._wanted.set()

    def stop(self, timeout_s: float) -> bool:
        """False: the thread is stuck."""
        self._stopping = True
        self._wanted.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._prepare()
                self._wanted.wait(_LOOK_EVERY_S)
                self._wanted.clear()
        except StorageError as error:
            self._on_fatal(error)
        except Exception as error:  # half a file may be there, and nobody knows of it
            self._on_fatal(StorageError(f"the allocator failed: {type(error).__name__}: {error}"))

    def _prepare(self) -> None:
        full = not self._store.prepare(self.ahead_bytes)
        if full and self.use_reserve:
            self._store.prepare(_IMAGE_BYTES, use_reserve=True)
        if full == self.is_full:
            return
        self.is_full = full
        if full:
            _log.warning(
                "the disk is full but for its reserve: appends that need more are refused",
                free_bytes=self._store.free_bytes(),
            )
        else:
            _log.info("there is space again", free_bytes=self._store.free_bytes())
