"""Which directed links a network fault cuts: pure functions from node names to (source, destination)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import permutations

Pair = tuple[str, str]


def between(one: Collection[str], other: Collection[str]) -> frozenset[Pair]:
    """All links between two groups, in both directions."""
    return outward(one, other) | outward(other, one)


def outward(sources: Collection[str], destinations: Collection[str]) -> frozenset[Pair]:
    """All links from one group to another: what the destinations say still arrives."""
    return frozenset((a, b) for a in sources for b in destinations if a != b)


def isolate(nodes: Collection[str], alone: Collection[str]) -> frozenset[Pair]:
    """Each node in `alone` reaches nobody, and nobody reaches it."""
    return frozenset((a, b) for a, b in permutations(nodes, 2) if a in alone or b in alone)


def halves(nodes: Collection[str], minority: Collection[str]) -> frozenset[Pair]:
    """Two groups that cannot reach each other: `minority` and the rest."""
    return between(minority, [node for node in nodes if node not in minority])


def bridge(nodes: Sequence[str], middle: str) -> frozenset[Pair]:
    """Two halves, and `middle` reaches both of them. At least three nodes."""
    others = [node for node in nodes if node != middle]
    if middle not in nodes or len(others) < 2:
        raise ValueError(f"a bridge needs a middle and two others: {middle!r} of {list(nodes)}")
    half = len(others) // 2
    return between(others[:half], others[half:])


def ring(nodes: Sequence[str]) -> frozenset[Pair]:
    """Each node reaches a majority, itself included, and no two nodes the same one (5 nodes and more); with
    four or fewer there is no such thing, and it is a ring in which each node reaches its two neighbours."""
    count = len(nodes)
    reach = max(1, (count // 2 + 1 - 1) // 2)  # neighbours on each side
    near = {(a, (a + step) % count) for a in range(count) for step in range(-reach, reach + 1)}
    return frozenset((nodes[a], nodes[b]) for a, b in permutations(range(count), 2) if (a, b) not in near)
