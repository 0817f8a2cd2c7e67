"""Long polling: who waits for which queue to grow. On the event loop only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from broker_adapter.errors import ReadFailed, Status
from dledger.platform import settle, wake_queue

Queue = tuple[str, int]


class LongPolls:
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
        self,
        topic: str,
        queue_id: int,
        offset: int,
        has_grown: Callable[[], bool] = lambda: False,
        deadline: float | None = None,
    ) -> None:
        """Until the queue has a message at `offset`, or `wake_all`, or `deadline` of the loop's clock.
        ReadFailed if too many wait already.

        `has_grown`: whether it has one by now; asked once, when an arrival from then on is noticed.
        """
        if self._closed:
            return
        if self._count >= self._max_held:
            raise ReadFailed(
                Status.TOO_MANY_HELD_PULLS, f"{self._max_held} pulls wait for messages; try again later"
            )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        timer = None
        if deadline is not None:  # those of many may come together
            timer = loop.call_at(deadline, wake_queue().settle, topic, future)
        waiting = self._held.setdefault((topic, queue_id), {})
        waiting[future] = offset
        self._count += 1
        try:
            if not has_grown():
                await future
        finally:
            if timer is not None:
                timer.cancel()
            self._count -= 1
            waiting.pop(future, None)
            if not waiting and self._held.get((topic, queue_id)) is waiting:
                del self._held[topic, queue_id]

    def arrived(self, arrivals: Iterable[tuple[str, int, int]]) -> None:
        """(topic, queue id, max offset) of queues that have grown."""
        if not self._held:
            return
        for topic, queue_id, max_offset in arrivals:
            waiting = self._held.get((topic, queue_id), {})
            woken = [future for future, offset in waiting.items() if offset < max_offset]
            for future in woken:
                del waiting[future]  # has its place in the queue of wake-ups, and needs no second one
            wake_queue().each(topic, woken, settle)

    def wake_all(self) -> None:
        """They look again: the role or the queues have changed."""
        if self._held:
            wake_queue().each(None, [one for waiting in self._held.values() for one in waiting], settle)

    def close(self) -> None:
        """Nobody waits any more."""
        self._closed = True
        self.wake_all()
