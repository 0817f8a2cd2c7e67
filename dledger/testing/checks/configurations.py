"""Checks of the configurations of the members (docs/guarantees.md rule 15)."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

from dledger.core.log_view import LogView
from dledger.core.values import UNKNOWN_UID, Membership
from dledger.store.format.batch import Batch
from dledger.store.format.internal import membership_in
from dledger.testing.checks.quorums import decides, share_majorities
from dledger.testing.virtual.violation import Violation


class Configurations:
    """The configurations that the nodes had in force, and those that were committed."""

    def __init__(self) -> None:
        self._checked: dict[str, Membership] = {}  # by node: the configuration in force, checked last
        self._committed: Membership | None = None  # the last one

    def committed(self, batch: Batch) -> None:
        """Check the next batch of the committed log: each change follows the one before it."""
        membership = None if batch.head is None else membership_in(batch.head)
        if membership is None:
            return
        before, self._committed = self._committed, membership
        if before is None:
            return
        is_follower = (
            membership.outgoing == before.voters
            if membership.is_joint and not before.is_joint
            else set(membership.voters) == set(before.voters) and not membership.is_joint
        )
        if not is_follower or not share_majorities(before, membership):
            raise Violation(
                "configurations share a majority",
                f"entry {batch.first_index} with {membership} is committed right after {before}",
            )

    def in_force(self, node_id: str, log: LogView) -> None:
        """Check that any two consecutive configurations of a log share a voter in every two majorities."""
        if self._checked.get(node_id) is log.membership:
            return
        self._checked[node_id] = log.membership
        for before, after in pairwise(log.memberships):
            if any(member.uid == UNKNOWN_UID for member in before.membership.identities):
                continue  # what a node assumes that was added later
            if not share_majorities(before.membership, after.membership):
                raise Violation(
                    "configurations share a majority", f"{node_id} has {after} right after {before}"
                )


def check_elected(node_id: str, term: int, membership: Membership, granted: Collection[str]) -> None:
    """Check that the nodes that voted for a leader decide by the configuration in its log."""
    if not decides(membership, granted):
        raise Violation(
            "election safety", f"{node_id} leads in term {term} with the votes of {granted}, by {membership}"
        )
