"""What a check is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from chaos.checker.needs import WHOLE, Need, joined


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

    `population` names counts of the census: the check applies if none of them is 0. `needs`: what must be in
    the trace before a violation is evidence of guilt; `EVIDENT` if lines that are there contradict each
    other, more if a line that is *not* there is part of it. `clear_needs`: what else must be in the trace
    before the absence of violations is evidence of innocence. Checks of the trace itself decide needs and
    have none.
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
            raise ValueError(f"{self.id}: no check may find guilt where lines may stand twice: name EVIDENT")


def hard(
    id_: str,
    title: str,
    population: str,
    sentence: str,
    *parts: Part,
    needs: tuple[Need, ...],
    clear_needs: tuple[Need, ...] = WHOLE,
) -> Check:
    """A promise. `needs` and `clear_needs`: as of `Check`."""
    about = (tuple(population.split()), sentence, parts)
    return Check(id_, title, Severity.HARD, *about, joined(needs), joined(needs, clear_needs, (Need.SHAPED,)))


def warning(
    id_: str, title: str, population: str, sentence: str, *parts: Part, needs: tuple[Need, ...]
) -> Check:
    """Something worth to know, which never changes a verdict."""
    about = (tuple(population.split()), sentence, parts)
    return Check(id_, title, Severity.WARNING, *about, joined(needs), joined(needs))


def void(id_: str, title: str, population: str, sentence: str, *parts: Part) -> Check:
    """A property of the trace, or of the run, without which the run proves nothing."""
    return Check(id_, title, Severity.VOID, tuple(population.split()), sentence, parts, (), ())
