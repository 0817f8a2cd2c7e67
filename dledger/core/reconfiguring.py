"""Changes of the configuration, on the leader (Raft thesis, chapter 4; docs/guarantees.md rule 15).

A change of the voters takes two entries. The first is joint: from then on, decisions need a majority of the
voters before and one of the voters after the change. The second follows once the first is committed, and
ends the change. A new leader that finds a committed joint configuration writes the second entry itself.
Other changes take one entry. An entry is in force once it is in the log, and a truncation undoes it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Protocol

from dledger.core.core_state import CoreState
from dledger.core.directories import newer_of
from dledger.core.effects import AppendMembership, ChangeEnded
from dledger.core.membership_change import (
    ChangeRefused,
    MembershipChange,
    first_entry,
    first_new_uid,
    last_entry,
    target_of,
)
from dledger.core.quorum import is_majority
from dledger.core.values import Member, Membership, member_key
from dledger.errors import Code


class Leader(Protocol):
    """The part of a leadership that its changes use."""

    @property
    def noop_is_committed(self) -> bool: ...
    @property
    def transferring_to(self) -> str | None: ...
    def live(self) -> Collection[str]:
        """Members that count and have responded lately, including this node."""

    def has_image(self, node_id: str) -> bool:
        """Return True if a member has an image of the entries that may be purged, if there are any."""

    def why_not_ready(self, node_id: str) -> str:
        """Return why a learner is not ready to vote; "" if it is."""

    def retire(self) -> None:
        """Step down, because this node is no longer a voter."""


class Reconfiguration:
    """The change in progress of one leadership."""

    def __init__(self, core: CoreState, leader: Leader) -> None:
        self._core = core
        self._leader = leader
        self._request_id: int | None = None
        self._is_submitted = False  # a configuration will be in the log, but waits for its group

    @property
    def is_submitted(self) -> bool:
        """A configuration precedes the next entry, but is not in force yet."""
        return self._is_submitted

    @property
    def is_running(self) -> bool:
        log = self._core.log
        in_log = log.membership.is_joint or log.membership_index > self._core.committed_index
        return self._is_submitted or in_log

    def request(self, request_id: int, change: MembershipChange) -> None:
        try:
            target = self._check(change)
        except ChangeRefused as refusal:
            self._core.emit(ChangeEnded(request_id, refusal.code, refusal.reason))
            return
        if target is self._core.membership:
            self._core.emit(ChangeEnded(request_id, Code.SUCCESS, "already in force"))
            return
        self._request_id = request_id
        self._append(first_entry(self._core.membership, target))

    def _check(self, change: MembershipChange) -> Membership:
        """Return the configuration after the change. Raises ChangeRefused."""
        core, leader = self._core, self._leader
        if not leader.noop_is_committed:
            # Without this, two changes of leaders of different terms could have disjoint majorities.
            text = "this leader has not committed an entry of its term yet; try again"
            raise ChangeRefused(Code.CHANGE_RUNNING, text)
        if leader.transferring_to is not None:
            text = f"a transfer of leadership to {leader.transferring_to} is under way; try again"
            raise ChangeRefused(Code.CHANGE_RUNNING, text)
        if self.is_running:
            raise ChangeRefused(Code.CHANGE_RUNNING, "another change of the members is under way; try again")
        if core.log.membership_index < 0:
            self._check_releases(force=change.force)
            self._check_addresses()
        target = target_of(core.membership, change.steps, first_new_uid(core.log.end_index + 1))
        if not change.force:
            self._check_readiness(target)
        return target

    def _check_releases(self, *, force: bool) -> None:
        """Before the first change: release 0.2 does not know the entry, and would count the first members.

        Force excuses only members that are not there to say which release they run.
        """
        live = self._leader.live()
        if older := [p for p in self._core.outdated_members() if not force or p in live]:
            text = f"not known to run a release that can change members: {', '.join(older)}"
            raise ChangeRefused(Code.MEMBER_OUTDATED, text)

    def _check_addresses(self) -> None:
        """Before the first change: its entry has the addresses of all members, from this leader's file."""
        if absent := [member.node_id for member in self._core.membership.identities if not member.address]:
            text = (
                f"the configuration of the leader {self._core.node_id} has no address of {', '.join(absent)}"
            )
            raise ChangeRefused(Code.CHANGE_REFUSED, f"{text}: add it to `members`, and restart the node")

    def _check_readiness(self, target: Membership) -> None:
        core, live = self._core, self._leader.live()
        for node_id in target.voters:
            if node_id in core.membership.learners and (reason := self._leader.why_not_ready(node_id)):
                raise ChangeRefused(Code.LEARNER_NOT_READY, reason)
        changes_voters = set(target.voters) != set(core.membership.voters)
        if changes_voters and not is_majority(target, live):
            names = ", ".join(sorted(set(target.voters) & set(live))) or "none"
            text = f"of the voters {', '.join(target.voters)}, no majority is in contact: {names}"
            raise ChangeRefused(Code.NO_LIVE_MAJORITY, text)
        holders = [node for node in live if self._leader.has_image(node)]
        if changes_voters and not is_majority(target, holders):
            text = f"of the voters {', '.join(target.voters)}, no majority has a state image yet"
            raise ChangeRefused(Code.LEARNER_NOT_READY, text)

    def appended(self) -> None:
        self._is_submitted = False

    def committed(self) -> None:
        """Continue or end a change after a commit."""
        core, membership = self._core, self._core.membership
        if self._is_submitted or core.log.membership_index > core.committed_index:
            return
        if membership.is_joint:
            if self._leader.noop_is_committed:
                self._append(last_entry(membership))
            return
        request_id, self._request_id = self._request_id, None
        if request_id is not None:
            core.emit(ChangeEnded(request_id, Code.SUCCESS, "in force and committed"))
        if core.node_id not in membership.voters:
            self._leader.retire()

    def resigned(self, reason: str) -> None:
        request_id, self._request_id = self._request_id, None
        if request_id is not None:
            text = f"{reason}: the next leader may complete or undo the change; list the members"
            self._core.emit(ChangeEnded(request_id, Code.CHANGE_UNKNOWN, text))

    def _append(self, membership: Membership) -> None:
        self._is_submitted = True
        identities = tuple(
            member._replace(directory=newer_of(member.directory, self._directory_of(member)))
            for member in membership.identities
        )
        self._core.emit(AppendMembership(replace(membership, identities=identities)))

    def _directory_of(self, member: Member) -> int:
        """Return the number of the newest directory of a member that this leader knows; 0: none."""
        return self._core.hard_state.directory_of(member_key(member.node_id, member.uid))
