"""Joining and leaving groups: the coordinator, its proposals and its clock, on the broker's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import structlog

from broker_adapter.api import Assignment
from broker_adapter.errors import BrokerError, NotMaster, Status, error_for
from broker_adapter.metadata.commands import Command, NewGeneration
from broker_adapter.metadata.coordinator import Catalog, CoordinatorConfig, GroupCoordinator, Pending
from broker_adapter.metadata.values import Outcome
from dledger.platform import wake_queue

_log = structlog.get_logger(part="groups")

_RENEW_MS = 1_000  # who waits looks again after this, however long its lease is


class Membership:
    """Groups and their members, while this node is the master: between `start` and `stop`.

    `propose` is that of `Proposals`; `now_ms` a monotonic clock.
    """

    def __init__(
        self,
        catalog: Catalog,
        propose: Callable[[Command], Awaitable[Outcome]],
        now_ms: Callable[[], int],
        config: CoordinatorConfig | None = None,
        *,
        tick_ms: int = 100,
        join_timeout_ms: int = 10_000,
    ) -> None:
        self._catalog = catalog
        self._propose = propose
        self._now_ms = now_ms
        self._config = config or CoordinatorConfig()
        self._tick_ms = tick_ms
        self._join_timeout_ms = join_timeout_ms
        self._coordinator: GroupCoordinator | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changes: dict[str, asyncio.Event] = {}  # by group: set when waiting may be over

    def start(self) -> None:
        """This node has become the master: members are to join again."""
        self.stop()
        self._coordinator = GroupCoordinator(self._catalog, self._config)
        self._next_tick()

    def stop(self) -> None:
        """This node is not the master any more. Who waits in `join` is told so."""
        self._coordinator = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for group in list(self._changes):
            self._changed(group)

    async def join(self, group: str, member_id: str, topics: Sequence[str], lease_ms: int) -> Assignment:
        """As `BrokerApi.join`; returns once the log has an assignment for this member.

        Errors of `GroupCoordinator.join`; GroupRefused (NOT_A_MEMBER) if it leaves while it waits; NotMaster;
        Busy (REBALANCING) if that took too long.
        """
        coordinator = self._leading()
        answer = coordinator.join(group, member_id, topics, lease_ms, self._now_ms())
        self._advance(coordinator, group)
        try:
            async with asyncio.timeout(self._join_timeout_ms / 1000):
                while isinstance(answer, Pending):
                    await self._change_of(group, min(lease_ms // 3, _RENEW_MS))
                    coordinator = self._leading()
                    coordinator.answer(group, member_id)  # it may have left meanwhile
                    # Who waits here is alive: its lease begins anew.
                    answer = coordinator.join(group, member_id, topics, lease_ms, self._now_ms())
                    self._advance(coordinator, group)
        except TimeoutError:
            raise error_for(Status.REBALANCING, f"group {group!r} has no new generation yet") from None
        return answer

    async def leave(self, group: str, member_id: str) -> None:
        """As `BrokerApi.leave`; the others get the queues with the next generation.

        GroupRefused (GROUP_UNKNOWN, NOT_A_MEMBER); NotMaster.
        """
        coordinator = self._leading()
        coordinator.leave(group, member_id, self._now_ms())
        self._advance(coordinator, group)

    def tick(self) -> None:
        """Propose what is due: called every `tick_ms` between `start` and `stop`."""
        if self._coordinator is None:
            return
        for command in self._coordinator.tick(self._now_ms()):
            self._carry_out(self._coordinator, command)
        for group in list(self._changes):
            if self._catalog.group(group) is None:
                self._changed(group)

    def _leading(self) -> GroupCoordinator:
        if self._coordinator is None:
            raise NotMaster("groups are coordinated by the master")
        return self._coordinator

    def _next_tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._tick_ms / 1000, self._next_tick)
        self.tick()

    def _advance(self, coordinator: GroupCoordinator, group: str) -> None:
        command = coordinator.proposal(group, self._now_ms())
        if command is not None:
            self._carry_out(coordinator, command)

    def _carry_out(self, coordinator: GroupCoordinator, command: NewGeneration) -> None:
        task = asyncio.get_running_loop().create_task(self._see_through(coordinator, command))
        self._tasks.add(task)  # or nobody would hold it
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """What is no BrokerError is a mistake: members wait for the next tick, which proposes again."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("members of a group could not be changed", exc_info=error)

    async def _see_through(self, coordinator: GroupCoordinator, command: NewGeneration) -> None:
        applied = False
        try:
            applied = (await self._propose(command)).status is None
        except BrokerError:
            applied = False  # the next tick proposes again, if this node is still the master
        finally:
            coordinator.settled(command.group, applied=applied)
        if applied:
            self._changed(command.group)
            if coordinator is self._coordinator:
                self._advance(coordinator, command.group)

    async def _change_of(self, group: str, most_ms: int) -> None:
        event = self._changes.setdefault(group, asyncio.Event())
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), most_ms / 1000)
        await wake_queue().turn(group)  # all members wait for the same

    def _changed(self, group: str) -> None:
        if (event := self._changes.pop(group, None)) is not None:
            event.set()
