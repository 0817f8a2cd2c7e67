"""Quorums of configurations, computed independently of dledger.core.quorum."""

from __future__ import annotations

from collections.abc import Collection

from dledger.core.values import Membership


def decides(membership: Membership, nodes: Collection[str]) -> bool:
    """Return True if the nodes are a majority of the voters, and of the outgoing voters if there are some."""
    sets = [voters for voters in (membership.voters, membership.outgoing) if voters]
    return all(2 * len(set(voters) & set(nodes)) > len(voters) for voters in sets)


def share_majorities(before: Membership, after: Membership) -> bool:
    """Return True if every decision by one configuration needs a node that decides by the other."""
    return any(
        _overlap(set(old), set(new))
        for old in (before.voters, before.outgoing)
        for new in (after.voters, after.outgoing)
        if old and new
    )


def _overlap(one: set[str], other: set[str]) -> bool:
    """Return True if every majority of one set has a node in common with every majority of the other."""
    common = len(one & other)
    needed = sum(max(0, len(voters) // 2 + 1 - (len(voters) - common)) for voters in (one, other))
    return needed > common
