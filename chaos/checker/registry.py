"""What a check is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """What a violation means."""

    #: A promise was broken: the run is invalid.
    HARD = "H"
    #: Worth to know; the verdict stays.
    WARNING = "W"
    #: The trace proves nothing, or not what it should: the run is unknown.
    VOID = "V"


@dataclass(frozen=True, slots=True)
class Check:
    """A claim, and the query that gives a row for each violation of it.

    The query gives `run`, the columns that `sentence` names, and, where a line of the trace can be named, its
    `src`, `inc`, `seq`. `population` names counts of the census: the check applies if none of them is 0.
    """

    id: str
    title: str
    severity: Severity
    population: tuple[str, ...]
    sql: str
    sentence: str
    #: Checks that must hold before a violation of this one is evidence: if it is that something is *not*
    #: there, no line may be missing.
    needs: tuple[str, ...] = ()


#: The trace is whole.
WHOLE = ("W1", "W2", "W6", "W7")
#: And the last reads reached the end.
DRAINED = (*WHOLE, "W8")


def hard(
    id_: str, title: str, population: str, sentence: str, sql: str, *, needs: tuple[str, ...] = ()
) -> Check:
    return Check(id_, title, Severity.HARD, tuple(population.split()), sql, sentence, needs)


def warning(id_: str, title: str, population: str, sentence: str, sql: str) -> Check:
    return Check(id_, title, Severity.WARNING, tuple(population.split()), sql, sentence)


def void(id_: str, title: str, population: str, sentence: str, sql: str) -> Check:
    return Check(id_, title, Severity.VOID, tuple(population.split()), sql, sentence)
