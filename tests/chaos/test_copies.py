"""The planner of damage: never a majority of the copies of one entry, whatever is asked for."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.cluster.copies import Copies, TooManyCopies, plan_flips

NODES = ["n1", "n2", "n3", "n4", "n5"]


@pytest.mark.parametrize(("nodes", "most"), [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2)])
def test_as_many_copies_may_be_bad_as_leave_a_majority_good(nodes: int, most: int) -> None:
    copies = Copies(NODES[:nodes])
    for node in NODES[:most]:
        copies.damage(node, 7)
    for node in NODES[most:nodes]:
        with pytest.raises(TooManyCopies):
            copies.damage(node, 7)
    if most:
        copies.damage(NODES[nodes - 1], 8)


def test_the_same_copy_may_be_damaged_again() -> None:
    copies = Copies(NODES[:3])
    copies.damage("n1", 7)
    copies.damage("n1", 7)


def test_a_repaired_copy_makes_room_for_another() -> None:
    copies = Copies(NODES[:3])
    copies.damage("n1", 7)
    copies.repaired("n1", 7)
    copies.damage("n2", 7)


def test_who_has_lost_everything_has_lost_every_copy() -> None:
    copies = Copies(NODES[:3])
    copies.lose("n1")
    assert not copies.may_damage("n2", 7) and copies.may_damage("n1", 7)
    with pytest.raises(TooManyCopies):
        copies.lose("n2")
    copies.mark_recovered("n1")
    copies.damage("n2", 7)
    with pytest.raises(TooManyCopies):
        copies.lose("n1")


Step = tuple[str, str, int]
STEPS = st.tuples(
    st.sampled_from(["damage", "lose", "repaired", "whole"]), st.sampled_from(NODES), st.integers(0, 3)
)


@given(st.integers(1, 5), st.lists(STEPS, max_size=60))
def test_no_order_of_events_leaves_an_entry_without_a_good_majority(count: int, steps: list[Step]) -> None:
    nodes = NODES[:count]
    copies = Copies(nodes)
    bad = {(node, index): False for node in nodes for index in range(4)}  # the plainest account of it
    for what, node, index in steps:
        if node not in nodes:
            continue
        hurt = {"damage": [index], "lose": range(4)}.get(what, [])
        try:
            {"damage": copies.damage, "repaired": copies.repaired}.get(what, lambda *_: None)(node, index)
            {"lose": copies.lose, "whole": copies.mark_recovered}.get(what, lambda _: None)(node)
        except TooManyCopies:
            continue
        for one in hurt:
            bad[node, one] = True
        if what == "whole":
            for one in range(4):
                bad[node, one] = False
        if what == "repaired" and node not in copies.lost:
            bad[node, index] = False
        for one in range(4):
            assert 2 * sum(bad[node, one] for node in nodes) < count


@given(st.integers(0, 1 << 30), st.lists(st.sampled_from(NODES), min_size=1, max_size=5, unique=True))
def test_a_plan_of_flips_damages_a_minority_of_each_entry_s_copies(seed: int, targets: list[str]) -> None:
    copies = Copies(NODES)
    planned = plan_flips(copies, targets, range(6), 4, Random(seed))
    for index in range(6):
        assert len({node for node, hurt in planned if hurt == index}) <= 2
    assert len(planned) == len(set(planned)) and planned
    assert all(sum(node == one for node, _ in planned) <= 4 for one in targets)
