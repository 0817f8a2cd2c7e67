"""The specification: what a node of the log may do, one function an action, after the Raft paper's TLA+.

Each function takes a cluster and returns the cluster after the step, or raises `Refused` with the guard that
does not hold (`NotYet`: another node's step could still make it hold). Where an action may be one of several,
it yields each. Rules are those of docs/guarantees.md; sections those of the Raft paper and thesis.

A trace shows no messages. What arrives is taken from what was said (`Cluster`); a term that is higher than
the node's (`update_term`) and the end of a rejoin (`finish_rejoin`) are silent: they are taken where needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from chaos.spec.state import NOTHING, Cluster, Leadership, Log, Node, NotYet, Position, Refused, Role

# -- terms and elections (paper 5.2, 5.4.1; rules 2, 3, 5) -------------------------------------------------


def update_term(cluster: Cluster, name: str, term: int) -> Cluster:
    """UpdateTerm: a message of a higher term makes a follower. Somebody must have begun that term."""
    node = _live(cluster, name)
    if term < node.term:
        raise Refused(f"its term was {node.term} and would fall to {term}")
    if term == node.term:
        return cluster
    if all(begun != term for _, begun in cluster.requests):
        raise NotYet(f"nobody has begun term {term}")
    return cluster.with_node(name, replace(node, term=term, role=Role.FOLLOWER, entered=node.log.last))


def follow(cluster: Cluster, name: str, term: int) -> Cluster:
    """A follower, of a new term or by stepping down in its own."""
    cluster = update_term(cluster, name, term)
    return cluster.with_node(name, replace(cluster.nodes[name], role=Role.FOLLOWER))


def stand(cluster: Cluster, name: str, term: int, end: Position | None) -> Iterator[Cluster]:
    """Timeout, or a pre-vote, which takes no new term (thesis 9.6): a trace calls both candidate."""
    node = _live(cluster, name)
    if end is not None and end != node.log.last:
        raise Refused(f"it says that its log ends with {end}, which ends with {node.log.last}")
    found, refusals = [], []
    for action in (timeout, pre_vote):
        try:
            found.append(action(cluster, name, term))
        except Refused as error:
            refusals.append(error)
    if not found:
        # What waits for another node may still become possible.
        raise next((one for one in refusals if isinstance(one, NotYet)), refusals[0])
    yield from found


def timeout(cluster: Cluster, name: str, term: int) -> Cluster:
    """Timeout: a new term, and a vote for itself, which counts once it is durable."""
    node = _live(cluster, name)
    if term <= node.term:
        raise Refused(f"it begins term {term} as a candidate, and was in term {node.term}")
    cluster = cast_vote(cluster, name, term, name)
    node = replace(cluster.nodes[name], role=Role.CANDIDATE, term=term, entered=node.log.last)
    return replace(cluster.with_node(name, node), requests={**cluster.requests, (name, term): node.log.last})


def pre_vote(cluster: Cluster, name: str, term: int) -> Cluster:
    cluster = update_term(cluster, name, term)
    node = cluster.nodes[name]
    if node.role is Role.LEADER:
        raise Refused(f"it leads term {term}, and asks for votes in it")
    return cluster.with_node(name, replace(node, role=Role.CANDIDATE))


def cast_vote(cluster: Cluster, name: str, term: int, candidate: str) -> Cluster:
    """HandleRequestVoteRequest, the part that may happen once in a term, over all lives (rule 2)."""
    before = cluster.votes.get((name, term))
    if before not in (None, candidate):
        raise Refused(f"it voted for {before} in term {term}, and votes for {candidate}")
    if before == candidate:
        return cluster
    cluster = finish_rejoin(cluster, name)
    if term <= cluster.nodes[name].barred:
        raise Refused(f"it lost its log, and may vote after term {cluster.nodes[name].barred} only")
    if candidate != name and (candidate, term) not in cluster.requests:
        raise NotYet(f"{candidate} has not asked for votes in term {term}")
    return replace(cluster, votes={**cluster.votes, (name, term): candidate})


def persist_term(cluster: Cluster, name: str, term: int, vote: str | None) -> Cluster:
    """Term and vote became durable. What the node goes by may be ahead of that."""
    node = _live(cluster, name)
    if term < node.durable_term:
        raise Refused(f"its durable term would fall from {node.durable_term} to {term}")
    if term == node.durable_term and node.durable_vote is not None and vote != node.durable_vote:
        raise Refused(f"its vote in term {term} would change from {node.durable_vote} to {vote}")
    if vote is not None:
        if vote == name and (name, term) not in cluster.requests:
            raise Refused(f"it votes for itself in term {term}, in which it was no candidate")
        cluster = cast_vote(cluster, name, term, vote)
    elif cluster.votes.get((name, term)) == name:
        raise Refused(f"it forgets that it voted for itself in term {term}")
    if term > node.term:
        cluster = update_term(cluster, name, term)
    return cluster.with_node(name, replace(cluster.nodes[name], durable_term=term, durable_vote=vote))


def grant_vote(
    cluster: Cluster, name: str, term: int, candidate: str, own: Position | None, theirs: Position | None
) -> Cluster:
    """RequestVoteResponse: a durable vote (rule 2) for a log as good as its own (rule 3) leaves the node."""
    node = _live(cluster, name)
    if cluster.votes.get((name, term), candidate) != candidate:
        raise Refused(f"it voted for {cluster.votes[name, term]} in term {term}, and votes for {candidate}")
    durable = node.durable_vote if node.durable_term == term else cluster.votes.get((name, term), candidate)
    if node.durable_term < term or durable != candidate:
        raise Refused(f"its vote for {candidate} in term {term} is not durable")
    cluster = cast_vote(cluster, name, term, candidate)
    asked = cluster.requests.get((candidate, term))
    if asked is None:
        raise NotYet(f"{candidate} has not asked for votes in term {term}")
    if theirs is not None and theirs != asked:
        raise Refused(f"{candidate} asked with a log that ends with {asked}, not {theirs}")
    least = node.entered if node.term == term else NOTHING
    if own is not None and own < least:
        raise Refused(f"it says that its log ended with {own}, which ended with {least}")
    if asked < (own or least):
        raise Refused(f"it votes for {candidate}, whose log ends with {asked}, behind {own or least}")
    voters = cluster.granted.get((candidate, term), frozenset()) | {name}
    return replace(cluster, granted={**cluster.granted, (candidate, term): voters})


def become_leader(cluster: Cluster, name: str, term: int, end: int) -> Cluster:
    """BecomeLeader: with the votes of a majority. The request for theirs left after its own was durable; a
    node that is alone need not ask."""
    node = _live(cluster, name)
    if term in cluster.leaders:
        raise Refused(f"term {term} has a leader already: {cluster.leaders[term].node}")
    if node.role is not Role.CANDIDATE or node.term != term or (name, term) not in cluster.requests:
        raise Refused(f"it is {node.role} of term {node.term}, and becomes leader of term {term}")
    if end != node.log.end:
        raise Refused(f"its log ends at {node.log.end}, not at {end}")
    voters = cluster.granted.get((name, term), frozenset())
    if cluster.majority == 1:
        voters |= {name}
    if len(voters) < cluster.majority:
        raise NotYet(f"in term {term} it has the votes of {_names(voters)} only")
    led = Leadership(name, node.log, node.log, node.committed)
    cluster = cluster.with_node(name, replace(node, role=Role.LEADER))
    return replace(cluster, leaders={**cluster.leaders, term: led})


# -- the log (paper 5.3; rules 6 and 7) --------------------------------------------------------------------


def append(cluster: Cluster, name: str, first: int, last: int, term: int) -> Cluster:
    """ClientRequest on a leader, HandleAppendEntriesRequest on all others."""
    node = _live(cluster, name)
    if first != node.log.end + 1 or last < first:
        raise Refused(f"its log ends at {node.log.end}, and it appends {first} to {last}")
    if term < node.log.last.term:
        raise Refused(f"it appends entries of term {term} behind one of term {node.log.last.term}")
    if node.role is Role.LEADER:
        if term != node.term:
            raise Refused(f"it leads term {node.term}, and appends entries of term {term}")
        led = cluster.leaders[term]
        # Not the node's log: what it has purged since may have been sent before.
        leaders = {**cluster.leaders, term: replace(led, log=led.log.append(last, term))}
        cluster = replace(cluster, leaders=leaders)
        return cluster.with_node(name, replace(node, log=node.log.append(last, term)))
    longer = node.log.append(last, term)
    cluster = _hear_a_leader(
        cluster,
        name,
        lambda led: led.term_at(node.log.end) == node.log.last.term and longer.same_up_to(led, last),
        f"no leader has sent entries {first} to {last} of term {term} behind {node.log.last}",
    )
    return cluster.with_node(name, replace(cluster.nodes[name], log=longer))


def truncate(cluster: Cluster, name: str, first: int) -> Cluster:
    """HandleAppendEntriesRequest, the conflict: entries from `first` on go, because a leader has another term
    there (rule 6). The disk has them until a later flush."""
    node = _live(cluster, name)
    if node.role is Role.LEADER:
        raise Refused(f"it leads term {node.term}, and removes entries of its log")
    if first <= node.committed:
        raise Refused(f"it removes entry {first}, and {node.committed} is committed here")
    if not node.log.base.index < first <= node.log.end:
        raise Refused(f"it removes entries from {first} on, and its log ends at {node.log.end}")
    mine = node.log.term_at(first)
    cluster = _hear_a_leader(
        cluster,
        name,
        lambda led: first <= led.end and led.term_at(first) not in (mine, -2),
        f"no leader has another entry than this node at {first}, which is of term {mine}",
    )
    node, log = cluster.nodes[name], node.log.cut(first - 1)
    changed = replace(
        node,
        log=log,
        durable=min(node.durable, log.end),
        older=(*node.older, (node.log, node.durable)),
        entered=min(node.entered, log.last),
    )
    return cluster.with_node(name, changed)


def flush(cluster: Cluster, name: str, index: int) -> Cluster:
    """The disk reports: entries up to `index` are durable, and truncations before them are carried out."""
    node = _live(cluster, name)
    if index > node.log.end:
        raise Refused(f"its log ends at {node.log.end}, and {index} became durable")
    node = replace(node, durable=max(node.durable, index), older=())
    return _acknowledge(cluster.with_node(name, node), name)


def advance_commit(cluster: Cluster, name: str, term: int, index: int, entry_term: int | None) -> Cluster:
    """AdvanceCommitIndex on a leader (paper 5.4.2, rule 4); others hear of it (rule 8)."""
    cluster = update_term(cluster, name, term)
    node = cluster.nodes[name]
    if index <= node.committed or index > node.log.end:
        raise Refused(f"it commits {index}; committed was {node.committed}, its log ends at {node.log.end}")
    found = node.log.term_at(index)
    if entry_term not in (None, found):
        raise Refused(f"entry {index} is of term {found} here, not {entry_term}")
    if node.role is Role.LEADER:
        cluster = _commit_by_counting(cluster, name, index)
    else:
        led = cluster.leaders.get(term)
        if led is None or led.committed < index:
            raise NotYet(f"the leader of term {term} has not committed {index}")
        if led.log.term_at(index) not in (found, -2):
            raise Refused(f"entry {index} is of term {found} here, not so at the leader of term {term}")
    return cluster.with_node(name, replace(cluster.nodes[name], committed=index))


def _commit_by_counting(cluster: Cluster, name: str, index: int) -> Cluster:
    term = cluster.nodes[name].term
    found = cluster.nodes[name].log.term_at(index)
    if found != term:
        raise Refused(f"it leads term {term}, and commits entry {index} of term {found} by counting")
    for other in cluster.nodes:
        if cluster.nodes[other].lost is not None and cluster.nodes[other].term <= term:
            cluster = _finished_if_it_can(cluster, other)
    holders = {n for (n, t), end in cluster.acknowledged.items() if t == term and end >= index}
    if len(holders) < cluster.majority:
        raise NotYet(f"entry {index} is known to be durable on {_names(holders)} only")
    led = cluster.leaders[term]
    cluster = replace(cluster, leaders={**cluster.leaders, term: replace(led, committed=index)})
    if index <= cluster.chosen.end:
        return cluster
    longer = cluster.chosen
    for first, run_term in led.log.cut(index).runs:
        end = next((f - 1 for f, _ in led.log.runs if f > first and f <= index), index)
        if end > longer.end:
            longer = longer.append(end, run_term)
    return replace(cluster, chosen=longer)


# -- what is applied, answered and purged (rules 8, 10, retention) -----------------------------------------


def apply(cluster: Cluster, name: str, first: int, last: int) -> Cluster:
    node = _live(cluster, name)
    if node.applied is not None and first != node.applied + 1:
        raise Refused(f"it applied up to {node.applied}, and goes on with {first}")
    if last > node.committed or last < first:
        raise Refused(f"it applies {first} to {last}, and {node.committed} is committed here")
    return cluster.with_node(name, replace(node, applied=last))


def load(cluster: Cluster, name: str, index: int) -> Cluster:
    """A state image is taken over."""
    node = _live(cluster, name)
    if index > node.committed or (node.applied is not None and index < node.applied):
        raise Refused(f"it loads a state of {index}; applied {node.applied}, committed {node.committed}")
    return cluster.with_node(name, replace(node, applied=index))


def acknowledge_client(cluster: Cluster, name: str, term: int, index: int) -> Cluster:
    """ClientResponse (rule 1): what is answered is committed here, so durable on a majority."""
    cluster = update_term(cluster, name, term)
    node = cluster.nodes[name]
    if index > node.committed:
        raise Refused(f"it answers an append of {index}, and {node.committed} is committed here")
    return cluster


def accept(cluster: Cluster, name: str, term: int) -> Cluster:
    """A leader takes a request."""
    node = _live(cluster, name)
    if node.role is not Role.LEADER or node.term != term:
        raise Refused(f"it is {node.role} of term {node.term}, and accepts a request in term {term}")
    return cluster


def purge(cluster: Cluster, name: str, index: int) -> Cluster:
    """The log begins after `index`: a committed PURGE says so, which stands behind it, and a state image has
    what is purged."""
    node = _live(cluster, name)
    if index >= node.committed:
        raise Refused(f"it purges up to {index}, and {node.committed} is committed here")
    if node.applied is not None and index > node.applied:
        raise Refused(f"it purges up to {index}, and has applied {node.applied}")
    if index > node.durable:
        raise Refused(f"it purges up to {index}, and {node.durable} is durable here")
    if index < node.log.base.index:
        raise Refused(f"its log begins after {node.log.base.index}, and would begin after {index}")
    log = node.log.purged(index)
    return replace(cluster.with_node(name, replace(node, log=log)), bases=cluster.bases | {log.base})


def install_base(cluster: Cluster, name: str, index: int) -> Iterator[Cluster]:
    """INSTALL_BASE: the leader's log begins after this one ends."""
    node = _live(cluster, name)
    if node.role is Role.LEADER or index <= node.committed:
        raise Refused(f"it begins anew after {index}; {node.role}, committed {node.committed}")
    bases = [base for base in sorted(cluster.bases) if base.index == index]
    if not bases:
        raise NotYet(f"nobody's log begins after {index}")
    for base in bases:
        changed = replace(
            node,
            log=Log(base, index),
            durable=index,
            committed=index,
            older=(*node.older, (node.log, node.durable)),
            entered=min(node.entered, base),
        )
        yield cluster.with_node(name, changed)


