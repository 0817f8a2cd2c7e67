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
class Part:
    """Where the violations of a check are found: the rows of `source` for which `where` holds.

    `source` is the name of a table or a query; it gives `run`. All parts of all checks that name the same
    source are counted in one pass over it, so a source that many checks share is worth having. `shows`: what
    a witness has besides `run`: the columns that the sentence of the check names, and, where a line of the
    trace can be named, its `src`, `inc`, `seq`. `few`: the source reads only tables that stay small however
    long the run is; such sources are run together, because each of them costs more to plan than to run.
    """

    source: str
    where: str
    shows: str
    few: bool = False

    @property
    def rows(self) -> str:
        """What stands behind FROM."""
        return f"({self.source}) looked_at" if " " in self.source else self.source


@dataclass(frozen=True, slots=True)
class Check:
    """A claim, and where its violations are found.

    `population` names counts of the census: the check applies if none of them is 0.
    """

    id: str
    title: str
    severity: Severity
    population: tuple[str, ...]
    sentence: str
    parts: tuple[Part, ...]
    #: Checks that must hold before a violation of this one is evidence: if it is that something is *not*
    #: there, no line may be missing.
    needs: tuple[str, ...] = ()


#: The trace is whole.
WHOLE = ("W1", "W2", "W6", "W7")
#: And the last reads reached the end.
DRAINED = (*WHOLE, "W8")


def hard(
    id_: str, title: str, population: str, sentence: str, *parts: Part, needs: tuple[str, ...] = ()
) -> Check:
    return Check(id_, title, Severity.HARD, tuple(population.split()), sentence, parts, needs)


def warning(id_: str, title: str, population: str, sentence: str, *parts: Part) -> Check:
    return Check(id_, title, Severity.WARNING, tuple(population.split()), sentence, parts)


def void(id_: str, title: str, population: str, sentence: str, *parts: Part) -> Check:
    return Check(id_, title, Severity.VOID, tuple(population.split()), sentence, parts)
