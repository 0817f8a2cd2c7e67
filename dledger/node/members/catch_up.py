"""Reads of entries that are no longer in memory, for followers: at a limited rate, and one range ahead.

While a range is being pushed, a reader thread reads the next one. Otherwise each range would wait for a busy
event loop twice: before it is requested and before it is sent.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from dledger.infra.loops.pacing import Pacer
from dledger.node.members.catch_up_throttle import AppendTotals, CatchUpThrottle
from dledger.store.api import Frames

#: Reads whole batches (first_index, last_index, max_bytes); None if unreadable. Never fails.
Read = Callable[[int, int, int], asyncio.Future[Frames | None]]
Deliver = Callable[[Frames | None], None]


class PushReadRequest(NamedTuple):
    """A request for whole batches starting at first_index, for a push stream. See Shell.load_push."""

    peer: str
    stream_id: int
    first_index: int
    last_index: int
    max_bytes: int


class _ReadAhead(NamedTuple):
    """The range read ahead for the next request.

    A stream belongs to one term of a leader, and a leader's log only grows, so the range stays valid for its
    stream.
    """

    stream_id: int
    first_index: int
    frames: asyncio.Future[Frames | None]


class CatchUp:
    """Performs the reads for all followers. Used on the loop's thread only."""

    def __init__(self, bytes_per_second: int, read: Read, appends: Callable[[], AppendTotals]) -> None:
        """`bytes_per_second`: limit per follower; 0: no limit. `appends`: totals of client appends so far."""
        self._loop = asyncio.get_running_loop()
        self._paces: defaultdict[str, Pacer] = defaultdict(lambda: Pacer(bytes_per_second))
        self._ahead: dict[str, _ReadAhead] = {}
        self._read = read
        self._appends = appends
        self._throttle = CatchUpThrottle()

    def load(self, request: PushReadRequest, deliver: Deliver) -> None:
        """Read a range and later pass it to `deliver`. Each follower has at most one request at a time."""
        wait_s = self._wait_s(request.peer)
        if wait_s > 0:
            self._loop.call_later(wait_s, self.load, request, deliver)
        else:
            self._load(request, deliver)

    async def pause(self, peer: str) -> None:
        """Wait until another read for this follower may begin."""
        while (wait_s := self._wait_s(peer)) > 0:
            await asyncio.sleep(wait_s)

    def record(self, peer: str, size: int) -> None:
        """Count `size` bytes that were read for this follower."""
        now = self._loop.time()
        self._paces[peer].record(size, now)
        self._throttle.record_read(size, now)

    def forget(self, peer: str) -> None:
        """Drop the range read ahead for a stream that has ended."""
        self._ahead.pop(peer, None)

    def _wait_s(self, peer: str) -> float:
        now = self._loop.time()
        return max(self._paces[peer].wait_s(now), self._throttle.wait_s(now, self._appends()))

    def _load(self, request: PushReadRequest, deliver: Deliver) -> None:
        ahead = self._ahead.pop(request.peer, None)
        if ahead is None or (ahead.stream_id, ahead.first_index) != (request.stream_id, request.first_index):
            self._load_now(request, deliver)
            return

        def on_read(done: asyncio.Future[Frames | None]) -> None:
            frames = _frames_of(done)
            if frames is None:  # the range may not have been on disk yet
                self._load_now(request, deliver)
            else:
                self._deliver(request, frames, deliver)

        ahead.frames.add_done_callback(on_read)

    def _load_now(self, request: PushReadRequest, deliver: Deliver) -> None:
        reading = self._read(request.first_index, request.last_index, request.max_bytes)
        reading.add_done_callback(lambda done: self._deliver(request, _frames_of(done), deliver))

    def _deliver(self, request: PushReadRequest, frames: Frames | None, deliver: Deliver) -> None:
        if frames is not None:
            self.record(request.peer, len(frames.data))
            following = frames.last_index + 1
            if following <= request.last_index:
                reading = self._read(following, request.last_index, request.max_bytes)
                self._ahead[request.peer] = _ReadAhead(request.stream_id, following, reading)
        deliver(frames)


def _frames_of(done: asyncio.Future[Frames | None]) -> Frames | None:
    return None if done.cancelled() else done.result()
