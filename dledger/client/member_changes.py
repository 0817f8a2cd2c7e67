"""Changes of the members that take several steps. Each can be repeated after an interruption."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dledger.client.async_client import AsyncClient
from dledger.core.membership_change import ChangeKind, MembershipChange, MemberStep
from dledger.errors import Code, DLedgerError, Indeterminate
from dledger.status.model import NodeStatus

_PAUSE_S = 0.2
_HEARD_S = 5.0
#: After these errors the same step is tried again. A step that is in force already succeeds.
_AGAIN = (Code.CHANGE_RUNNING, Code.LEARNER_NOT_READY, Code.NOT_LEADER)


class MemberChanges:
    """Changes the members of a client's group step by step.

    A step that must wait, for another change, an election or a lagging learner, is tried again. If the time
    is over, the last error is raised; the same call then continues where this one has stopped.
    """

    def __init__(
        self, client: AsyncClient, *, timeout: float, tell: Callable[[str], None] = lambda text: None
    ) -> None:
        """`timeout`: seconds for a whole change. `tell` receives lines about the progress."""
        self._client = client
        self._timeout = timeout
        self._tell = tell
        self._told = ""
        self._deadline = 0.0

    async def add(self, node_id: str, address: str, *, as_voter: bool, force: bool = False) -> None:
        """Add a learner, which must run, and with `as_voter`, promote it once it has caught up.

        `force`: even if a member that is down might run a release before 0.3.
        """
        self._start()
        await self._add(node_id, address, force=force)
        if as_voter:
            await self._change(MemberStep(ChangeKind.PROMOTE, node_id))

    async def replace(self, old: str, new: str, address: str, *, force: bool = False) -> None:
        """Replace a member, which may be gone for good, by a new one that runs at `address`.

        `force`: as in `add`.

        The voters change in one step, from a majority with the old member to one with the new member. If both
        have the same node id, the old one is removed first, and the group is smaller in the meantime.
        """
        self._start()
        if old == new and not self._is_new(await self._leader(), new, address):
            await self._change(MemberStep(ChangeKind.REMOVE, old))
        await self._add(new, address, force=force)
        if old == new:
            await self._change(MemberStep(ChangeKind.PROMOTE, new))
        else:
            await self._change(MemberStep(ChangeKind.PROMOTE, new), MemberStep(ChangeKind.REMOVE, old))

    async def change(self, *steps: MemberStep, force: bool = False) -> None:
        """Make one change."""
        self._start()
        await self._change(*steps, force=force)

    async def _add(self, node_id: str, address: str, *, force: bool) -> None:
        """A forced addition skips the check of releases only, so it is tried again like others."""
        await self._change(MemberStep(ChangeKind.ADD, node_id, address), force=force, insist=True)

    def _start(self) -> None:
        self._deadline = asyncio.get_running_loop().time() + self._timeout

    async def _leader(self) -> NodeStatus:
        return await self._client.leader(timeout=self._left_s())

    def _is_new(self, leader: NodeStatus, node_id: str, address: str) -> bool:
        """Return True if the new member was added already, by an earlier run of the same replacement: it is a
        learner, or a voter that works."""
        works = {leader.node_id, *(f.node_id for f in leader.followers if f.connected)}
        return any(
            (m.node_id, m.address) == (node_id, address)
            and m.uid > 0
            and (m.role == "learner" or node_id in works)
            for m in leader.members
        )

    async def _change(self, *steps: MemberStep, force: bool = False, insist: bool = False) -> None:
        change, begin_s = MembershipChange(steps, force), self._left_s()
        while True:
            try:
                await self._client.change_members(change, timeout=self._left_s())
                break
            except DLedgerError as error:
                is_over = (force and not insist) or self._left_s() <= _PAUSE_S
                # A new leader hears of the releases of the others within a moment.
                is_early = error.code is Code.MEMBER_OUTDATED and begin_s - self._left_s() < _HEARD_S
                is_passing = error.code in _AGAIN or is_early or isinstance(error, Indeterminate)
                if is_over or not is_passing:
                    raise
                self._say(error.message)
            await asyncio.sleep(_PAUSE_S)
        self._say("; ".join(f"{step.kind.value} {step.node_id}: done" for step in steps))

    def _left_s(self) -> float:
        return max(_PAUSE_S, self._deadline - asyncio.get_running_loop().time())

    def _say(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self._tell(text)
