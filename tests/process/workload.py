"""Numbered entries appended without pause while nodes come and go, and what was acknowledged of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Protocol

from dledger.client import TlsFiles
from dledger.client.async_client import AsyncClient
from dledger.errors import Code, Indeterminate, Refused
from tests.process.cluster import GROUP, ProcessCluster

ENTRY = b"entry-%08d"


class Servers(Protocol):
    """What is written to: a cluster of any kind."""

    @property
    def addresses(self) -> list[str]: ...


class Workload:
    """`async with Workload(cluster) as load:` writes in one session, several appends at a time.

    `size`: of a body, at least. `pause_s`: of each writer after each append. `in_session` False: appends may
    then be refused (DISK_FULL and the like) or stay in doubt, and both is noted. `first`: the first number.
    """

    def __init__(
        self,
        cluster: Servers,
        at_once: int = 8,
        *,
        size: int = 0,
        pause_s: float = 0.0,
        in_session: bool = True,
        timeout: float = 30.0,
        tls: TlsFiles | None = None,
        first: int = 1,
    ) -> None:
        self._cluster = cluster
        self._at_once = at_once
        self._size = size
        self._pause_s = pause_s
        self._in_session = in_session
        self._timeout = timeout
        self._tls = tls
        self.acknowledged: dict[int, int] = {}  # index -> number
        self.refused: dict[int, Code] = {}  # number -> why
        self.in_doubt: set[int] = set()  # numbers
        self._number = first - 1
        self._changed = asyncio.Condition()
        self._stopped = asyncio.Event()

    def body(self, number: int) -> bytes:
        return (ENTRY % number).ljust(self._size, b".")

    async def __aenter__(self) -> Workload:
        self._client = AsyncClient(
            self._cluster.addresses,
            group=GROUP,
            timeout=self._timeout,
            session=self._in_session,
            tls=self._tls,
        )
        self._tasks = [asyncio.create_task(self._write()) for _ in range(self._at_once)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        if error is not None:
            for task in self._tasks:
                task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()
        if error is None:
            failed = [r for r in results if isinstance(r, BaseException)]
            assert not failed, failed

    async def _write(self) -> None:
        while not self._stopped.is_set():
            self._number += 1
            await self._append(self._number)
            async with self._changed:
                self._changed.notify_all()
            if self._pause_s:
                await self._pause()

    async def _append(self, number: int) -> None:
        try:
            result = await self._client.append(self.body(number))
        except Refused as error:
            if self._in_session:
                raise
            self.refused[number] = error.code
        except Indeterminate:
            if self._in_session:
                raise
            self.in_doubt.add(number)
        else:
            self.acknowledged[result.index] = number

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pause_s):
                await self._stopped.wait()

    async def progress(self, more: int, within_s: float = 120.0) -> None:
        """Until `more` further entries have been acknowledged."""
        goal = len(self.acknowledged) + more
        async with asyncio.timeout(within_s), self._changed:
            await self._changed.wait_for(lambda: len(self.acknowledged) >= goal)

    async def refusals(self, more: int, code: Code, within_s: float = 120.0) -> None:
        """Until `more` further entries have been refused for this reason."""
        goal = self._refused_for(code) + more
        async with asyncio.timeout(within_s), self._changed:
            await self._changed.wait_for(lambda: self._refused_for(code) >= goal)

    def _refused_for(self, code: Code) -> int:
        return sum(each == code for each in self.refused.values())

    async def assert_kept(self) -> None:
        """See assert_nothing_lost; and nothing that was refused is stored."""
        assert isinstance(self._cluster, ProcessCluster)
        await assert_nothing_lost(self._cluster, self.acknowledged, size=self._size)
        for node in self._cluster.members:
            bodies = {entry.body for entry in self._cluster.stored_entries(node)}
            stored = [number for number in self.refused if self.body(number) in bodies]
            assert not stored, f"{node} has entries that were refused, such as {stored[:3]}"


async def assert_nothing_lost(
    cluster: ProcessCluster, acknowledged: dict[int, int], *, size: int = 0
) -> None:
    """Stops the cluster, then compares what its nodes hold on disk, byte by byte and entry by entry.

    What was purged is not there any more; something has to be left.
    """
    await cluster.settle(within_s=60)
    statuses = await asyncio.gather(*(cluster.status(node) for node in cluster.members))
    end = min(s.committed_pos for s in statuses if s is not None)
    await cluster.kill(*cluster.members)
    begin = max(cluster.data_begin(node) for node in cluster.members)
    first, *others = [cluster.data_bytes(node, begin, end) for node in cluster.members]
    assert len(first) == end - begin
    assert all(other == first for other in others), "data files differ below the committed end"
    for node in cluster.members:
        entries = {e.index: e.body for e in cluster.stored_entries(node)}
        least = min(entries)
        kept = {i: n for i, n in acknowledged.items() if i >= least}
        assert kept, f"{node} begins at {least}, above all that was acknowledged"
        missing = [(i, n) for i, n in kept.items() if entries.get(i) != (ENTRY % n).ljust(size, b".")]
        assert not missing, f"{node} lacks {len(missing)} acknowledged entries, such as {missing[:3]}"
        bodies = [body for body in entries.values() if body.startswith(b"entry-")]
        assert len(set(bodies)) == len(bodies), "an entry was stored twice"


def others(cluster: ProcessCluster, node: str) -> Sequence[str]:
    return [each for each in cluster.members if each != node]
