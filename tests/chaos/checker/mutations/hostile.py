"""Hostile clients in a clean trace, and what they must not bring about. Importing this puts the defects among
`MUTATIONS`."""

from __future__ import annotations

from collections.abc import Callable

from chaos.trace.schema import Ev
from tests.chaos.checker.mutations.base import acked, add, lines, mutation, number, remove
from tests.chaos.checker.synthetic import Line, Trace

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


def starve(trace: Trace, node: str, since: int, until: int) -> None:
    """The process waits for a processor all that time."""
    [like] = lines(trace, Ev.META, e="scheduling")
    file = trace.files[str(like["src"]), number(like, "inc")]
    told: Line = {"e": "starved", "node": node, "since": since, "size": until - since}
    line = {name: like[name] for name in like.keys() - {"pid"}} | told | {"mono": until, "wall": until}
    if number(file[-1], "mono") <= until:
        file[-1] |= {"mono": until + 1, "wall": until + 1}
    file.insert(next(i for i, other in enumerate(file) if number(other, "mono") > until), line)
    trace.renumber()


@mutation("V6")
def nobody_is_served_while_the_machine_is_busy(trace: Trace) -> None:
    """Six seconds, of which a server had no processor for two."""
    begin, _ = hostile_before_the_faults(trace)
    at = _while_a_send_waits(trace, begin)
    pause(trace, at, 6)
    starve(trace, "n1", at + _S, at + 3 * _S)


@mutation("V6")
def nobody_is_served_and_it_is_unknown_whether_the_machine_ran(trace: Trace) -> None:
    """As in traces that are older than this."""
    nobody_is_served_beside_hostile_clients(trace)
    remove(trace, *lines(trace, Ev.META, e="scheduling"))


@mutation("A7")
def nobody_is_served_after_the_machine_was_busy(trace: Trace) -> None:
    """Six seconds, of which a server had no processor for a moment: it had waited for long before."""
    begin, _ = hostile_before_the_faults(trace)
    pause(trace, number(lines(trace, Ev.META, e="started")[-1], "mono"), 10)
    at = _while_a_send_waits(trace, begin)
    pause(trace, at, 6)
    starve(trace, "n1", at - 3 * _S, at + _S // 10)


@mutation("A7")
def one_topic_is_starved_beside_others(trace: Trace) -> None:
    """The group gets messages of the other topic meanwhile."""
    for line in trace.all_lines():
        if line.get("topic") == "t" and line.get("q") == 1:
            line["topic"] = "u"
    for joined in lines(trace, Ev.MEMBER, e="join"):
        add(trace, joined, topic="u")
    begin, end = hostile_before_the_faults(trace)
    at, until = number(begin, "mono"), number(end, "mono")
    pause(trace, until - 1, 12)
    pause(trace, at, 11, lambda line: line["src"] == "client:c1" and number(line, "mono") < until)


@mutation("A8")
def hostile_clients_unseat_a_leader(trace: Trace) -> None:
    [kill_end] = lines(trace, Ev.FAULT, e="end", f="kill")
    for line in lines(trace, Ev.FAULT, f="isolate"):
        line["f"] = "garbage"
    pause(trace, number(kill_end, "mono"), 30)


def _unseat_while_starved(trace: Trace, process: str, since: int = -2 * _S, until: int = -_S) -> None:
    """Beside hostile clients, and perhaps not because of them. The times are relative to the election."""
    hostile_clients_unseat_a_leader(trace)
    elected = max(lines(trace, Ev.RAFT, e="leader"), key=lambda line: number(line, "mono"))
    at = number(elected, "mono")
    starve(trace, process, at + since, at + until)


@mutation("V6")
def a_leader_without_a_processor_is_replaced(trace: Trace) -> None:
    _unseat_while_starved(trace, "n1")


@mutation("V6")
def a_leader_is_replaced_while_the_harness_is_late(trace: Trace) -> None:
    """All that nodes say to each other passes through it."""
    _unseat_while_starved(trace, "harness")


@mutation("A8")
def a_leader_is_replaced_before_a_node_lacks_a_processor(trace: Trace) -> None:
    _unseat_while_starved(trace, "n1", 1_000, 2_000)


@mutation("V6")
def a_leader_is_replaced_and_it_is_unknown_whether_the_machine_ran(trace: Trace) -> None:
    hostile_clients_unseat_a_leader(trace)
    remove(trace, *lines(trace, Ev.META, e="scheduling"))


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


# -- after healing ---------------------------------------------------------------------------------------


def _wait_for_a_minute(trace: Trace) -> int:
    """The first sends after healing get no answer for 61 s. When they were sent."""
    healed = number(lines(trace, Ev.META, e="healed")[0], "mono")
    first = min(number(invoke, "mono") for invoke, _ in acked(trace) if number(invoke, "mono") > healed)
    pause(trace, first, 61)
    return first


@mutation("A5")
def nothing_is_acknowledged_after_healing(trace: Trace) -> None:
    healed = number(lines(trace, Ev.META, e="healed")[0], "mono")
    _wait_for_a_minute(trace)
    for invoke, end in list(acked(trace)):
        if number(invoke, "mono") > healed:
            end["type"] = "info"


@mutation("A5")
def the_first_acknowledgment_after_healing_comes_late(trace: Trace) -> None:
    _wait_for_a_minute(trace)


@mutation("V5")
def nothing_is_tried_for_a_minute_after_healing(trace: Trace) -> None:
    pause(trace, number(lines(trace, Ev.META, e="healed")[0], "mono"), 61)


@mutation("V5")
def nothing_is_acknowledged_after_healing_and_the_load_ends_soon(trace: Trace) -> None:
    healed = number(lines(trace, Ev.META, e="healed")[0], "mono")
    for invoke, end in list(acked(trace)):
        if number(invoke, "mono") > healed:
            end["type"] = "info"


@mutation("V5")
def the_first_acknowledgment_after_healing_comes_late_on_a_busy_machine(trace: Trace) -> None:
    first = _wait_for_a_minute(trace)
    starve(trace, "harness", first + _S, first + 3 * _S)


def _starve_until_healing(trace: Trace, until: int) -> None:
    """A process waits for a processor for three seconds, until so long after the healing."""
    [healed] = lines(trace, Ev.META, e="healed")
    pause(trace, number(healed, "mono") - 1, 10)
    at = number(healed, "mono") + until
    starve(trace, "harness", at - 3 * _S, at)


@mutation("A5")
def the_first_acknowledgment_comes_late_after_the_machine_was_busy(trace: Trace) -> None:
    """Only the last moment of that was after the healing."""
    first = _wait_for_a_minute(trace)
    pause(trace, first, 1)
    _starve_until_healing(trace, _S // 10)


@mutation("V5")
def the_first_acknowledgment_comes_late_on_a_machine_that_was_busy_before_and_is(trace: Trace) -> None:
    """What it was before counts for nothing."""
    _starve_until_healing(trace, -3 * _S // 2)
    the_first_acknowledgment_after_healing_comes_late_on_a_busy_machine(trace)


@mutation("V5")
def the_first_acknowledgment_comes_late_and_it_is_unknown_whether_the_machine_ran(trace: Trace) -> None:
    _wait_for_a_minute(trace)
    remove(trace, *lines(trace, Ev.META, e="scheduling"))


@mutation("A5")
def the_first_acknowledgment_comes_late_although_two_processes_were_starved_at_once(trace: Trace) -> None:
    """That time counts only once."""
    first = _wait_for_a_minute(trace)
    for node in ("n1", "harness"):
        starve(trace, node, first + _S, first + 8 * _S // 5)
