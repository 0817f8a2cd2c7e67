"""Definition of a check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from chaos.checker.needs import WHOLE, Need, joined


class Severity(StrEnum):
    """Consequence of a violation."""

    #: A guarantee is violated: the run is invalid.
    HARD = "H"
    #: Reported, without an effect on the verdict.
    WARNING = "W"
    #: The trace is not conclusive: the run is unknown.
    VOID = "V"


@dataclass(frozen=True, slots=True)
class Part:
    """Source of the violations of a check: the rows of `source` for which `where` holds.

    `source` names a table or is a query, with a column `run`. One pass over a source counts the violations of
    all parts that name it, so checks should share sources. `shows`: the columns of a witness in addition to
    `run`. They are the columns that the sentence of the check names, and `src`, `inc` and `seq` if the
    witness is a line of the trace. `few`: the source reads only tables whose size does not grow with the
    length of the run. Such sources are run together, because planning them costs more than running them.
    """

    source: str
    where: str
    shows: str
    few: bool = False

    @property
    def rows(self) -> str:
        """Return the source in a form that can follow FROM."""
        return f"({self.source}) looked_at" if " " in self.source else self.source


@dataclass(frozen=True, slots=True)
class Check:
    """A claim about a run, with the sources of its violations.

    `population` names counters of the census; the check applies unless one of these is 0. `needs`: properties
    of the trace that are required for a violation to count. These are `EVIDENT` if existing lines contradict
    each other, and more if an absent line is part of the contradiction. `clear_needs`: properties that are
    required for the absence of violations to count. Checks of the trace itself decide whether needs are met,
    and have no needs.
    """

    id: str
    title: str
    severity: Severity
    population: tuple[str, ...]
    sentence: str
    parts: tuple[Part, ...]
    needs: tuple[Need, ...]
    clear_needs: tuple[Need, ...]

    def __post_init__(self) -> None:
        if self.severity is not Severity.VOID and Need.ONCE not in self.needs:
            raise ValueError(f"{self.id}: duplicate lines are no evidence of guilt; add EVIDENT to needs")


def hard(
    id_: str,
    title: str,
    population: str,
    sentence: str,
    *parts: Part,
    needs: tuple[Need, ...],
    clear_needs: tuple[Need, ...] = WHOLE,
) -> Check:
    """Return a check of a guarantee. `needs` and `clear_needs`: see `Check`."""
    about = (tuple(population.split()), sentence, parts)
    return Check(id_, title, Severity.HARD, *about, joined(needs), joined(needs, clear_needs, (Need.SHAPED,)))


def warning(
    id_: str, title: str, population: str, sentence: str, *parts: Part, needs: tuple[Need, ...]
) -> Check:
    """Return a check whose violations are reported but never change a verdict."""
    about = (tuple(population.split()), sentence, parts)
    return Check(id_, title, Severity.WARNING, *about, joined(needs), joined(needs))


def void(id_: str, title: str, population: str, sentence: str, *parts: Part) -> Check:
    """Return a check of a property that the trace or the run must have to be conclusive."""
    return Check(id_, title, Severity.VOID, tuple(population.split()), sentence, parts, (), ())
