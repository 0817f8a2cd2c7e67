"""Majority arithmetic over a configuration value. In a joint configuration, both halves must agree."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dledger.core.values import Membership


def majority(voters: Collection[str]) -> int:
    return len(voters) // 2 + 1


def committed_by(membership: Membership, match: Mapping[str, int]) -> int:
    """Return the highest index that a majority of voters holds. A voter that has no value counts as -1."""
    return min(kth_greatest([match.get(v, -1) for v in voters], voters) for voters in membership.halves)


def is_majority(membership: Membership, nodes: Collection[str]) -> bool:
    """Return True if these nodes include a majority of the voters. Non-voters do not count."""
    return all(sum(v in nodes for v in voters) >= majority(voters) for voters in membership.halves)


def can_still_win(membership: Membership, against: Collection[str]) -> bool:
    """Return True if a majority is still possible when exactly these voters refuse."""
    return all(sum(v not in against for v in voters) >= majority(voters) for voters in membership.halves)


def kth_greatest(values: list[int], voters: Collection[str]) -> int:
    """Return the greatest number that at least a majority of `voters` reaches."""
    return sorted(values)[-majority(voters)]
