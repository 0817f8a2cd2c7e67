"""Defects that no check found, each beside a trace that looks like it and is right. Importing this puts them
among `MUTATIONS`."""

from __future__ import annotations

from chaos.trace.schema import Ev
from tests.chaos.checker.mutations.base import (
    acked,
    add,
    as_transaction,
    ask,
    lines,
    mutation,
    number,
    remove,
)
from tests.chaos.checker.mutations.classic import lose_master
from tests.chaos.checker.mutations.hostile import starve
from tests.chaos.checker.mutations.more import become, later
from tests.chaos.checker.mutations.raft import lose_log_in_the_middle, tell
from tests.chaos.checker.mutations.retention import KEEP, remove_well
from tests.chaos.checker.synthetic import LEDGER, Line, Trace, clean_trace

_OP = 9_300_000
_S = 1_000_000_000


# -- transactions --------------------------------------------------------------------------------------


def roll_back_after_commit(trace: Trace, outcome: str) -> None:
    """A producer commits, and then another client asks to roll back."""
    invoke, answer = [pair for pair in acked(trace) if pair[1].get("term") == 1][-1]
    as_transaction(trace, invoke, "txn_commit")
    about: Line = {"f": "txn_rollback", "op": _OP, "proc": "checked"}
    asked = {name: invoke[name] for name in invoke.keys() - {"seq"}} | about
    become(trace, answer, asked, mono=number(answer, "mono") + 100)
    again = next(line for line in lines(trace, Ev.OP, op=_OP))
    ended = {name: answer[name] for name in ("v", "run", "src", "inc", "host", "wall", "ev")} | about
    become(trace, again, ended, type=outcome, mono=number(answer, "mono") + 200)


@mutation("B4")
def a_transaction_is_rolled_back_after_its_commit(trace: Trace) -> None:
    roll_back_after_commit(trace, "ok")


@mutation("")
def a_rollback_after_a_commit_is_refused(trace: Trace) -> None:
    roll_back_after_commit(trace, "fail")


# -- look-ups ------------------------------------------------------------------------------------------


def look_up(trace: Trace, **answer: int) -> None:
    """Of the first acknowledged message, by its key. `answer`: what is told of it, where it is not so."""
    invoke, _ = next(acked(trace))
    for sent in lines(trace, Ev.OP, type="invoke", f="send"):
        sent["key"] = f"key-{sent['mid']}"
    invoke["key"] = "k1"
    last = lines(trace, Ev.OP, type="ok", f="commit_off", src="client:c0")[-1]
    ask(trace, last, _OP, "lookup", answer={"end_claim": True})
    asked = lines(trace, Ev.OP, op=_OP, type="invoke")[0]
    asked["key"] = "k1"
    for name in ("q", "group", "consumer"):
        asked.pop(name, None)
    found = lines(trace, Ev.DLV, mid=invoke["mid"])[0]
    shown = {
        name: found[name] for name in ("ev", "i", "mid", "digest", "ledger", "lidx", "topic", "q", "qoff")
    } | answer
    envelope = {name: asked[name] for name in ("v", "run", "src", "inc", "host", "mono", "wall")}
    become(trace, asked, envelope | shown, op=_OP)


@mutation("")
def a_look_up_finds_the_message_where_it_is(trace: Trace) -> None:
    look_up(trace)


@mutation("B3")
def a_look_up_names_another_queue(trace: Trace) -> None:
    invoke, _ = next(acked(trace))
    look_up(trace, q=1 - number(invoke, "q"))


@mutation("B3")
def a_look_up_names_another_offset(trace: Trace) -> None:
    _, answer = next(acked(trace))
    look_up(trace, qoff=number(answer, "qoff") + 1)


# -- files of nodes ------------------------------------------------------------------------------------


