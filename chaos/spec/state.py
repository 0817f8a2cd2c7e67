"""The state of the specification: values only, never changed in place.

Indexes begin at 0, -1 is the end of an empty log, as everywhere in this project. A log is a list of runs of
entries of one term: that is all that Raft looks at. Bodies are constants of a trace (`chaos.spec.facts`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Refused(Exception):
    """The action has no step here, whatever other nodes do: the words say why."""


class NotYet(Refused):
    """The action has no step here before some other node has taken one."""


class Role(StrEnum):
    DOWN = "down"
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The end of a log, as votes compare it (Raft paper 5.4.1)."""

    term: int
    index: int

    def __str__(self) -> str:
        return f"{self.index} (term {self.term})"


NOTHING = Position(-1, -1)


@dataclass(frozen=True, slots=True)
class Log:
    """Entries base.index + 1 to end. runs: (first index, term), indexes and terms rise along them."""

    base: Position = NOTHING
    end: int = -1
    runs: tuple[tuple[int, int], ...] = ()

    @property
    def last(self) -> Position:
        return Position(self.term_at(self.end), self.end)

    def term_at(self, index: int) -> int:
        """-2 where there is no entry; the term of `base` at its index."""
        if index == self.base.index:
            return self.base.term
        if not self.base.index < index <= self.end:
            return -2
        return next(term for first, term in reversed(self.runs) if first <= index)

    def append(self, last: int, term: int) -> Log:
        """Entries of one term from end + 1 to last."""
        same = self.runs and self.runs[-1][1] == term
        return replace(self, end=last, runs=self.runs if same else (*self.runs, (self.end + 1, term)))

    def cut(self, end: int) -> Log:
        """Without the entries above `end`."""
        return replace(self, end=end, runs=tuple(run for run in self.runs if run[0] <= end))

    def purged(self, index: int) -> Log:
        """Without the entries up to `index`."""
        base = Position(self.term_at(index), index)
        later = [run for run in self.runs if run[0] > index + 1]
        first = [(index + 1, self.term_at(index + 1))] if index < self.end else []
        return Log(base, self.end, (*first, *later))

    def same_up_to(self, other: Log, index: int) -> bool:
        """Have both the same terms up to `index`, as far as neither was purged?"""
        begin = max(self.base.index, other.base.index)
        if index < begin:
            return True
        if self.term_at(begin) != other.term_at(begin):
            return False
        return self._runs_between(begin, index) == other._runs_between(begin, index)

    def _runs_between(self, begin: int, end: int) -> list[tuple[int, int]] | None:
        if end > self.end:
            return None
        after = [first for first, _ in self.runs[1:]] + [self.end + 1] * bool(self.runs)
        runs = [
            (max(first, begin + 1), term)
            for (first, term), following in zip(self.runs, after, strict=True)
            if following > begin + 1
        ]
        return [run for run in runs if run[0] <= end]


@dataclass(frozen=True, slots=True)
class Node:
    """One member. `durable`: what a restart must find. `older`: logs that the disk may still have, each with
    what of it was durable, because a truncation that came later has not been reported as done."""

    role: Role = Role.DOWN
    term: int = 0
    durable_term: int = 0
    durable_vote: str | None = None
    log: Log = field(default_factory=Log)
    durable: int = -1
    older: tuple[tuple[Log, int], ...] = ()
    committed: int = -1
    #: None: a new life has neither loaded nor applied anything yet.
    applied: int | None = None
    #: The end of the log when this term began here: a vote in this term is given with at least this log.
    entered: Position = NOTHING
    #: It has lost its log, or the end of it: member -> what that had, durable, when this node came back.
    lost: tuple[tuple[str, Position], ...] | None = None
    #: It neither votes nor counts up to this term.
    barred: int = -1


@dataclass(frozen=True, slots=True)
class Leadership:
    """Of one term. log: what the leader has in it, and may have sent; `elected`: with which it began."""

    node: str
    elected: Log
    log: Log
    committed: int


Votes = Mapping[tuple[str, int], str]


@dataclass(frozen=True, slots=True)
class Cluster:
    """All nodes, and all that was ever said between them: messages are repeated and delayed at will, so what
    was said once may arrive at any time. So nothing that one node does takes a step away from another."""

    majority: int
    nodes: Mapping[str, Node]
    #: False: a flush says only that entries were written (ASYNC_FLUSH).
    syncs: bool = True
    #: (node, term) -> the end of the log with which it asked for votes.
    requests: Mapping[tuple[str, int], Position] = field(default_factory=dict)
    #: (node, term) -> for whom it voted.
    votes: Votes = field(default_factory=dict)
    #: (candidate, term) -> who said that it has voted so.
    granted: Mapping[tuple[str, int], frozenset[str]] = field(default_factory=dict)
    leaders: Mapping[int, Leadership] = field(default_factory=dict)
    #: (node, term) -> up to which entry of that term it said that it has all, durable.
    acknowledged: Mapping[tuple[str, int], int] = field(default_factory=dict)
    #: Where logs have been made to begin.
    bases: frozenset[Position] = frozenset()
    #: All that leaders have committed, from the first entry.
    chosen: Log = field(default_factory=Log)

    def with_node(self, name: str, node: Node) -> Cluster:
        return replace(self, nodes={**self.nodes, name: node})

    def key(self) -> object:
        """Equal for equal states, and hashable."""
        maps = (self.nodes, self.requests, self.votes, self.granted, self.leaders, self.acknowledged)
        return (*(frozenset(one.items()) for one in maps), self.bases, self.chosen)


def new_cluster(names: tuple[str, ...], members: int, *, syncs: bool = True) -> Cluster:
    """`members`: how many there are, whether or not all are in the trace."""
    return Cluster(members // 2 + 1, {name: Node() for name in names}, syncs)
