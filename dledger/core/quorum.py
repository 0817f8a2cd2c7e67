"""Majority arithmetic over a configuration value."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dledger.core.values import Membership


def committed_by(membership: Membership, match: Mapping[str, int]) -> int:
    """The highest index that a majority of voters holds; voters without a value count as -1."""
    matches = sorted([match.get(voter, -1) for voter in membership.voters])
    return matches[-membership.majority]


def is_majority(membership: Membership, nodes: Collection[str]) -> bool:
    """Do these nodes include a majority of the voters? Nodes that are no voters do not count."""
    return sum(voter in nodes for voter in membership.voters) >= membership.majority


def can_still_win(membership: Membership, against: Collection[str]) -> bool:
    """Could a majority still be in favour if exactly these voters are against?"""
    return sum(voter not in against for voter in membership.voters) >= membership.majority