# -- restarts (rules 1, 2, 10, 11) -------------------------------------------------------------------------


def restart(
    cluster: Cluster, name: str, term: int, vote: str | None, end: int, committed: int, *, lost: bool
) -> Iterator[Cluster]:
    """Restart: what was durable is there; what was not may be, or not. `lost`: the node has lost its log, or
    the end of it, knows that, and neither votes nor counts before `finish_rejoin`."""
    node = cluster.nodes[name]
    if not lost:
        _check_term_and_vote(cluster, name, term, vote)
        if node.lost is not None:
            cluster = finish_rejoin(cluster, name)
            node = cluster.nodes[name]
    if committed > max(end, -1):
        raise Refused(f"it starts with {committed} committed, and a log that ends at {end}")
    found = {_on_disk(log, floor, end, lost=lost or not cluster.syncs) for log, floor in _disks(node)} - {
        None
    }
    if not found:
        raise Refused(f"it starts with a log that ends at {end}; {_words_of_disks(node)}")
    others = tuple(
        (other, Position(them.log.term_at(them.durable), them.durable))
        for other, them in cluster.nodes.items()
        if other != name and them.lost is None
    )
    bar = max([node.barred, *(them.durable_term for n, them in cluster.nodes.items() if n != name)])
    for log in sorted((one for one in found if one is not None), key=lambda one: one.last):
        if committed > cluster.chosen.end:
            raise NotYet(f"it starts with {committed} committed, which no leader has committed")
        new = Node(
            role=Role.FOLLOWER,
            term=term,
            durable_term=term,
            durable_vote=vote,
            log=log,
            durable=log.end,
            committed=max(committed, log.base.index),
            entered=log.last,
            lost=others if lost else None,
            barred=bar if lost else node.barred,
        )
        yield _acknowledge(_remembered(cluster, name, term, vote, lost=lost).with_node(name, new), name)


