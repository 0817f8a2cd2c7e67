"""Nodes that say of themselves what others know better. Importing this puts them among `MUTATIONS`."""

from __future__ import annotations

from chaos.trace.schema import Ev
from tests.chaos.checker.mutations.base import acked, add, lines, middle, mutation, number, remove
from tests.chaos.checker.synthetic import Line, Trace


def other_than(trace: Trace, node: object) -> str:
    return next(n for n in ("n1", "n2", "n3") if n != node)


@mutation("S2 S10")
def a_node_acknowledges_that_was_not_elected(trace: Trace) -> None:
    _, end = middle(trace)
    end["node"] = other_than(trace, end["node"])


@mutation("S10", broker=False)
def a_node_acknowledges_in_a_log_that_was_not_elected(trace: Trace) -> None:
    _, end = middle(trace)
    end["node"] = other_than(trace, end["node"])


@mutation("S10", broker=False)
def a_server_answers_with_a_term_in_which_nobody_was_elected(trace: Trace) -> None:
    last = list(acked(trace))[-1][1]
    last["term"] = number(last, "term") + 1
    del last["node"]


@mutation("S10 P3")
def a_node_acknowledges_that_leads_no_more(trace: Trace) -> None:
    """In the term that it led."""
    last = list(acked(trace))[-1][1]
    first = next(end for _, end in acked(trace))
    last |= {"node": first["node"], "term": first["term"]}


@mutation("S11", broker=False)
def a_server_lets_an_acknowledgement_go_before_it_was_elected(trace: Trace) -> None:
    leader = lines(trace, Ev.RAFT, e="leader", term=2)[0]
    ack = lines(trace, Ev.RAFT, e="ack", term=1)[-1]
    follower = lines(trace, Ev.RAFT, e="follower", node=leader["node"])[0]
    late = add(trace, follower)
    kept = {name: late[name] for name in ("src", "inc", "mono", "wall", "node")}
    late.clear()
    # What it knows to be committed by then.
    late |= ack | kept | {"lidx": -1}
    trace.renumber()


def of_leadership(trace: Trace, term: int) -> list[Line]:
    return [line for line in lines(trace, Ev.ROLE, term=term) if "barrier" in line]


@mutation("S12")
def a_master_by_the_barrier_of_another_term(trace: Trace) -> None:
    """All that it says itself agrees."""
    barrier = number(of_leadership(trace, 1)[0], "barrier")
    for line in of_leadership(trace, 2):
        line["barrier"] = barrier
        if "target" in line:
            line["target"] = barrier
    for leader in lines(trace, Ev.RAFT, e="leader", term=2):
        assert number(leader, "ended") > barrier


@mutation("S12 R6 R10")
def a_master_by_a_barrier_that_is_no_entry_of_its_term(trace: Trace) -> None:
    """The files of the others say so."""
    barrier = of_leadership(trace, 2)[0]["barrier"]
    for line in [*lines(trace, Ev.DUMP, lidx=barrier), *lines(trace, Ev.RAFT, e="commit", lidx=barrier)]:
        line["eterm"] = 1


@mutation("S12")
def a_master_of_another_role_epoch_than_it_was_elected_in(trace: Trace) -> None:
    ready = lines(trace, Ev.ROLE, e="master_ready", term=2)[0]
    ready["role_epoch"] = number(ready, "role_epoch") + 1


@mutation("R20")
def a_role_epoch_falls(trace: Trace) -> None:
    follower = lines(trace, Ev.RAFT, e="follower", node="n3", term=2)[0]
    follower["role_epoch"] = 1


@mutation("R17 P2")
def a_follower_commits_before_its_leader(trace: Trace) -> None:
    commits = lines(trace, Ev.RAFT, e="commit", term=3)
    last = max(number(line, "lidx") for line in commits)
    first, *others = [line for line in commits if line["lidx"] == last]
    appended = lines(trace, Ev.STORE, e="append", node=others[0]["node"], last=last)[0]
    file = trace.files[str(others[0]["src"]), number(others[0], "inc")]
    file.remove(others[0])
    file.insert(file.index(appended) + 1, others[0])
    others[0]["mono"] = number(appended, "mono") + 1
    assert number(others[0], "mono") < number(first, "mono")
    trace.renumber()


@mutation("P8 C10", broker=False)
def a_client_is_answered_before_anything_is_committed(trace: Trace) -> None:
    """Nodes, too, said so only later; and the server that answered told of no acknowledgement."""
    invoke, end = list(acked(trace))[-1]
    commits = lines(trace, Ev.RAFT, e="commit")
    last = max(number(line, "lidx") for line in commits)
    assert invoke["op"] == end["op"]
    for line in commits:
        if line["lidx"] == last:
            line["lidx"] = last - 4
            line["chain"] = lines(trace, Ev.DUMP, lidx=last - 4)[0]["chain"]
            line["eterm"] = lines(trace, Ev.DUMP, lidx=last - 4)[0]["eterm"]
    gone = [line for line in lines(trace, Ev.RAFT, e="ack") if number(line, "lidx") > last - 4]
    gone += [line for line in lines(trace, Ev.RAFT, e="apply") if number(line, "last") > last - 4]
    remove(trace, *gone)


