"""Defects of the log and of votes that show only beside other nodes' lines, or after a node lost its log.
Importing this puts them among `MUTATIONS`."""

from __future__ import annotations

from chaos.trace.schema import Ev
from tests.chaos.checker.mutations.base import add, lines, mutation, number
from tests.chaos.checker.mutations.more import become
from tests.chaos.checker.synthetic import LEDGER, Line, Trace, digest_of

_ENVELOPE = ("v", "run", "src", "inc", "seq", "host", "mono", "wall")


def tell(trace: Trace, after: Line, ev: Ev, **fields: object) -> Line:
    """A node writes another line, behind one of its own and at the same time."""
    line = {name: after[name] for name in (*_ENVELOPE, "node")}
    become(trace, after, line, ev=ev.value, **fields)
    file = trace.files[str(after["src"]), number(after, "inc")]
    return file[next(i for i, one in enumerate(file) if one is after) + 1]


def last_commit(trace: Trace, node: str) -> Line:
    return max(lines(trace, Ev.RAFT, e="commit", node=node), key=lambda line: number(line, "mono"))


def append_one_more(trace: Trace, node: str) -> Line:
    last = max(lines(trace, Ev.STORE, e="append", node=node), key=lambda line: number(line, "mono"))
    index = number(last, "last") + 1
    about = {"lidx": index, "last": index, "eterm": last["eterm"], "chain": digest_of("more", index)}
    return tell(trace, last_line(trace, node), Ev.STORE, e="append", ledger=LEDGER, **about)


def last_line(trace: Trace, node: str) -> Line:
    told = [*lines(trace, Ev.STORE, node=node), *lines(trace, Ev.RAFT, node=node)]
    return max(told, key=lambda line: (number(line, "mono"), number(line, "seq")))


# -- terms ---------------------------------------------------------------------------------------------


@mutation("R22")
def a_follower_is_in_a_term_that_nobody_began(trace: Trace) -> None:
    tell(trace, last_line(trace, "n3"), Ev.RAFT, e="follower", term=9, role_epoch=99)


@mutation("R22")
def the_winner_of_an_election_was_no_candidate(trace: Trace) -> None:
    winner = lines(trace, Ev.RAFT, e="leader", term=2)[0]
    for line in lines(trace, Ev.RAFT, e="candidate", node=winner["node"], term=2):
        line["term"] = 1


@mutation("R21")
def a_voter_says_that_its_last_entry_is_of_another_term(trace: Trace) -> None:
    vote = lines(trace, Ev.RAFT, e="vote", term=3)[-1]
    vote["last_term"] = number(vote, "last_term") - 1


# -- the log -------------------------------------------------------------------------------------------


@mutation("R23")
def a_follower_appends_what_no_leader_has(trace: Trace) -> None:
    leader = lines(trace, Ev.RAFT, e="leader")[-1]["node"]
    append_one_more(trace, next(node for node in ("n1", "n2") if node != leader))


@mutation("R5")
def a_follower_removes_what_its_leader_has(trace: Trace) -> None:
    leader = str(lines(trace, Ev.RAFT, e="leader")[-1]["node"])
    append_one_more(trace, leader)
    follower = next(node for node in ("n1", "n2") if node != leader)
    appended = append_one_more(trace, follower)
    appended["mono"] = appended["wall"] = number(last_line(trace, leader), "mono") + 1
    removed = tell(trace, appended, Ev.STORE, e="truncate", lidx=appended["lidx"])
    assert removed["mono"] == appended["mono"]


@mutation("R23", broker=False)
def a_log_starts_anew_where_no_other_does(trace: Trace) -> None:
    commit = last_commit(trace, "n3")
    about = {"lidx": commit["lidx"], "chain": commit["chain"], "ledger": LEDGER}
    tell(trace, last_line(trace, "n3"), Ev.STORE, e="install", **about)


