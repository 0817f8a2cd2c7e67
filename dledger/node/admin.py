"""What an operator asks of a node (dledger.rpc.ports.AdminPort)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from dledger.errors import Code, DLedgerError, Indeterminate, NotLeader, Overloaded
from dledger.node.async_shell import AsyncShell
from dledger.node.loop.pacing import Pace
from dledger.node.members.repairer import Scrubber
from dledger.node.node_log import NodeLog
from dledger.node.setup.config import NodeConfig
from dledger.rpc.ports import BackupHead, ScrubProgress
from dledger.status.model import DamagedRange, NodeStatus
from dledger.store.api import Damage, LogStore

_BACKUP_BYTES = 512 << 10
_PROGRESS_EVERY_S = 0.2


def damaged_range(damage: Damage) -> DamagedRange:
    return DamagedRange(*damage)


class NodeAdmin:
    """Implements AdminPort."""

    def __init__(
        self,
        config: NodeConfig,
        store: LogStore,
        shell: AsyncShell,
        log: NodeLog,
        scrubber: Scrubber,
        node_status: Callable[[], NodeStatus],
    ) -> None:
        self._config = config
        self._store = store
        self._shell = shell
        self._log = log
        self._scrubber = scrubber
        self._scrubbing = False
        self.node_status = node_status

    node_status: Callable[[], NodeStatus]

    @property
    def group(self) -> str:
        return self._config.group

    async def transfer(self, to: str | None) -> None:
        """DLedgerError says why leadership was not handed over; NotLeader names who leads."""
        if to is not None and to not in self._config.members:
            known = ", ".join(sorted(self._config.members))
            raise DLedgerError(f"{to!r} is no member: {known}", code=Code.UNKNOWN_MEMBER)
        bound_s = 2 * self._config.timing.transfer_timeout_ms / 1000
        try:
            async with asyncio.timeout(bound_s):
                await self._shell.transfer(to)
        except TimeoutError:
            raise Indeterminate(f"no end of the transfer within {bound_s:g} s", code=Code.TIMEOUT) from None

    async def purge(self, before_index: int, before_age_ms: int) -> int:
        """Entries before an index, or older than an age, may go. The index; NotLeader."""
        try:
            return self._shell.purge(before_index if before_index >= 0 else None, before_age_ms)
        except NotLeader as error:
            error.leader_address = self._config.members.get(error.leader_id or "")
            raise

    async def scrub(self, bytes_per_second: int) -> AsyncGenerator[ScrubProgress, None]:
        """Verify all that is stored now; what is damaged is repaired meanwhile."""
        if self._scrubbing:
            raise Overloaded("a scrub that somebody asked for is under way already")
        self._scrubbing = True
        try:
            async for progress in self._scrub(Pace(bytes_per_second)):
                yield progress
        finally:
            self._scrubbing = False

    async def _scrub(self, pace: Pace) -> AsyncGenerator[ScrubProgress, None]:
        loop = asyncio.get_running_loop()
        at, last = self._store.begin_index, self._store.end_index
        bytes_read, reported = 0, loop.time()
        found: list[DamagedRange] = []
        done = False
        while not done:
            before = self._scrubber.bytes_read
            at, damage, wrapped = await self._scrubber.step(at, pace)
            bytes_read += self._scrubber.bytes_read - before
            done = wrapped or at > last
            if damage is not None:
                found.append(damaged_range(damage))
            if done or found or loop.time() - reported >= _PROGRESS_EVERY_S:
                reported = loop.time()
                yield ScrubProgress(last + 1 if done else at, last, bytes_read, tuple(found), done)
                found = []
            await asyncio.sleep(pace.wait_s(loop.time()))

    async def backup(self) -> AsyncGenerator[BackupHead | bytes, None]:
        """A consistent prefix: what follows, then all entries that are committed and stored here now."""
        self._log.check_serving()
        store, identity = self._store, self._store.identity
        last, base = self._log.readable_index, store.base
        yield BackupHead(
            identity.cluster_id,
            identity.group,
            identity.node_id,
            identity.data_file_size,
            identity.flush_mode.value,
            base,
            last,
        )
        at = base.index + 1
        while at <= last:
            frames = await self._log.fetch(at, last, _BACKUP_BYTES)
            at = frames.last_index + 1
            yield frames.data
