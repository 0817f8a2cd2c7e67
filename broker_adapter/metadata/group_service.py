"""Groups on the master: members come and go here, what they agree on goes through the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from broker_adapter.api import Assignment, GroupConfig, QueueOffset
from broker_adapter.errors import IllegalMessage, NotMaster, Status, error_for
from broker_adapter.metadata.commands import CommitOffsets, PutGroup, ResetOffsets
from broker_adapter.metadata.coordinator import CoordinatorConfig
from broker_adapter.metadata.creation_limits import CreationLimits
from broker_adapter.metadata.membership import Membership
from broker_adapter.metadata.proposals import Proposals
from broker_adapter.metadata.state import MAX_GROUPS, MetadataState
from dledger.platform import client_of


class QueueEnds(Protocol):
    """How far the queues go on this node."""

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]: ...

    async def wait_applied(self, index: int | None = None, timeout_ms: int = 5000) -> int: ...


class _Groups:
    """Their names."""

    def __init__(self, metadata: MetadataState) -> None:
        self._metadata = metadata

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._metadata.group(name) is not None


class GroupService:
    """Implements `broker_adapter.role.broker_role.MasterService`; one for all times as master."""

    def __init__(
        self,
        metadata: MetadataState,
        proposals: Proposals,
        queues: QueueEnds,
        *,
        monotonic_ms: Callable[[], int],
        auto_create: bool,
        auto_create_up_to: int = MAX_GROUPS,
        auto_create_per_client: int = MAX_GROUPS,
        config: CoordinatorConfig | None = None,
        used: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`used` is told each group that a client uses."""
        self._metadata = metadata
        self._proposals = proposals
        self._queues = queues
        self._auto_create = auto_create
        self._monotonic_ms = monotonic_ms
        self._used = used
        self._limits = CreationLimits(
            "groups", Status.TOO_MANY_GROUPS, auto_create_up_to, auto_create_per_client
        )
        self._membership = Membership(metadata, proposals.propose, monotonic_ms, config)
        self._is_leading = False

    def start(self, term: int, role_epoch: int) -> None:
        self._membership.start()
        self._is_leading = True

    async def stop(self) -> None:
        self._is_leading = False
        self._membership.stop()
        self._proposals.abandon("this broker is not the master any more")

    async def join(self, group: str, member_id: str, topics: Sequence[str], lease_ms: int) -> Assignment:
        self._check_leading()
        await self.make_known(group)
        return await self._membership.join(group, member_id, topics, lease_ms)

    async def leave(self, group: str, member_id: str) -> None:
        await self._membership.leave(group, member_id)

    async def commit(self, group: str, generation: int, offsets: Sequence[QueueOffset]) -> None:
        self._check_leading()
        await self._check_ends(offsets)
        await self.make_known(group)
        (await self._proposals.propose(CommitOffsets(group, generation, tuple(offsets)))).check()

    async def reset(self, group: str, offsets: Sequence[QueueOffset]) -> int:
        self._check_leading()
        await self._check_ends(offsets)
        await self.make_known(group)
        return (await self._proposals.propose(ResetOffsets(group, tuple(offsets)))).check().generation

    async def make_known(self, group: str, remote: str = "") -> None:
        """Created if it may be, for a client at host:port ("": not known). GroupRefused (GROUP_UNKNOWN), Busy
        (TOO_MANY_GROUPS), IllegalMessage, and errors of a proposal."""
        if self.known(group):
            return
        if not self._auto_create:
            raise error_for(Status.GROUP_UNKNOWN, f"there is no group {group[:255]!r}; create it first")
        count, now_s = len(self._metadata.groups()), self._monotonic_ms() / 1000
        self._limits.take(client_of(remote), group, _Groups(self._metadata), count, now_s)
        (
            await self._proposals.propose(PutGroup(GroupConfig(group, auto_created=True), create_only=True))
        ).check()
        self._used(group)

    def known(self, group: str) -> bool:
        """Whether there is such a group: by this it is used."""
        if self._metadata.group(group) is None:
            return False
        self._used(group)
        return True

    # -- inside -------------------------------------------------------------------------------------------

    def _check_leading(self) -> None:
        if not self._is_leading:
            raise NotMaster("groups are led by the master, which this broker is not")

    async def _check_ends(self, offsets: Sequence[QueueOffset]) -> None:
        """No group gets past the end of a queue: it would miss what comes. A consumer may have read more
        from a slave than this broker has dispatched so far, so it looks twice."""
        if self._beyond_end(offsets) is not None:
            await self._queues.wait_applied()
        if (one := self._beyond_end(offsets)) is not None:
            end = self._queues.bounds(one.topic, one.queue_id)[1]
            text = f"offset {one.offset} of {one.topic}-{one.queue_id}, which ends at {end}"
            raise IllegalMessage(Status.OFFSET_OUT_OF_RANGE, text)

    def _beyond_end(self, offsets: Sequence[QueueOffset]) -> QueueOffset | None:
        bounds = self._queues.bounds
        return next((one for one in offsets if one.offset > bounds(one.topic, one.queue_id)[1]), None)