@mutation("B10")
def queues_of_all_nodes_go_on_behind_their_last_message(trace: Trace) -> None:
    """The unit points to an entry, and that entry is another message."""
    end = max(number(line, "lidx") for line in lines(trace, Ev.DUMP))
    for node in ("n1", "n2", "n3"):
        units = sorted(lines(trace, Ev.CQ, node=node), key=lambda unit: number(unit, "lidx"))
        q = next(unit["q"] for unit in units if unit["q"] != units[-1]["q"])
        last = [unit for unit in units if unit["q"] == q][-1]
        assert number(last, "lidx") < end
        add(trace, last, qoff=number(last, "qoff") + 1, lidx=end)


@mutation("B10")
def nodes_have_units_of_a_queue_without_messages(trace: Trace) -> None:
    for node in ("n1", "n2", "n3"):
        last = max(lines(trace, Ev.CQ, node=node), key=lambda unit: number(unit, "lidx"))
        add(trace, last, q=2, qoff=0)


@mutation("")
def nodes_have_units_of_a_queue_whose_messages_were_removed(trace: Trace) -> None:
    """Their logs start behind the messages, and their files with the queue's last unit."""
    remove_well(trace, keep_bytes=KEEP)
    for node in ("n1", "n2", "n3"):
        unit = min(lines(trace, Ev.CQ, node=node), key=lambda unit: number(unit, "lidx"))
        add(trace, unit, q=2, qoff=5)


def settle(trace: Trace) -> None:
    """The harness saw the nodes agree."""
    [healed] = lines(trace, Ev.META, e="healed")
    ended = max(lines(trace, Ev.META), key=lambda line: number(line, "mono"))
    file = trace.files[str(healed["src"]), number(healed, "inc")]
    end = max(number(line, "lidx") for line in lines(trace, Ev.DUMP))
    file.insert(len(file) - 1, healed | {"e": "settled", "off": end, "mono": ended["mono"]})
    file[-1]["mono"] = max(number(file[-1], "mono"), number(ended, "mono"))
    trace.renumber()


def stop_applying(trace: Trace, node: str) -> None:
    """From some entry of its last life on, though it goes on committing."""
    applied = lines(trace, Ev.RAFT, e="apply", node=node)
    inc = applied[-1]["inc"]
    last = [line for line in applied if line["inc"] == inc][-3:]
    gone = [line for line in lines(trace, Ev.STORE, e="reput", node=node) if line["inc"] == inc]
    remove(trace, *last, *gone[-3:])


@mutation("R25")
def a_follower_commits_and_stops_applying(trace: Trace) -> None:
    settle(trace)
    stop_applying(trace, "n3")


@mutation("R25")
def a_follower_applies_nothing_for_long(trace: Trace) -> None:
    """It is never seen to agree with the others."""
    stop_applying(trace, "n3")
    later(trace, lines(trace, Ev.META, e="drain_begin")[0], 30 * _S)


@mutation("")
def a_follower_applies_nothing_for_long_on_a_busy_machine(trace: Trace) -> None:
    stop_applying(trace, "n3")
    begun = lines(trace, Ev.META, e="drain_begin")[0]
    later(trace, begun, 30 * _S)
    at = number(begun, "mono")
    starve(trace, "n3", at + _S, at + 15 * _S)


@mutation("R25")
def a_restarted_node_stops_applying(trace: Trace) -> None:
    """Its earlier life had applied all that it considered committed."""
    settle(trace)
    [killed] = lines(trace, Ev.FAULT, e="begin", f="kill")
    stop_applying(trace, str(killed["targets"]))


@mutation("")
def a_follower_is_stopped_before_it_applies(trace: Trace) -> None:
    """The last commit was a moment ago."""
    stop_applying(trace, "n3")


# -- classic brokers -----------------------------------------------------------------------------------


