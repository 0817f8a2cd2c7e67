"""Load of a soak run: numbered entries in one session, a reader that follows all of them, and single reads.

Memory is bounded: an acknowledged entry is tracked only until the reader reaches it, and an entry that the
reader
has seen only until its acknowledgement.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Literal
from zlib import crc32

from benchmarks.common import BenchError
from dledger.client import AsyncClient
from dledger.errors import Code, DLedgerError, ReadFailed

ENTRIES_PER_SECOND = 2000
BATCH = 50
_BODY_SIZE = 512
_WRITERS = 4
_READERS = 2
_RECENT = 5000
_TIMEOUT_S = 60.0
_CATCH_UP_S = 60.0
_PAD = random.Random(3).randbytes(_BODY_SIZE - 16).hex().encode()[: _BODY_SIZE - 16]


def body_of(number: int) -> bytes:
    return b"%015d " % number + _PAD


class SoakLoad:
    """Runs the load as an async context manager. The exit waits until the reader has seen all entries."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = list(addresses)
        self.acknowledged = 0
        self.missing = 0
        self.reads = 0
        self.purged_to = -1
        self.longest_pause_s = 0.0
        self.bytes_written = 0
        self._number = 0
        self._awaited: dict[int, int] = {}  # number -> index: acknowledged, not yet read
        self._seen: dict[int, int] = {}  # number -> index: read, not yet acknowledged
        self._recent: list[tuple[int, int]] = []
        self._last_answer = 0.0
        self._going = True
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> SoakLoad:
        self._writing = AsyncClient(self._addresses, timeout=_TIMEOUT_S)
        self._reading = AsyncClient(self._addresses, timeout=_TIMEOUT_S, session=False)
        self._last_answer = time.perf_counter()
        self._writers = [asyncio.create_task(self._write()) for _ in range(_WRITERS)]
        self._follower = asyncio.create_task(self._follow())
        self._tasks = [*self._writers, self._follower]
        self._tasks += [asyncio.create_task(self._read()) for _ in range(_READERS)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._going = False
        if error is None:
            await asyncio.gather(*self._writers)
            deadline = time.perf_counter() + _CATCH_UP_S
            while self._awaited and time.perf_counter() < deadline:
                self.check()
                await asyncio.sleep(0.1)
            self.missing += len(self._awaited)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._writing.close()
        await self._reading.close()

    def check(self) -> None:
        """Raise the error of any failed part of the load."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def copies_are_equal(self, addresses: Sequence[str]) -> str:
        """Compare the entries that no node has purged. Return "" if they are equal, else the difference."""
        async with AsyncClient(self._addresses, session=False) as client:
            found = [s for s in (await client.status()).values() if not isinstance(s, DLedgerError)]
            first = max(s.ledger_begin_index for s in found)
            last = min(s.committed_index for s in found)
            self.purged_to = min(s.ledger_begin_index for s in found) - 1
            sums = set()
            for address in addresses:
                crc = 0
                async for entry in client.read(first, last - first + 1, mode="local", server=address):
                    crc = crc32(b"%d %d " % (entry.index, entry.term) + entry.body, crc)
                sums.add(crc)
        if len(found) != len(addresses):
            return f"only {len(found)} nodes respond"
        return "" if len(sums) == 1 else f"entries {first} to {last} differ between nodes"

    async def _write(self) -> None:
        """Append at a limited rate; otherwise retention and the disk would dominate the measurement."""
        pause = _WRITERS * BATCH / ENTRIES_PER_SECOND
        due = time.perf_counter()
        while self._going:
            numbers = range(self._number, self._number + BATCH)
            self._number += BATCH
            results = await self._writing.append_many([body_of(n) for n in numbers])
            now = time.perf_counter()
            self.longest_pause_s = max(self.longest_pause_s, now - self._last_answer)
            self._last_answer = now
            self.acknowledged += BATCH
            self.bytes_written += BATCH * (_BODY_SIZE + 48)
            for number, result in zip(numbers, results, strict=True):
                self._note_acknowledged(number, result.index)
            due = max(due + pause, now)
            await asyncio.sleep(due - now)

    def _note_acknowledged(self, number: int, index: int) -> None:
        seen = self._seen.pop(number, None)
        if seen is None:
            self._awaited[number] = index
        elif index >= 0 and seen != index:  # -1: a retry whose index the leader no longer knows
            raise BenchError(f"number {number} was acknowledged at {index} and read at {seen}")
        if index >= 0:
            self._recent.append((number, index))
            del self._recent[:-_RECENT]

    async def _follow(self) -> None:
        """Read all entries in order. Raises ReadFailed if retention purges unread entries, which voids the
        run.
        """
        expected = -1
        async for entry in self._reading.follow(0):
            if entry.index <= expected:
                raise BenchError(f"read entry {entry.index} after entry {expected}")
            expected = entry.index
            number = int(entry.body[:15])
            if entry.body != body_of(number):
                raise BenchError(f"the body of entry {entry.index} does not match its number {number}")
            awaited = self._awaited.pop(number, None)
            if awaited is None:
                if number in self._seen:
                    raise BenchError(f"number {number} is stored twice")
                self._seen[number] = entry.index
            elif awaited >= 0 and awaited != entry.index:
                raise BenchError(f"number {number} was acknowledged at {awaited} and read at {entry.index}")

    async def _read(self) -> None:
        """Read single recent entries, linearizable or locally from a random node."""
        rng = random.Random(5)
        while self._going:
            await asyncio.sleep(0.02)
            if not self._recent:
                continue
            number, index = rng.choice(self._recent)
            local = rng.random() < 0.3
            try:
                mode: Literal["local", "linearizable"] = "local" if local else "linearizable"
                server = rng.choice(self._addresses) if local else None
                found = [e.body async for e in self._reading.read(index, 1, mode=mode, server=server)]
            except DLedgerError as error:
                # The node is down, lags, or has purged the entry.
                if local or (
                    isinstance(error, ReadFailed) and error.code == Code.INDEX_LESS_THAN_LOCAL_BEGIN
                ):
                    continue
                raise
            if found != [body_of(number)]:
                raise BenchError(f"entry {index} was acknowledged as number {number}, and read as {found}")
            self.reads += 1
