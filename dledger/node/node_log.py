"""The log of a node, as its clients use it (dledger.rpc.ports.LogPort)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import NamedTuple

from dledger.errors import Code, InvalidRequest, NotLeader, ReadFailed
from dledger.infra.loops.readable import ReadableLog
from dledger.metrics import NodeMetrics
from dledger.node.async_shell import AsyncShell
from dledger.node.members.fetching import LogFetcher
from dledger.node.members.read_points import ReadPoints
from dledger.rpc.log_client import LogClient, NetworkFailure
from dledger.rpc.ports import AppendToken, Chunk, ServiceLimits
from dledger.store.api import EntryDamaged, LogStore
from dledger.store.format.batch import MAGIC_NORMAL, decode_entries


def _refuse_append(
    token: AppendToken, _bodies: Sequence[bytes], _session: object, _open_session: bool, _timeout_ms: int
) -> None:
    token.answer(
        InvalidRequest(
            "the log of this group is written by the program that owns its nodes; append through it",
            code=Code.APPENDS_BY_OWNER_ONLY,
        )
    )


class LogSurroundings(NamedTuple):
    """The parts of a node that its log uses.

    `leader` returns a client for the presumed leader, or None; `begin_index` is the start of the log that the
    status shows; `on_damage` is called on the loop with an unreadable index.
    """

    leader: Callable[[], LogClient | None]
    leads: Callable[[], bool]
    needs_image: Callable[[], bool]
    begin_index: Callable[[], int]
    on_damage: Callable[[int], None]


class NodeLog:
    """Appends through the replica, and reads committed entries from the store on separate threads."""

    def __init__(
        self,
        group: str,
        limits: ServiceLimits,
        store: LogStore,
        shell: AsyncShell,
        readable: ReadableLog,
        readers: Executor,
        metrics: NodeMetrics,
        around: LogSurroundings,
        *,
        max_waiting_reads: int,
        read_timeout_ms: int,
        owned: bool,
    ) -> None:
        """`owned`: clients may not append."""
        self._around = around
        self._group = group
        self._limits = limits
        self._store = store
        self._shell = shell
        self._readable = readable
        self._readers = readers
        self._metrics = metrics
        self._forward_timeout_s = read_timeout_ms / 1000
        self._points = ReadPoints(self._confirm, max_waiting_reads, read_timeout_ms)
        self._forwarded: asyncio.Future[int] | None = None  # the read index requested from the leader
        self.fetch = LogFetcher(store, readable, readers, around.on_damage).fetch
        self.append = _refuse_append if owned else shell.append  # the hot path: no call in between

    append: Callable[[AppendToken, Sequence[bytes], tuple[int, int] | None, bool, int], None]

    @property
    def group(self) -> str:
        return self._group

    @property
    def limits(self) -> ServiceLimits:
        return self._limits

    @property
    def begin_index(self) -> int:
        # The value of the store changes only after the disk thread has removed the files, which may be much
        # later.
        return self._around.begin_index()

    @property
    def readable_index(self) -> int:
        return self._readable.index

    def check_serving(self) -> None:
        if self._around.needs_image():
            raise ReadFailed(
                "this node is too far behind and is waiting for a state image; read from another node",
                code=Code.ILLEGAL_MEMBER_STATE,
            )

    async def read_index(self) -> int:
        return await self._points.get()

    def role_changed(self) -> None:
        """Abandon a request to the former leader, which may be unreachable: all later reads wait for it."""
        if self._forwarded is not None:
            self._forwarded.cancel()

    async def wait_readable(self, index: int, *, timeout_ms: int | None) -> None:
        await self._readable.wait(index, timeout_ms)

    async def load(self, first_index: int, last_index: int, max_bytes: int, *, decode: bool) -> Chunk:
        loop = asyncio.get_running_loop()
        with self.noting_damage():
            return await loop.run_in_executor(
                self._readers, self._load, first_index, last_index, max_bytes, decode
            )

    @contextmanager
    def noting_damage(self) -> Iterator[None]:
        try:
            yield
        except EntryDamaged as error:
            self._around.on_damage(error.index)
            raise

    def observe_append(self, seconds: float) -> None:
        self._metrics.append_latency.observe(seconds)

    def limit_hit(self, name: str) -> None:
        self._metrics.limit_hit(name)

    async def stop(self) -> None:
        """Fail waiting readers when the node stops."""
        self._readable.close(ReadFailed("the node is stopping", code=Code.READ_NOT_CONFIRMED))
        await self._points.stop()

    def _load(self, first_index: int, last_index: int, max_bytes: int, decode: bool) -> Chunk:
        """Read a chunk, on a reader thread."""
        frames = self._store.read(first_index, last_index, max_bytes, whole_batches=False)
        entries = decode_entries(frames.data) if decode else []
        users = sum(entry.magic == MAGIC_NORMAL for entry in entries)
        return Chunk(frames.last_index, bytes(frames.data), entries, users)

    async def _confirm(self) -> int:
        while True:
            if self._around.leads():
                return await self._shell.read_index()
            leader = self._around.leader()
            if leader is None:
                raise ReadFailed("no leader is known", code=Code.READ_NOT_CONFIRMED)
            try:
                return await self._forward(leader)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():  # not by a change of role
                    raise

    async def _forward(self, leader: LogClient) -> int:
        """Request the read index from the leader. Raises ReadFailed, and CancelledError after a change of
        role."""
        self._forwarded = asyncio.ensure_future(leader.read_index(self._forward_timeout_s))
        try:
            return await self._forwarded
        except (NetworkFailure, NotLeader) as error:
            raise ReadFailed(
                f"the leader did not confirm the read: {error}", code=Code.READ_NOT_CONFIRMED
            ) from None
