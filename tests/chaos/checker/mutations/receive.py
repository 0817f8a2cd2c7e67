"""A group that receives messages one by one, added to a clean trace, and what may go wrong in it. Importing
this puts the defects among `MUTATIONS`."""

from __future__ import annotations

from chaos.trace.schema import Ev
from tests.chaos.checker.mutations.base import add, lines, mutation, number, remove
from tests.chaos.checker.mutations.hostile import starve
from tests.chaos.checker.mutations.more import later
from tests.chaos.checker.synthetic import Line, Trace

_OP = 9_100_000
#: So many messages of a queue are received.
_COUNT = 4
#: 5 ms, and what cluster time may gain.
HELD_MS = 1_105


class Receiver:
    """Writes two members of one group, at the end of a trace."""

    def __init__(self, trace: Trace, mode: str) -> None:
        self._trace = trace
        found = [line for line in lines(trace, Ev.DLV, group="G") if line["q"] == 0]
        #: What there is to be received, in its order.
        self.messages = sorted(found, key=lambda line: number(line, "qoff"))[:_COUNT]
        assert len({line["mid"] for line in self.messages}) == _COUNT
        self._now = max(number(line, "mono") for line in trace.all_lines())
        self._op = _OP
        self._mode = mode
        self._attempts: dict[tuple[str, int], int] = {}
        for name in ("s0", "s1"):
            add(trace, lines(trace, Ev.META, e="expect")[0], member=f"client:{name}")
            self._emit(name, ev="meta", e="writer_begin", boot_id="b")
            self._emit(name, ev="member", e="join", **_who(name), topic="t", mode=mode)

    @property
    def now(self) -> int:
        return self._now

    def receive(self, name: str, *which: tuple[int, int], held_ms: int = 0, since: int = 0) -> None:
        """(message by its place in the queue, attempt) of each. `held_ms`: so long nobody else gets them.
        `since`: when the client had them."""
        op = self._invoke(name, "receive", **_who(name), **({"delay_ms": held_ms} if held_ms else {}))
        for i, (place, attempt) in enumerate(which):
            self._attempts[name, place] = attempt
            about = {"i": i, "attempt": attempt, **_who(name), **({"since": since} if since else {})}
            self._emit(name, ev="dlv", op=op, **_message(self.messages[place], "digest", "qoff"), **about)
        self._complete(name, op, "receive", "ok")

    def ack(self, name: str, place: int, outcome: str = "ok") -> None:
        about = {**_message(self.messages[place], "qoff"), "attempt": self._attempts.get((name, place), 0)}
        self._emit(name, ev="done", code="ok", **_who(name), **about)
        op = self._invoke(name, "ack", **_who(name), **_message(self.messages[place]))
        self._complete(name, op, "ack", outcome)

    def fail(self, name: str, place: int) -> None:
        about = {**_message(self.messages[place], "qoff"), "attempt": self._attempts.get((name, place), 0)}
        self._emit(name, ev="done", code="retry", **_who(name), **about)

    def crash(self, name: str) -> None:
        self._emit(name, ev="member", e="crash", **_who(name))

    def ask_route(self, name: str, **answer: object) -> None:
        op = self._invoke(name, "route", topic="t")
        self._emit(name, ev="op", type="ok", op=op, proc=f"{name}.{op}", f="route", **answer)

    def wait(self, ms: int) -> None:
        self._now += ms * 1_000_000

    def end(self) -> None:
        for name in ("s0", "s1"):
            self._emit(name, ev="meta", e="trace_end")
        self._trace.renumber()

    def _invoke(self, name: str, f: str, **fields: object) -> int:
        self._op += 1
        self._emit(name, ev="op", type="invoke", op=self._op, proc=f"{name}.{self._op}", f=f, **fields)
        return self._op

    def _complete(self, name: str, op: int, f: str, outcome: str) -> None:
        self._emit(name, ev="op", type=outcome, op=op, proc=f"{name}.{op}", f=f)

    def _emit(self, name: str, **fields: object) -> None:
        self._now += 1_000
        envelope: Line = {"v": 1, "run": self._trace.run, "src": f"client:{name}", "inc": 0, "host": "h"}
        stamps: Line = {"mono": self._now, "wall": self._now}
        line = envelope | stamps | fields  # type: ignore[operator]
        self._trace.files.setdefault((f"client:{name}", 0), []).append(line)


