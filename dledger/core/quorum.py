"""Majority arithmetic over a configuration value."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dledger.core.values import Membership


def committed_by(membership: Membership, match: Mapping[str, int]) -> int:
    """Return the highest index that a majority of voters holds. A voter that has no value counts as -1."""
    matches = sorted([match.get(voter, -1) for voter in membership.voters])
    return matches[-membership.majority]


def is_majority(membership: Membership, nodes: Collection[str]) -> bool:
    """Return True if these nodes include a majority of the voters. Non-voters do not count."""
    return sum(voter in nodes for voter in membership.voters) >= membership.majority


def can_still_win(membership: Membership, against: Collection[str]) -> bool:
    """Return True if a majority is still possible when exactly these voters refuse."""
    return sum(voter not in against for voter in membership.voters) >= membership.majority
