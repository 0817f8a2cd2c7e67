"""Traces that lack what a verdict needs. Importing this puts them among `MUTATIONS`."""

from __future__ import annotations

from chaos.checker.synthetic import Trace
from chaos.trace.schema import Ev
from tests.chaos.checker.mutations import lines, mutation


@mutation("W1 W10")
def a_line_stands_twice(trace: Trace) -> None:
    end = lines(trace, Ev.FAULT, e="end")[0]
    trace.files["nemesis", 0].append(dict(end))


@mutation("W1 W10")
def one_line_stands_twice_and_another_is_gone(trace: Trace) -> None:
    """Their number is what it was."""
    file = trace.files["client:p1", 0]
    begin, *_ = lines(trace, Ev.META, src="client:p1")
    file[1:1] = [dict(begin)]
    info = next(line for line in file if line.get("type") == "info")
    file.remove(info)
