"""Majority arithmetic against a deliberately dumb second implementation."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import combinations
from random import Random

import pytest

from dledger.core.quorum import can_still_win, committed_by, is_majority, majority
from dledger.core.values import Membership


def more_than_half(voters: tuple[str, ...]) -> list[set[str]]:
    """All sets of more than half of the voters."""
    return [
        set(group)
        for size in range(1, len(voters) + 1)
        if 2 * size > len(voters)
        for group in combinations(voters, size)
    ]


def dumb_majorities(membership: Membership) -> list[set[str]]:
    """All sets that decide: of a joint configuration, the unions of a majority of each half."""
    majorities = more_than_half(membership.voters)
    if not membership.outgoing:
        return majorities
    return [new | old for new in majorities for old in more_than_half(membership.outgoing)]


def dumb_committed(majorities: list[set[str]], match: Mapping[str, int]) -> int:
    """The greatest value that all of some majority have reached."""
    return max(min(match.get(voter, -1) for voter in group) for group in majorities)


def dumb_contains(majorities: list[set[str]], nodes: Collection[str]) -> bool:
    return any(group <= set(nodes) for group in majorities)


@pytest.mark.slow
def test_50_000_random_cases_equal_the_dumb_implementation() -> None:
    rng = Random(1)
    names = "abcdefg"
    plain = [Membership(tuple(names[:n])) for n in range(1, 8)]
    joint = [
        Membership(tuple(rng.sample(names, rng.randint(1, 5))), tuple(rng.sample(names, rng.randint(1, 5))))
        for _ in range(20)
    ]
    groups = [(membership, dumb_majorities(membership)) for membership in [*plain, *joint]]
    for _ in range(50_000):
        membership, majorities = rng.choice(groups)
        match = {name: rng.randint(-1, 9) for name in "abcdefgxy" if rng.random() < 0.8}
        assert committed_by(membership, match) == dumb_committed(majorities, match)
        nodes = [name for name in "abcdefgxy" if rng.random() < 0.5]
        assert is_majority(membership, nodes) == dumb_contains(majorities, nodes)
        left = set(membership.electors) - set(nodes)
        assert can_still_win(membership, nodes) == dumb_contains(majorities, left)


@pytest.mark.parametrize("size", range(1, 8))
def test_two_majorities_always_share_a_voter(size: int) -> None:
    membership = Membership(tuple("abcdefg"[:size]))
    majorities = dumb_majorities(membership)
    assert all(one & other for one in majorities for other in majorities)
    assert min(map(len, majorities)) == majority(membership.voters)


def test_a_majority_of_a_joint_configuration_shares_voters_with_those_before_and_after_it() -> None:
    before, after = Membership(("a", "b", "c")), Membership(("c", "d", "e", "f"))
    joint = dumb_majorities(Membership(after.voters, before.voters))
    assert all(one & other for one in joint for half in (before, after) for other in dumb_majorities(half))


def test_a_membership_is_not_empty_and_names_everybody_once() -> None:
    with pytest.raises(AssertionError):
        Membership(())
    with pytest.raises(AssertionError):
        Membership(("a", "a"))
    assert Membership(("a", "b", "c")).others("b") == ("a", "c")
