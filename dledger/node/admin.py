"""Operator commands of a node (dledger.rpc.ports.AdminPort)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace

from dledger.core.directories import MAX_DIRECTORY
from dledger.core.membership_change import ChangeKind, MembershipChange, MemberStep
from dledger.core.values import UNKNOWN_UID
from dledger.errors import (
    Code,
    DLedgerError,
    Indeterminate,
    InvalidRequest,
    NotLeader,
    Overloaded,
    ReadFailed,
    Refused,
)
from dledger.infra.loops.pacing import Pacer
from dledger.node.async_shell import AsyncShell
from dledger.node.members.repairer import Scrubber
from dledger.node.node_log import NodeLog
from dledger.node.setup.config import NodeConfig
from dledger.node.setup.member_book import MemberBook
from dledger.rpc.log_client import NetworkFailure
from dledger.rpc.ports import BackupHead, ScrubProgress
from dledger.status.model import DamagedRange, NodeStatus, why_foreign
from dledger.store.api import Damage, LogStore
from dledger.store.image_files import ImageManifest

#: Each may have a connection to the node that it adds.
_MAX_CHANGES = 8
_BACKUP_BYTES = 512 << 10
_PROGRESS_EVERY_S = 0.2


def damaged_range(damage: Damage) -> DamagedRange:
    return DamagedRange(*damage)


class NodeAdmin:
    """Implements AdminPort."""

    def __init__(
        self,
        config: NodeConfig,
        members: MemberBook,
        store: LogStore,
        shell: AsyncShell,
        log: NodeLog,
        scrubber: Scrubber,
        node_status: Callable[[], NodeStatus],
        status_at: Callable[[str, str], Awaitable[NodeStatus]],
    ) -> None:
        """`status_at(node_id, address)` returns the status of a node that is not a member."""
        self._config = config
        self._members = members
        self._store = store
        self._shell = shell
        self._log = log
        self._scrubber = scrubber
        self._scrubbing = False
        self._changing = 0  # requests to change the members, of which one at a time has an effect
        self.node_status = node_status
        self._status_at = status_at

    node_status: Callable[[], NodeStatus]

    @property
    def group(self) -> str:
        return self._config.group

    async def transfer(self, to: str | None) -> None:
        """Transfer leadership.

        Raises DLedgerError if the transfer fails, for example NotLeader if this node does not lead. The
        message gives the reason.
        """
        if to is not None and to not in self._members:
            members = ", ".join(sorted(self._members))
            raise DLedgerError(
                f"{to!r} is not a member of this cluster; its members are {members}", code=Code.UNKNOWN_MEMBER
            )
        bound_s = 2 * self._config.timing.transfer_timeout_ms / 1000
        try:
            async with asyncio.timeout(bound_s):
                await self._shell.transfer(to)
        except TimeoutError:
            raise Indeterminate(
                f"the transfer of leadership did not finish within {bound_s:g} s", code=Code.TIMEOUT
            ) from None

    async def change_members(self, change: MembershipChange, timeout: float) -> int:
        """Change the members and wait until the change is committed. Returns the index of the newest change.

        Raises NotLeader, Refused or InvalidRequest if nothing was changed; Indeterminate if the change is in
        doubt.
        """
        if self._changing >= _MAX_CHANGES:
            text = f"{self._changing} requests to change the members are under way; try again"
            raise Refused(text, code=Code.CHANGE_RUNNING)
        self._changing += 1
        try:
            async with asyncio.timeout(timeout):
                steps = [await self._with_directory(step) for step in change.steps]
                await self._shell.change_members(MembershipChange(tuple(steps), change.force))
        except TimeoutError:
            raise Indeterminate(
                f"the change of the members was not committed within {timeout:g} s", code=Code.TIMEOUT
            ) from None
        finally:
            self._changing -= 1
        return self.node_status().membership_index

    async def _with_directory(self, step: MemberStep) -> MemberStep:
        """Add the number of the directory to a step that adds a node, which must run.

        The group thereby knows the directory before it counts, and no other machine can take its place.
        """
        own = self.node_status()
        if not own.is_leader:  # the request is going to be refused
            return step
        if step.kind in (ChangeKind.ADD, ChangeKind.MOVE):
            self._config.refuse_plaintext({step.node_id: step.address})
        if step.kind is not ChangeKind.ADD or step.node_id in self._members:
            return step
        try:
            new = await self._status_at(step.node_id, step.address)
        except NetworkFailure as error:
            text = f"{step.node_id} does not answer: start it first, with an empty directory and --join"
            raise Refused(f"{text}; {error.message}", code=Code.LEARNER_NOT_READY) from None
        if found := why_foreign(new, step.node_id, own):
            raise InvalidRequest(f"the node at {step.address} has {found}", code=Code.CHANGE_REFUSED)
        if new.uid != UNKNOWN_UID:
            text = f"{step.node_id} was initialized with `dledger init`, or was a member before"
            raise InvalidRequest(
                f"{text}: remove its directory and start it with --join", code=Code.CHANGE_REFUSED
            )
        if not 0 < new.directory <= MAX_DIRECTORY:
            text = f"the node at {step.address} names {new.directory} as its directory"
            raise InvalidRequest(text, code=Code.CHANGE_REFUSED)
        return replace(step, directory=new.directory)

    async def purge(self, before_index: int, before_age_ms: int) -> int:
        """Allow entries before an index, or older than an age, to be purged. Returns the index. Raises
        NotLeader.
        """
        try:
            return self._shell.purge(before_index if before_index >= 0 else None, before_age_ms)
        except NotLeader as error:
            error.leader_address = self._members.get(error.leader_id or "")
            raise

    async def scrub(self, bytes_per_second: int) -> AsyncGenerator[ScrubProgress, None]:
        """Verify all entries that are stored now, and repair damage."""
        if self._scrubbing:
            raise Overloaded("a requested scrub is already running; try again when it has finished")
        self._scrubbing = True
        try:
            async for progress in self._scrub(Pacer(bytes_per_second)):
                yield progress
        finally:
            self._scrubbing = False

    async def _scrub(self, pace: Pacer) -> AsyncGenerator[ScrubProgress, None]:
        loop = asyncio.get_running_loop()
        next_index, last = self._store.begin_index, self._store.end_index
        bytes_read, reported = 0, loop.time()
        damages: list[DamagedRange] = []
        done = False
        while not done:
            before = self._scrubber.bytes_read
            next_index, damage, wrapped = await self._scrubber.step(next_index, pace)
            bytes_read += self._scrubber.bytes_read - before
            done = wrapped or next_index > last
            if damage is not None:
                damages.append(damaged_range(damage))
            if done or damages or loop.time() - reported >= _PROGRESS_EVERY_S:
                reported = loop.time()
                yield ScrubProgress(last + 1 if done else next_index, last, bytes_read, tuple(damages), done)
                damages = []
            await asyncio.sleep(pace.wait_s(loop.time()))

    async def _image_chunks(self, image: ImageManifest) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        chunks = self._store.images.chunks(image, range(len(image.crcs)))
        try:
            while (chunk := await loop.run_in_executor(None, next, chunks, None)) is not None:
                yield chunk
        finally:
            await loop.run_in_executor(None, chunks.close)

    def _image_between(self, base_index: int, last_index: int) -> ImageManifest:
        """Return the newest image, without which a node that is restored would never serve."""
        image = self._store.images.newest
        if image is None or not base_index < image.mark.index <= last_index:
            raise ReadFailed(
                "this node has no state image that belongs to its committed entries: it was damaged, or a "
                "newer one has arrived before its entries; try again, or back up another node",
                code=Code.ILLEGAL_MEMBER_STATE,
            )
        return image

    async def backup(self) -> AsyncGenerator[BackupHead | bytes, None]:
        """Yield a consistent prefix of the log: a header, then all entries now committed and stored on this
        node."""
        self._log.check_serving()
        store, identity = self._store, self._store.identity
        last, base = self._log.readable_index, store.base
        # Until a log starts with a purge, its entries contain everything.
        image = self._image_between(base.index, last) if base.index >= 0 else None
        yield BackupHead(
            identity.cluster_id,
            identity.group,
            identity.node_id,
            identity.data_file_size,
            identity.flush_mode.value,
            base,
            last,
            b"" if image is None else image.encode(),
        )
        if image is not None:
            async for chunk in self._image_chunks(image):
                yield chunk
        next_index = base.index + 1
        while next_index <= last:
            frames = await self._log.fetch(next_index, last, _BACKUP_BYTES)
            next_index = frames.last_index + 1
            yield frames.data
