"""Space ahead of need: a thread of its own prepares data files, so that no append waits for that.

It is also the one that notices a full disk, and that there is space again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from dledger.errors import DLedgerError, StorageError
from dledger.logs import get_logger
from dledger.replica.retainer import Retainer

_log = get_logger("disk")

LOOK_EVERY_S = 0.2
_LEAST_PASSED_S = 0.05  # looks may follow each other so fast that a rate would mean nothing
_MEMORY_S = 30.0
IMAGE_BYTES = 256 << 10


class PreparableStore(Protocol):
    """As much of a LogStore as preparing needs."""

    def prepare(self, ahead_bytes: int, *, use_reserve: bool = False) -> bool: ...
    def free_bytes(self) -> int: ...

    @property
    def likely_bytes(self) -> int: ...


class Allocator:
    """Keeps `ahead_bytes` reserved from `start` until `stop`: more while the log grows faster. The simulator
    has another thread, and with it other `start`, `look` and `stop`."""

    def __init__(
        self,
        store: PreparableStore,
        ahead_bytes: int,
        *,
        on_fatal: Callable[[DLedgerError], None],
        most_bytes: int = 0,
        position: Callable[[], int] = lambda: 0,
        on_prepared: Callable[[], None] = lambda: None,
        image_bytes: int = IMAGE_BYTES,
    ) -> None:
        """`position`: where the log ends; at most `most_bytes` are reserved because it moves fast. `on_fatal`
        and `on_prepared` are called on the thread of the allocator: they must only hand over. As much of the
        reserve as `image_bytes` is prepared for an image at a time."""
        self._store = store
        self._least_bytes = self.ahead_bytes = ahead_bytes
        self._most_bytes = most_bytes
        self._position = position
        self._on_prepared = on_prepared
        self._image_bytes = image_bytes
        self._last_position: int | None = None
        self._last_look_s = 0.0
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
                self.prepare(monotonic())
                self._wanted.wait(LOOK_EVERY_S)
                self._wanted.clear()
        except StorageError as error:
            self._on_fatal(error)
        except Exception as error:  # half a file may be there, and nobody knows of it
            self._on_fatal(StorageError(f"the allocator failed: {type(error).__name__}: {error}"))

    def reckon(self, now_s: float) -> None:
        """Keep as much as the log took in the last second or so; the memory of a burst fades."""
        position = self._position()
        if self._last_position is not None and now_s > self._last_look_s:
            passed_s = now_s - self._last_look_s
            rate = (position - self._last_position) / max(passed_s, _LEAST_PASSED_S)
            fading = self.ahead_bytes * max(0.0, 1 - passed_s / _MEMORY_S)
            self.ahead_bytes = int(max(self._least_bytes, min(self._most_bytes, max(rate, fading))))
        self._last_position, self._last_look_s = position, now_s

    def serve(self, retainer: Retainer) -> bool:
        """On the loop, after each tick. An image that makes room may use the reserve, and callers may not
        have what is left of the disk as long as it does: True."""
        if self._store.likely_bytes < self.ahead_bytes:
            self.look()
        in_use = retainer.is_writing and self.is_full
        self.use_reserve = in_use and retainer.waits_for_room
        return in_use

    def prepare(self, now_s: float) -> None:
        """One look, on the allocator's thread. StorageError, after which nobody may look again."""
        self.reckon(now_s)
        full = not self._store.prepare(self.ahead_bytes)
        self._on_prepared()
        if full and self.use_reserve:
            self._store.prepare(self._image_bytes, use_reserve=True)
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
