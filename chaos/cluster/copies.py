"""Which copies of which entries are bad: the harness never damages a majority of the copies of one entry, so
that whatever is lost is the product's fault."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from random import Random


class TooManyCopies(AssertionError):
    """A fault was about to take the last majority of good copies of an entry."""


class Copies:
    """Of all entries, on these nodes. Indexes are those of the log."""

    def __init__(self, nodes: Collection[str]) -> None:
        self._nodes = frozenset(nodes)
        #: So many copies of one entry may be bad at a time.
        self._most = (len(self._nodes) - 1) // 2
        self._bad: dict[int, set[str]] = {}
        self._lost: set[str] = set()

    @property
    def lost(self) -> frozenset[str]:
        """The nodes that have lost everything, and have not got it back."""
        return frozenset(self._lost)

    def may_damage(self, node: str, index: int) -> bool:
        assert node in self._nodes, f"{node} is none of {sorted(self._nodes)}"
        return len(self._bad.get(index, set()) | self._lost | {node}) <= self._most

    def damage(self, node: str, index: int) -> None:
        """TooManyCopies, and nothing is noted, if it may not be."""
        if not self.may_damage(node, index):
            raise TooManyCopies(f"entry {index} of {node}: bad on {self._bad.get(index)}, lost {self._lost}")
        self._bad.setdefault(index, set()).add(node)

    def may_lose(self, node: str) -> bool:
        """Whether the node may lose all its entries."""
        lost = self._lost | {node}
        return all(len(bad | lost) <= self._most for bad in [set(), *self._bad.values()])

    def lose(self, node: str) -> None:
        """TooManyCopies, and nothing is noted, if it may not be."""
        if not self.may_lose(node):
            raise TooManyCopies(f"all of {node}: lost {self._lost}, bad {self._bad}")
        self._lost.add(node)

    def repaired(self, node: str, index: int) -> None:
        bad = self._bad.get(index, set())
        bad.discard(node)
        if not bad:
            self._bad.pop(index, None)

    def whole(self, node: str) -> None:
        """The node has everything again."""
        self._lost.discard(node)
        for index in list(self._bad):
            self.repaired(node, index)


def plan_flips(
    copies: Copies, targets: Sequence[str], entries: Iterable[int], each: int, rng: Random
) -> list[tuple[str, int]]:
    """Up to `each` entries per target that may be damaged there, of `entries`; noted as damaged."""
    known, planned = list(entries), []
    for node in targets:
        if node in copies.lost:
            continue  # what it has is about to be replaced
        free = [index for index in known if copies.may_damage(node, index)]
        for index in sorted(rng.sample(free, min(each, len(free)))):
            copies.damage(node, index)
            planned.append((node, index))
    return planned
