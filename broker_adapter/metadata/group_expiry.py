"""Expiry of automatically created groups that are no longer used.

The log does not record when groups are used, so the master can only propose a deletion. Its command
(`ExpireGroup`) contains the group's progress. The state machine deletes the group only if its progress is
still the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from broker_adapter.metadata.commands import ExpireGroup
from broker_adapter.metadata.expiry import MAX_DELETIONS_PER_SWEEP, NAMES_PER_YIELD, Expiry, LastUse
from broker_adapter.metadata.proposals import Proposals
from broker_adapter.metadata.state import MetadataState
from broker_adapter.metadata.values import Group

_log = structlog.get_logger(part="groups")


class GroupExpiry(Expiry):
    """Deletes unused groups."""

    def __init__(
        self,
        metadata: MetadataState,
        proposals: Proposals,
        use: LastUse,
        *,
        expire_ms: int,
        has_pending: Callable[[str], bool],
    ) -> None:
        """`has_pending`: returns True if consumers of a group hold unacknowledged messages."""
        super().__init__("group", use, expire_ms)
        self._metadata = metadata
        self._proposals = proposals
        self._has_pending = has_pending
        self._idle: dict[str, int] = {}  # generation of each group that the last sweep found idle

    def start(self, term: int, role_epoch: int) -> None:
        self._idle.clear()
        super().start(term, role_epoch)

    async def sweep(self) -> None:
        """Delete some of the groups that were already unused in the previous sweep.

        They are not deleted on the first sweep, because the first use of a new group may not be recorded yet.
        """
        groups = self._metadata.groups()
        self._use.keep({group.name for group in groups})
        idle: dict[str, int] = {}
        for number, candidate in enumerate(groups, 1):
            if self._is_idle(candidate):
                idle[candidate.name] = candidate.generation
            if number % NAMES_PER_YIELD == 0:
                await asyncio.sleep(0)
        before, self._idle = self._idle, idle
        again = [name for name, generation in idle.items() if before.get(name) == generation]
        for name in again[:MAX_DELETIONS_PER_SWEEP]:
            group = self._metadata.group(name)
            if group is not None and group.generation == idle[name] and self._is_idle(group):
                # No other task runs between this check and the append.
                await self._delete(group)

    def _is_idle(self, group: Group) -> bool:
        return (
            group.config.auto_created
            and self._use.idle_ms(group.name) >= self._expire_ms
            and not self._has_pending(group.name)
        )

    async def _delete(self, group: Group) -> None:
        name, idle_s = group.name, self._use.idle_ms(group.name) // 1000
        command = ExpireGroup(name, group.generation, self._metadata.progress(group))
        outcome = await self._proposals.propose(command)
        if outcome.status is not None:
            _log.info("kept a group that is in use again", group=name, reason=outcome.message)
            return
        self.expired += 1
        _log.info("deleted an unused group", group=name, idle_s=idle_s)
