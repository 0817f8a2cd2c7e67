"""Mistakes of changes of the members (docs/guarantees.md rule 15)."""

from __future__ import annotations

from typing import Any

import pytest

from dledger.core import reconfiguring
from dledger.core.core_state import CoreState
from dledger.core.following import Follower
from dledger.core.leadership import Leadership
from dledger.core.log_view import LogView
from dledger.core.messages import InstallBase
from dledger.core.raft import RaftCore
from dledger.core.reconfiguring import Reconfiguration
from dledger.core.rejoining import RejoinProcess
from dledger.core.values import Membership, MembershipAt


def only_the_new_half_decides(patch: pytest.MonkeyPatch) -> None:
    """A joint configuration is left to the voters after the change."""
    patch.setattr(Membership, "halves", property(lambda self: (self.voters,)))


def only_the_old_half_decides(patch: pytest.MonkeyPatch) -> None:
    """A joint configuration is left to the voters before the change."""
    patch.setattr(Membership, "halves", property(lambda self: (self.outgoing or self.voters,)))


def halves_are_one_set(patch: pytest.MonkeyPatch) -> None:
    """A majority of all voters of both halves decides."""
    patch.setattr(Membership, "halves", property(lambda self: (self.electors,)))


def voters_change_in_one_step(patch: pytest.MonkeyPatch) -> None:
    """No joint configuration: two changed voters make two majorities without a common voter."""
    patch.setattr(reconfiguring, "first_entry", lambda current, target: target)


def in_force_when_committed(patch: pytest.MonkeyPatch) -> None:
    """The configuration is the last committed one: the leader and the others switch at different times."""

    def membership(core: CoreState) -> Membership:
        return core.log.memberships_from(core.committed_index)[0].membership

    patch.setattr(CoreState, "membership", property(membership))


def changed_before_the_first_commit(patch: pytest.MonkeyPatch) -> None:
    """The mistake of the single-server change of 2015."""
    original = Reconfiguration._check

    def check(changes: Reconfiguration, change: Any) -> Membership:
        noop_index, leader = changes._leader.noop_index, changes._leader
        core = changes._core
        committed, core.committed_index = core.committed_index, max(core.committed_index, noop_index or 0)
        assert leader is not None
        try:
            return original(changes, change)
        finally:
            core.committed_index = committed

    patch.setattr(Reconfiguration, "_check", check)


def truncated_changes_stay(patch: pytest.MonkeyPatch) -> None:
    """A configuration survives the truncation of its entry."""
    original = LogView.truncate_after

    def truncate(log: LogView, last_index: int) -> None:
        in_force = log._memberships[-1]
        original(log, last_index)
        if log._memberships[-1] is not in_force:
            log._memberships.append(MembershipAt(last_index, in_force.term, in_force.membership))

    patch.setattr(LogView, "truncate_after", truncate)


def learners_count(patch: pytest.MonkeyPatch) -> None:
    """Learners' copies count, with those of voters."""

    def halves(membership: Membership) -> tuple[tuple[str, ...], ...]:
        new = tuple(dict.fromkeys((*membership.voters, *membership.learners)))
        return (new, membership.outgoing) if membership.outgoing else (new,)

    patch.setattr(Membership, "halves", property(halves))


def removed_leader_counts_itself(patch: pytest.MonkeyPatch) -> None:
    """A leader that is no voter any more takes its own copy for one of a voter."""
    original = Leadership.advance_commit

    def advance(leadership: Leadership) -> None:
        core = leadership.core
        membership = core.membership
        if core.node_id in membership.electors:
            original(leadership)
            return
        with pytest.MonkeyPatch.context() as inner:
            voters = (*membership.voters[1:], core.node_id)
            inner.setattr(CoreState, "membership", property(lambda _: Membership(voters)))
            original(leadership)

    patch.setattr(Leadership, "advance_commit", advance)


def only_its_own_change_is_ended(patch: pytest.MonkeyPatch) -> None:
    """A new leader leaves the configuration joint: no later change is possible."""
    original = Reconfiguration.committed

    def committed(changes: Reconfiguration) -> None:
        if changes._request_id is not None:
            original(changes)

    patch.setattr(Reconfiguration, "committed", committed)


def unknown_peers_ignored(patch: pytest.MonkeyPatch) -> None:
    """A node listens to the members that it knows: not to a leader that was added while it was away."""
    original = RaftCore._receive

    def receive(core: RaftCore, event: Any) -> None:
        if event.peer in core.membership.nodes:
            original(core, event)

    patch.setattr(RaftCore, "_receive", receive)


def base_without_its_members(patch: pytest.MonkeyPatch) -> None:
    """A log that starts at an installed base keeps the configuration from before."""
    original = Follower._install_base

    def install(follower: Follower, peer: str, message: InstallBase) -> None:
        message.membership = None
        original(follower, peer, message)

    patch.setattr(Follower, "_install_base", install)


def members_not_recorded(patch: pytest.MonkeyPatch) -> None:
    """After a restart the founders are the members."""
    patch.setattr(RaftCore, "note_memberships", lambda *_: None)


def removed_leader_stays(patch: pytest.MonkeyPatch) -> None:
    """A leader that removed itself goes on."""
    patch.setattr(Leadership, "retire", lambda _: None)


def new_members_not_pushed_to(patch: pytest.MonkeyPatch) -> None:
    """The leader knows the members of its first day only."""
    patch.setattr(Leadership, "members_changed", lambda _: None)


def directory_not_in_the_addition(patch: pytest.MonkeyPatch) -> None:
    """Members accept any directory of a node that was added."""

    def directory_of(core: CoreState, node_id: str) -> int:
        return core.hard_state.directory_of(core.key_of(node_id))

    patch.setattr(CoreState, "directory_of", directory_of)


def directories_only_of_added_members(patch: pytest.MonkeyPatch) -> None:
    """A learner that becomes a voter accepts the lost directory of a member that rejoined before."""
    patch.setattr(Reconfiguration, "_directory_of", lambda *_: 0)


def undone_changes_waited_for(patch: pytest.MonkeyPatch) -> None:
    """A rejoining node waits for members of a change that its own log shows to be undone."""
    original = RejoinProcess._memberships

    def memberships(rejoining: RejoinProcess) -> list[Membership]:
        reported = [at.membership for report in rejoining._reports.values() for at in report.memberships]
        return list(dict.fromkeys([*original(rejoining), *reported]))

    patch.setattr(RejoinProcess, "_memberships", memberships)


def links_of_former_members_kept(patch: pytest.MonkeyPatch) -> None:
    """A new leader keeps the link to a former member, and pushes nothing to it when it is added again."""
    unchanged = property(lambda core: core.peers, lambda core, peers: None)
    patch.setattr(RaftCore, "_announced_peers", unchanged, raising=False)


def learners_told_of_a_rejoining_directory(patch: pytest.MonkeyPatch) -> None:
    """A learner keeps the number of a directory that was lost before it counted, and refuses the next one."""

    def unreported(rejoining: RejoinProcess) -> list[str]:
        own = rejoining.core.node_id
        return [p for known in rejoining._memberships() for p in known.others(own)]

    patch.setattr(RejoinProcess, "_unreported", property(unreported))
