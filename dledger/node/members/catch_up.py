"""What followers lack that is not in memory any more: read at a pace, and one range ahead.

While a range is being pushed, a reader thread reads the next one: else each would wait for its turn in a busy
loop twice, once to be asked for and once to be sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple

from dledger.node.loop.pacing import Pace
from dledger.node.members.catch_up_throttle import Appends, CatchUpThrottle
from dledger.store.api import Frames

#: Whole batches (first_index, last_index, max_bytes), or None if they cannot be read; never fails.
Read = Callable[[int, int, int], asyncio.Future[Frames | None]]
Deliver = Callable[[Frames | None], None]


class Wanted(NamedTuple):
    """Whole batches from first_index on, for a push stream: see Shell.load_push."""

    peer: str
    stream_id: int
    first_index: int
    last_index: int
    max_bytes: int


class _Ahead(NamedTuple):
    """The range that is going to be asked for next, or was by then. A stream lives within one leadership, and
    a leader's log only grows: what was read for a stream stays right as long as that is asked for."""

    stream_id: int
    first_index: int
    frames: asyncio.Future[Frames | None]


class CatchUp:
    """The reads for all followers. Loop thread only."""

    def __init__(
        self, peers: Iterable[str], bytes_per_second: int, read: Read, appends: Callable[[], Appends]
    ) -> None:
        """`bytes_per_second`: to each follower, at most; 0: no limit. `appends`: of clients, so far."""
        self._loop = asyncio.get_running_loop()
        self._paces = {peer: Pace(bytes_per_second) for peer in peers}
        self._ahead: dict[str, _Ahead] = {}
        self._read = read
        self._appends = appends
        self._throttle = CatchUpThrottle()

    def load(self, wanted: Wanted, deliver: Deliver) -> None:
        """Call `deliver` with the range, later. Each follower asks for one at a time."""
        now = self._loop.time()
        wait_s = max(self._paces[wanted.peer].wait_s(now), self._throttle.wait_s(now, self._appends()))
        if wait_s > 0:
            self._loop.call_later(wait_s, self.load, wanted, deliver)
        else:
            self._load(wanted, deliver)

    def forget(self, peer: str) -> None:
        """The stream is over: what was read ahead for it is not needed."""
        self._ahead.pop(peer, None)

    def _load(self, wanted: Wanted, deliver: Deliver) -> None:
        ahead = self._ahead.pop(wanted.peer, None)
        if ahead is None or (ahead.stream_id, ahead.first_index) != (wanted.stream_id, wanted.first_index):
            self._load_now(wanted, deliver)
            return

        def on_read(done: asyncio.Future[Frames | None]) -> None:
            frames = _frames_of(done)
            if frames is None:  # perhaps it was not on the disk yet
                self._load_now(wanted, deliver)
            else:
                self._deliver(wanted, frames, deliver)

        ahead.frames.add_done_callback(on_read)

    def _load_now(self, wanted: Wanted, deliver: Deliver) -> None:
        reading = self._read(wanted.first_index, wanted.last_index, wanted.max_bytes)
        reading.add_done_callback(lambda done: self._deliver(wanted, _frames_of(done), deliver))

    def _deliver(self, wanted: Wanted, frames: Frames | None, deliver: Deliver) -> None:
        if frames is not None:
            now = self._loop.time()
            self._paces[wanted.peer].took(len(frames.data), now)
            self._throttle.took(len(frames.data), now)
            following = frames.last_index + 1
            if following <= wanted.last_index:
                reading = self._read(following, wanted.last_index, wanted.max_bytes)
                self._ahead[wanted.peer] = _Ahead(wanted.stream_id, following, reading)
        deliver(frames)


def _frames_of(done: asyncio.Future[Frames | None]) -> Frames | None:
    return None if done.cancelled() else done.result()
