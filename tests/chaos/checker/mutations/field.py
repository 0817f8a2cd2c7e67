"""Defects in fields that few checks read: one for each of them."""

from __future__ import annotations

from chaos.trace.schema import Ev
from tests.chaos.checker.mutations.base import acked, add, lines, mutation, number, remove
from tests.chaos.checker.synthetic import Trace


@mutation("W2")
def an_operation_brings_more_than_it_says(trace: Trace) -> None:
    first = lines(trace, Ev.DLV)[3]
    end = lines(trace, Ev.OP, type="ok", op=first["op"])[0]
    end["count"] = len(lines(trace, Ev.DLV, op=first["op"])) - 1


@mutation("W2")
def a_consumer_is_through_with_what_it_was_not_given(trace: Trace) -> None:
    lines(trace, Ev.DONE)[5]["attempt"] = 1


@mutation("W2")
def another_client_tells_what_a_consumer_was_through_with(trace: Trace) -> None:
    line = lines(trace, Ev.DONE)[5]
    about = dict(line)
    remove(trace, line)
    other = next(one for one in lines(trace, Ev.OP, type="ok") if one["src"] != about["src"])
    names = ("src", "inc", "host", "mono", "wall")
    copy = add(trace, other, **about | {name: other[name] for name in names})
    for name in set(copy) - set(about):
        del copy[name]


@mutation("W2")
def what_nobody_sent_is_sent_again(trace: Trace) -> None:
    _, end = next(acked(trace))
    line = add(trace, end, ev=Ev.ATTEMPT.value, op=number(end, "op") + 1_000_000, retry_no=1)
    for name in ("type", "proc", "f", "node", "term", "lidx", "qoff"):
        line.pop(name, None)


@mutation("W2")
def another_message_is_sent_again(trace: Trace) -> None:
    invoke, end = next(acked(trace))
    line = add(trace, end, ev=Ev.ATTEMPT.value, mid=number(invoke, "mid") + 1, retry_no=1)
    for name in ("type", "proc", "f", "node", "term", "lidx", "qoff"):
        line.pop(name, None)


@mutation("L13")
def a_message_is_handed_out_with_another_tag(trace: Trace) -> None:
    invoke, _ = next(acked(trace))
    invoke["tag"] = "red"
    for line in lines(trace, Ev.DLV, mid=invoke["mid"]):
        line["tag"] = "blue"


@mutation("L13")
def a_message_is_handed_out_with_another_key(trace: Trace) -> None:
    invoke, _ = next(acked(trace))
    invoke["key"] = "k1"
    for line in lines(trace, Ev.DLV, mid=invoke["mid"]):
        line["key"] = "k2"


@mutation("R8", broker=False)
def a_reader_is_told_another_term_of_an_entry(trace: Trace) -> None:
    line = lines(trace, Ev.DLV)[0]
    line["eterm"] = number(lines(trace, Ev.DUMP, lidx=line["lidx"])[0], "eterm") + 1


@mutation("R15 R25")
def a_node_has_less_than_all_had_in_the_end(trace: Trace) -> None:
    end = lines(trace, Ev.META, e="healed")[0]
    last = max(number(line, "lidx") for line in lines(trace, Ev.DUMP))
    add(trace, end, e="settled", off=last + 1)


@mutation("W12")
def the_files_end_elsewhere(trace: Trace) -> None:
    for line in lines(trace, Ev.META, e="dumped"):
        if line["ledger"] != "consumequeue":
            line["ended"] = max(number(one, "lidx") for one in lines(trace, Ev.DUMP)) + 1


@mutation("V2")
def a_fault_ends_on_another_node(trace: Trace) -> None:
    end = lines(trace, Ev.FAULT, e="end")[0]
    end["targets"] = "n1" if end["targets"] != "n1" else "n2"


@mutation("R2 R22")
def a_node_comes_back_with_another_vote(trace: Trace) -> None:
    back = lines(trace, Ev.STORE, e="recover")[-1]
    voted = lines(trace, Ev.RAFT, e="term_vote", term=back["term"], node=back["node"])
    back["vote"] = "n1" if voted[-1].get("vote") != "n1" else "n2"


@mutation("R12")
def a_node_comes_back_without_its_vote(trace: Trace) -> None:
    for back in reversed(lines(trace, Ev.STORE, e="recover")):
        before = [
            line
            for line in lines(trace, Ev.RAFT, e="term_vote", term=back["term"], node=back["node"])
            if line.get("vote") and line["mono"] < back["mono"]
        ]
        if before:
            back.pop("vote", None)
            return
    raise AssertionError("nobody came back in a term in which it had voted")


