"""Finds, and waits for, the messages that a receive would deliver, without delivering them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from broker_adapter.delivery.api import Filter, PeekedMessage
from broker_adapter.delivery.reading import QueueReadPlan, QueueReadResult, read_plans
from broker_adapter.delivery.receive_queues import ReceiveQueues
from broker_adapter.delivery.receiver import QueueBounds, Receive, Receiver
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.store.queue_reader import QueueReader
from dledger.infra.loops.turns import wake_queue

#: Queues examined per event-loop step.
_QUEUES_PER_STEP = 256


class Peeker:
    def __init__(
        self,
        state: DeliveryState,
        receiver: Receiver,
        reader: QueueReader,
        files: QueueBounds,
        receive_queues: ReceiveQueues,
        *,
        now_ms: Callable[[], int],
        run: Callable[[Callable[[], Any], str], Awaitable[Any]],
    ) -> None:
        """`run` executes blocking work on behalf of an address.

        `now_ms` returns cluster time without its steps.
        """
        self._state = state
        self._receiver = receiver
        self._reader = reader
        self._files = files
        self._receive_queues = receive_queues
        self._now_ms = now_ms
        self._run = run

    async def peek(self, call: Receive, queue_ids: Sequence[int]) -> list[PeekedMessage]:
        """Return messages of these queues: up to `call.max_messages` and `call.max_bytes`, but at least 1."""
        plans = await self._plans(call, queue_ids, call.max_messages)
        if not plans:
            return []
        room = self._receiver.room
        await room.acquire(call.address, call.max_bytes)
        try:
            work = partial(read_plans, self._reader, plans, Filter(), call.max_messages, call.max_bytes)
            found: list[QueueReadResult] = await self._run(work, call.address)
        finally:
            room.release(call.address, call.max_bytes)
        return [one for of_queue in found for one in _peeked(of_queue)]

    async def wait(self, call: Receive, deadline: float, check: Callable[[], object]) -> bool:
        """Return True if any queue has a message now or before `deadline` (loop time).

        `check` raises an error when waiting has become pointless.
        """
        loop = asyncio.get_running_loop()
        while True:
            # Register as waiting first, so that no arrival is missed in between.
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
                if is_over:  # this call takes no message, so wake another one
                    self._receive_queues.wake_one(call.who)

    async def _plans(self, call: Receive, queue_ids: Sequence[int], left: int) -> list[QueueReadPlan]:
        plans: list[QueueReadPlan] = []
        for at in range(0, len(queue_ids), _QUEUES_PER_STEP):
            await wake_queue().turn(call.who.topic)
            keys = [call.key(queue_id) for queue_id in queue_ids[at : at + _QUEUES_PER_STEP]]
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


def _peeked(found: QueueReadResult) -> list[PeekedMessage]:
    """Return the messages by offset, with the number of earlier deliveries."""
    attempts = {offset: popped.attempts for offset, popped in found.plan.again}
    return [
        PeekedMessage(record, attempts.get(offset, 0)) for offset, record in sorted(found.records.items())
    ]
