"""The demo's workload: batches of lines, several in flight, and when each was acknowledged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from dledger.cli.append_run import Appender
from dledger.cli.demo.log_check import Acknowledged
from dledger.client import AppendResult
from dledger.errors import DLedgerError, Indeterminate

IN_FLIGHT = 8
MIN_LINES = 6 * IN_FLIGHT
_MOST_BATCHES = 240


@dataclass(frozen=True, slots=True)
class Ack:
    """One batch was acknowledged: when, by the leader of which term, and how many lines that makes."""

    at: float  # monotonic seconds
    term: int
    lines: int


class Gate:
    """Batches from number `batch` on wait until it is opened."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self._open = asyncio.Event()

    def open(self) -> None:
        self._open.set()

    async def wait(self) -> None:
        await self._open.wait()


class DemoLoad:
    """Appends `lines` once, in order. Gates let the demo do its part before the lines run out."""

    def __init__(self, appender: Appender, lines: Sequence[bytes]) -> None:
        assert len(lines) >= MIN_LINES
        self.lines = lines
        self.batch_lines = -(-len(lines) // _MOST_BATCHES)
        self.batches = -(-len(lines) // self.batch_lines)
        self.acks: list[Ack] = []
        self.acknowledged: list[Acknowledged] = []
        self.in_doubt: list[bytes] = []
        self.failed = 0
        self.error: DLedgerError | None = None
        self.finished = False
        self._appender = appender
        self._gates: list[Gate] = []
        self._changed = asyncio.Condition()

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
                task = asyncio.create_task(self._append(number, slots))
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
        """Wait until so many batches are acknowledged. False: that will not happen any more."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.acks) >= batches or self._is_over)
        return len(self.acks) >= batches

    async def until_acknowledged_after(self, term: int) -> Ack | None:
        """The first acknowledgement by the leader of a later term; None: there will be none."""

        def first() -> Ack | None:
            return next((ack for ack in self.acks if ack.term > term), None)

        async with self._changed:
            await self._changed.wait_for(lambda: first() is not None or self._is_over)
        return first()

    def longest_silence(self, since: float, until: float) -> float:
        """Seconds between two acknowledgements in a row, the first of them the last one before `since`.

        Answers that a dying leader had sent arrive a moment after its death, and its successor may first
        answer for what the dead one stored: the pause in service is the longest gap, wherever it is.
        """
        before = max((ack.at for ack in self.acks if ack.at <= since), default=since)
        times = [before, *(ack.at for ack in self.acks if before < ack.at <= until)]
        return max((b - a for a, b in pairwise(times)), default=0.0)

    @property
    def in_flight(self) -> int:
        return IN_FLIGHT

    @property
    def acknowledged_lines(self) -> int:
        return len(self.acknowledged)

    @property
    def has_failed(self) -> bool:
        return self.error is not None

    async def until_served_again(self, gone: float, term: int) -> float | None:
        """See `dledger.cli.demo.demo_faults.Load`. Every acknowledgement names its term."""
        ack = await self.until_acknowledged_after(term)
        return None if ack is None else ack.at

    @property
    def _is_over(self) -> bool:
        return self.finished or self.error is not None

    async def _append(self, number: int, slots: asyncio.Semaphore) -> None:
        first = number * self.batch_lines
        bodies = self.lines[first : first + self.batch_lines]
        try:
            results = await self._appender.append_many(bodies)
        except DLedgerError as error:
            self._fail(bodies, error)
        else:
            self._succeed(first + 1, bodies, results)
        finally:
            slots.release()
        await self._notify()

    def _succeed(self, line: int, bodies: Sequence[bytes], results: Sequence[AppendResult]) -> None:
        self.acknowledged += [
            Acknowledged(line + i, result.index, body)
            for i, (result, body) in enumerate(zip(results, bodies, strict=True))
        ]
        self.acks.append(Ack(time.monotonic(), results[0].term, len(self.acknowledged)))

    def _fail(self, bodies: Sequence[bytes], error: DLedgerError) -> None:
        self.error = self.error or error
        if isinstance(error, Indeterminate):
            self.in_doubt += bodies
        else:
            self.failed += len(bodies)
        self.open_gates()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