def _check_term_and_vote(cluster: Cluster, name: str, term: int, vote: str | None) -> None:
    node = cluster.nodes[name]
    if term < node.durable_term:
        raise Refused(f"it starts in term {term}, and {node.durable_term} was durable")
    if term == node.durable_term and node.durable_vote not in (None, vote):
        raise Refused(f"it starts with a vote for {vote} in term {term}, and {node.durable_vote} was durable")
    if term > max(node.durable_term, 0) and all(begun != term for _, begun in cluster.requests):
        raise NotYet(f"nobody has begun term {term}")
    if vote is not None and cluster.votes.get((name, term), vote) != vote:
        raise Refused(f"it voted for {cluster.votes[name, term]} in term {term}, and starts with {vote}")


def _remembered(cluster: Cluster, name: str, term: int, vote: str | None, *, lost: bool) -> Cluster:
    """A vote that had not become durable is forgotten: it never left the node. Nor does the vote for itself
    count of a node that lost its directory: it is no candidate any more."""
    votes = dict(cluster.votes)
    for (voter, given), candidate in cluster.votes.items():
        forgotten = given > term or (given == term and vote is None)
        if voter == name and (candidate == name if lost else forgotten):
            del votes[voter, given]
    if vote is not None:
        votes[name, term] = vote
    return replace(cluster, votes=votes)


