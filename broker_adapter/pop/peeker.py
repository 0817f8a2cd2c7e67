"""What a receive would be given now: looked at, counted and waited for, and given to nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from broker_adapter.pop.api import Filter, Peeked
from broker_adapter.pop.reading import Found, Plan, look
from broker_adapter.pop.receive_queues import ReceiveQueues
from broker_adapter.pop.receiver import Bounds, Receive, Receiver
from broker_adapter.pop.state import DeliveryState
from broker_adapter.store.queue_reader import QueueReader
from dledger.platform import wake_queue

#: Queues that one step of the loop looks at.
_QUEUES_AT_ONCE = 256


class Peeker:
    def __init__(
        self,
        state: DeliveryState,
        receiver: Receiver,
        reader: QueueReader,
        files: Bounds,
        receive_queues: ReceiveQueues,
        *,
        now_ms: Callable[[], int],
        run: Callable[[Callable[[], Any], str], Awaitable[Any]],
    ) -> None:
        """`run` does what blocks, for an address; `now_ms` is cluster time."""
        self._state = state
        self._receiver = receiver
        self._reader = reader
        self._files = files
        self._receive_queues = receive_queues
        self._now_ms = now_ms
        self._run = run

    async def peek(self, call: Receive, queue_ids: Sequence[int]) -> list[Peeked]:
        """Up to `call.max_messages` of these queues, of `call.max_bytes` or a single one."""
        plans = await self._plans(call, queue_ids, call.max_messages)
        if not plans:
            return []
        room = self._receiver.room
        await room.take(call.max_bytes, call.address)
        try:
            work = partial(look, self._reader, plans, Filter(), call.max_messages, call.max_bytes)
            found: list[Found] = await self._run(work, call.address)
        finally:
            room.give(call.max_bytes, call.address)
        return [one for of_queue in found for one in _peeked(of_queue)]

    async def wait(self, call: Receive, deadline: float, check: Callable[[], object]) -> bool:
        """Whether any queue has something, now or by `deadline`, of the loop's clock. `check` raises when
        there is nothing to wait for any more."""
        loop = asyncio.get_running_loop()
        while True:
            # Known as waiting before it looks: nothing can come unnoticed in between.
            woken = self._receive_queues.enter(call.who)
            is_over = True
            try:
                check()
                if await self._plans(call, range(call.queues), 1):
                    return True
                if loop.time() >= deadline:
                    return False
                await self._receiver.wait(call, woken, deadline)
                is_over = False
            finally:
                self._receive_queues.leave(call.who, woken)
                if is_over:  # it takes nothing: what woke it is for the next one
                    self._receive_queues.wake_one(call.who)

    async def _plans(self, call: Receive, queue_ids: Sequence[int], left: int) -> list[Plan]:
        plans: list[Plan] = []
        for at in range(0, len(queue_ids), _QUEUES_AT_ONCE):
            await wake_queue().turn(call.who.topic)
            keys = [call.key(queue_id) for queue_id in queue_ids[at : at + _QUEUES_AT_ONCE]]
            ends = [self._files.bounds(key.topic, key.queue_id)[1] for key in keys]
            now_ms = self._now_ms()
            with self._state.lock:
                for key, end in zip(keys, ends, strict=True):
                    if left > 0 and (plan := self._receiver.plan_queue(call, key, end, left, now_ms)):
                        plans.append(plan)
                        left -= len(plan.again) + plan.most_fresh
            if left <= 0:
                break
        return plans


def _peeked(found: Found) -> list[Peeked]:
    """By offset, with how often each was given before."""
    given = {offset: popped.attempts for offset, popped in found.plan.again}
    return [Peeked(record, given.get(offset, 0)) for offset, record in sorted(found.records.items())]
