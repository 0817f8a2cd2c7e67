"""Which links each partition cuts."""

from __future__ import annotations

import pytest

from chaos.network.topology import Pair, bridge, halves, isolate, outward, ring

THREE, FIVE = ["n1", "n2", "n3"], ["n1", "n2", "n3", "n4", "n5"]


def reached(nodes: list[str], cut: frozenset[Pair], node: str) -> set[str]:
    """Whom `node` still reaches in both directions, itself included."""
    return {node} | {o for o in nodes if o != node and not {(node, o), (o, node)} & cut}


def test_an_isolated_node_reaches_nobody_and_the_others_each_other() -> None:
    cut = isolate(THREE, ["n2"])
    assert reached(THREE, cut, "n2") == {"n2"}
    assert reached(THREE, cut, "n1") == {"n1", "n3"}
    assert len(cut) == 4


def test_outward_leaves_the_way_back() -> None:
    assert outward(["n1"], THREE) == {("n1", "n2"), ("n1", "n3")}


def test_halves_do_not_reach_each_other() -> None:
    cut = halves(FIVE, ["n1", "n4"])
    assert reached(FIVE, cut, "n1") == {"n1", "n4"}
    assert reached(FIVE, cut, "n2") == {"n2", "n3", "n5"}


def test_the_middle_of_a_bridge_reaches_all() -> None:
    cut = bridge(FIVE, "n3")
    assert reached(FIVE, cut, "n3") == set(FIVE)
    assert reached(FIVE, cut, "n1") == {"n1", "n2", "n3"}
    assert reached(FIVE, cut, "n5") == {"n3", "n4", "n5"}
    with pytest.raises(ValueError, match="middle"):
        bridge(FIVE, "n9")


def test_in_a_ring_of_five_each_node_reaches_another_majority() -> None:
    cut = ring(FIVE)
    seen = [frozenset(reached(FIVE, cut, node)) for node in FIVE]
    assert all(len(majority) == 3 for majority in seen)
    assert len(set(seen)) == 5


def test_a_ring_of_three_is_whole() -> None:
    assert ring(THREE) == frozenset()