@mutation("R9", broker=False)
def the_entry_that_lets_others_go_is_purged(trace: Trace) -> None:
    """It is removed from no file."""
    commit = last_commit(trace, "n3")
    tell(trace, last_line(trace, "n3"), Ev.STORE, e="purge", lidx=commit["lidx"])


@mutation("R9", broker=False)
def an_entry_is_purged_before_it_is_applied(trace: Trace) -> None:
    commit = last_commit(trace, "n3")
    tell(trace, commit, Ev.STORE, e="purge", lidx=number(commit, "lidx") - 1)


@mutation("", broker=False)
def a_log_without_a_state_starts_anew_and_is_purged(trace: Trace) -> None:
    """Nothing is applied there, so nothing that is purged has to be."""
    index = number(last_commit(trace, "n3"), "lidx") - 3
    base = next(line for line in lines(trace, Ev.DUMP, node="n3") if line["lidx"] == index)
    for line in (last_line(trace, "n1"), last_line(trace, "n2")):
        tell(trace, line, Ev.STORE, e="purge", lidx=index)
    last = last_line(trace, "n3")
    last["mono"] = last["wall"] = number(last, "mono") + 1
    anew = tell(trace, last, Ev.STORE, e="install", lidx=index, chain=base["chain"], ledger=LEDGER)
    end = max(lines(trace, Ev.STORE, e="append", node="n3"), key=lambda line: number(line, "last"))
    about = {"lidx": index + 1, "ledger": LEDGER} | {name: end[name] for name in ("last", "eterm", "chain")}
    again = tell(trace, anew, Ev.STORE, e="append", **about)
    again["mono"] = again["wall"] = number(anew, "mono") + 1
    tell(trace, again, Ev.STORE, e="purge", lidx=index + 1)


@mutation("R9", broker=False)
def an_image_is_loaded_that_is_not_committed(trace: Trace) -> None:
    commit = last_commit(trace, "n3")
    tell(trace, last_line(trace, "n3"), Ev.RAFT, e="load", lidx=number(commit, "lidx") + 1)


@mutation("R9", broker=False)
def an_image_is_loaded_that_is_older_than_the_state(trace: Trace) -> None:
    commit = last_commit(trace, "n3")
    tell(trace, last_line(trace, "n3"), Ev.RAFT, e="load", lidx=number(commit, "lidx") - 1)


# -- a node that lost its log --------------------------------------------------------------------------


def lose_log(trace: Trace, at: Line, back: Line | None = None) -> None:
    """n3 loses its log after its line `at`, and gets all of it again after its line `back`. If none is given,
    both are shortly before its next line."""
    before, after = trace.files["node:n3", 0], trace.files.setdefault(("node:n3", 1), [])
    place = next(i for i, line in enumerate(before) if line is at) + 1
    after += before[place:]
    del before[place:]
    lost = number(after[0], "mono") - 100 if back is None else number(at, "mono")
    stamp = {"inc": 1, "mono": lost + 2, "wall": lost + 2}
    started = [before[0] | stamp | {"pid": 300}, before[1] | stamp | {"wiped": True}]
    assert started[1]["e"] == "recover"
    stored = [line for line in before if line.get("e") == "append"]
    flushed = next(line for line in reversed(before) if line.get("e") == "flush")
    again = (lost if back is None else number(back, "mono")) + 5
    stamp = {"inc": 1, "mono": again, "wall": again}
    place = next((i for i, line in enumerate(after) if line is back), -1) + 1
    after[place:place] = [line | stamp for line in (*stored, flushed)]
    after[:0] = started
    for line in after:
        line["inc"] = 1
    synced = lines(trace, Ev.DISK, e="synced", node="n3")
    old = next(line for line in reversed(synced) if number(line, "mono") < number(at, "mono"))
    watched = lines(trace, Ev.DISK, e="watched", node="n3")[0]
    for line, mono in ((watched, lost + 1), (old, again - 1)):
        disk = trace.files["disk:n3", 0]
        later = next(i for i, one in enumerate(disk) if number(one, "mono") > mono)
        disk.insert(later, line | {"mono": mono, "wall": mono})
    _tell_of_the_loss(trace, lost + 1)
    trace.renumber()