@mutation("R18")
def a_node_says_that_more_is_durable_than_was_synced(trace: Trace) -> None:
    flush = lines(trace, Ev.STORE, e="flush", node="n3")[-1]
    flush["lidx"] = number(flush, "lidx") + 1


@mutation("R18 R21")
def what_was_synced_is_gone_after_a_restart(trace: Trace) -> None:
    """And the node has never said that it was durable."""
    recover = next(line for line in lines(trace, Ev.STORE, e="recover") if line["inc"] == 1)
    ended = number(recover, "ended")
    remove(
        trace,
        *[
            line
            for line in lines(trace, Ev.STORE, e="flush", node=recover["node"])
            if number(line, "mono") < number(recover, "mono") and number(line, "lidx") >= ended
        ],
    )
    recover["ended"] = ended - 1


@mutation("R19")
def a_leader_had_another_log_than_it_told_its_voters(trace: Trace) -> None:
    for vote in lines(trace, Ev.RAFT, e="vote", term=2):
        vote["cand_last_index"] = number(vote, "cand_last_index") + 1


@mutation("B7")
def the_files_of_a_node_hold_something_else(trace: Trace) -> None:
    """In what no line tells of."""
    lines(trace, Ev.META, e="dumped", node="n2", ledger="consumequeue")[0]["digest"] = "0"


def named(trace: Trace, term: int) -> None:
    """A NameServer names the master of a term, at the end."""
    file = trace.files["client:p0", 0]
    envelope = {name: file[-1][name] for name in ("v", "run", "src", "inc", "seq", "host", "mono", "wall")}
    about: Line = {"ev": "op", "op": 9_400_000, "proc": "asks", "f": "route"}
    file[-1:-1] = [
        envelope | about | {"type": "invoke", "topic": "t"},
        envelope | about | {"type": "ok", "term": term},
    ]
    trace.renumber()


@mutation("S13")
def a_name_server_names_a_master_that_nobody_elected(trace: Trace) -> None:
    named(trace, 4)


@mutation("W13")
def a_master_does_not_tell_how_it_became_one(trace: Trace) -> None:
    remove(trace, lines(trace, Ev.ROLE, e="dispatched", term=3)[0])


@mutation("W13")
def a_node_does_not_tell_that_it_kept_its_vote(trace: Trace) -> None:
    vote = lines(trace, Ev.RAFT, e="vote", term=2)[-1]
    for line in lines(trace, Ev.RAFT, e="term_vote", term=2, node=vote["node"]):
        del line["vote"]


@mutation("W14")
def some_answers_do_not_say_where_the_message_stands(trace: Trace) -> None:
    del next(acked(trace))[1]["node"]


@mutation("W14")
def an_unknown_outcome_says_where_the_message_stands(trace: Trace) -> None:
    lines(trace, Ev.OP, type="info")[0]["term"] = 1


@mutation("W14")
def the_end_of_a_fault_does_not_say_where_it_was(trace: Trace) -> None:
    for line in lines(trace, Ev.FAULT, e="end"):
        del line["targets"]


@mutation("W8 L6b", broker=False)
def a_final_read_may_be_late(trace: Trace) -> None:
    lines(trace, Ev.OP, type="invoke", f="drain")[0]["stale"] = True


@mutation("R4 R22")
def a_node_comes_back_in_a_term_that_never_was(trace: Trace) -> None:
    recover = lines(trace, Ev.STORE, e="recover")[-1]
    recover["term"] = number(recover, "term") + 7


@mutation("W2")
def another_writer_tells_that_a_member_joined(trace: Trace) -> None:
    join = lines(trace, Ev.MEMBER, e="join")[0]
    other = add(trace, lines(trace, Ev.META, e="drain_begin")[0])
    envelope = {name: other[name] for name in ("src", "inc", "seq", "mono", "wall")}
    other.clear()
    other |= join | envelope
    trace.renumber()


@mutation("R8 R21")
def terms_fall_along_the_log_of_all_nodes(trace: Trace) -> None:
    """Nobody but their files tells of that entry: it was stored and committed with others."""
    last = number(lines(trace, Ev.RAFT, e="commit")[-1], "lidx")
    entry = last - 1
    remove(
        trace, *lines(trace, Ev.RAFT, e="commit", lidx=entry), *lines(trace, Ev.STORE, e="append", last=entry)
    )
    for line in lines(trace, Ev.STORE, e="append", last=last):
        line["lidx"] = entry
    for line in lines(trace, Ev.DUMP, lidx=entry):
        line["eterm"] = 1


@mutation("R10", broker=False)
def a_leader_begins_its_term_with_a_message(trace: Trace) -> None:
    """It stands where the no-op should, and the no-op behind it."""
    first = number(lines(trace, Ev.RAFT, e="leader", term=2)[0], "ended") + 1
    for noop in lines(trace, Ev.DUMP, lidx=first):
        (sent,) = lines(trace, Ev.DUMP, lidx=first + 1, node=noop["node"])
        noop["mid"], noop["digest"] = sent.pop("mid"), sent.pop("digest")
        sent["internal"] = noop.pop("internal")
        moved = noop["mid"]
    (answer,) = (end for invoke, end in acked(trace) if invoke["mid"] == moved)
    for line in (answer, *lines(trace, Ev.DLV, mid=moved)):
        line["lidx"] = first