def _who(name: str) -> dict[str, object]:
    return {"group": "R", "consumer": name}


def _message(line: Line, *more: str) -> dict[str, object]:
    return {name: line[name] for name in ("mid", "topic", "q", *more)}


def receive_well(trace: Trace, mode: str = "shared") -> None:
    """Members share a queue, one leaves a message alone, and of an ack nobody knows: what comes again may."""
    group = Receiver(trace, mode)
    group.receive("s0", (0, 0), (2, 0))
    group.receive("s1", (1, 0), (3, 0))
    group.ack("s0", 0)
    group.ack("s1", 1, "info")
    group.receive("s0", (3, 1), (1, 1), (2, 1))
    for place in (1, 2, 3):
        group.ack("s0", place)
    group.end()


def receive_again_with_reason(trace: Trace) -> None:
    """A member fails, is not sure of an ack, is too slow, and crashes: one message each."""
    group = Receiver(trace, "shared")
    group.receive("s0", (0, 0), (1, 0), (2, 0), (3, 0), held_ms=HELD_MS)
    group.fail("s0", 0)
    group.ack("s0", 1, "info")
    group.receive("s1", (0, 1), (1, 1))
    group.wait(5)
    group.receive("s1", (2, 1))
    group.crash("s0")
    group.receive("s1", (3, 1))
    for place in range(4):
        group.ack("s1", place)
    group.end()


def hand_over_late(trace: Trace) -> None:
    """A push consumer has messages, but hands them over when another member has acknowledged one of them."""
    group = Receiver(trace, "shared")
    received = group.now
    group.wait(2 * HELD_MS)
    group.receive("s0", (0, 1), (1, 1), held_ms=HELD_MS, since=group.now)
    group.ack("s0", 0)
    group.receive("s1", (0, 0), (1, 0), held_ms=HELD_MS, since=received)
    group.ack("s0", 1)
    group.ack("s1", 0)
    group.ack("s1", 1)
    group.receive("s1", (2, 0), (3, 0), held_ms=HELD_MS, since=group.now)
    for place in (2, 3):
        group.ack("s1", place)
    group.end()


def hand_over_one_by_one(trace: Trace) -> None:
    """A push consumer received the messages of a queue together."""
    group = Receiver(trace, "fifo")
    received = group.now
    for place in range(4):
        group.receive("s0", (place, 0), held_ms=HELD_MS, since=received)
        group.ack("s0", place)
    group.end()


@mutation("C12")
def a_message_is_given_to_two_at_a_time(trace: Trace) -> None:
    group = Receiver(trace, "shared")
    group.receive("s0", (0, 0), (1, 0), held_ms=HELD_MS)
    group.fail("s0", 0)
    group.ack("s0", 0)
    group.wait(4)
    group.receive("s1", (1, 1))
    group.ack("s1", 1)
    group.end()


@mutation("")
def the_rest_of_a_queue_is_given_with_reason(trace: Trace) -> None:
    """Who had what stands before it is through with it, too slow, has failed, or is gone."""
    group = Receiver(trace, "fifo")
    group.receive("s0", (0, 0), held_ms=HELD_MS)
    group.ack("s0", 0, "info")
    group.receive("s1", (1, 0), held_ms=HELD_MS)
    group.wait(6)
    group.receive("s0", (1, 1), held_ms=HELD_MS)
    group.fail("s0", 1)
    group.receive("s1", (1, 2), held_ms=5_000)
    group.ack("s1", 1)
    group.receive("s0", (2, 0), held_ms=5_000)
    group.crash("s0")
    group.receive("s1", (2, 1), (3, 0), held_ms=HELD_MS)
    for place in (2, 3):
        group.ack("s1", place)
    group.end()


@mutation("C12")
def the_rest_of_a_queue_is_given_to_another_member(trace: Trace) -> None:
    """The group receives in order, and somebody still has what stands before it."""
    group = Receiver(trace, "fifo")
    group.receive("s0", (0, 0), (1, 0), held_ms=HELD_MS)
    group.ack("s0", 0)
    group.wait(3)
    group.receive("s1", (2, 0), held_ms=HELD_MS)
    for name, place in (("s0", 1), ("s1", 2)):
        group.ack(name, place)
    group.end()


