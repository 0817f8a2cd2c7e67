"""The allocator of a simulated node: that of a real one, on a thread in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from dledger.errors import DLedgerError
from dledger.node.disk.allocator import LOOK_EVERY_S, Allocator
from dledger.testing.world import Life

#: How long the thread takes to begin a look that it was asked for, in ms.
_WAKES_MS = (0, 0, 1, 4)
FILES_AHEAD = 2
_MOST_FILES_AHEAD = 4


class SimAllocator(Allocator):
    """Looks outside of all turns, where the machine may go down; not while the process is paused."""

    def __init__(self, process: Life, on_prepared: Callable[[], None], rng: Random) -> None:
        store, size = process.store, process.store.data_file_size
        super().__init__(
            store,
            FILES_AHEAD * size,
            on_fatal=self._fail,
            most_bytes=_MOST_FILES_AHEAD * size,
            position=lambda: store.tail.pos,
            on_prepared=on_prepared,
            image_bytes=size,
        )
        self._process = process
        self._rng = rng
        self._looks = 0  # that were begun: a timer of an older one is void
        self._is_asked = False

    def _fail(self, error: DLedgerError) -> None:
        raise error

    def start(self) -> None:
        self._next_look(0)

    def look(self) -> None:
        if not self._is_asked:
            self._is_asked = True
            self._next_look(self._rng.choice(_WAKES_MS))

    def stop(self, timeout_s: float) -> bool:
        self._stopping = True
        return True

    def _next_look(self, wait_ms: int) -> None:
        number = self._looks
        self._process.sim.clock.after(wait_ms, lambda: self._begin(number))

    def _begin(self, number: int) -> None:
        process = self._process
        if number != self._looks or self._stopping or not process.alive:
            return
        if process.is_paused:
            self._next_look(process.sim.profile.tick_ms)
            return
        self._looks += 1
        self._is_asked = False
        process.on_disk(lambda: self.prepare(process.now_ms() / 1000))
        if self.is_full:
            process.sim.counts["found the disk full"] += 1
        self._next_look(int(LOOK_EVERY_S * 1000))
