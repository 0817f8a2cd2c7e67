"""What may be wrong with groups, roles and figures in the trace of a real run: (change, check that finds it,
kinds of runs)."""

from __future__ import annotations

from collections.abc import Callable

from tests.chaos.checker.synthetic import Line, Trace

ROLE_CHANGES: list[tuple[Callable[[Trace], None], str, tuple[str, ...]]] = []
BOTH = ("log", "broker")


def wrong(check: str, *kinds: str) -> Callable[[Callable[[Trace], None]], Callable[[Trace], None]]:
    def register(one: Callable[[Trace], None]) -> Callable[[Trace], None]:
        ROLE_CHANGES.append((one, check, kinds or BOTH))
        return one

    return register


def found(trace: Trace, **fields: object) -> list[Line]:
    """By their clock."""
    lines = [line for line in trace.all_lines() if all(line.get(k) == v for k, v in fields.items())]
    return sorted(lines, key=lambda line: int(line["mono"]))


def taken(trace: Trace) -> list[Line]:
    """The invokes of acknowledged commits."""
    ok = {line["op"] for line in found(trace, f="commit_off", type="ok")}
    return [line for line in found(trace, f="commit_off", type="invoke") if line["op"] in ok]


def acked(trace: Trace) -> list[Line]:
    """The answers of acknowledged sends."""
    return [line for line in found(trace, type="ok") if line["f"] in {"send", "send_batch", "append"}]


def insert(trace: Trace, after: Line, line: Line) -> None:
    file = trace.files[str(after["src"]), int(after["inc"])]
    file.insert(next(i for i, one in enumerate(file) if one is after) + 1, line)
    trace.renumber()


# -- groups


@wrong("S9", "broker")
def an_acknowledged_offset_is_gone_in_the_end(trace: Trace) -> None:
    for asked in reversed(found(trace, f="fetch_off", type="invoke", group="orderly")):
        where = {name: asked[name] for name in ("group", "topic", "q")}
        before = [
            int(line["off"])
            for line in taken(trace)
            if line.items() >= where.items()
            and int(found(trace, op=line["op"], type="ok")[0]["mono"]) < int(asked["mono"])
        ]
        if max(before, default=0) > 0:
            found(trace, op=asked["op"], type="ok")[0]["off"] = max(before) - 1
            return
    raise AssertionError("no offset was asked for after a commit")


@wrong("C16", "broker")
def an_assignment_begins_below_what_was_stored(trace: Trace) -> None:
    """Six seconds later: by then every commit that was acknowledged counts."""
    last = next(line for line in reversed(taken(trace)) if line["group"] == "orderly")
    ended = found(trace, op=last["op"], type="ok")[0]
    envelope = {name: ended[name] for name in ("v", "run", "src", "inc", "seq", "host", "mono", "wall")}
    about = {name: last[name] for name in ("group", "consumer", "topic", "q")}
    assign: Line = {"ev": "member", "e": "assign", "epoch": 1_000_000, "off": int(last["off"]) - 1}
    line = envelope | about | assign
    insert(trace, ended, line)
    file = trace.files[str(ended["src"]), int(ended["inc"])]
    for later in file[next(i for i, one in enumerate(file) if one is line) :]:
        later["mono"], later["wall"] = int(later["mono"]) + 6_000_000_000, int(later["wall"]) + 6_000_000_000


@wrong("C15", "broker")
def a_commit_beyond_the_end_is_acknowledged(trace: Trace) -> None:
    taken(trace)[-1]["off"] = 1_000_000


@wrong("C15", "broker")
def a_group_is_told_an_offset_beyond_the_end(trace: Trace) -> None:
    found(trace, f="fetch_off", type="ok")[-1]["off"] = 1_000_000


@wrong("C14", "broker")
def a_commit_of_somebody_who_owns_nothing_is_acknowledged(trace: Trace) -> None:
    taken(trace)[-1]["consumer"] = "nobody"


# -- roles


@wrong("S10", "broker")
def a_node_acknowledges_that_was_not_elected(trace: Trace) -> None:
    answer = acked(trace)[-1]
    leaders = {line["node"] for line in found(trace, e="leader", term=answer["term"])}
    answer["node"] = next(node for node in ("n1", "n2", "n3") if node not in leaders)


@wrong("S10", "broker")
def a_node_acknowledges_what_began_when_it_led_no_more(trace: Trace) -> None:
    first, last = acked(trace)[0], acked(trace)[-1]
    assert first["term"] != last["term"]
    last |= {"node": first["node"], "term": first["term"]}


@wrong("S10")
def an_answer_names_a_term_without_a_leader(trace: Trace) -> None:
    acked(trace)[-1]["term"] = 1_000