@mutation("C11")
def what_a_group_acknowledged_comes_again(trace: Trace) -> None:
    group = Receiver(trace, "shared")
    group.receive("s0", (0, 0), (1, 0))
    group.ack("s0", 0)
    group.receive("s1", (0, 1), (2, 0))
    group.end()


@mutation("C11")
def a_push_consumer_gets_what_its_group_had_acknowledged(trace: Trace) -> None:
    group = Receiver(trace, "shared")
    group.receive("s0", (0, 0), (1, 0), since=group.now)
    group.ack("s0", 0)
    group.wait(HELD_MS)
    received = group.now
    group.wait(HELD_MS)
    group.receive("s1", (0, 1), (2, 0), since=received)
    group.end()


@mutation("C3")
def a_later_message_is_received_first(trace: Trace) -> None:
    group = Receiver(trace, "fifo")
    group.receive("s0", (1, 0), (2, 0))
    group.receive("s1", (0, 0))
    group.end()


@mutation("C4")
def a_message_is_received_twice_for_the_first_time(trace: Trace) -> None:
    group = Receiver(trace, "shared")
    group.receive("s0", (0, 0), (1, 0))
    group.receive("s0", (1, 0))
    group.end()


@mutation("C21")
def it_is_forgotten_how_often_a_message_was_tried(trace: Trace) -> None:
    group = Receiver(trace, "shared")
    group.receive("s0", (0, 0), (1, 0))
    group.receive("s0", (1, 2))
    group.receive("s1", (1, 1))
    group.end()


@mutation("W2")
def a_message_is_acknowledged_in_another_queue(trace: Trace) -> None:
    group = Receiver(trace, "shared")
    group.receive("s0", (0, 0), held_ms=60_000)
    group.ack("s0", 0)
    group.end()
    ack = lines(trace, Ev.OP, f="ack", type="invoke")[0]
    ack["q"] = 1 - number(ack, "q")


@mutation("C23")
def an_expired_lease_is_no_attempt(trace: Trace) -> None:
    group = Receiver(trace, "shared")
    group.wait(3_000)
    group.receive("s0", (0, 0), (1, 0), held_ms=5)
    group.ack("s0", 0)
    group.wait(6)
    group.receive("s1", (1, 0))
    group.ack("s1", 1)
    group.end()


@mutation("C23")
def attempts_are_counted_that_never_were(trace: Trace) -> None:
    """So a message is given up that hardly anybody has tried."""
    group = Receiver(trace, "shared")
    group.receive("s0", (0, 0), (1, 3), held_ms=60_000)
    group.ack("s0", 0)
    group.ack("s0", 1)
    group.end()


@mutation("C23")
def attempts_are_counted_for_members_that_left_before(trace: Trace) -> None:
    """Members that went before the message was sent had nothing to do with it."""
    group = Receiver(trace, "shared")
    group.receive("s0", (0, 0), (1, 2), held_ms=60_000)
    group.ack("s0", 0)
    group.ack("s0", 1)
    group.end()
    first = lines(trace, Ev.META, e="writer_begin")[0]
    (join, *_) = lines(trace, Ev.MEMBER, e="join", group="R")
    kept = {name: first[name] for name in ("src", "inc", "mono", "wall")}
    for n in range(3):
        left = add(trace, first)
        left.clear()
        left |= join | kept | {"e": "crash", "consumer": f"old.{n}"}
        del left["topic"], left["mode"]
        joined = add(trace, first)
        joined.clear()
        joined |= join | kept | {"consumer": f"old.{n}"}
    trace.renumber()


@mutation("C9")
def a_message_is_given_up_after_one_attempt(trace: Trace) -> None:
    group = Receiver(trace, "shared")
    group.receive("s0", (0, 0), (1, 0))
    group.ack("s0", 0)
    group.fail("s0", 1)
    group.end()
    lines(trace, Ev.DONE, code="retry", group="R")[0]["code"] = "dlq"


@mutation("C9")
def a_message_is_given_up_twice(trace: Trace) -> None:
    lines(trace, Ev.META, e="run_begin")[0]["max_attempts"] = 1
    group = Receiver(trace, "shared")
    group.receive("s0", (0, 0), (1, 0))
    group.fail("s0", 1)
    group.receive("s1", (1, 1))
    group.fail("s1", 1)
    group.end()
    for line in lines(trace, Ev.DONE, code="retry", group="R"):
        line["code"] = "dlq"


