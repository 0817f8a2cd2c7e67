"""Hostile clients in a clean trace, and what they must not bring about. Importing this puts the defects among
`MUTATIONS`."""

from __future__ import annotations

from collections.abc import Callable

from chaos.checker.synthetic import Line, Trace
from chaos.trace.schema import Ev
from tests.chaos.checker.mutations.base import acked, add, lines, mutation, number

_S = 1_000_000_000
_NUMBER = 90


def hostile_before_the_faults(trace: Trace, kind: str = "connection_floods") -> tuple[Line, Line]:
    """(begin, end) of hostile clients, who work from the sixth acknowledgement to the first fault."""
    began = lines(trace, Ev.RAFT, e="ack")[6]
    fault = lines(trace, Ev.FAULT, e="begin")[0]
    [run_begin] = lines(trace, Ev.META, e="run_begin")
    run_begin |= {"planned_faults": number(run_begin, "planned_faults") + 1}
    run_begin |= {"window_ms": 5_000, "most_bytes": 1 << 30}
    file = trace.files["nemesis", 0]
    about: Line = {"fault": _NUMBER, "f": kind, "targets": "n1,n2,n3", "effective": True, "evidence": "x=1"}
    begin = fault | about | {"mono": number(began, "mono"), "aim": "hostile"}
    end = fault | about | {"mono": number(fault, "mono"), "e": "end"}
    del end["aim"]
    at = next(i for i, line in enumerate(file) if line is fault)
    file[at:at] = [begin, end]
    trace.renumber()
    return begin, end


def pause(trace: Trace, after: int, seconds: int, moves: Callable[[Line], bool] = lambda line: True) -> None:
    """Whatever happened later than that happens so much later still."""
    for line in trace.all_lines():
        if number(line, "mono") > after and moves(line):
            for clock in ("mono", "wall"):
                line[clock] = number(line, clock) + seconds * _S


def hostile_well(trace: Trace) -> None:
    """Nothing happens for four seconds, in which somebody waits."""
    begin, _ = hostile_before_the_faults(trace)
    pause(trace, _while_a_send_waits(trace, begin), 4)
    [node] = lines(trace, Ev.META, e="healed")
    add(trace, node, e="memory", node="n1", size=1 << 30)


def killed_beside_hostiles(trace: Trace) -> None:
    """What the other faults bring about is no fault of anybody's."""
    _, end = hostile_before_the_faults(trace)
    last = lines(trace, Ev.FAULT, e="end")[-1]
    end["mono"] = number(last, "mono") - 1
    file = trace.files["nemesis", 0]
    file.sort(key=lambda line: number(line, "mono"))
    [kill] = lines(trace, Ev.FAULT, e="begin", f="kill")
    add(trace, kill, ev="meta", e="ended", node=str(kill["targets"]), text="killed by SIGKILL")
    for name in ("fault", "f", "targets", "aim", "effective"):
        for line in lines(trace, Ev.META, e="ended"):
            line.pop(name, None)


def _while_a_send_waits(trace: Trace, begin: Line) -> int:
    """A moment after hostile clients have begun, at which a send has not been answered that succeeds."""
    at = number(begin, "mono")
    assert any(number(asked, "mono") < at < number(answer, "mono") for asked, answer in acked(trace))
    return at


@mutation("A7")
def nobody_is_served_beside_hostile_clients(trace: Trace) -> None:
    begin, _ = hostile_before_the_faults(trace)
    pause(trace, _while_a_send_waits(trace, begin), 6)


@mutation("A7")
def a_group_is_given_nothing_beside_hostile_clients(trace: Trace) -> None:
    """Its members do nothing, though there are messages for them."""
    _readers_get_nothing(trace, "client:c0", "client:c1")


@mutation("A7", broker=False)
def a_reader_is_given_nothing_beside_hostile_clients(trace: Trace) -> None:
    _readers_get_nothing(trace, "client:r0")


def _readers_get_nothing(trace: Trace, *readers: str) -> None:
    """For ten seconds, though there are messages."""
    begin, end = hostile_before_the_faults(trace)
    at, until = _while_a_send_waits(trace, begin), number(end, "mono")
    pause(trace, until - 1, 12)
    pause(trace, at, 10, lambda line: line["src"] in readers and number(line, "mono") < until)


@mutation("A8")
def hostile_clients_unseat_a_leader(trace: Trace) -> None:
    [kill_end] = lines(trace, Ev.FAULT, e="end", f="kill")
    for line in lines(trace, Ev.FAULT, f="isolate"):
        line["f"] = "garbage"
    pause(trace, number(kill_end, "mono"), 30)


@mutation("")
def a_leader_hands_over_as_the_nodes_are_stopped(trace: Trace) -> None:
    """Soon after hostile clients: that is the harness's doing."""
    hostile_clients_unseat_a_leader(trace)
    [healed] = lines(trace, Ev.META, e="healed")
    last = max(number(line, "lidx") for line in lines(trace, Ev.DUMP))
    elected = max(lines(trace, Ev.RAFT, e="leader"), key=lambda line: number(line, "mono"))
    settled = add(trace, healed, e="settled", off=last)
    at = number(elected, "mono") - 1
    settled |= {"mono": at, "wall": number(healed, "wall") - number(healed, "mono") + at}
    trace.files[str(healed["src"]), number(healed, "inc")].sort(key=lambda line: number(line, "mono"))
    trace.renumber()


@mutation("A9")
def hostile_clients_end_a_server(trace: Trace) -> None:
    begin, _ = hostile_before_the_faults(trace)
    line = add(trace, begin, ev="meta", e="ended", node="n2", text="ended with 70")
    for name in ("fault", "f", "targets", "aim", "effective", "evidence"):
        line.pop(name, None)


@mutation("A10")
def a_server_takes_more_memory_than_it_may(trace: Trace) -> None:
    begin, _ = hostile_before_the_faults(trace)
    line = add(trace, begin, ev="meta", e="memory", node="n2", size=(1 << 30) + 1)
    for name in ("fault", "f", "targets", "aim", "effective", "evidence"):
        line.pop(name, None)


@mutation("A11 V2")
def a_hostile_client_achieves_nothing(trace: Trace) -> None:
    _, end = hostile_before_the_faults(trace)
    end["effective"] = False
