"""Defects in fields that few checks read: one for each of them."""

from __future__ import annotations

from chaos.checker.synthetic import Trace
from chaos.trace.schema import Ev
from tests.chaos.checker.mutations import acked, add, lines, mutation, number


@mutation("W2")
def an_operation_brings_more_than_it_says(trace: Trace) -> None:
    first = lines(trace, Ev.DLV)[3]
    end = lines(trace, Ev.OP, type="ok", op=first["op"])[0]
    end["count"] = len(lines(trace, Ev.DLV, op=first["op"])) - 1


@mutation("W2")
def a_consumer_is_through_with_what_it_was_not_given(trace: Trace) -> None:
    lines(trace, Ev.DONE)[5]["attempt"] = 1


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


@mutation("R15")
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


@mutation("R2")
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