@mutation("R19")
def a_candidate_says_that_its_log_ends_elsewhere(trace: Trace) -> None:
    voted = next(line for line in lines(trace, Ev.RAFT, e="vote") if line["node"] == line["candidate"])
    add(
        trace, voted, e="candidate", last_index=number(voted, "last_index") + 1, last_term=voted["last_term"]
    ).pop("candidate")


@mutation("R19")
def a_leader_leads_with_another_history(trace: Trace) -> None:
    leader = lines(trace, Ev.RAFT, e="leader")[-1]
    leader["chain"] = "ffffffff"


@mutation("R17")
def a_broker_has_dispatched_more_than_was_committed(trace: Trace) -> None:
    ready = lines(trace, Ev.ROLE, e="master_ready")[0]
    ready["reput"] = number(ready, "reput") + 5


@mutation("C19")
def a_consumer_is_given_messages_of_a_queue_that_was_taken_from_it(trace: Trace) -> None:
    given = next(line for line in lines(trace, Ev.DLV) if "group" in line)
    line = add(trace, given, ev=Ev.MEMBER.value, e="revoke", mono=number(given, "mono") - 1)
    for name in ("op", "i", "mid", "digest", "qoff", "lidx", "ledger"):
        line.pop(name, None)
    file = trace.files[str(given["src"]), number(given, "inc")]
    file.insert(file.index(given), file.pop(file.index(line)))
    trace.renumber()


@mutation("W6")
def an_entry_of_a_file_is_neither_message_nor_internal(trace: Trace) -> None:
    for line in lines(trace, Ev.DUMP):
        if line.get("internal"):
            line["internal"] = False
            return


@mutation("W13")
def a_node_never_tells_of_flushes(trace: Trace) -> None:
    silence(trace, "flush", node="n2")


@mutation("W13")
def a_broker_never_tells_what_it_dispatched(trace: Trace) -> None:
    silence(trace, "reput", node="n2")


@mutation("W13")
def a_life_does_not_tell_how_it_began(trace: Trace) -> None:
    back = lines(trace, Ev.STORE, e="recover")[-1]
    silence(trace, "recover", node=back["node"], inc=back["inc"])


@mutation("W13")
def nobody_tells_of_votes(trace: Trace) -> None:
    silence(trace, "vote")
    silence(trace, "term_vote")


def silence(trace: Trace, e: str, **of: object) -> None:
    """Nodes never told of such events, and have written so many lines less."""
    gone = [line for line in trace.all_lines() if line.get("e") == e and line["ev"] in ("raft", "store")]
    gone = [line for line in gone if all(line.get(name) == value for name, value in of.items())]
    assert gone
    remove(trace, *gone)
    written = {
        file[0].get("pid"): len(file) for (src, _), file in trace.files.items() if src.startswith("node:")
    }
    for line in lines(trace, Ev.META, e="written"):
        line["count"] = written[line["pid"]]


@mutation("L7 W8")
def an_end_is_answered_beyond_all_that_there_is(trace: Trace, question: str = "max_off") -> None:
    target = lines(trace, Ev.META, e="drain_target", topic="t", q=0)[0]
    begin = lines(trace, Ev.OP, f="drain", type="invoke")[0]
    about = {"op": 9_700_000, "proc": "asks", "topic": "t", "q": 0}
    asked = add(trace, begin, f=question, mono=number(begin, "mono") - 1_000_000, **about)
    for name in ("ledger", "from_off", "stale"):
        asked.pop(name, None)
    begins = {"min_off": 0} if question == "min_off" else {}
    add(trace, asked, type="ok", max_off=number(target, "off") + 6, **begins)
    file = trace.files[str(begin["src"]), number(begin, "inc")]
    file.sort(key=lambda line: number(line, "mono"))
    trace.renumber()


@mutation("L7 W8")
def the_answer_where_a_queue_begins_names_a_wrong_end_as_well(trace: Trace) -> None:
    an_end_is_answered_beyond_all_that_there_is(trace, "min_off")


@mutation("R9")
def what_is_not_committed_is_purged(trace: Trace) -> None:
    commit = lines(trace, Ev.RAFT, e="commit", node="n2")[2]
    purge = add(trace, commit, ev=Ev.STORE.value, e="purge", lidx=number(commit, "lidx") + 1)
    for name in ("term", "eterm", "chain", "ledger"):
        purge.pop(name, None)
