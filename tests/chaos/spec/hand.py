"""Traces of a cluster of three (or one), told line by line, for the specification to judge."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from chaos.spec.reading import Line, TraceOfLog
from chaos.spec.walk import Outcome, walk

ALL = ("n1", "n2", "n3")


class Hand:
    """What is told is told in the order of time, unless a test says otherwise."""

    def __init__(self, nodes: tuple[str, ...] = ALL, *, syncs: bool = True) -> None:
        self.nodes, self.syncs = nodes, syncs
        self.streams: dict[str, list[Line]] = {}
        self.clock = 0
        self.ends = dict.fromkeys(nodes, (-1, -1))  # (term, index) of each log
        for node in nodes:
            self.start(node)

    def tell(self, stream: str, ev: str, what: str, **fields: Any) -> None:
        self.clock += 1
        lines = self.streams.setdefault(stream, [])
        event = {"ev": ev, "e": what, "node": stream, "mono": self.clock, **fields}
        lines.append(Line(stream, len(lines) + 1, event))

    def raft(self, node: str, what: str, **fields: Any) -> None:
        self.tell(node, "raft", what, **fields)

    def store(self, node: str, what: str, **fields: Any) -> None:
        self.tell(node, "store", what, **fields)

    def start(self, node: str, **fields: Any) -> None:
        found = {"term": 0, "ended": -1, "committed": -1} | fields
        self.store(node, "recover", **found)

    def stand(self, node: str, term: int) -> None:
        """A pre-vote that was won, and a vote for itself."""
        self.raft(node, "candidate", term=term)
        self.raft(node, "term_vote", term=term, vote=node)
        self.vote(node, term, node)

    def vote(self, voter: str, term: int, candidate: str) -> None:
        own, theirs = self.ends[voter], self.ends[candidate]
        if voter != candidate:
            self.raft(voter, "term_vote", term=term, vote=candidate)
        ends = {"last_term": own[0], "last_index": own[1]}
        ends |= {"cand_last_term": theirs[0], "cand_last_index": theirs[1]}
        self.raft(voter, "vote", term=term, candidate=candidate, **ends)

    def elect(self, node: str, term: int, *voters: str) -> None:
        self.stand(node, term)
        for voter in voters:
            self.vote(voter, term, node)
        self.raft(node, "leader", term=term, ended=self.ends[node][1])

    def append(self, node: str, last: int, term: int, *, first: int | None = None, **fields: Any) -> None:
        begin = self.ends[node][1] + 1 if first is None else first
        self.store(node, "append", lidx=begin, last=last, eterm=term, **fields)
        self.ends[node] = (term, last)

    def flush(self, *nodes: str) -> None:
        for node in nodes:
            self.store(node, "flush", lidx=self.ends[node][1])

    def put(self, term: int, last: int, *nodes: str) -> None:
        """The first of them leads: all get the entries, durable."""
        for node in nodes:
            self.append(node, last, term)
        self.flush(*nodes)

    def commit(self, term: int, index: int, *nodes: str) -> None:
        for node in nodes:
            self.raft(node, "commit", term=term, lidx=index)

    def truncate(self, node: str, first: int, term: int) -> None:
        """term: of the entry before."""
        self.store(node, "truncate", lidx=first)
        self.ends[node] = (term, first - 1)

    def other(self, stream: str, ev: str, **fields: Any) -> None:
        self.clock += 1
        lines = self.streams.setdefault(stream, [])
        lines.append(Line(stream, len(lines) + 1, {"ev": ev, "mono": self.clock, **fields}))

    @contextmanager
    def earlier(self, by: int) -> Iterator[None]:
        """What is told in here bears times that are too early, by the clock of another machine."""
        self.clock -= by
        yield
        self.clock += by

    def trace(self) -> TraceOfLog:
        return TraceOfLog(list(self.streams.values()), self.nodes, len(self.nodes), self.syncs)

    def walk(self) -> Outcome:
        return walk(self.trace())


def settled() -> Hand:
    """n1 leads term 1, entries 0 to 3 are committed everywhere."""
    hand = Hand()
    hand.elect("n1", 1, "n2")
    hand.raft("n3", "follower", term=1)
    hand.raft("n3", "term_vote", term=1)
    hand.put(1, 3, *ALL)
    hand.commit(1, 3, *ALL)
    return hand
