"""Tracks damaged copies of entries.

The harness never damages a majority of the copies of an entry, so a loss is always a defect of the product.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from random import Random


class TooManyCopies(AssertionError):
    """Raised when a fault would destroy the last majority of good copies of an entry."""


class Copies:
    """Good and bad copies of all entries on the given nodes. Indexes are log indexes."""

    def __init__(self, nodes: Collection[str]) -> None:
        self._bad: dict[int, set[str]] = {}
        self._lost: set[str] = set()
        self.use(nodes)

    def use(self, nodes: Collection[str]) -> None:
        """Continue with these nodes. The copies of others count no more, and new nodes have good ones."""
        self._nodes = frozenset(nodes)
        #: Maximum number of bad copies of one entry.
        self._most = (len(self._nodes) - 1) // 2
        for gone in {*self._lost, *(node for bad in self._bad.values() for node in bad)} - self._nodes:
            self.mark_recovered(gone)

    @property
    def lost(self) -> frozenset[str]:
        """Nodes that lost their directory and have not recovered yet."""
        return frozenset(self._lost)

    def may_damage(self, node: str, index: int) -> bool:
        assert node in self._nodes, f"{node} is none of {sorted(self._nodes)}"
        return len(self._bad.get(index, set()) | self._lost | {node}) <= self._most

    def damage(self, node: str, index: int) -> None:
        """Mark a copy as bad. Raises TooManyCopies, without a change, if the copy is needed."""
        if not self.may_damage(node, index):
            bad = self._bad.get(index)
            raise TooManyCopies(
                f"the copy of entry {index} on {node} is needed: its copies are damaged on {bad}; nodes "
                f"without their data: {self._lost}"
            )
        self._bad.setdefault(index, set()).add(node)

    def may_lose(self, node: str) -> bool:
        """Return True if the node may lose all its entries."""
        lost = self._lost | {node}
        return all(len(bad | lost) <= self._most for bad in [set(), *self._bad.values()])

    def lose(self, node: str) -> None:
        """Mark a node as lost. Raises TooManyCopies, without a change, if one of its copies is needed."""
        if not self.may_lose(node):
            raise TooManyCopies(
                f"cannot continue without the copies of {node}: nodes without their data: {self._lost}, "
                f"damaged entries: {self._bad}"
            )
        self._lost.add(node)

    def repaired(self, node: str, index: int) -> None:
        bad = self._bad.get(index, set())
        bad.discard(node)
        if not bad:
            self._bad.pop(index, None)

    def mark_recovered(self, node: str) -> None:
        """Mark all copies of the node as good."""
        self._lost.discard(node)
        for index in list(self._bad):
            self.repaired(node, index)


def plan_flips(
    copies: Copies, targets: Sequence[str], entries: Iterable[int], each: int, rng: Random
) -> list[tuple[str, int]]:
    """Choose up to `each` of `entries` per target that may be damaged there, and mark them as bad."""
    known, planned = list(entries), []
    for node in targets:
        if node in copies.lost:
            continue  # its data is about to be replaced
        free = [index for index in known if copies.may_damage(node, index)]
        for index in sorted(rng.sample(free, min(each, len(free)))):
            copies.damage(node, index)
            planned.append((node, index))
    return planned