def _tell_of_the_loss(trace: Trace, mono: int) -> None:
    """What the harness writes: a fault that took the log, and another process."""
    for line in lines(trace, Ev.META, e="run_begin"):
        line["planned_faults"] = number(line, "planned_faults") + 1
    begin = lines(trace, Ev.FAULT, e="begin")[0]
    for what in ("end", "begin"):
        fault = {"e": what, "fault": 99, "f": "wipe", "targets": "n3", "mono": mono, "wall": mono}
        nemesis = trace.files[str(begin["src"]), number(begin, "inc")]
        later = next(i for i, one in enumerate(nemesis) if number(one, "mono") >= mono)
        nemesis.insert(later, begin | fault)
    started = lines(trace, Ev.META, e="started", node="n3")[0]
    admin = trace.files[str(started["src"]), number(started, "inc")]
    later = next(i for i, one in enumerate(admin) if number(one, "mono") > mono)
    admin.insert(later, started | {"pid": 300, "mono": mono, "wall": mono})
    add(trace, lines(trace, Ev.META, e="written", node="n3")[0], pid=300)


def lose_log_in_the_middle(trace: Trace) -> Line:
    """In term 1; the last line before the loss."""
    commit = lines(trace, Ev.RAFT, e="commit", node="n3", term=1)[2]
    at = next(line for line in lines(trace, Ev.RAFT, e="apply", node="n3") if line["last"] == commit["lidx"])
    lose_log(trace, at)
    return at


@mutation("", broker=False)
def a_follower_loses_its_log_and_gets_it_back(trace: Trace) -> None:
    lose_log_in_the_middle(trace)


@mutation("P2", broker=False)
def a_commit_counts_a_node_that_lost_its_log(trace: Trace) -> None:
    """The leader and it have synced the entry, and the third node has not yet."""
    lost = lose_log_in_the_middle(trace)
    synced = next(
        line
        for line in lines(trace, Ev.DISK, e="synced", node="n2")
        if number(line, "lidx") > number(lost, "last")
    )
    commits = [line for node in ("n1", "n2", "n3") for line in lines(trace, Ev.RAFT, e="commit", node=node)]
    told = [line for line in commits if line["lidx"] == synced["lidx"]]
    late = max(number(line, "mono") for line in told) + 1
    flush = next(
        line for line in lines(trace, Ev.STORE, e="flush", node="n2") if line["lidx"] == synced["lidx"]
    )
    synced["mono"] = synced["wall"] = late
    file = trace.files["node:n2", 0]
    file.remove(flush)
    flush["mono"] = flush["wall"] = late + 1
    file.insert(next(i for i, one in enumerate(file) if number(one, "mono") > late), flush)
    trace.renumber()


@mutation("R24", broker=False)
def a_node_votes_again_in_a_term_in_which_it_lost_its_log(trace: Trace) -> None:
    lose_log_in_the_middle(trace)
    recover = next(line for line in trace.files["node:n3", 1] if line.get("e") == "flush")
    voted = lines(trace, Ev.RAFT, e="term_vote", node="n3", term=1)[0]
    become(trace, recover, voted, inc=1, mono=recover["mono"], wall=recover["wall"])


@mutation("R24", broker=False)
def a_node_votes_before_it_has_its_log_back(trace: Trace) -> None:
    vote = next(line for line in lines(trace, Ev.RAFT, e="vote", node="n3", term=2))
    file = trace.files["node:n3", 0]
    place = next(i for i, line in enumerate(file) if line is vote)
    before = next(line for line in reversed(file[:place]) if line.get("e") == "apply")
    vote |= {"last_index": -1, "last_term": -1}
    lose_log(trace, before, vote)
