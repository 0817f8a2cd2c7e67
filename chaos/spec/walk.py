"""Is there an order of the lines of a trace, and a choice of silent steps, that the specification explains?

Lines of one stream keep their order. Between streams the search tries the line with the earliest time first,
and where that has no step yet, the next stream's: times are advice. Because messages are never lost in the
specification, a step of one node takes none away from another, so this order needs no going back. Where an
action has several outcomes the search remembers the others, and comes back when a line has no step.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from enum import StrEnum

from chaos.spec import steps
from chaos.spec.facts import Facts
from chaos.spec.reading import Line, TraceOfLog
from chaos.spec.state import Cluster, NotYet, Refused, new_cluster

#: So many lines are looked at, those that are looked at again counted again, and that for each line.
_LOOKS_PER_LINE = 50
_LEAST_LOOKS = 100_000


class Verdict(StrEnum):
    ACCEPTED = "accepted"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Outcome:
    """`line`: the first one without a step; `why`: the guard that does not hold, or what nobody can say;
    `state`: the state before it, in words. `explained`: lines that have a step."""

    verdict: Verdict
    explained: int
    lines: int
    why: str = ""
    line: Line | None = None
    state: str = ""


@dataclass(slots=True)
class _Branch:
    cluster: Cluster
    at: list[int]  # in each stream
    explained: int


@dataclass(slots=True)
class _End:
    """Where a branch ended: the line without a step that comes first by the clock."""

    branch: _Branch
    line: Line
    why: str


def walk(trace: TraceOfLog, *, most_looks: int | None = None) -> Outcome:
    """`most_looks`: the bound of the search; past it the outcome is unknown."""
    total = sum(map(len, trace.streams))
    if trace.holes:
        return Outcome(Verdict.UNKNOWN, 0, total, "; ".join(trace.holes[:5]))
    looks = most_looks or max(_LEAST_LOOKS, _LOOKS_PER_LINE * total)
    return _Walk(trace, total, looks).run()


class _Walk:
    def __init__(self, trace: TraceOfLog, total: int, looks: int) -> None:
        self._streams, self._total, self._looks = trace.streams, total, looks
        self._facts = Facts()
        start = new_cluster(trace.nodes, trace.members, syncs=trace.syncs)
        self._open = [_Branch(start, [0] * len(trace.streams), 0)]
        self._seen: set[object] = set()
        self._best: _End | None = None

    def run(self) -> Outcome:
        while self._open:
            branch = self._open.pop()
            end = self._follow(branch)
            if self._looks <= 0:
                why = f"the search reached its bound; {branch.explained} of {self._total} lines had a step"
                return Outcome(Verdict.UNKNOWN, branch.explained, self._total, why)
            if end is None:
                return Outcome(Verdict.ACCEPTED, self._total, self._total)
            if self._best is None or end.branch.explained > self._best.branch.explained:
                self._best = end
        assert self._best is not None
        best, explained = self._best, self._best.branch.explained
        state = in_words(best.branch.cluster)
        return Outcome(Verdict.REFUSED, explained, self._total, best.why, best.line, state)

    def _follow(self, branch: _Branch) -> _End | None:
        """Take steps until no line has one any more. None: all lines have one, or the bound is reached."""
        ready = [
            (self._streams[s][at].mono, s) for s, at in enumerate(branch.at) if at < len(self._streams[s])
        ]
        heapq.heapify(ready)
        waiting: dict[int, str] = {}
        while ready and self._looks > 0:
            self._looks -= 1
            _, stream = heapq.heappop(ready)
            line = self._streams[stream][branch.at[stream]]
            before = branch.cluster
            try:
                self._take(branch, stream, line)
            except NotYet as error:
                waiting[stream] = str(error)
                continue
            except Refused as error:
                return self._end(branch, {**waiting, stream: str(error)})
            # Whoever waits may have waited for this.
            woken = [stream]
            if branch.cluster is not before or line.event["ev"] in ("op", "item"):
                woken += waiting
                waiting.clear()
            for one in woken:
                if branch.at[one] < len(self._streams[one]):
                    heapq.heappush(ready, (self._streams[one][branch.at[one]].mono, one))
        return self._end(branch, waiting) if waiting and self._looks > 0 else None

    def _take(self, branch: _Branch, stream: int, line: Line) -> None:
        event = line.event
        if event["ev"] in ("raft", "store"):
            if event["node"] not in branch.cluster.nodes:
                raise Refused(f"there is no node {event['node']}")
            found = steps.of_node(branch.cluster, self._facts, event)
        else:
            steps.of_others(branch.cluster, self._facts, event)
            found = [branch.cluster]
        branch.at[stream] += 1
        branch.explained += 1
        for other in reversed(found[1:]):
            key = (tuple(branch.at), other.key())
            if key not in self._seen:
                self._seen.add(key)
                self._open.append(_Branch(other, list(branch.at), branch.explained))
        branch.cluster = found[0]

    def _end(self, branch: _Branch, stuck: dict[int, str]) -> _End:
        first = min(stuck, key=lambda s: self._streams[s][branch.at[s]].mono)
        return _End(branch, self._streams[first][branch.at[first]], stuck[first])


def in_words(cluster: Cluster) -> str:
    """What a state says, a line for each node and for the leaders."""
    found = []
    for name, node in sorted(cluster.nodes.items()):
        vote = cluster.votes.get((name, node.term))
        lost = ", lost its log" if node.lost is not None else ""
        log, terms = node.log, [term for _, term in node.log.runs]
        found.append(
            f"{name}: {node.role} of term {node.term}, vote {vote or '-'}, log {log.base.index + 1}.."
            f"{log.end} of terms {terms}, durable {node.durable}, committed {node.committed}, applied "
            f"{node.applied if node.applied is not None else '-'}{lost}"
        )
    leaders = ", ".join(f"{term}: {led.node}" for term, led in sorted(cluster.leaders.items())) or "none"
    found.append(f"leaders by term: {leaders}; committed by leaders: {cluster.chosen.end}")
    return "\n".join(found)
