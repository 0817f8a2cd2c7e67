"""Directed links that a network fault cuts, as pure functions from node names to (source, destination)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import permutations

Pair = tuple[str, str]


def between(one: Collection[str], other: Collection[str]) -> frozenset[Pair]:
    """Return all links between two groups, in both directions."""
    return outward(one, other) | outward(other, one)


def outward(sources: Collection[str], destinations: Collection[str]) -> frozenset[Pair]:
    """Return all links from one group to another. The opposite direction continues to work."""
    return frozenset((a, b) for a in sources for b in destinations if a != b)


def isolate(nodes: Collection[str], alone: Collection[str]) -> frozenset[Pair]:
    """Return all links from and to each node in `alone`."""
    return frozenset((a, b) for a, b in permutations(nodes, 2) if a in alone or b in alone)


def halves(nodes: Collection[str], minority: Collection[str]) -> frozenset[Pair]:
    """Return the links that separate `minority` from the rest."""
    return between(minority, [node for node in nodes if node not in minority])


def bridge(nodes: Sequence[str], middle: str) -> frozenset[Pair]:
    """Return the links between two halves that can both reach `middle`. Requires at least three nodes."""
    others = [node for node in nodes if node != middle]
    if middle not in nodes or len(others) < 2:
        raise ValueError(f"a bridge needs a middle node and at least two others: {middle!r} of {list(nodes)}")
    half = len(others) // 2
    return between(others[:half], others[half:])


def ring(nodes: Sequence[str]) -> frozenset[Pair]:
    """Return the links to cut so that each node reaches a majority, itself included, and no two nodes reach
    the same one.

    This requires five nodes. With fewer nodes, the result is a ring in which each node reaches its two
    neighbors.
    """
    count = len(nodes)
    reach = max(1, (count // 2 + 1 - 1) // 2)  # neighbours on each side
    near = {(a, (a + step) % count) for a in range(count) for step in range(-reach, reach + 1)}
    return frozenset((nodes[a], nodes[b]) for a, b in permutations(range(count), 2) if (a, b) not in near)
