"""Delayed messages and transactions, made of ordinary ones of a clean trace, and what may go wrong with them.
Importing this puts the defects among `MUTATIONS`."""

from __future__ import annotations

from chaos.trace.schema import Ev
from tests.chaos.checker.mutations.base import acked, as_transaction, lines, middle, mutation, number, remove
from tests.chaos.checker.synthetic import Line, Trace

_OP = 9_200_000
_MS = 1_000_000


def delay(trace: Trace) -> Line:
    """The invoke of a message whose sender is answered before the others begin, and that is due in a ms at
    the earliest, by all that cluster time may gain, when it was stored."""
    invoke, answer = middle(trace)
    remove(trace, invoke, answer)
    file = trace.files[str(invoke["src"]), number(invoke, "inc")]
    began = number(invoke, "mono") - _MS
    for i, line in enumerate((file[0], invoke, answer)):
        line["mono"] = began + i
    for line in (invoke, answer):
        line["proc"] = "early"
    for name in ("node", "term", "lidx", "qoff"):
        del answer[name]
    invoke["delay_ms"] = 1_101
    file[1:1] = [invoke, answer]
    trace.renumber()
    return invoke


def recall(trace: Trace, invoke: Line, outcome: str) -> None:
    """The sender of a message takes it back, and is answered so."""
    file = trace.files[str(invoke["src"]), number(invoke, "inc")]
    where = {name: invoke[name] for name in ("mid", "topic", "q")}
    about: Line = {"op": _OP, "proc": "recaller", "f": "recall"}
    envelope = {name: file[-1][name] for name in ("v", "run", "src", "inc", "host", "mono", "wall")}
    first = envelope | {"ev": "op", "type": "invoke"} | about | where
    file[-1:-1] = [first, envelope | {"ev": "op", "type": outcome} | about]
    trace.renumber()


def all_kinds_well(trace: Trace) -> None:
    """One message delayed, one recalled in vain, one committed."""
    recall(trace, delay(trace), "fail")
    committed = [pair for pair in acked(trace) if pair[1].get("term") == 1][-1]
    as_transaction(trace, committed[0], "txn_commit")


@mutation("B5")
def a_delayed_message_comes_before_it_is_due(trace: Trace) -> None:
    delay(trace)["delay_ms"] = 1_102


@mutation("L5 P5 C2")
def what_was_recalled_is_delivered(trace: Trace) -> None:
    recall(trace, delay(trace), "ok")


@mutation("L6a L6b L10 L11 C1 C5 L14")
def a_delayed_message_never_comes(trace: Trace) -> None:
    invoke = delay(trace)
    remove(trace, *lines(trace, Ev.DLV, mid=invoke["mid"]), *lines(trace, Ev.DONE, mid=invoke["mid"]))


@mutation("W2")
def a_transaction_ends_as_another_message_than_it_began(trace: Trace) -> None:
    all_kinds_well(trace)
    lines(trace, Ev.OP, type="invoke", f="txn_begin")[0]["tag"] = "red"
    lines(trace, Ev.OP, type="invoke", f="txn_commit")[0]["tag"] = "blue"


@mutation("W2")
def a_transaction_ends_that_nobody_began(trace: Trace) -> None:
    all_kinds_well(trace)
    remove(trace, *lines(trace, Ev.OP, f="txn_begin"))
