"""Run the checks over the tables and decide for each check and run: valid, invalid, unknown, or not in this
trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import zip_longest
from pathlib import Path

from chaos.checker.census import Census, take_census
from chaos.checker.checks.registry import Check, Part, Severity
from chaos.checker.engine import Cell, Engine, Row, union
from chaos.checker.histories.models import ESSENTIAL_OF, applies, model_of
from chaos.checker.needs import NEEDS, Need, needs_by_check, words
from chaos.checker.paths import file_of
from chaos.checker.readers.lines import source_line
from chaos.checker.witness_times import add_times
from chaos.trace.schema import file_name

#: Groups of checks. A run shows that nothing was lost only if one check of each group has data.
ESSENTIAL = (("L1",), ("L2",), ("L4",), ("L5",), ("L7",), ("L6b", "L6c"))


class CheckVerdict(StrEnum):
    VALID = "valid"
    INVALID = "invalid"
    UNKNOWN = "unknown"
    #: The trace has no events that the check concerns.
    ABSENT = "not in this trace"


@dataclass(slots=True)
class Finding:
    """Result of one check for one run.

    `violations`: their number; `witnesses`: the first ones. `unmet`: needs of the check that the trace
    does not meet, which make the verdict unknown.
    """

    check: Check
    verdict: CheckVerdict
    population: int
    violations: int
    witnesses: list[Row]
    seconds: float
    unmet: tuple[Need, ...] = ()

    @property
    def warnings(self) -> int:
        return self.violations if self.check.severity is Severity.WARNING else 0


@dataclass(slots=True)
class RunJudgment:
    run: str
    verdict: CheckVerdict = CheckVerdict.UNKNOWN
    findings: list[Finding] = field(default_factory=list)
    census: dict[str, int] = field(default_factory=dict)
    #: Reasons why the verdict is not "valid", one sentence each.
    reasons: list[str] = field(default_factory=list)


def judge(
    engine: Engine,
    checks: Sequence[Check],
    *,
    troubles: Mapping[str, Sequence[str]] | None = None,
    doubled: Container[str] = (),
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[RunJudgment]:
    """Run the checks and return the results by run, sorted.

    `troubles`: defects of the files of a run; such a run is never "valid". `doubled`: runs with duplicated
    files, which are never "invalid" either. `on_progress` receives the numbers of completed checks and of all
    checks.
    """
    census = take_census(engine)
    results = {run: RunJudgment(run, census=counts) for run, counts in sorted(census.items())}
    violations_found = find(engine, checks, census, on_progress)
    for run, result in results.items():
        unmet = _unmet(violations_found, checks, run, census[run])
        # An unreadable file may contain what seems to be missing.
        unmet |= {Need.UNDERSTOOD} if (troubles or {}).get(run) else set()
        unmet |= {Need.ONCE} if run in doubled else set()
        # Checks that decide needs come first.
        for check in sorted(checks, key=lambda c: c.severity is not Severity.VOID):
            population = population_of(check, census[run])
            violations = violations_found.counts.get((check.id, run), 0) if population else 0
            verdict, without = _verdict(check, population, violations, unmet)
            result.findings.append(
                Finding(
                    check,
                    verdict,
                    population,
                    violations,
                    violations_found.witnesses.get((check.id, run), []) if population else [],
                    violations_found.seconds.get(check.id, 0.0),
                    without,
                )
            )
    findings = [finding for result in results.values() for finding in result.findings]
    if witnesses := [row for finding in findings for row in finding.witnesses]:
        add_lines(engine, witnesses)
    for result in results.values():
        _conclude(result, (troubles or {}).get(result.run, ()))
    add_times(
        engine,
        [row for judged in results.values() for finding in broken(judged) for row in finding.witnesses],
    )
    return list(results.values())


def broken(result: RunJudgment) -> list[Finding]:
    """Return the findings that violate a guarantee."""
    return [finding for finding in result.findings if finding.verdict is CheckVerdict.INVALID]


def _unmet(violations: Violations, checks: Sequence[Check], run: str, counts: Mapping[str, int]) -> set[Need]:
    """Return the needs that a run does not meet, according to the checks that decide needs and were run."""
    deciding = needs_by_check()
    return {
        deciding[check.id]
        for check in checks
        if check.id in deciding and population_of(check, counts) and violations.counts.get((check.id, run))
    }


def _verdict(
    check: Check, population: int, violations: int, unmet: set[Need]
) -> tuple[CheckVerdict, tuple[Need, ...]]:
    """Return the verdict of a check for a run, with the unmet needs that make it unknown."""
    if not population:
        return CheckVerdict.ABSENT, ()
    if check.severity is Severity.VOID:
        return (CheckVerdict.UNKNOWN if violations else CheckVerdict.VALID), ()
    without = tuple(need for need in (check.needs if violations else check.clear_needs) if need in unmet)
    if without:
        return CheckVerdict.UNKNOWN, without
    if violations and check.severity is Severity.HARD:
        return CheckVerdict.INVALID, ()
    return CheckVerdict.VALID, ()


def _conclude(result: RunJudgment, troubles: Sequence[str]) -> None:
    """Set the verdict and reasons of a run.

    Invalid takes precedence over unknown, and unknown over valid. Valid requires data for the essential
    checks.
    """
    by_id = {finding.check.id: finding for finding in result.findings}
    result.reasons = list(troubles)
    model = model_of(result.census)
    for names in ESSENTIAL if model is None else ESSENTIAL_OF[model]:
        if all(name not in by_id or by_id[name].verdict is CheckVerdict.ABSENT for name in names):
            result.reasons.append(f"{' and '.join(names)} had no data to check, so the run is inconclusive")
    verdict = CheckVerdict.UNKNOWN if result.reasons else CheckVerdict.VALID
    for finding in result.findings:
        if finding.verdict in (CheckVerdict.INVALID, CheckVerdict.UNKNOWN) and finding.violations:
            times = "once" if finding.violations == 1 else f"{finding.violations} times"
            reason = f"{finding.check.id}, not met {times}: {finding.check.title}"
            inconclusive = f"; inconclusive without {words(finding.unmet)}" if finding.unmet else ""
            result.reasons.append(reason + inconclusive)
    result.reasons += _inconclusive_needs(result)
    verdicts = {finding.verdict for finding in result.findings}
    if CheckVerdict.INVALID in verdicts:
        verdict = CheckVerdict.INVALID
    elif CheckVerdict.UNKNOWN in verdicts:
        verdict = CheckVerdict.UNKNOWN
    result.verdict = verdict


def _inconclusive_needs(result: RunJudgment) -> list[str]:
    """Return one sentence for each unmet need that makes checks without violations inconclusive."""
    silent: dict[Need, list[str]] = {}
    for finding in result.findings:
        for need in finding.unmet if not finding.violations else ():
            silent.setdefault(need, []).append(finding.check.id)
    return [
        f"without {words([need])}{_first_witness(result, need)}, inconclusive: {', '.join(ids)}"
        for need, ids in silent.items()
    ]


def _first_witness(result: RunJudgment, need: Need) -> str:
    """Return the first witness of the check that decides a need, in parentheses, or an empty text if there is
    none."""
    for finding in result.findings:
        if finding.check.id == NEEDS[need].by and finding.witnesses:
            return f" ({sentence(finding.check, finding.witnesses[0])})"
    return ""


def sentence(check: Check, witness: Row) -> str:
    """Return the description of a witness."""
    return check.sentence.format_map(witness)


def line_of(witness: Row) -> str | None:
    """Return the location of the lines of a witness (see `AT`), or None."""
    location = witness.get(AT)
    return location if isinstance(location, str) else None


# Finding violations: first their number, in as few passes as possible, then the witnesses of violated parts.

MAX_WITNESSES = 32
#: Number of sources with few rows that one query combines.
_BATCH = 12

#: A check and one of its parts.
Counted = tuple[Check, Part]


@dataclass(slots=True)
class Violations:
    """For each check and run, the number of violations and the first ones; for each check, the query time in
    seconds.

    The time of a query that several checks share is divided equally among them.
    """

    counts: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    witnesses: dict[tuple[str, str], list[Row]] = field(default_factory=lambda: defaultdict(list))
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))


def population_of(check: Check, counts: Mapping[str, int]) -> int:
    """Return the number of objects that a check examines in a run, or 0 if the check does not apply."""
    if not applies(check, counts):
        return 0
    of = [counts[name] for name in check.population]
    return of[0] if all(of) else 0


def find(
    engine: Engine, checks: Sequence[Check], census: Census, on_progress: Callable[[int, int], None]
) -> Violations:
    """Run the checks that apply to at least one run."""
    applying = [check for check in checks if any(population_of(check, counts) for counts in census.values())]
    violations = Violations()
    violated = _count(engine, applying, census, violations, on_progress)
    _fetch(engine, violated, violations)
    return violations


def _count(
    engine: Engine,
    checks: list[Check],
    census: Census,
    violations: Violations,
    on_progress: Callable[[int, int], None],
) -> list[Counted]:
    """Count the violations and return the violated parts."""
    batches = dict(enumerate(_batches(checks)))
    width = max((len(group) for batch in batches.values() for group in batch), default=0)
    waiting = {check.id: len(check.parts) for check in checks}
    violated: list[Counted] = []
    queries = {
        str(k): union([_counting(group, n, width) for n, group in enumerate(b)]) for k, b in batches.items()
    }
    for answer in engine.all_rows(queries):
        batch = batches[int(answer.name)]
        counted_parts = [counted for group in batch for counted in group]
        for check, _ in counted_parts:
            violations.seconds[check.id] += answer.seconds / len(counted_parts)
            waiting[check.id] -= 1
        violated_parts: set[int] = set()
        for row in answer.rows:
            run = str(row["run"])
            assert run in census, f"{run} is not in the trace"
            for column, counted in enumerate(batch[int(row["part"] or 0)]):
                if number := int(row[f"n{column}"] or 0):
                    violations.counts[counted[0].id, run] += number
                    violated_parts.add(counted_parts.index(counted))
        violated += [counted_parts[i] for i in sorted(violated_parts)]
        on_progress(sum(not remaining for remaining in waiting.values()), len(checks))
    return violated


def _batches(checks: Sequence[Check]) -> Iterator[list[list[Counted]]]:
    """Group parts into queries: parts that share a source are in one query, and a query combines up to
    `_BATCH` sources with few rows."""
    by_source: dict[str, list[Counted]] = defaultdict(list)
    for check in checks:
        for part in check.parts:
            by_source[part.source].append((check, part))
    few = [group for group in by_source.values() if group[0][1].few]
    yield from ([group] for group in by_source.values() if not group[0][1].few)
    for begin in range(0, len(few), _BATCH):
        yield few[begin : begin + _BATCH]


def _counting(group: Sequence[Counted], number: int, width: int) -> str:
    """Return a query for the number of rows of one source that violate each part, by run.

    Excludes lines without a run, which the checks of their files report.
    """
    columns = [f"count(*) FILTER (WHERE {part.where}) AS n{i}" for i, (_, part) in enumerate(group)]
    columns += [f"CAST(0 AS BIGINT) AS n{i}" for i in range(len(group), width)]
    any_violation = " OR ".join(f"({part.where})" for _, part in group)
    source = group[0][1].rows
    return (
        f"SELECT {number} AS part, run, {', '.join(columns)} FROM {source} "
        f"WHERE run IS NOT NULL AND ({any_violation}) GROUP BY run"
    )


def _fetch(engine: Engine, violated: list[Counted], violations: Violations) -> None:
    """Fetch the first violations of each run."""
    queries = {str(i): _fetching(part) for i, (_, part) in enumerate(violated)}
    answers = {answer.name: answer for answer in engine.all_rows(queries)}
    for name in queries:
        check, _ = violated[int(name)]
        violations.seconds[check.id] += answers[name].seconds
        for row in answers[name].rows:
            row.pop("nth")
            kept = violations.witnesses[check.id, str(row["run"])]
            if len(kept) < MAX_WITNESSES:
                kept.append(row)


def _fetching(part: Part) -> str:
    return (
        f"SELECT * FROM (SELECT run, {part.shows}, row_number() OVER (PARTITION BY run ORDER BY run) AS nth "
        f"FROM {part.rows} WHERE run IS NOT NULL AND ({part.where})) w WHERE nth <= {MAX_WITNESSES}"
    )


#: Key of a witness: the locations of its lines, as `file:line`, comma-separated; a complete file has no line.
AT = "at"
#: Maximum number of lines per witness.
_MAX_LINES = 4
#: A line: src, inc, seq. Without seq, a complete file.
_Line = tuple[str, int, int | None]


@dataclass(frozen=True, slots=True)
class _Pointer:
    """Lines that a witness identifies by the columns `by` of `rows`.

    `few`: the number of such rows does not grow with the length of the trace. From other sources, only rows
    with one of the numbers in the first column are fetched.
    """

    by: tuple[str, ...]
    rows: str
    few: bool = False


#: Lines of a message: its send, its deliveries, the files that have it.
_MESSAGES = (
    "SELECT run, mid, log, CAST(NULL AS STRING) AS grp, src, inc, seq, 0 AS k FROM sends UNION ALL "
    "SELECT run, mid, log, grp, src, inc, seq, 1 FROM dlv_lines UNION ALL "
    "SELECT run, mid, log, NULL, src, inc, seq, 2 FROM dump"
)
_POSITIONS = (
    "SELECT run, pos, log, src, inc, seq, 0 AS k FROM sends UNION ALL "
    "SELECT run, pos, log, src, inc, seq, 1 FROM dlv_lines UNION ALL "
    "SELECT run, pos, log, src, inc, seq, 2 FROM dump"
)
_UNITS = "SELECT run, qoff, node, log, src, inc, seq, 0 AS k FROM cq"
#: Positions under the name that witnesses use for the previous one.
_BEFORE = _POSITIONS.replace("pos,", "pos AS before,", 1)
#: In order of preference: the first pointer that matches any lines locates the witness.
_POINTERS = (
    _Pointer(("op",), "SELECT run, op, src, inc, seq, 0 AS k FROM ops"),
    _Pointer(("op_last",), "SELECT run, op AS op_last, src, inc, seq, 0 AS k FROM ops"),
    _Pointer(("mid", "grp"), f"SELECT * FROM ({_MESSAGES}) WHERE grp IS NOT NULL"),
    _Pointer(("mid", "log"), _MESSAGES),
    _Pointer(("mid",), _MESSAGES),
    _Pointer(("mid_other",), f"SELECT run, mid AS mid_other, src, inc, seq, k FROM ({_MESSAGES})"),
    _Pointer(("pos", "log"), _POSITIONS),
    _Pointer(("before", "log"), _BEFORE),
    _Pointer(
        ("first", "consumer"), "SELECT run, mono AS first, consumer, src, inc, seq, 0 AS k FROM dlv_lines"
    ),
    _Pointer(("qoff", "node", "log"), _UNITS),
    _Pointer(("qoff", "log"), _UNITS),
    _Pointer(("lidx", "node"), "SELECT run, lidx, node, src, inc, seq, 0 AS k FROM dump"),
    _Pointer(
        ("lidx",),
        "SELECT run, lidx, src, inc, seq, 0 AS k FROM dump UNION ALL "
        "SELECT run, lidx, src, inc, seq, 1 FROM sends UNION ALL "
        "SELECT run, lidx, src, inc, seq, 2 FROM dlv_lines UNION ALL "
        "SELECT run, CASE WHEN e = 'commit' THEN lidx ELSE last END, src, inc, seq, 3 FROM nodes "
        "WHERE e IN ('append', 'commit', 'apply')",
    ),
    _Pointer(
        ("term", "node"),
        "SELECT run, term, node, src, inc, seq, 0 AS k FROM milestones "
        "WHERE e IN ('vote', 'term_vote', 'recover', 'leader')",
        few=True,
    ),
    _Pointer(("pid", "node"), "SELECT run, pid, node, src, inc, seq, 0 AS k FROM meta", few=True),
    _Pointer(("node",), "SELECT run, node, src, inc, seq, 0 AS k FROM meta WHERE e = 'dumped'", few=True),
    _Pointer(
        ("node_other",),
        "SELECT run, node AS node_other, src, inc, seq, 0 AS k FROM meta WHERE e = 'dumped'",
        few=True,
    ),
    _Pointer(
        ("log",),
        "SELECT run, log, src, inc, seq, 0 AS k FROM meta WHERE e IN ('log', 'drain_target')",
        few=True,
    ),
)
#: Additional pointers to the lines that contradict the witness.
_BOTH = frozenset(("op_last", "mid_other", "before", "node_other"))


def add_lines(engine: Engine, witnesses: Iterable[Row]) -> None:
    """Add the locations of the lines to each witness."""
    all_witnesses = list(witnesses)
    lines: dict[int, list[_Line]] = {}
    for i, witness in enumerate(all_witnesses):
        src, inc, seq = witness.get("src"), witness.get("inc"), witness.get("seq")
        if isinstance(src, str) and src and isinstance(inc, int):
            lines[i] = [(src, inc, seq if isinstance(seq, int) else None)]
    unlocated = {i: witness for i, witness in enumerate(all_witnesses) if i not in lines}
    lines_by_pointer = _pointed_at(engine, list(unlocated.values()))
    for i, witness in unlocated.items():
        lines[i] = list(_lines_of(witness, lines_by_pointer))
    sources = _sources(engine) if any(lines.values()) else {}
    for i, witness in enumerate(all_witnesses):
        if locations := [_place(witness.get("run"), line, sources) for line in lines[i]]:
            witness[AT] = ", ".join(dict.fromkeys(locations))


#: For each pointer: lines by run and values of the columns.
_LinesByPointer = list[Mapping[tuple[Cell, ...], list[_Line]]]


def _pointed_at(engine: Engine, witnesses: list[Row]) -> _LinesByPointer:
    lines_by_pointer: _LinesByPointer = [{} for _ in _POINTERS]
    queries = {}
    for i, pointer in enumerate(_POINTERS):
        key = pointer.by[0]
        matching = [
            witness for witness in witnesses if all(witness.get(name) is not None for name in pointer.by)
        ]
        # By number, because a query must not contain text from a trace.
        numbers = sorted({value for witness in matching if isinstance(value := witness[key], int)})
        if matching and pointer.few:
            queries[str(i)] = pointer.rows
        elif numbers:
            queries[str(i)] = (
                f"SELECT * FROM ({pointer.rows}) p WHERE {key} IN ({', '.join(map(str, numbers))})"
            )
    for answer in engine.all_rows(queries):
        by = _POINTERS[int(answer.name)].by
        kinds: dict[tuple[Cell, ...], dict[int, list[_Line]]] = defaultdict(lambda: defaultdict(list))
        for row in answer.rows:
            line = (str(row["src"]), _number(row["inc"]), _number(row["seq"]))
            kinds[row["run"], *(row[name] for name in by)][_number(row["k"])].append(line)
        lines_by_pointer[int(answer.name)] = {
            values: list(_interleaved(lines)) for values, lines in kinds.items()
        }
    return lines_by_pointer


def _interleaved(by_kind: Mapping[int, list[_Line]]) -> Iterator[_Line]:
    """Interleave the kinds: the first line of each kind, then the second of each, and so on."""
    in_order = [sorted(lines) for _, lines in sorted(by_kind.items())]
    for several in zip_longest(*in_order):
        yield from (line for line in several if line is not None)


def _lines_of(witness: Row, lines_by_pointer: _LinesByPointer) -> Iterator[_Line]:
    """Return the lines of the first pointer that matches, and of the additional pointers."""
    is_located = False
    for pointer, lines in zip(_POINTERS, lines_by_pointer, strict=True):
        is_other = pointer.by[0] in _BOTH
        values = [witness.get(name) for name in pointer.by]
        if None not in values and (is_other or not is_located):
            matching = lines.get((witness.get("run"), *values), ())
            is_located |= bool(matching) and not is_other
            yield from matching[: 1 if is_other else _MAX_LINES]


def _sources(engine: Engine) -> dict[tuple[Cell, ...], Path]:
    """Return the files of converted histories."""
    of_histories = "SELECT run FROM runs WHERE history IS NOT NULL"
    return {
        (row["run"], row["src"], row["inc"]): file_of(str(row["file"])).resolve()
        for row in engine.rows(
            "SELECT c.run, c.src, c.inc, min(c.file) AS file FROM line_counts c "
            f"SEMI JOIN ({of_histories}) h ON h.run = c.run GROUP BY c.run, c.src, c.inc"
        )
    }


def _place(run: Cell, line: _Line, sources: Mapping[tuple[Cell, ...], Path]) -> str:
    src, inc, seq = line
    path = sources.get((run, src, inc))
    if path is not None and seq is not None:
        return source_line(path.parent.parent, path.name, seq + 1) or f"{path.name}:{seq + 1}"
    return file_name(src, inc) + ("" if seq is None else f":{seq + 1}")


def _number(cell: Cell) -> int:
    return cell if isinstance(cell, int) else 0
