"""Sends waiting for one queue, and the batches they travel in: one batch under way, the next one gathers.

So batches form without a linger timer, and the order of calls is the order of the queue: what is sent again
is sent before anything that came later.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tenacity

from broker_adapter.api import OutgoingMessage, SendResult
from broker_adapter.client.directory import RETRY_PAUSE, Directory
from broker_adapter.client.values import MessageQueue
from broker_adapter.errors import (
    BrokerError,
    Busy,
    IllegalMessage,
    NotMaster,
    PutIndeterminate,
    PutRefused,
    Status,
    error_for,
)
from broker_adapter.rpc.broker_client import BrokerClient

#: Told of each attempt, before it is made: the bodies of one call, and the attempt number, starting at 1.
AttemptHook = Callable[[Sequence[bytes], int], object]

#: What a message takes beside its body, about: properties, and the fields around them (bytes).
_MESSAGE_OVERHEAD = 256


@dataclass(frozen=True, slots=True)
class ProducerLimits:
    """How a producer batches. The defaults suit a broker with default limits."""

    #: Sends gather into batches up to this size (bytes); a greater message travels alone.
    max_batch_bytes: int = 1 << 20
    max_batch_messages: int = 1024
    #: More than this, waiting or under way, is refused with Busy (bytes, of all queues).
    max_pending_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if min(self.max_batch_bytes, self.max_batch_messages, self.max_pending_bytes) < 1:
            raise ValueError("all limits of a producer are at least 1")


class Call:
    """One call of send or send_many: its messages are never split."""

    __slots__ = ("alone", "attempts", "future", "messages", "sent", "size", "timeout_at")

    def __init__(
        self, messages: Sequence[OutgoingMessage], timeout_at: float, future: asyncio.Future[SendResult]
    ) -> None:
        self.messages = messages
        self.timeout_at = timeout_at  # of the loop's clock
        self.future = future
        self.size = sum(len(m.body) + _MESSAGE_OVERHEAD for m in messages)
        self.sent = False  # under way, or its fate unknown
        self.alone = False  # must not share a batch: it may be what spoiled the last one
        self.attempts = 0  # told to the producer's user; counted only if somebody wants to know

    def fail(self, error: BrokerError) -> None:
        if not self.future.done():
            self.future.set_exception(_renewed(error))


class SendQueue:
    """One queue's way to the master."""

    def __init__(
        self,
        directory: Directory,
        queue: MessageQueue,
        limits: ProducerLimits,
        *,
        retry_indeterminate: bool,
        stall_timeout: float,
        on_attempt: AttemptHook | None = None,
    ) -> None:
        self._directory = directory
        self._queue = queue
        self._limits = limits
        self._retry_indeterminate = retry_indeterminate
        self._stall_timeout = stall_timeout
        self._on_attempt = on_attempt
        self._waiting: deque[Call] = deque()
        self._runner: asyncio.Task[None] | None = None
        self._closed = False
        self._last_error: PutRefused | None = None  # since the last success

    @property
    def idle(self) -> bool:
        return self._runner is None or self._runner.done()

    def add(self, call: Call) -> None:
        """Queue one call. Its future fails at once if the queue is closed."""
        if self._closed:
            call.fail(_closed())
            return
        self._waiting.append(call)
        if self.idle:
            self._runner = asyncio.create_task(self._run())

    def expired(self, call: Call) -> BrokerError:
        """What a caller whose time is over has to believe of its call."""
        if call.sent:
            return PutIndeterminate(Status.OUTCOME_UNKNOWN, "no answer in time")
        if self._last_error is not None:
            return _renewed(self._last_error)
        return Busy(
            Status.TOO_MANY_PENDING_BYTES, f"earlier messages of queue {self._queue.queue_id} are under way"
        )

    async def close(self) -> None:
        """Fail what waits, and what is under way."""
        self._closed = True
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)
        for call in self._waiting:
            call.fail(_closed())
        self._waiting.clear()

    async def _run(self) -> None:
        batch: list[Call] = []
        try:
            while batch := self._take():
                await self._deliver(batch)
        except asyncio.CancelledError:
            unknown = PutIndeterminate(Status.OUTCOME_UNKNOWN, "closed before the answer came")
            for call in batch:
                call.fail(unknown if call.sent else _closed())
            raise

    def _take(self) -> list[Call]:
        """Calls for the next batch; empty if nobody waits for an answer any more."""
        limits, waiting = self._limits, self._waiting
        taken: list[Call] = []
        size = count = 0
        while waiting:
            call = waiting[0]
            if not call.future.done():
                size += call.size
                count += len(call.messages)
                full = size > limits.max_batch_bytes or count > limits.max_batch_messages
                if taken and (full or call.alone or taken[0].alone):
                    break
                taken.append(call)
            waiting.popleft()
        return taken

    async def _deliver(self, batch: list[Call]) -> None:
        """Send a batch until its fate is known, or nobody waits for it any more."""

        async def once() -> SendResult | None:
            return await self._send(batch) if _still_wanted(batch) else None

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(self._is_worth_retrying), wait=RETRY_PAUSE, reraise=True
        )
        try:
            result: SendResult | None = await retrying(once)
        except IllegalMessage as error:
            if len(batch) == 1:
                batch[0].fail(error)
                return
            # One of them is wrong, and the broker took none: each has to stand for itself.
            for call in reversed(batch):
                call.alone = True
                call.sent = False
                self._waiting.appendleft(call)
        except BrokerError as error:
            for call in batch:
                call.fail(error)
        else:
            if result is not None:
                self._last_error = None
                _answer(batch, result)

    async def _send(self, batch: list[Call]) -> SendResult | None:
        """None: nobody waits for it any more, and nothing was sent."""
        loop = asyncio.get_running_loop()
        broker, topic = self._queue.broker, self._queue.topic
        unknown = batch[0].sent and self._retry_indeterminate
        try:
            client = await self._directory.master(broker, topic)
            # It may have taken a while to find it. Whoever was told meanwhile that nothing has been sent must
            # not be made wrong now.
            if not _still_wanted(batch):
                return None
            left = max(call.timeout_at for call in batch) - loop.time()
            messages = batch[0].messages if len(batch) == 1 else [m for call in batch for m in call.messages]
            result = await self._ask(client, batch, messages, max(0.001, min(left, self._stall_timeout)))
        except BrokerError as error:
            if isinstance(error, PutRefused):
                self._last_error = error
            if not isinstance(error, PutIndeterminate) and not unknown:
                for call in batch:
                    call.sent = False
            raise
        self._directory.confirmed(broker)
        return result

    async def _ask(
        self, client: BrokerClient, batch: list[Call], messages: Sequence[OutgoingMessage], seconds: float
    ) -> SendResult:
        for call in batch:
            call.sent = True
            if self._on_attempt is not None:
                call.attempts += 1
                self._on_attempt([message.body for message in call.messages], call.attempts)
        try:
            return await client.send(self._queue.topic, self._queue.queue_id, messages, seconds)
        except BrokerError as error:
            self._directory.failed(self._queue.broker, client, error)
            raise

    def _is_worth_retrying(self, error: BaseException) -> bool:
        if isinstance(error, PutIndeterminate):
            return self._retry_indeterminate
        return isinstance(error, PutRefused)


def _still_wanted(batch: list[Call]) -> bool:
    """Drop the calls that were answered, for lack of time; whether any is left."""
    batch[:] = [call for call in batch if not call.future.done()]
    return bool(batch)


def _answer(batch: list[Call], result: SendResult) -> None:
    """Give each call its part of the answer."""
    at = 0
    for call in batch:
        end = at + len(call.messages)
        if not call.future.done():
            call.future.set_result(
                result._replace(
                    queue_offset=result.queue_offset + at,
                    physical_offsets=result.physical_offsets[at:end],
                    offset_ids=result.offset_ids[at:end],
                    index=result.index + at if result.index >= 0 else -1,
                )
            )
        at = end


def _closed() -> PutRefused:
    return PutRefused(Status.SHUTTING_DOWN, "the producer is closed")


def _renewed(error: BrokerError) -> BrokerError:
    """The same error as a new object: one object raised in many tasks would collect all their tracebacks."""
    master = error.master_address if isinstance(error, NotMaster) else None
    return error_for(error.status, error.message, master_address=master)
