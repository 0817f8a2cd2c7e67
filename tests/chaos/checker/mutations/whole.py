"""Traces that lack what a verdict needs. Importing this puts them among `MUTATIONS`."""

from __future__ import annotations

from chaos.trace.schema import Ev
from tests.chaos.checker.mutations.base import add, lines, mutation, number, remove
from tests.chaos.checker.synthetic import Line, Trace


@mutation("W1 W10")
def a_line_stands_twice(trace: Trace) -> None:
    end = lines(trace, Ev.FAULT, e="end")[0]
    trace.files["nemesis", 0].append(dict(end))


@mutation("W1 W10 W2")
def one_line_stands_twice_and_another_is_gone(trace: Trace) -> None:
    """Their number is what it was."""
    file = trace.files["client:p1", 0]
    begin, *_ = lines(trace, Ev.META, src="client:p1")
    file[1:1] = [dict(begin)]
    info = next(line for line in file if line.get("type") == "info")
    file.remove(info)


@mutation("W8 L6b")
def the_drain_of_a_queue_is_missing(trace: Trace) -> None:
    """What it would have shown was all read before."""
    drain = lines(trace, Ev.OP, f="drain", type="invoke", q=0)[0]
    remove(trace, *[line for line in trace.all_lines() if line.get("op") == drain["op"]])


@mutation("W8 L6b", broker=False)
def the_final_read_begins_late(trace: Trace) -> None:
    drain = lines(trace, Ev.OP, f="drain", type="invoke")[0]
    drain["from_off"] = 5
    early = [line for line in lines(trace, Ev.DLV, op=drain["op"]) if number(line, "lidx") < 5]
    remove(trace, *early)


@mutation("W8")
def nobody_says_which_queues_there_are(trace: Trace) -> None:
    remove(trace, *lines(trace, Ev.META, e="log"))


@mutation("W8")
def a_queue_that_there_is_was_not_looked_at(trace: Trace) -> None:
    add(trace, lines(trace, Ev.META, e="log")[0], q=7)


@mutation("L6b L14")
def the_head_of_a_queue_is_gone_after_it_was_consumed(trace: Trace) -> None:
    drain = lines(trace, Ev.OP, f="drain", type="invoke", q=0)[0]
    remove(trace, lines(trace, Ev.DLV, op=drain["op"], qoff=0)[0])


@mutation("W13")
def a_life_breaks_off(trace: Trace) -> None:
    """Another life of the node was killed, which does not excuse this one."""
    del trace.files["node:n1", 1][-1]


@mutation("W13")
def a_life_has_no_file(trace: Trace) -> None:
    add(trace, lines(trace, Ev.META, e="started")[0], pid=4711)


@mutation("W7")
def an_unexpected_writer(trace: Trace) -> None:
    remove(trace, lines(trace, Ev.META, e="expect", member="client:r0")[0])


@mutation("V2")
def a_fault_says_at_its_end_that_it_had_no_effect(trace: Trace) -> None:
    lines(trace, Ev.FAULT, e="end")[1]["effective"] = False


def recount_nothing(trace: Trace, *gone: Line) -> None:
    """Lines are lost from the trace, and those that tell how many there are know nothing of it."""
    for key, kept in trace.files.items():
        trace.files[key] = [line for line in kept if not any(line is one for one in gone)]
        for seq, line in enumerate(trace.files[key]):
            line["seq"] = seq


@mutation("W12 S5")
def units_are_missing_in_the_dump(trace: Trace) -> None:
    recount_nothing(trace, *lines(trace, Ev.CQ, node="n2")[-2:])


@mutation("W12")
def the_files_of_a_node_were_not_read(trace: Trace) -> None:
    """A majority of others has everything."""
    told = lines(trace, Ev.META, e="dumped", node="n2")
    recount_nothing(trace, *told, *lines(trace, Ev.DUMP, node="n2"), *lines(trace, Ev.CQ, node="n2"))


@mutation("S5")
def no_node_has_consume_queues(trace: Trace) -> None:
    remove(trace, *lines(trace, Ev.CQ))


@mutation("S5")
def a_node_lacks_a_consume_queue(trace: Trace) -> None:
    remove(trace, *lines(trace, Ev.CQ, node="n2", q=1))


@mutation("S5 S6")
def a_consume_queue_begins_late(trace: Trace) -> None:
    remove(trace, *lines(trace, Ev.CQ, node="n2", q=1, qoff=0))


@mutation("W5")
def the_clock_of_a_client_jumps(trace: Trace) -> None:
    """Its wall clock goes on. Nothing that it tells contradicts anything."""
    for line in trace.files["client:r0", 0][10:]:
        line["mono"] = number(line, "mono") + 3_600_000_000_000


@mutation("W5 L7 P2 P3 P8 S10", broker=False)
def the_clock_of_a_client_is_late(trace: Trace) -> None:
    """It seems to be answered before others began, whose messages stand before its own. Its wall clock is
    right."""
    for line in trace.files["client:p1", 0]:
        line["mono"] = number(line, "mono") - 2_000_000


@mutation("", broker=False)
def the_clock_of_a_client_is_late_within_the_bound(trace: Trace) -> None:
    lines(trace, Ev.META, e="run_begin")[0]["clock_bound_ns"] = 300_000
    shift(trace, "client:p1", -300_000)


def shift(trace: Trace, src: str, ns: int) -> None:
    for line in trace.files[src, 0]:
        for clock in ("mono", "wall"):
            line[clock] = number(line, clock) + ns


def _retry(trace: Trace) -> Line:
    """Behind the invoke of a send: it was tried once more."""
    invoke = next(line for line in lines(trace, Ev.OP, type="invoke") if "mid" in line)
    told = {name: invoke[name] for name in ("v", "run", "src", "inc", "host", "mono", "wall", "op", "mid")}
    retry = add(trace, invoke)
    for name in list(retry):
        if name not in told and name != "seq":
            del retry[name]
    retry |= {"ev": "attempt", "retry_no": 1}
    return retry


@mutation("W2")
def a_retry_is_told_twice(trace: Trace) -> None:
    add(trace, _retry(trace))


@mutation("W2")
def a_retry_is_told_by_another_client(trace: Trace) -> None:
    retry = _retry(trace)
    remove(trace, retry)
    other = next(key for key in trace.files if key[0].startswith("client:") and key[0] != retry["src"])
    file = trace.files[other]
    at = next(i for i, line in enumerate(file) if number(line, "mono") > number(retry, "mono"))
    file.insert(at, retry | {"src": other[0], "inc": other[1]})
    trace.renumber()


@mutation("W2 C6 C18")
def messages_are_read_by_another_client_than_asked(trace: Trace) -> None:
    dlv = lines(trace, Ev.DLV)[0]
    other = next(key for key in trace.files if key[0].startswith("client:") and key[0] != dlv["src"])
    remove(trace, dlv)
    file = trace.files[other]
    at = next(i for i, line in enumerate(file) if number(line, "mono") > number(dlv, "mono"))
    file.insert(at, dlv | {"src": other[0], "inc": other[1]})
    trace.renumber()


@mutation("W6 C1 C5")
def a_member_does_not_say_of_which_group_it_was_through_with_a_message(trace: Trace) -> None:
    del lines(trace, Ev.DONE)[-1]["group"]
