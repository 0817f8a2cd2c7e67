"""Groups that came into being because clients used them go when nobody does any more.

What the master knows of use is not in the log, so it only proposes: the command says how far the group had
come, and the state deletes it if it still is there when the command is applied (`ExpireGroup`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from broker_adapter.metadata.commands import ExpireGroup
from broker_adapter.metadata.expiry import MOST_A_LOOK, NAMES_A_TURN, Expiry, LastUse
from broker_adapter.metadata.proposals import Proposals
from broker_adapter.metadata.state import MetadataState
from broker_adapter.metadata.values import Group

_log = structlog.get_logger(part="groups")


class GroupExpiry(Expiry):
    """Of groups."""

    def __init__(
        self,
        metadata: MetadataState,
        proposals: Proposals,
        use: LastUse,
        *,
        expire_ms: int,
        has_pending: Callable[[str], bool],
    ) -> None:
        """`has_pending`: whether consumers of a group were given messages that are not done."""
        super().__init__("group", use, expire_ms)
        self._metadata = metadata
        self._proposals = proposals
        self._has_pending = has_pending
        self._idle: dict[str, int] = {}  # generation of those that the last look found idle

    def start(self, term: int, role_epoch: int) -> None:
        self._idle.clear()
        super().start(term, role_epoch)

    async def look(self) -> None:
        """Delete some that were unused at the last look already: of one that came into being a moment ago,
        its first use may not be told yet."""
        groups = self._metadata.groups()
        self._use.keep({group.name for group in groups})
        idle: dict[str, int] = {}
        for number, group in enumerate(groups, 1):
            if self._is_idle(group):
                idle[group.name] = group.generation
            if number % NAMES_A_TURN == 0:
                await asyncio.sleep(0)
        before, self._idle = self._idle, idle
        again = [name for name, generation in idle.items() if before.get(name) == generation]
        for name in again[:MOST_A_LOOK]:
            found = self._metadata.group(name)
            if found is not None and found.generation == idle[name] and self._is_idle(found):
                # Nothing else runs on the loop between this and the append.
                await self._delete(found)

    def _is_idle(self, group: Group) -> bool:
        return (
            group.config.auto_created
            and not group.members
            and self._use.idle_ms(group.name) >= self._expire_ms
            and not self._has_pending(group.name)
        )

    async def _delete(self, group: Group) -> None:
        name, idle_s = group.name, self._use.idle_ms(group.name) // 1000
        command = ExpireGroup(name, group.generation, self._metadata.progress(group))
        outcome = await self._proposals.propose(command)
        if outcome.status is not None:
            _log.info("a group is in use after all", group=name, reason=outcome.message)
            return
        self.expired += 1
        _log.info("a group that nobody uses is deleted", group=name, idle_s=idle_s)
