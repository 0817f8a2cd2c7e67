"""The demo's producer: every line to the next queue in turn, many under way, each answer timed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from broker_adapter.cli.demo.demo_check import Acknowledged, Queue
from broker_adapter.client import SendReceipt
from broker_adapter.errors import BrokerError, PutIndeterminate
from dledger.cli.demo.demo_load import IN_FLIGHT, MIN_LINES, Gate

_MOST_BATCHES = 240


class Sender(Protocol):
    """A Producer, as far as it matters here."""

    async def send(
        self, topic: str, body: bytes, *, tag: str | None, keys: str, queue_id: int | None
    ) -> SendReceipt: ...


class BrokerLoad:
    """Sends `lines` once, in order; implements `dledger.cli.demo.demo_faults.Load`."""

    def __init__(self, sender: Sender, lines: Sequence[bytes], queues: Sequence[Queue]) -> None:
        assert len(lines) >= MIN_LINES
        self.lines = lines
        self.queues = queues
        self.batch_lines = -(-len(lines) // _MOST_BATCHES)
        self.batches = -(-len(lines) // self.batch_lines)
        self.acknowledged: list[Acknowledged] = []
        self.in_doubt: dict[int, Queue] = {}
        self.failed = 0
        self.error: BrokerError | None = None
        self.finished = False
        self._sender = sender
        self._gates: list[Gate] = []
        self._changed = asyncio.Condition()
        self._line_times: list[float] = []  # of the acknowledgements, monotonic seconds
        self._batch_times: list[tuple[float, float]] = []  # of whole batches: begun, acknowledged

    @property
    def in_flight(self) -> int:
        return IN_FLIGHT

    @property
    def acknowledged_lines(self) -> int:
        return len(self.acknowledged)

    @property
    def has_failed(self) -> bool:
        return self.error is not None

    def gate(self, batch: int) -> Gate:
        gate = Gate(batch)
        self._gates.append(gate)
        return gate

    def open_gates(self) -> None:
        for gate in self._gates:
            gate.open()

    async def run(self) -> None:
        """All batches, or until the first that fails. Failures are noted, not raised."""
        slots = asyncio.Semaphore(IN_FLIGHT)
        tasks: set[asyncio.Task[None]] = set()
        try:
            for number in range(self.batches):
                for gate in self._gates:
                    if gate.batch == number:
                        await gate.wait()
                await slots.acquire()
                if self.error is not None:
                    break
                task = asyncio.create_task(self._send_batch(number, slots))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            while tasks:
                await asyncio.wait(tasks)
        finally:
            for task in tasks:
                task.cancel()
        self.acknowledged.sort()
        self.finished = True
        await self._notify()

    async def until_acknowledged(self, batches: int) -> bool:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._batch_times) >= batches or self._is_over)
        return len(self._batch_times) >= batches

    async def until_served_again(self, gone: float, term: int) -> float | None:
        """What was sent after the master was gone, its successor has acknowledged."""

        def first() -> float | None:
            return next((done for begun, done in self._batch_times if begun > gone), None)

        async with self._changed:
            await self._changed.wait_for(lambda: first() is not None or self._is_over)
        return first()

    def longest_silence(self, since: float, until: float) -> float:
        """Answers that a dying master had sent arrive a moment after its death: the pause in service is the
        longest gap, wherever it is."""
        before = max((at for at in self._line_times if at <= since), default=since)
        times = [before, *(at for at in self._line_times if before < at <= until)]
        return max((b - a for a, b in pairwise(times)), default=0.0)

    @property
    def _is_over(self) -> bool:
        return self.finished or self.error is not None

    async def _send_batch(self, number: int, slots: asyncio.Semaphore) -> None:
        begun = time.monotonic()
        first = number * self.batch_lines
        last = min(first + self.batch_lines, len(self.lines))
        # Tasks begin in the order in which they are made: so lines of one queue stay in order.
        sends = [asyncio.create_task(self._send(line)) for line in range(first + 1, last + 1)]
        try:
            if all(await asyncio.gather(*sends)):
                self._batch_times.append((begun, time.monotonic()))
        finally:
            slots.release()
        await self._notify()

    async def _send(self, line: int) -> bool:
        topic, queue_id = queue = self.queues[line % len(self.queues)]
        body = self.lines[line - 1]
        try:
            receipt = await self._sender.send(topic, body, tag="line", keys=str(line), queue_id=queue_id)
        except BrokerError as error:
            self.error = self.error or error
            if isinstance(error, PutIndeterminate):
                self.in_doubt[line] = queue
            else:
                self.failed += 1
            self.open_gates()
            return False
        self._line_times.append(time.monotonic())
        self.acknowledged.append(Acknowledged(line, queue, receipt.queue_offset, body))
        return True

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
