"""Groups on the master: members come and go here, what they agree on goes through the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog

from broker_adapter.api import Assignment, GroupConfig, QueueOffset
from broker_adapter.errors import BrokerError, NotMaster, Status, error_for
from broker_adapter.metadata.commands import CommitOffsets, NewGeneration, PutGroup, ResetOffsets
from broker_adapter.metadata.coordinator import CoordinatorConfig, GroupCoordinator, Pending
from broker_adapter.metadata.proposals import Proposals
from broker_adapter.metadata.state import MetadataState

_log = structlog.get_logger(part="groups")

_TICK_S = 0.1
#: A join waits so long for the assignment that it has caused, before it says "come back".
_SETTLE_S = 1.0


class GroupService:
    """Implements `broker_adapter.broker_role.MasterService`; one for all times as master."""

    def __init__(
        self,
        metadata: MetadataState,
        proposals: Proposals,
        *,
        monotonic_ms: Callable[[], int],
        auto_create: bool = True,
        config: CoordinatorConfig | None = None,
    ) -> None:
        self._metadata = metadata
        self._proposals = proposals
        self._monotonic_ms = monotonic_ms
        self._auto_create = auto_create
        self._config = config
        self._coordinator: GroupCoordinator | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._proposing: set[asyncio.Task[None]] = set()
        self._changed: dict[str, asyncio.Event] = {}  # by group, while somebody waits

    # -- the role -----------------------------------------------------------------------------------------

    def start(self, term: int, role_epoch: int) -> None:
        self._coordinator = GroupCoordinator(self._metadata, self._config)
        self._ticking = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        self._coordinator = None
        tasks = [task for task in (self._ticking, *self._proposing) if task is not None]
        self._ticking = None
        for task in tasks:
            task.cancel()
        self._proposals.abandon("this broker is not the master any more")
        await asyncio.gather(*tasks, return_exceptions=True)
        for event in self._changed.values():
            event.set()

    # -- members ------------------------------------------------------------------------------------------

    async def join(self, group: str, member_id: str, topics: Sequence[str], lease_ms: int) -> Assignment:
        """The newest assignment; without queues, and with a short heartbeat, while there is none yet."""
        coordinator = self._leading()
        await self._make_known(group)
        answer = coordinator.join(group, member_id, topics, lease_ms, self._monotonic_ms())
        self._propose(coordinator.proposal(group, self._monotonic_ms()))
        if isinstance(answer, Pending):
            await self._wait_for_change(group)
            answer = self._leading().answer(group, member_id)
        if isinstance(answer, Pending):
            return Assignment(-1, (), 0, answer.retry_ms)
        return answer

    async def leave(self, group: str, member_id: str) -> None:
        coordinator = self._leading()
        coordinator.leave(group, member_id, self._monotonic_ms())
        self._propose(coordinator.proposal(group, self._monotonic_ms()))

    # -- offsets ------------------------------------------------------------------------------------------

    async def commit(self, group: str, generation: int, offsets: Sequence[QueueOffset]) -> None:
        self._leading()
        await self._make_known(group)
        (await self._proposals.propose(CommitOffsets(group, generation, tuple(offsets)))).check()

    async def reset(self, group: str, offsets: Sequence[QueueOffset]) -> int:
        self._leading()
        await self._make_known(group)
        return (await self._proposals.propose(ResetOffsets(group, tuple(offsets)))).check().generation

    # -- inside -------------------------------------------------------------------------------------------

    def _leading(self) -> GroupCoordinator:
        if self._coordinator is None:
            raise NotMaster("groups are led by the master, which this broker is not")
        return self._coordinator

    async def _make_known(self, group: str) -> None:
        if self._metadata.group(group) is not None:
            return
        if not self._auto_create:
            raise error_for(Status.GROUP_UNKNOWN, f"there is no group {group[:255]!r}; create it first")
        (await self._proposals.propose(PutGroup(GroupConfig(group), create_only=True))).check()

    async def _wait_for_change(self, group: str) -> None:
        event = self._changed.setdefault(group, asyncio.Event())
        with suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_S):
                await event.wait()

    async def _tick(self) -> None:
        while self._coordinator is not None:
            for command in self._coordinator.tick(self._monotonic_ms()):
                self._propose(command)
            await asyncio.sleep(_TICK_S)

    def _propose(self, command: NewGeneration | None) -> None:
        if command is None:
            return
        task = asyncio.create_task(self._carry_out(command))
        self._proposing.add(task)
        task.add_done_callback(self._proposing.discard)

    async def _carry_out(self, command: NewGeneration) -> None:
        coordinator = self._coordinator
        assert coordinator is not None
        applied = False
        try:
            outcome = (await self._proposals.propose(command)).check()
            applied = True
            _log.info(
                "new generation",
                group=command.group,
                generation=outcome.generation,
                members=len(command.members),
            )
        except BrokerError as error:
            # It is proposed again with the next tick, if it is still wanted.
            _log.warning("no new generation", group=command.group, reason=str(error))
        finally:
            coordinator.settled(command.group, applied=applied)
            if (event := self._changed.pop(command.group, None)) is not None:
                event.set()
