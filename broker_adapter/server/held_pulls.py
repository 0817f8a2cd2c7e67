"""Long polling: who waits for which queue to grow. On the event loop only; time-outs are the caller's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from broker_adapter.errors import ReadFailed, Status

Queue = tuple[str, int]


class HeldPulls:
    """RocketMQ's PullRequestHoldService, without its scans: each arrival wakes whom it concerns."""

    def __init__(self, max_held: int) -> None:
        self._max_held = max_held
        self._held: dict[Queue, dict[asyncio.Future[None], int]] = {}
        self._count = 0
        self._closed = False

    def __len__(self) -> int:
        return self._count

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def wait(
        self, topic: str, queue_id: int, offset: int, has_grown: Callable[[], bool] = lambda: False
    ) -> None:
        """Until the queue has a message at `offset`, or `wake_all`. ReadFailed if too many wait already.

        `has_grown`: whether it has one by now; asked once, when an arrival from then on is noticed.
        """
        if self._closed:
            return
        if self._count >= self._max_held:
            raise ReadFailed(
                Status.TOO_MANY_HELD_PULLS, f"{self._max_held} pulls wait for messages; try again later"
            )
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._held.setdefault((topic, queue_id), {})
        waiting[future] = offset
        self._count += 1
        try:
            if not has_grown():
                await future
        finally:
            self._count -= 1
            del waiting[future]
            if not waiting and self._held.get((topic, queue_id)) is waiting:
                del self._held[topic, queue_id]

    def arrived(self, arrivals: Iterable[tuple[str, int, int]]) -> None:
        """(topic, queue id, max offset) of queues that have grown."""
        if not self._held:
            return
        for topic, queue_id, max_offset in arrivals:
            for future, offset in self._held.get((topic, queue_id), {}).items():
                if offset < max_offset and not future.done():
                    future.set_result(None)

    def wake_all(self) -> None:
        """They look again: the role or the queues have changed."""
        for waiting in self._held.values():
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    def close(self) -> None:
        """Nobody waits any more."""
        self._closed = True
        self.wake_all()