def _disks(node: Node) -> list[tuple[Log, int]]:
    return [(node.log, node.durable), *node.older]


def _on_disk(log: Log, floor: int, end: int, *, lost: bool) -> Log | None:
    """`log` as a start may find it with this end: what was durable is there, unless `lost`."""
    if lost and end < log.base.index:
        return Log() if end == -1 else None
    if end > log.end or end < (log.base.index if lost else max(floor, log.base.index)):
        return None
    return log.cut(end)


def _words_of_disks(node: Node) -> str:
    disks = [f"{floor} was durable of a log that ended at {log.end}" for log, floor in _disks(node)]
    return " or ".join(disks)


def finish_rejoin(cluster: Cluster, name: str) -> Cluster:
    """Silent: all other members have said how far their logs reach, and that is durable here (rule 11)."""
    node = cluster.nodes[name]
    if node.lost is None:
        return cluster
    mine = Position(node.log.term_at(node.durable), node.durable)
    for other, then in node.lost:
        them = cluster.nodes[other]
        least = min(then, Position(them.log.term_at(them.durable), them.durable))
        if mine < least:
            raise NotYet(f"it lost its log, has {mine} of it back, and {other} has {least}")
    return _acknowledge(cluster.with_node(name, replace(node, lost=None)), name)


def _finished_if_it_can(cluster: Cluster, name: str) -> Cluster:
    try:
        return finish_rejoin(cluster, name)
    except Refused:
        return cluster