def ask_end(trace: Trace, after: Line, number_of_op: int, end: int) -> None:
    """The reader of the files is answered so about queue 0, after that line."""
    like = next(line for line in trace.files["client:r0", 0] if line["ev"] == Ev.OP)
    envelope = {name: like[name] for name in ("v", "run", "src", "inc", "host", "ev")}
    about: Line = {"op": _OP + number_of_op, "proc": f"end{number_of_op}", "f": "max_off"}
    mono = number(after, "mono")
    asked: Line = {"type": "invoke", "topic": "t", "q": 0, "mono": mono + 100, "wall": mono + 100}
    answer: Line = {"type": "ok", "max_off": end, "mono": mono + 200, "wall": mono + 200}
    file = trace.files["client:r0", 0]
    at = next(i for i, line in enumerate(file) if i and number(line, "mono") > mono + 200)
    file[at:at] = [envelope | about | asked, envelope | about | answer]
    trace.renumber()


def ends_of_queue(trace: Trace) -> list[tuple[Line, int]]:
    """Answers to sends to queue 0, outside of faults and beside no other, with the end that each shows."""
    return [(end, number(end, "qoff") + 1) for invoke, end in acked(trace) if invoke["q"] == 0]


@mutation("D6")
def the_end_of_a_queue_falls_and_its_master_stays(trace: Trace) -> None:
    told = lose_master(trace)
    before = [pair for pair in ends_of_queue(trace) if number(pair[0], "mono") < number(told, "mono")]
    answer, end = before[0]
    ask_end(trace, answer, 1, end - 1)


@mutation("")
def the_end_of_a_queue_falls_as_its_slave_takes_over(trace: Trace) -> None:
    """What the lost master had not acknowledged is gone."""
    told = lose_master(trace)
    before = [pair for pair in ends_of_queue(trace) if number(pair[0], "mono") < number(told, "mono")]
    ask_end(trace, before[0][0], 1, before[-1][1] + 1)
    ask_end(trace, told, 2, before[-1][1])


@mutation("")
def the_end_of_a_queue_is_asked_for_as_its_slave_takes_over(trace: Trace) -> None:
    """The question reaches the slave, which had less."""
    told = lose_master(trace)
    before = [pair for pair in ends_of_queue(trace) if number(pair[0], "mono") < number(told, "mono")]
    ask_end(trace, told | {"mono": number(told, "mono") - 150}, 1, before[-1][1] - 1)


@mutation("")
def the_end_of_a_queue_is_asked_for_while_its_master_is_dead(trace: Trace) -> None:
    """Its slave responds instead."""
    lose_master(trace)
    [killed] = lines(trace, Ev.FAULT, e="begin", f="kill")
    before = [pair for pair in ends_of_queue(trace) if number(pair[0], "mono") < number(killed, "mono")]
    ask_end(trace, killed, 1, before[-1][1] - 1)


@mutation("")
def the_end_of_a_queue_is_asked_for_before_a_message_is_acknowledged(trace: Trace) -> None:
    """The answer comes after that."""
    told = lose_master(trace)
    before = [pair for pair in ends_of_queue(trace) if number(pair[0], "mono") < number(told, "mono")]
    answer, end = before[-1]
    ask_end(trace, answer | {"mono": number(answer, "mono") - 150}, 1, end - 1)


# -- a log that starts anew ----------------------------------------------------------------------------


def rejoin_behind_purged_entries(trace: Trace) -> tuple[Line, int]:
    """n3 loses its log, and gets none of the entries that the others have purged since. Its line about the
    new start, and the index behind which its log starts."""
    lost = lose_log_in_the_middle(trace)
    life = trace.files["node:n3", 1]
    again = [line for line in life if line.get("e") == "append"]
    base = number(lost, "last") - 1
    old = next(line for line in again if number(line, "last") >= base + 1)
    stored = [line for line in again if number(line, "mono") == number(old, "mono")]
    remove(trace, *stored[:-1])
    dumped = next(line for line in lines(trace, Ev.DUMP, node="n3") if line["lidx"] == base)
    stored[-1]["lidx"] = base + 1
    # Whoever purges has applied more than that.
    for node in ("n1", "n2"):
        applied = next(
            line for line in lines(trace, Ev.RAFT, e="apply", node=node) if number(line, "last") > base
        )
        tell(trace, applied, Ev.STORE, e="purge", lidx=base)
    recover = next(line for line in trace.files["node:n3", 1] if line.get("e") == "recover")
    stamp = {"mono": number(recover, "mono") + 1, "wall": number(recover, "mono") + 1}
    anew = tell(trace, recover, Ev.STORE, e="install", lidx=base, chain=dumped["chain"], ledger=LEDGER)
    anew |= stamp
    commit = next(line for line in trace.files["node:n3", 1] if line.get("e") == "commit")
    become(trace, commit, lost, inc=1, lidx=base + 1, mono=commit["mono"], wall=commit["wall"])
    watched = lines(trace, Ev.DISK, e="watched", node="n3")[-1]
    synced = lines(trace, Ev.DISK, e="synced", node="n3")[0]
    become(trace, watched, synced, lidx=-1, mono=watched["mono"], wall=watched["wall"])
    return anew, base


