"""Runs of a classic master that is lost and replaced by hand, and what may not be found then. Importing this
puts the latter among `MUTATIONS`."""

from __future__ import annotations

from chaos.trace.schema import Ev
from tests.chaos.checker.mutations.base import acked, add, lines, mutation, number, remove
from tests.chaos.checker.synthetic import Line, Trace, digest_of

#: Bytes of a record, here.
SIZE = 100
#: Whose log was lost, and who took over.
OLD, NEW = "n1", "n2"
_OF_RECORD = ("chain", "mid", "topic", "q", "qoff", "internal")


def lose_master(trace: Trace, role: str = "SYNC_MASTER") -> Line:
    """In the middle of the run the master is lost. The line that tells of it."""
    lines(trace, Ev.META, e="run_begin")[0].update(store="classic", broker_role=role)
    pairs = list(acked(trace))
    last = pairs[len(pairs) // 2][1]
    count = number(last, "lidx") + 1
    for line in lines(trace, Ev.DUMP):
        line["off"] = SIZE * number(line, "lidx")
    for line in lines(trace, Ev.DISK, e="synced"):
        add(trace, line).update(e="stored", off=SIZE * (number(line, "lidx") + 1))
    for line in lines(trace, Ev.DISK, e="stored"):
        del line["lidx"], line["ledger"]
    file = trace.files["nemesis", 0]
    told = {**_head(file[-1]), "ev": Ev.META.value, "e": "taken_over", "node": NEW, "member": OLD}
    told |= {"ended": SIZE * count, "size": 0, "mono": number(last, "mono") + 1}
    told["wall"] = told["mono"]
    at = next((i for i, line in enumerate(file) if number(line, "mono") > number(told, "mono")), len(file))
    file.insert(at, told)
    admin = trace.files["admin", 0]
    dumps = [line for line in admin if line["ev"] == Ev.DUMP and line["node"] == OLD]
    end = next(i for i, line in enumerate(admin) if line.get("e") == "dumped")
    left = [
        {**_head(line), "ev": Ev.LEFT.value, "node": OLD, "off": line["off"]}
        | {name: line[name] for name in _OF_RECORD if name in line}
        for line in dumps
        if number(line, "lidx") < count
    ]
    moment = {name: admin[end][name] for name in ("mono", "wall")}
    said = {**admin[end], "node": OLD, "ledger": "left", "digest": ""}
    admin[end + 1 : end + 1] = [*({**line, **moment} for line in left), said]
    trace.renumber()
    return told


def _head(line: Line) -> Line:
    return {name: line[name] for name in ("v", "run", "src", "inc", "seq", "host", "mono", "wall")}


def lose_end(trace: Trace) -> None:
    """The master had acknowledged one message more than its slave had; another one has its place now."""
    told = lose_master(trace, "ASYNC_MASTER")
    for _, end in acked(trace):
        for name in ("lidx", "term", "node", "ledger"):
            end.pop(name, None)
    after = [pair for pair in acked(trace) if number(pair[0], "mono") > number(told, "mono")]
    invoke, answer = after[0]
    before = [pair for pair in acked(trace) if number(pair[1], "mono") < number(told, "mono")]
    last = next(pair for pair in reversed(before) if pair[0]["q"] == invoke["q"])
    mid, digest = 777_000_001, digest_of("lost")
    for like, follows in ((invoke, last[1]), (answer, None)):
        file = trace.files[str(last[1]["src"]), 0]
        at = next(i for i, line in enumerate(file) if line is last[1]) + (1 if follows else 2)
        line = {**like, **{name: last[1][name] for name in ("src", "inc", "mono", "wall")}}
        line |= {"op": 777_000_002, "proc": "lost"}
        if "mid" in line:
            line |= {"mid": mid, "digest": digest}
        file.insert(at, line)
    file = trace.files["admin", 0]
    end = max(i for i, line in enumerate(file) if line["ev"] == Ev.LEFT)
    like = next(line for line in reversed(file[: end + 1]) if "mid" in line)
    lost = {"mid": mid, "off": told["ended"]}
    before_it = [number(line, "qoff") for line in left(trace) if line["q"] == invoke["q"]]
    lost |= {"q": invoke["q"], "qoff": before_it[-1] + 1, "chain": "0badcafe"}
    file.insert(end + 1, {**like, **lost})
    trace.renumber()


def left(trace: Trace) -> list[Line]:
    return [line for line in lines(trace, Ev.LEFT) if "mid" in line]


@mutation("D2W")
def the_end_of_a_log_is_lost_with_an_asynchronous_master(trace: Trace) -> None:
    lose_end(trace)


def _forget(trace: Trace) -> None:
    """The new master has not what the old one had acknowledged."""
    acknowledged = {pair[0]["mid"] for pair in acked(trace)}
    mid = next(line["mid"] for line in left(trace) if line["mid"] in acknowledged)
    remove(trace, *lines(trace, Ev.DUMP, mid=mid, node=NEW))


@mutation("D1 D4 L3 L6c")
def a_slave_takes_over_without_what_was_acknowledged(trace: Trace) -> None:
    lose_master(trace)
    _forget(trace)


@mutation("D2 D4 L3 L6c")
def more_than_the_end_is_lost_with_an_asynchronous_master(trace: Trace) -> None:
    lose_master(trace, "ASYNC_MASTER")
    _forget(trace)


@mutation("D3")
def a_master_leaves_out_a_queue_offset(trace: Trace) -> None:
    lose_master(trace)
    last = left(trace)[-1]
    last["qoff"] = number(last, "qoff") + 1


@mutation("D4")
def a_slave_takes_over_with_another_beginning(trace: Trace) -> None:
    lose_master(trace)
    left(trace)[0]["chain"] = "0badcafe"


@mutation("D7")
def a_message_is_acknowledged_before_the_slave_has_it(trace: Trace) -> None:
    """The master counted what it had sent."""
    lose_master(trace)
    _, end = list(acked(trace))[-1]
    written = lines(trace, Ev.DISK, e="stored")
    last = max(number(line, "off") for line in written)
    for line in written:
        if line["off"] == last and line["node"] != end["node"]:
            line["off"] = last - 1


@mutation("D5 R6 R8")
def the_logs_of_master_and_slave_diverge(trace: Trace) -> None:
    lose_master(trace)
    last = lines(trace, Ev.DUMP, node="n3")[-1]
    last["chain"] = "0badcafe"


@mutation("W12")
def a_record_of_the_lost_log_is_missing(trace: Trace) -> None:
    lose_master(trace)
    told = lines(trace, Ev.META, e="dumped", ledger="left")[0]
    told["count"] = number(told, "count") + 1
