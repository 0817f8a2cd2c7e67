"""Mistakes about leaders that commit nothing (rule 14), as `planted` has the classic ones of Raft."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dledger.core.commit_stall import CommitStallGuard
from dledger.core.leadership import Leadership
from dledger.core.messages import HeartbeatResponse, PushResponse


def leader_that_commits_nothing_stays(patch: pytest.MonkeyPatch) -> None:
    """Answered heartbeats keep a leader that commits nothing: writes stop for good."""
    patch.setattr(Leadership, "_commit_stall", lambda leadership: "")


def busy_disks_blamed_on_the_leader(patch: pytest.MonkeyPatch) -> None:
    """A leader goes because the disks of its followers hang: leadership is handed round."""
    on_response = Leadership.on_response

    def as_if_stored(leadership: Leadership, peer: str, response: HeartbeatResponse | PushResponse) -> None:
        if isinstance(response, HeartbeatResponse):
            response = replace(response, stored_all=True)
        on_response(leadership, peer, response)

    patch.setattr(Leadership, "on_response", as_if_stored)


def stalled_leader_stands_again_at_once(patch: pytest.MonkeyPatch) -> None:
    """It competes with those that could do better, and has the longest log."""
    patch.setattr(CommitStallGuard, "may_stand", lambda stall, now_ms: True)


def stall_bound_never_grows(patch: pytest.MonkeyPatch) -> None:
    """Where nobody can do better, the cluster is without a leader, and without reads, again and again."""
    patch.setattr(CommitStallGuard, "bound_ms", property(lambda stall: stall._timing.commit_stall_ms))


def leadership_handed_back_to_the_stalled(patch: pytest.MonkeyPatch) -> None:
    """A preferred leader that commits nothing is made leader again as often as it steps down."""
    patch.setattr(CommitStallGuard, "may_succeed", lambda stall, now_ms: True)
