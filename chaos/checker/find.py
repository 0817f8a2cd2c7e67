"""Finds the violations of the checks: first how many there are, in as few passes as can be; then, of what is
violated, the witnesses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from chaos.checker.census import Census
from chaos.checker.checks.registry import Check, Part
from chaos.checker.engine import Engine, Row, union
from chaos.checker.histories.models import applies

MAX_WITNESSES = 32
#: Sources of few rows that are run as one query.
_BATCH = 12

#: A check and one of its parts.
Counted = tuple[Check, Part]


@dataclass(slots=True)
class Found:
    """By check and run: how many violations, and the first of them. By check: seconds, of queries that
    several checks share an equal part."""

    counts: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    witnesses: dict[tuple[str, str], list[Row]] = field(default_factory=lambda: defaultdict(list))
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))


def population_of(check: Check, counts: Mapping[str, int]) -> int:
    """How much a check looks at in a run; 0: it does not apply."""
    if not applies(check, counts):
        return 0
    of = [counts[name] for name in check.population]
    return of[0] if all(of) else 0


def find(
    engine: Engine, checks: Sequence[Check], census: Census, on_progress: Callable[[int, int], None]
) -> Found:
    """Run the checks that apply to some run; others are not even planned."""
    applying = [check for check in checks if any(population_of(check, counts) for counts in census.values())]
    found = Found()
    violated = _count(engine, applying, census, found, on_progress)
    _fetch(engine, violated, found)
    return found


def _count(
    engine: Engine, checks: list[Check], census: Census, found: Found, on_progress: Callable[[int, int], None]
) -> list[Counted]:
    """Count the violations; which parts of which checks have some."""
    batches = dict(enumerate(_batches(checks)))
    width = max((len(one) for batch in batches.values() for one in batch), default=0)
    waiting = {check.id: len(check.parts) for check in checks}
    violated: list[Counted] = []
    queries = {
        str(k): union([_counting(one, n, width) for n, one in enumerate(b)]) for k, b in batches.items()
    }
    for answer in engine.all_rows(queries):
        batch = batches[int(answer.name)]
        here = [counted for one in batch for counted in one]
        for check, _ in here:
            found.seconds[check.id] += answer.seconds / len(here)
            waiting[check.id] -= 1
        some: set[int] = set()
        for row in answer.rows:
            run = str(row["run"])
            assert run in census, f"{run} is not in the trace"
            for column, counted in enumerate(batch[int(row["part"] or 0)]):
                if number := int(row[f"n{column}"] or 0):
                    found.counts[counted[0].id, run] += number
                    some.add(here.index(counted))
        violated += [here[i] for i in sorted(some)]
        on_progress(sum(not left for left in waiting.values()), len(checks))
    return violated


def _batches(checks: Sequence[Check]) -> Iterator[list[list[Counted]]]:
    """What is run as one query: the parts of one source together, and sources of few rows together."""
    by_source: dict[str, list[Counted]] = defaultdict(list)
    for check in checks:
        for part in check.parts:
            by_source[part.source].append((check, part))
    few = [group for group in by_source.values() if group[0][1].few]
    yield from ([group] for group in by_source.values() if not group[0][1].few)
    for begin in range(0, len(few), _BATCH):
        yield few[begin : begin + _BATCH]


def _counting(group: Sequence[Counted], number: int, width: int) -> str:
    """How many rows of one source violate each of these parts, by run. Lines that name no run are told of by
    their files."""
    columns = [f"count(*) FILTER (WHERE {part.where}) AS n{i}" for i, (_, part) in enumerate(group)]
    columns += [f"CAST(0 AS BIGINT) AS n{i}" for i in range(len(group), width)]
    some = " OR ".join(f"({part.where})" for _, part in group)
    source = group[0][1].rows
    return (
        f"SELECT {number} AS part, run, {', '.join(columns)} FROM {source} "
        f"WHERE run IS NOT NULL AND ({some}) GROUP BY run"
    )


def _fetch(engine: Engine, violated: list[Counted], found: Found) -> None:
    """Fetch the first violations of each run."""
    queries = {str(i): _fetching(part) for i, (_, part) in enumerate(violated)}
    answers = {answer.name: answer for answer in engine.all_rows(queries)}
    for name in queries:
        check, _ = violated[int(name)]
        found.seconds[check.id] += answers[name].seconds
        for row in answers[name].rows:
            row.pop("nth")
            kept = found.witnesses[check.id, str(row["run"])]
            if len(kept) < MAX_WITNESSES:
                kept.append(row)


def _fetching(part: Part) -> str:
    return (
        f"SELECT * FROM (SELECT run, {part.shows}, row_number() OVER (PARTITION BY run ORDER BY run) AS nth "
        f"FROM {part.rows} WHERE run IS NOT NULL AND ({part.where})) w WHERE nth <= {MAX_WITNESSES}"
    )