# -- what several actions need -----------------------------------------------------------------------------


def _live(cluster: Cluster, name: str) -> Node:
    node = cluster.nodes[name]
    if node.role is Role.DOWN:
        raise Refused("it does something before it has started")
    return node


def _hear_a_leader(cluster: Cluster, name: str, fits: Callable[[Log], bool], otherwise: str) -> Cluster:
    """A push of the leader with the lowest term that this node may still hear, and whose log fits. The lowest
    is enough: what is possible after a higher term is possible after this one, by hearing of that later."""
    node = cluster.nodes[name]
    for term in sorted(t for t in cluster.leaders if t >= node.term):
        led = cluster.leaders[term]
        if led.node != name and fits(led.log):
            return update_term(cluster, name, term)
    raise NotYet(otherwise)


def _acknowledge(cluster: Cluster, name: str) -> Cluster:
    """AppendEntriesResponse: a node says up to where it has the entries of its term, durable. One that lost
    its log does not count, nor in terms up to the one in which it came back."""
    node = cluster.nodes[name]
    term = node.log.term_at(node.durable)
    if node.lost is not None or term < node.term or term <= node.barred:
        return cluster
    if cluster.acknowledged.get((name, term), -1) >= node.durable:
        return cluster
    return replace(cluster, acknowledged={**cluster.acknowledged, (name, term): node.durable})


def _names(nodes: frozenset[str] | set[str]) -> str:
    return ", ".join(sorted(nodes)) or "nobody"