@wrong("S11")
def a_server_acknowledges_in_a_term_that_it_does_not_lead(trace: Trace) -> None:
    ack = found(trace, ev="raft", e="ack")[-1]
    ack["term"] = int(ack["term"]) - 1


@wrong("S11")
def a_follower_lets_an_acknowledgement_go(trace: Trace) -> None:
    ack = found(trace, ev="raft", e="ack")[-1]
    commit = next(line for line in reversed(found(trace, e="commit")) if line["node"] != ack["node"])
    kept = {name: commit[name] for name in ("src", "inc", "mono", "wall", "node")}
    insert(trace, commit, ack | kept | {"lidx": commit["lidx"]})


@wrong("S12", "broker")
def a_master_by_the_barrier_of_another_leadership(trace: Trace) -> None:
    first, last = found(trace, e="master_ready")[0], found(trace, e="master_ready")[-1]
    for line in found(trace, ev="role", term=last["term"]):
        if "barrier" in line:
            line |= {name: first["barrier"] for name in ("barrier", "target") if name in line}


@wrong("S13", "broker")
def a_route_to_a_master_that_nobody_elected(trace: Trace) -> None:
    [line for line in found(trace, f="route", type="ok") if "term" in line][-1]["term"] = 1_000


# -- figures


@wrong("R17")
def a_follower_commits_what_its_leader_has_not(trace: Trace) -> None:
    """All earlier ones of leaders are said to be lower than they were."""
    node = found(trace, e="leader")[-1]["node"]
    last = next(line for line in reversed(found(trace, e="commit")) if line["node"] != node)
    last["lidx"] = int(last["lidx"]) + 100


@wrong("P8")
def a_client_is_told_of_an_index_that_nobody_committed(trace: Trace) -> None:
    answer = next(line for line in reversed(acked(trace)) if "lidx" in line)
    answer["lidx"] = int(answer["lidx"]) + 1_000_000


@wrong("R18")
def a_node_says_that_more_is_durable_than_was_synced(trace: Trace) -> None:
    flush = found(trace, e="flush")[-1]
    flush["lidx"] = int(flush["lidx"]) + 1


@wrong("R18")
def what_was_synced_is_gone_after_the_restart(trace: Trace) -> None:
    """And what the node had said to be durable by then is less."""
    recover = found(trace, e="recover")[-1]
    ended = int(recover["ended"])
    assert ended > 0
    recover["ended"] = ended - 1
    for flush in found(trace, e="flush", node=recover["node"]):
        if int(flush["mono"]) < int(recover["mono"]):
            flush["lidx"] = min(int(flush["lidx"]), ended - 1)


@wrong("R19")
def a_leader_has_another_log_than_its_voters_were_told(trace: Trace) -> None:
    leader = found(trace, e="leader")[-1]
    for vote in found(trace, e="vote", term=leader["term"], candidate=leader["node"]):
        vote["cand_last_index"] = int(vote["cand_last_index"]) + 7


@wrong("R20")
def a_role_epoch_is_used_again(trace: Trace) -> None:
    leader = found(trace, e="leader")[-1]
    leader["role_epoch"] = 0


@wrong("B7")
def the_files_of_a_node_hold_something_else(trace: Trace) -> None:
    found(trace, e="dumped", node="n2", ledger="log")[0]["digest"] = "0123456789abcdef"


def ask_late(trace: Trace) -> None:
    """Clients ask for the last answered route, and do all that follows, ten seconds later, and the last
    leader becomes master: on a busy machine the leader may have changed just before, or while the nodes are
    stopped, and then no answer is late enough to be judged."""
    ready = max(found(trace, e="master_ready"), key=lambda line: int(line["term"]))
    ready["term"] = max(int(line["term"]) for e in ("leader", "elected") for line in found(trace, e=e))
    answered = {line["op"] for line in found(trace, f="route", type="ok")}
    last = [line for line in found(trace, f="route", type="invoke") if line["op"] in answered][-1]
    since = int(last["mono"])
    for (src, _), lines in trace.files.items():
        for line in lines:
            if src.startswith("client:") and int(line["mono"]) >= since:
                line["mono"], line["wall"] = (int(line[clock]) + 10_000_000_000 for clock in ("mono", "wall"))


@wrong("S14", "broker")
def routes_name_the_old_master_for_ever(trace: Trace) -> None:
    ask_late(trace)
    for line in found(trace, f="route", type="ok"):
        if "term" in line:
            line["term"] = 1


@wrong("S14", "broker")
def routes_are_empty_since_the_master_changed(trace: Trace) -> None:
    ask_late(trace)
    for line in found(trace, f="route", type="ok"):
        if line.get("term") != 1:
            line.pop("term", None)
