"""Which actions of the specification may have written a line of a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from chaos.spec import model
from chaos.spec.facts import Event, Facts
from chaos.spec.invariants import check_delta, check_leaders, check_state
from chaos.spec.state import NOTHING, Cluster, NotYet, Position, Refused

Steps = Callable[[Cluster, str, Event], Cluster | Iterable[Cluster]]


def _position(event: Event, prefix: str = "") -> Position | None:
    index, term = event.get(f"{prefix}last_index"), event.get(f"{prefix}last_term")
    if index is None or term is None:
        return None
    return Position(int(term), int(index)) if index >= 0 else NOTHING


def _restart(cluster: Cluster, node: str, event: Event) -> Iterator[Cluster]:
    vote, lost = event.get("vote") or None, bool(event.get("wiped"))
    return model.restart(cluster, node, event["term"], vote, event["ended"], event["committed"], lost=lost)


#: (ev, e) of a line of a node -> the action.
ACTIONS: dict[tuple[str, str], Steps] = {
    ("raft", "term_vote"): lambda c, n, e: model.persist_term(c, n, e["term"], e.get("vote") or None),
    ("raft", "candidate"): lambda c, n, e: model.stand(c, n, e["term"], _position(e)),
    ("raft", "leader"): lambda c, n, e: model.become_leader(c, n, e["term"], e["ended"]),
    ("raft", "follower"): lambda c, n, e: model.follow(c, n, e["term"]),
    ("raft", "vote"): lambda c, n, e: model.grant_vote(
        c, n, e["term"], e["candidate"], _position(e), _position(e, "cand_")
    ),
    ("raft", "commit"): lambda c, n, e: model.advance_commit(c, n, e["term"], e["lidx"], e.get("eterm")),
    ("raft", "apply"): lambda c, n, e: model.apply(c, n, e["lidx"], e["last"]),
    ("raft", "load"): lambda c, n, e: model.load(c, n, e["lidx"]),
    ("raft", "accept"): lambda c, n, e: model.accept(c, n, e["term"]),
    ("raft", "ack"): lambda c, n, e: model.acknowledge_client(c, n, e["term"], e["lidx"]),
    ("store", "append"): lambda c, n, e: model.append(c, n, e["lidx"], e["last"], e["eterm"]),
    ("store", "truncate"): lambda c, n, e: model.truncate(c, n, e["lidx"]),
    ("store", "flush"): lambda c, n, e: model.flush(c, n, e["lidx"]),
    ("store", "recover"): _restart,
    ("store", "install"): lambda c, n, e: model.install_base(c, n, e["lidx"]),
    ("store", "purge"): lambda c, n, e: model.purge(c, n, e["lidx"]),
}
#: Lines that change which leaders there are, and what they have committed.
_OF_LEADERS = frozenset({"leader", "commit", "append"})


def of_node(cluster: Cluster, facts: Facts, event: Event) -> list[Cluster]:
    """The states in which a step that writes this line may leave the cluster; at least one. Refused if there
    is none."""
    name, what = str(event["node"]), str(event["e"])
    steps = ACTIONS[event["ev"], what](cluster, name, event)
    found, refusal = [], None
    for after in [steps] if isinstance(steps, Cluster) else steps:
        try:
            _check(cluster, after, facts, event)
            found.append(after)
        except Refused as error:
            refusal = error
    if not found:
        raise refusal or Refused("no step")
    return found


def _check(before: Cluster, after: Cluster, facts: Facts, event: Event) -> None:
    name, what = str(event["node"]), str(event["e"])
    node = after.nodes[name]
    if what != "recover":
        check_delta(before.nodes[name], node)
    check_state(after, name)
    if what in _OF_LEADERS and after.leaders != before.leaders:
        check_leaders(before, after)
    chain = event.get("chain")
    if chain is None:
        return
    match what:
        case "append":
            facts.chain(event["last"], event["eterm"], chain)
        case "commit":
            facts.chain(event["lidx"], node.log.term_at(event["lidx"]), chain)
        case "apply":
            facts.chain(event["last"], node.log.term_at(event["last"]), chain)
        case "recover" | "leader" | "install":
            # The state is one of several that are tried: what only one of them says is no fact.
            if not facts.may_be(node.log.end, node.log.last.term, chain):
                raise Refused(f"log matching: its log ends with {node.log.last}, of another history")


def of_others(cluster: Cluster, facts: Facts, event: Event) -> None:
    """Clients' operations on the log, and what was read of the files in the end. Refused if the cluster's
    state does not explain them."""
    match event["ev"], event.get("type"):
        case "item", _:
            facts.item(event)
        case "op", "invoke":
            facts.invoke(event)
        case "op", _:
            if event["type"] == "ok" and event.get("lidx", -1) >= 0:
                _chosen(cluster, facts.last_of(event), event)
            facts.complete(event)
        case "dlv", _:
            _chosen(cluster, event["lidx"], event)
            facts.body(event["lidx"], event["mid"])
        case "dump", _ if event.get("is_committed"):
            _chosen(cluster, event["lidx"], event)
            if "chain" in event:
                facts.chain(event["lidx"], event["eterm"], event["chain"])
            if "mid" in event:
                facts.body(event["lidx"], event["mid"])


def _chosen(cluster: Cluster, index: int, event: Event) -> None:
    """Rules 1 and 4: what is answered, read or called committed in the end was committed by a leader."""
    if index > cluster.chosen.end:
        raise NotYet(f"entry {index} is answered or read, and committed is {cluster.chosen.end}")
    term = cluster.chosen.term_at(index)
    if event.get("eterm", term) != term:
        raise Refused(f"entry {index} is said to be of term {event['eterm']}, and was committed with {term}")