@mutation("S14")
def routes_name_an_old_master_for_ever(trace: Trace) -> None:
    group = Receiver(trace, "shared")
    group.wait(4_000)
    group.ask_route("s0", term=2)
    group.end()


def _ask_late(trace: Trace, since_ms: int, until_ms: int) -> None:
    """Four seconds after the end of the trace a route names an old master. A process has waited for a
    processor in the meantime; the times are relative to that end."""
    group = Receiver(trace, "shared")
    end = max(number(line, "mono") for line in trace.all_lines())
    group.wait(4_000)
    group.ask_route("s0", term=2)
    group.end()
    starve(trace, "n1", end + since_ms * 1_000_000, end + until_ms * 1_000_000)


@mutation("")
def routes_name_an_old_master_on_a_busy_machine(trace: Trace) -> None:
    _ask_late(trace, 1_000, 3_000)


@mutation("S14")
def routes_name_an_old_master_after_the_machine_was_busy(trace: Trace) -> None:
    """Most of that was before the change of master, which is near the end."""
    later(trace, lines(trace, Ev.META, e="started")[-1], 10_000_000_000)
    ready = max(number(line, "mono") for line in trace.all_lines() if line.get("e") == "master_ready")
    end = max(number(line, "mono") for line in trace.all_lines())
    assert end - ready < 1_000_000_000
    _ask_late(trace, -4_000, 500)


@mutation("S14")
def routes_are_empty_in_the_end(trace: Trace) -> None:
    group = Receiver(trace, "shared")
    group.ask_route("s0", term=3)
    group.wait(4_000)
    group.ask_route("s0")
    group.end()


@mutation("B9")
def a_delayed_message_comes_a_minute_late(trace: Trace) -> None:
    """Long before everything else somebody sends it."""
    given = lines(trace, Ev.DLV, group="G")
    invokes = {line["mid"]: line for line in lines(trace, Ev.OP, f="send", type="invoke")}
    firsts = {
        key: next(one for one in file if one["ev"] == Ev.OP)
        for key, file in trace.files.items()
        if key[0].startswith("client:p")
    }
    key, invoke = next(
        (key, invoke)
        for key, invoke in firsts.items()
        if invoke["mid"] in invokes
        and invoke["mid"] != given[0]["mid"]
        and any(one["mid"] == invoke["mid"] for one in given[1:])
    )
    invoke["delay_ms"] = 1
    file = trace.files[key]
    for line in file[: file.index(invoke) + 1]:
        line["mono"] = line["wall"] = 1 + number(line, "seq")
    for line in trace.all_lines():
        if line["mono"] > len(file):
            line["mono"], line["wall"] = (
                number(line, "mono") + 60_000_000_000,
                number(line, "wall") + 60_000_000_000,
            )


@mutation("W2")
def a_message_is_acknowledged_that_nobody_was_through_with(trace: Trace) -> None:
    receive_well(trace)
    remove(trace, lines(trace, Ev.DONE, code="ok", group="R")[0])


@mutation("W2")
def a_member_gives_back_what_it_had_not_failed_at(trace: Trace) -> None:
    receive_well(trace)
    for line in [line for line in lines(trace, Ev.OP, f="ack") if line["op"] == _OP + 3]:
        line["f"] = "change_invisible"


@mutation("W2")
def a_member_is_given_messages_and_has_not_joined(trace: Trace) -> None:
    receive_well(trace)
    remove(trace, lines(trace, Ev.MEMBER, e="join", consumer="s1")[0])


@mutation("W2")
def members_of_a_group_consume_in_several_ways(trace: Trace) -> None:
    receive_well(trace)
    lines(trace, Ev.MEMBER, e="join", consumer="s1")[0]["mode"] = "fifo"


@mutation("B9 V2")
def a_delayed_message_is_late_where_a_fault_is_not_told_right(trace: Trace) -> None:
    """Nobody knows how long the cluster was broken."""
    a_delayed_message_comes_a_minute_late(trace)
    lines(trace, Ev.FAULT, e="end")[0]["effective"] = False