@mutation("", broker=False)
def a_node_that_lost_its_log_starts_behind_what_was_purged(trace: Trace) -> None:
    """It reports that start as durable, and no sync covers entries that it never had."""
    anew, base = rejoin_behind_purged_entries(trace)
    tell(trace, anew, Ev.STORE, e="flush", lidx=base, ledger=LEDGER)


@mutation("R18", broker=False)
def a_node_that_starts_behind_what_was_purged_reports_more_than_it_synced(trace: Trace) -> None:
    anew, base = rejoin_behind_purged_entries(trace)
    tell(trace, anew, Ev.STORE, e="flush", lidx=base + 1, ledger=LEDGER)


# -- a cluster of one ----------------------------------------------------------------------------------


def lead_alone(trace: Trace) -> Line:
    """The only node leads before its vote is synced. The line that says when it was."""
    trace.files.clear()
    trace.files |= clean_trace(trace.run, seed=3, rounds=6, faults=0, broker=False).files
    others = ("n2", "n3")
    for src, inc in list(trace.files):
        if src.partition(":")[2] in others:
            del trace.files[src, inc]
    for key, told in trace.files.items():
        of_others = {*others, *(f"{kind}:{node}" for kind in ("node", "disk") for node in others)}
        trace.files[key] = [line for line in told if not {line.get("node"), line.get("member")} & of_others]
    [begin] = lines(trace, Ev.META, e="run_begin")
    begin["nodes"] = 1
    del begin["aim"]
    [candidate], [leader] = lines(trace, Ev.RAFT, e="candidate"), lines(trace, Ev.RAFT, e="leader")
    file = trace.files["node:n1", 0]
    file.remove(leader)
    file.insert(file.index(candidate) + 1, leader)
    leader["mono"] = leader["wall"] = number(candidate, "mono") + 10
    trace.renumber()
    [synced] = lines(trace, Ev.DISK, e="vote_synced")
    return synced


@mutation("V2", broker=False)
def the_only_node_leads_before_its_vote_is_synced(trace: Trace) -> None:
    """Nobody needs its vote, and it commits nothing before."""
    synced, commit = lead_alone(trace), lines(trace, Ev.RAFT, e="commit")[0]
    assert (
        number(lines(trace, Ev.RAFT, e="leader")[0], "mono") < number(synced, "mono") < number(commit, "mono")
    )


@mutation("V2 R16", broker=False)
def the_only_node_commits_before_its_vote_is_synced(trace: Trace) -> None:
    synced, commit = lead_alone(trace), lines(trace, Ev.RAFT, e="commit")[0]
    synced["mono"] = synced["wall"] = number(commit, "mono") + 1
    # What the node itself tells of its vote comes later still.
    for line in (*lines(trace, Ev.RAFT, e="term_vote"), *lines(trace, Ev.RAFT, e="vote")):
        trace.files["node:n1", 0].remove(line)
        line["mono"] = line["wall"] = number(synced, "mono")
        trace.files["node:n1", 0].insert(trace.files["node:n1", 0].index(commit) + 1, line)
    disk = trace.files["disk:n1", 0]
    disk.sort(key=lambda line: number(line, "mono"))
    trace.renumber()
