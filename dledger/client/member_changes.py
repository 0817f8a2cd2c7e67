"""Changes of the members that take several steps. Each can be repeated after an interruption."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from dledger.client.async_client import AsyncClient
from dledger.core.membership_change import ChangeKind, MembershipChange, MemberStep
from dledger.core.values import UNKNOWN_UID
from dledger.errors import Code, DLedgerError, Indeterminate, InvalidRequest, Refused
from dledger.infra.addresses import can_be_member
from dledger.rpc.log_client import NetworkFailure
from dledger.status.model import NodeStatus, why_foreign

_PAUSE_S = 0.2
#: Within this time, a new leader has received the releases of the other members.
_RELEASES_KNOWN_S = 5.0
_STATUS_S = 2.0
#: A step that fails less than this time before the deadline is not tried again.
_LAST_S = 1.0
#: After these errors the same step is tried again. A step that is in force already succeeds.
_AGAIN = (Code.CHANGE_RUNNING, Code.LEARNER_NOT_READY, Code.NOT_LEADER)


class MemberChanges:
    """Changes the members of a client's group step by step.

    A step that must wait for another change, an election or a lagging learner is tried again. At the
    deadline, the last error is raised. A repeated call continues where the first one has stopped.
    """

    def __init__(
        self, client: AsyncClient, *, timeout: float, report: Callable[[str], None] = lambda line: None
    ) -> None:
        """`timeout`: seconds for a whole change. `report` receives lines about completed steps except the
        last one, and about the reasons for waiting."""
        self._client = client
        self._timeout = timeout
        self._report = report
        self._last_report = ""
        self._deadline = 0.0

    async def add(self, node_id: str, address: str, *, as_voter: bool, force: bool = False) -> None:
        """Add a learner, which must run, and with `as_voter`, promote it once it has caught up.

        `force`: even if a member that is down might run a release before 0.3.
        """
        self._start()
        await self._add(node_id, address, force=force)
        if as_voter:
            await self._change(MemberStep(ChangeKind.PROMOTE, node_id))

    async def remove(self, node_id: str, *, force: bool = False) -> None:
        """Remove a member. Succeeds if a server of the client is this node and was removed before.

        Raises InvalidRequest UNKNOWN_MEMBER if the node is not a member, and not known to have been one.
        """
        self._start()
        members = {member.node_id for member in (await self._leader()).members}
        if node_id not in members:
            if await self._was_removed(node_id):
                self._report_once(f"{node_id} was removed already")
                return
            raise _unknown(node_id, members)
        await self._change(MemberStep(ChangeKind.REMOVE, node_id), force=force)

    async def replace(self, old: str, new: str, address: str, *, force: bool = False) -> None:
        """Replace a member, which may be gone for good, by a new one that runs at `address`.

        `force`: as in `add`.

        The voters change in one step, from a majority with the old member to one with the new member. If both
        have the same node id, the old one is removed first, and the group is smaller in the meantime.
        """
        self._start()
        if not can_be_member(address):
            text = f"{address!r:.300} is not an address of the form host:port that others can connect to"
            raise InvalidRequest(text)
        steps = [MemberStep(ChangeKind.PROMOTE, new)]
        if old != new:
            await self._check_replacement(old, new)
            steps.append(MemberStep(ChangeKind.REMOVE, old))
        elif await self._is_to_be_removed(old, address):
            await self._change(MemberStep(ChangeKind.REMOVE, old))
            self._report_once(f"the old {old} is removed")
        await self._add(new, address, force=force)
        await self._change(*steps)

    async def change(self, *steps: MemberStep, force: bool = False) -> None:
        """Make one change."""
        self._start()
        await self._change(*steps, force=force)

    async def _check_replacement(self, old: str, new: str) -> None:
        roles = {member.node_id: member.role for member in (await self._leader()).members}
        if old in roles and roles.get(new) == "voter":
            text = f"{new} is a voter already: remove {old}, or name a new node"
            raise InvalidRequest(text, code=Code.CHANGE_REFUSED)
        if old not in roles and roles.get(new) != "voter":
            # A completed replacement, which may be repeated, has made the new node a voter.
            raise _unknown(old, roles)

    async def _add(self, node_id: str, address: str, *, force: bool) -> None:
        # A forced addition skips the check of releases only, so it is tried again like others.
        await self._change(MemberStep(ChangeKind.ADD, node_id, address), force=force, insist=True)
        self._report_once(f"{node_id} is a member and receives the log")

    def _start(self) -> None:
        self._deadline = asyncio.get_running_loop().time() + self._timeout

    async def _leader(self) -> NodeStatus:
        return await self._client.leader(timeout=self._left_s())

    async def _was_removed(self, node_id: str) -> bool:
        """Return True if a configured server is this node, and was a member."""
        left_s = min(_STATUS_S, self._left_s())
        statuses = await self._client.status(timeout=left_s)
        known = [one for one in statuses.values() if isinstance(one, NodeStatus)]
        return any(one.node_id == node_id and one.uid != UNKNOWN_UID for one in known)

    async def _is_to_be_removed(self, node_id: str, address: str) -> bool:
        """Return True if this member is still the old one, and the new machine runs."""
        try:
            new = await self._client.status_of(address, timeout=min(_STATUS_S, self._left_s()))
        except NetworkFailure as error:
            text = f"{node_id} does not answer: start it first, with an empty directory and --join"
            raise Refused(f"{text}; {error.message}", code=Code.LEARNER_NOT_READY) from None
        leader = await self._leader()
        if found := why_foreign(new, node_id, leader):
            # Refused before the old member is removed.
            raise InvalidRequest(f"the node at {address} has {found}", code=Code.CHANGE_REFUSED)
        member = next((member for member in leader.members if member.node_id == node_id), None)
        if new.uid == UNKNOWN_UID:
            return member is not None
        if member is not None and new.uid == member.uid > 0:
            return False  # added by an earlier run of this replacement
        text = f"{new.node_id} at {address} was initialized with `dledger init`, or was a member before"
        raise InvalidRequest(
            f"{text}: remove its directory and start it with --join", code=Code.CHANGE_REFUSED
        )

    async def _change(self, *steps: MemberStep, force: bool = False, insist: bool = False) -> None:
        change, begin_s = MembershipChange(steps, force), self._left_s()
        while True:
            try:
                await self._client.change_members(change, timeout=self._left_s())
                break
            except DLedgerError as error:
                is_over = (force and not insist) or self._left_s() <= _LAST_S
                used_s = begin_s - self._left_s()
                is_early = error.code is Code.MEMBER_OUTDATED and used_s < _RELEASES_KNOWN_S
                is_passing = error.code in _AGAIN or is_early or isinstance(error, Indeterminate)
                if is_over or not is_passing:
                    raise
                self._report_once(f"waiting: {error.message.removesuffix('; try again')}")
            await asyncio.sleep(_PAUSE_S)

    def _left_s(self) -> float:
        return max(_PAUSE_S, self._deadline - asyncio.get_running_loop().time())

    def _report_once(self, line: str) -> None:
        if line != self._last_report:
            self._last_report = line
            self._report(line)


def _unknown(node_id: str, members: Iterable[str]) -> InvalidRequest:
    text = f"{node_id} is not a member: nothing was changed; members: {', '.join(sorted(members))}"
    return InvalidRequest(text, code=Code.UNKNOWN_MEMBER)
