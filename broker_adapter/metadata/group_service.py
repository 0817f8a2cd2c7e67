"""Commits and resets of consumer offsets on the master, through the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from broker_adapter.api import GroupConfig, QueueOffset
from broker_adapter.errors import IllegalMessage, NotMaster, Status, error_for
from broker_adapter.metadata.commands import NO_GENERATION, CommitOffsets, PutGroup, ResetOffsets
from broker_adapter.metadata.creation_limits import CreationLimits
from broker_adapter.metadata.proposals import Proposals
from broker_adapter.metadata.reset_barriers import GroupClients, ResetBarriers
from broker_adapter.metadata.state import MAX_GROUPS, MetadataState
from dledger.infra.quotas import client_of


class QueueEnds(Protocol):
    """Interface to the offset ranges of the queues on this node."""

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]: ...

    async def wait_applied(self, index: int | None = None, timeout: float = 5.0) -> int: ...


class _Groups:
    """The names of all groups, as a container."""

    def __init__(self, metadata: MetadataState) -> None:
        self._metadata = metadata

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._metadata.group(name) is not None


class GroupService:
    """Commits, resets and creates groups. Implements `broker_adapter.role.broker_role.MasterService`; one
    instance serves all leaderships.
    """

    def __init__(
        self,
        metadata: MetadataState,
        proposals: Proposals,
        queues: QueueEnds,
        clients: GroupClients,
        *,
        monotonic_ms: Callable[[], int],
        auto_create: bool,
        auto_create_up_to: int = MAX_GROUPS,
        auto_create_per_client: int = MAX_GROUPS,
        used: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`used` is called with each group that a client uses."""
        self._metadata = metadata
        self._proposals = proposals
        self._queues = queues
        self._auto_create = auto_create
        self._monotonic_ms = monotonic_ms
        self._used = used
        self._limits = CreationLimits(
            "groups", Status.TOO_MANY_GROUPS, auto_create_up_to, auto_create_per_client
        )
        self.barriers = ResetBarriers(metadata, proposals, clients, lambda: monotonic_ms() / 1000)
        self._is_leading = False

    def start(self, term: int, role_epoch: int) -> None:
        self.barriers.start(term, role_epoch)
        self._is_leading = True

    async def stop(self) -> None:
        self._is_leading = False
        await self.barriers.stop()
        self._proposals.abandon("this broker is no longer the master")

    async def commit(self, group: str, offsets: Sequence[QueueOffset], client_id: str = "") -> None:
        """Commit the offsets. `client_id`: see `ResetBarriers`.

        Raises GroupRefused (GENERATION_STALE) if a reset has invalidated an offset; the other offsets are
        committed.
        """
        self._check_leading()
        command = self._judged(group, offsets, client_id)
        await self._check_ends(offsets)
        are_void = len(command.offsets) < len(offsets)
        if command.offsets or not offsets:
            await self.make_known(group)
            outcome = (await self._proposals.propose(command)).check()
            are_void = are_void or self._was_reset(command, outcome.index)
        if are_void:
            text = f"the offsets of group {group[:255]!r} were reset: pull from the new offsets"
            raise error_for(Status.GENERATION_STALE, text)

    def _was_reset(self, command: CommitOffsets, index: int) -> bool:
        """Return True if a reset was applied after the commit was judged and before it was applied at
        `index`.
        """
        group = self._metadata.group(command.group)
        if group is None:
            return False
        barriers = (group.barriers.get((topic, queue_id)) for topic, queue_id, _ in command.offsets)
        return any(
            barrier is not None and command.judged_at < barrier.reset_index < index for barrier in barriers
        )

    def _judged(self, group: str, offsets: Sequence[QueueOffset], client_id: str) -> CommitOffsets:
        """Return a command with the offsets that the barriers allow."""
        judged_at = self._metadata.applied_index
        verdicts = [
            (
                offset,
                self.barriers.judge_commit(group, offset.topic, offset.queue_id, offset.offset, client_id),
            )
            for offset in offsets
        ]
        counted = tuple(offset for offset, verdict in verdicts if verdict.counts)
        passed = next((verdict.client_id for _, verdict in verdicts if verdict.client_id), "")
        return CommitOffsets(group, NO_GENERATION, counted, passed, judged_at)

    async def reset(self, group: str, offsets: Sequence[QueueOffset], *, is_import: bool = False) -> int:
        self._check_leading()
        await self._check_ends(offsets)
        await self.make_known(group)
        command = ResetOffsets(group, tuple(offsets), has_barriers=not is_import)
        return (await self._proposals.propose(command)).check().index

    async def make_known(self, group: str, remote: str = "") -> None:
        """If the group does not exist and may be created, create it for a client at host:port ("" if
        unknown).

        Raises GroupRefused (GROUP_UNKNOWN), Busy (TOO_MANY_GROUPS), IllegalMessage, and the errors of a
        proposal.
        """
        if self.known(group):
            return
        if not self._auto_create:
            raise error_for(Status.GROUP_UNKNOWN, f"there is no group {group[:255]!r}; create it first")
        count, now_s = len(self._metadata.groups()), self._monotonic_ms() / 1000
        self._limits.count_creation(client_of(remote), group, _Groups(self._metadata), count, now_s)
        (
            await self._proposals.propose(PutGroup(GroupConfig(group, auto_created=True), create_only=True))
        ).check()
        self._used(group)

    def known(self, group: str) -> bool:
        """Return True if the group exists. If so, record that it was used."""
        if self._metadata.group(group) is None:
            return False
        self._used(group)
        return True

    # -- inside -------------------------------------------------------------------------------------------

    def _check_leading(self) -> None:
        if not self._is_leading:
            raise NotMaster("only the master commits and resets offsets")

    async def _check_ends(self, offsets: Sequence[QueueOffset]) -> None:
        """Check that no offset is beyond the end of its queue, because the group would miss later messages.

        A consumer may have read messages from a slave that this broker has not dispatched yet. A failed check
        therefore waits for the dispatch and is repeated.
        """
        if self._beyond_end(offsets) is not None:
            await self._queues.wait_applied()
        if (offset := self._beyond_end(offsets)) is not None:
            end = self._queues.bounds(offset.topic, offset.queue_id)[1]
            text = f"offset {offset.offset} is beyond the end {end} of {offset.topic}-{offset.queue_id}"
            raise IllegalMessage(Status.OFFSET_OUT_OF_RANGE, text)

    def _beyond_end(self, offsets: Sequence[QueueOffset]) -> QueueOffset | None:
        bounds = self._queues.bounds
        beyond = (offset for offset in offsets if offset.offset > bounds(offset.topic, offset.queue_id)[1])
        return next(beyond, None)
