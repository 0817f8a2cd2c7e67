"""Owners of queues, and offsets of groups, that are not what they should be. Importing this puts them among
`MUTATIONS`."""

from __future__ import annotations

from chaos.trace.schema import Ev
from tests.chaos.checker.mutations.base import add, lines, mutation, number
from tests.chaos.checker.synthetic import Line, Trace

_OP = 9_300_000


def stored(trace: Trace, q: int = 0) -> list[Line]:
    """The invokes of commits of one queue."""
    return [line for line in lines(trace, Ev.OP, f="commit_off", type="invoke") if line["q"] == q]


def told(trace: Trace, after: Line, op: int, f: str, asked: Line, answer: Line) -> None:
    """An operation about a queue of the group, in the same ns as a line of the same writer, behind it."""
    about: Line = {"ev": "op", "op": _OP + op, "proc": f"told{op}", "f": f}
    kept = {name: after[name] for name in ("v", "run", "src", "inc", "seq", "host", "mono", "wall")}
    where: Line = {"group": "G", "topic": "t", "q": 0}
    file = trace.files[str(after["src"]), number(after, "inc")]
    at = next(i for i, line in enumerate(file) if line is after) + 1
    file[at:at] = [kept | about | {"type": "invoke"} | where | asked, kept | about | {"type": "ok"} | answer]
    trace.renumber()


def tell_reset(trace: Trace, invoke: Line, off: int) -> None:
    """A line that says that from there on the group may go back."""
    line = add(trace, invoke)
    mono = line["mono"]
    line.clear()
    names = ("v", "run", "src", "inc", "host", "wall", "group", "topic", "q")
    line |= {name: invoke[name] for name in names} | {"mono": mono, "ev": "member", "e": "reset", "off": off}
    file = trace.files[str(invoke["src"]), number(invoke, "inc")]
    file.remove(line)
    file.insert(file.index(invoke), line)
    trace.renumber()


def completion(trace: Trace, invoke: Line) -> Line:
    return lines(trace, Ev.OP, op=invoke["op"], type="ok")[0]


def assigned_again(trace: Trace, after: Line, **fields: object) -> Line:
    """Another assignment of the queue of a commit, after its answer."""
    end = completion(trace, after)
    line = add(trace, end)
    mono = line["mono"]
    line.clear()
    names = ("v", "run", "src", "inc", "host", "wall", "group", "consumer", "topic", "q")
    line |= {name: after[name] for name in names} | {"mono": mono, "ev": "member", "e": "assign"}
    line.update(fields)  # type: ignore[arg-type]
    trace.renumber()
    return line


def reset_well(trace: Trace) -> Line:
    """The group is reset to where it is. The commit before it."""
    last = stored(trace)[-1]
    end = completion(trace, last)
    told(trace, end, 0, "reset_off", {"off": last["off"]}, {})
    told(trace, end, 1, "fetch_off", {}, {"off": last["off"]})
    # Behind `end` the later one stands first.
    file = trace.files[str(end["src"]), number(end, "inc")]
    at = file.index(end) + 1
    file[at : at + 4] = file[at + 2 : at + 4] + file[at : at + 2]
    trace.renumber()
    return last


@mutation("C14")
def a_commit_by_somebody_who_owns_nothing(trace: Trace) -> None:
    last = stored(trace)[-1]
    told(
        trace,
        completion(trace, last),
        0,
        "commit_off",
        {"consumer": "c9", "off": last["off"]},
        {},
    )


@mutation("C15 C22")
def a_group_is_told_an_offset_beyond_the_end(trace: Trace) -> None:
    last = stored(trace)[-1]
    told(trace, completion(trace, last), 0, "fetch_off", {}, {"off": number(last, "off") + 1_000})


@mutation("C15")
def an_offset_beyond_the_end_is_taken(trace: Trace) -> None:
    last = stored(trace)[-1]
    about = {"consumer": last["consumer"], "off": number(last, "off") + 1_000}
    told(trace, completion(trace, last), 0, "commit_off", about, {})


@mutation("C18")
def a_consumer_begins_beyond_where_it_was_to(trace: Trace) -> None:
    """Another one had been given what lies between."""
    again = lines(trace, Ev.MEMBER, e="assign")[-1]
    assert again["epoch"] == 2
    again["off"] = number(again, "off") - 1


@mutation("C22")
def an_offset_is_answered_that_nobody_stored(trace: Trace) -> None:
    first = stored(trace)[0]
    told(trace, completion(trace, first), 70, "fetch_off", {}, {"off": number(first, "off") + 1})


@mutation("W14")
def the_offset_of_a_group_is_answered_by_nothing(trace: Trace) -> None:
    told(trace, completion(trace, stored(trace)[-1]), 71, "fetch_off", {}, {})


@mutation("W2")
def a_line_tells_of_another_reset_than_was_asked_for(trace: Trace) -> None:
    reset_well(trace)
    (invoke,) = lines(trace, Ev.OP, f="reset_off", type="invoke")
    tell_reset(trace, invoke, number(invoke, "off"))
    tell_reset(trace, invoke, number(invoke, "off") - 1)


@mutation("W2")
def a_reset_of_which_no_line_tells(trace: Trace) -> None:
    reset_well(trace)
    (invoke,) = lines(trace, Ev.OP, f="reset_off", type="invoke")
    commit = stored(trace)[0]
    tell_reset(trace, invoke, number(commit, "off"))


def later(trace: Trace, line: Line, ns: int) -> None:
    """It happens later, and so does what its writer does after it."""
    file = trace.files[str(line["src"]), number(line, "inc")]
    for one in file[next(i for i, other in enumerate(file) if other is line) :]:
        one["mono"], one["wall"] = number(one, "mono") + ns, number(one, "wall") + ns


@mutation("C16")
def an_acknowledged_offset_is_lost(trace: Trace) -> None:
    last = stored(trace)[-1]
    again = assigned_again(trace, last, epoch=9, off=number(last, "off") - 1)
    later(trace, again, 6_000_000_000)


@mutation("C17")
def a_reset_that_is_forgotten(trace: Trace) -> None:
    reset_well(trace)
    for line in lines(trace, Ev.OP, f="reset_off", type="invoke"):
        line["off"] = number(line, "off") - 2
    for f in ("reset_off", "fetch_off"):
        later(trace, lines(trace, Ev.OP, f=f, type="invoke")[0], 1)


@mutation("C25")
def a_queue_is_given_away_while_its_lock_lives(trace: Trace) -> None:
    """Its consumer had crashed."""
    for line in lines(trace, Ev.MEMBER, e="join"):
        line["delay_ms"] = 60_000


@mutation("C24")
def a_reset_without_effect(trace: Trace) -> None:
    """The group goes on where it was, and its commits hide that."""
    first = next(line for line in stored(trace) if number(line, "off") > 0)
    told(trace, completion(trace, first), 0, "reset_off", {"off": number(first, "off") - 1}, {})
