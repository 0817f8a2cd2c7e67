"""What holds after every step (Raft paper, figure 3), and what a step may not do (LogCabin's checkDelta).

Guards of the actions imply all of it, if the specification is right: so this checks the specification too.
"""

from __future__ import annotations

from chaos.spec.state import Cluster, Log, Node, Refused


def check_state(cluster: Cluster, name: str) -> None:
    """After a step of `name`. Refused: what does not hold."""
    node = cluster.nodes[name]
    log, committed = node.log, node.committed
    applied = log.base.index if node.applied is None else node.applied
    if not log.base.index <= committed <= log.end or applied > committed or node.durable > log.end:
        raise Refused(f"begin - 1 <= applied <= committed <= end does not hold (rule 8): {node}")
    for other, them in cluster.nodes.items():
        if not _match(log, them.log):
            raise Refused(f"log matching: its log and that of {other} part before an entry that both have")
    if committed <= cluster.chosen.end and not log.same_up_to(cluster.chosen, committed):
        raise Refused(f"state machine safety: it has committed other entries up to {committed} than a leader")
    if committed > cluster.chosen.end:
        raise Refused(f"it has committed {committed}, and leaders have committed {cluster.chosen.end}")


def check_leaders(before: Cluster, after: Cluster) -> None:
    """After a step that elected somebody, or committed something."""
    if not after.chosen.same_up_to(before.chosen, before.chosen.end):
        raise Refused(f"entries up to {before.chosen.end} were committed, and others are now")
    for term, led in after.leaders.items():
        old = before.leaders.get(term)
        if old is not None and (old.node != led.node or not led.log.same_up_to(old.log, old.log.end)):
            raise Refused(f"election safety, leader append-only: {old.node} led term {term}")
        # Leader completeness: what earlier terms committed is in the log with which it was elected.
        reach = _committed_before(after, term)
        if reach > led.elected.end or not led.elected.same_up_to(after.chosen, reach):
            raise Refused(f"leader completeness: {led.node} led term {term} without all up to entry {reach}")


def check_delta(before: Node, after: Node) -> None:
    """Within one life nothing of this goes back, but for what is durable, by a truncation."""
    for what in ("term", "durable_term", "committed"):
        if getattr(after, what) < getattr(before, what):
            raise Refused(f"{what} fell from {getattr(before, what)} to {getattr(after, what)}")
    if after.log.base.index < before.log.base.index:
        raise Refused(f"its log began after {before.log.base.index}, now after {after.log.base.index}")
    if before.applied is not None and (after.applied is None or after.applied < before.applied):
        raise Refused(f"applied fell from {before.applied} to {after.applied}")
    if after.durable < before.durable and after.log.end >= before.log.end:
        raise Refused(f"durable fell from {before.durable} to {after.durable}")


def _committed_before(cluster: Cluster, term: int) -> int:
    """The last index that a leader of an earlier term committed."""
    reach = -1
    for earlier, led in cluster.leaders.items():
        if earlier < term:
            reach = max(reach, led.committed)
    return reach


def _match(one: Log, other: Log) -> bool:
    """If two logs have an entry of the same index and term, they are the same up to there (paper 5.3)."""
    index = min(one.end, other.end)
    while index > max(one.base.index, other.base.index):
        term = one.term_at(index)
        if term == other.term_at(index):
            return one.same_up_to(other, index)
        # Terms rise along a log, so below the run with the higher term, and nowhere in it, both may agree.
        longer = one if term > other.term_at(index) else other
        index = next(first for first, _ in reversed(longer.runs) if first <= index) - 1
    return True
