"""Cycles among transactions that send and poll: what each of them saw of the others.

A transaction that polled what another one had sent came after it. Cycles of that are impossible where a
message is shown only when the transaction that sent it has been committed: Adya's G1c, and, where a chain of
them ends before it began, G1c-realtime, with the names of Elle. Only transactions that do both can be in the
middle of either, so only those are looked at. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

#: From the one that was first.
Edge = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Through:
    """A transaction that polled what others had sent, and sent what others polled. `writer_begin`: the
    latest begin of those of which it polled; `reader_end`: the earliest end of those that polled of it, None
    if none has one. Stamps."""

    begin: int
    end: int | None
    writer_begin: int | None
    reader_end: int | None


def components(edges: Iterable[Edge]) -> list[list[int]]:
    """The strongly connected components of more than one (Tarjan's algorithm, without recursion)."""
    after: dict[int, list[int]] = defaultdict(list)
    for one, other in edges:
        after[one].append(other)
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found = []
    for root in list(after):
        if root in index:
            continue
        work: list[tuple[int, Iterator[int]]] = [(root, iter(after.get(root, ())))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, rest = work[-1]
            for other in rest:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(after.get(other, ()))))
                    break
                if other in on_stack:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component: list[int] = []
                    while not component or component[-1] != node:
                        component.append(stack.pop())
                        on_stack.discard(component[-1])
                    if len(component) > 1:
                        found.append(sorted(component))
    return found


def backwards(edges: Sequence[Edge], through: Mapping[int, Through]) -> list[Edge]:
    """Of chains that end before they began: (the transaction where that shows, one of the chain that began
    latest, as far as it is in `through`).

    What is in a cycle, or comes after one, is left out.
    """
    after: dict[int, list[int]] = defaultdict(list)
    missing: dict[int, int] = dict.fromkeys(through, 0)
    for one, other in edges:
        after[one].append(other)
        missing[other] += 1
    begun: dict[int, tuple[int, int]] = {}
    for number, about in through.items():
        writer = about.begin if about.writer_begin is None else about.writer_begin
        begun[number] = max(about.begin, writer), number
    ready = [number for number, count in missing.items() if not count]
    found = []
    while ready:
        number = ready.pop()
        ends = [end for end in (through[number].end, through[number].reader_end) if end is not None]
        latest, whose = begun[number]
        if ends and min(ends) < latest:
            found.append((number, whose))
        for other in after[number]:
            begun[other] = max(begun[other], begun[number])
            missing[other] -= 1
            if not missing[other]:
                ready.append(other)
    return found
