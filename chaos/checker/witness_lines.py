"""Where the lines stand that witnesses tell of: in files of the trace, or in the history it was made of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from chaos.checker.engine import Cell, Engine, Row
from chaos.checker.paths import file_of
from chaos.checker.readers.lines import source_line
from chaos.trace.schema import file_name

#: Of a witness: the lines, as `file:line` with commas between; of a whole file only its name.
AT = "at"
#: Of one witness.
_MOST = 4
#: A line: src, inc, seq. Without seq: a whole file.
_Line = tuple[str, int, int | None]


@dataclass(frozen=True, slots=True)
class _Pointer:
    """Lines that a witness names by the columns `by` of `rows`. `few`: there are few such rows, however long
    the trace; of others those are fetched that have one of the numbers in the first column."""

    by: tuple[str, ...]
    rows: str
    few: bool = False


#: A message: who sent it, who was given it, which files hold it.
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
#: Renamed: a witness has this name for it.
_BEFORE = _POSITIONS.replace("pos,", "pos AS before,", 1)
#: In this order: the first that find something say where a witness stands.
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
#: Pointers that belong together: what a witness contradicts is said as well.
_BOTH = frozenset(("op_last", "mid_other", "before", "node_other"))


def add_lines(engine: Engine, witnesses: Iterable[Row]) -> None:
    """Say of each witness where the lines stand that it tells of."""
    every = list(witnesses)
    lines: dict[int, list[_Line]] = {}
    for i, one in enumerate(every):
        src, inc, seq = one.get("src"), one.get("inc"), one.get("seq")
        if isinstance(src, str) and src and isinstance(inc, int):
            lines[i] = [(src, inc, seq if isinstance(seq, int) else None)]
    left = {i: one for i, one in enumerate(every) if i not in lines}
    found = _pointed_at(engine, list(left.values()))
    for i, one in left.items():
        lines[i] = list(_lines_of(one, found))
    sources = _sources(engine) if any(lines.values()) else {}
    for i, one in enumerate(every):
        if said := [_place(one.get("run"), line, sources) for line in lines[i]]:
            one[AT] = ", ".join(dict.fromkeys(said))


#: Pointer -> run and values -> lines.
_Found = list[Mapping[tuple[Cell, ...], list[_Line]]]


def _pointed_at(engine: Engine, witnesses: list[Row]) -> _Found:
    found: _Found = [{} for _ in _POINTERS]
    queries = {}
    for i, pointer in enumerate(_POINTERS):
        key = pointer.by[0]
        wanted = [one for one in witnesses if all(one.get(name) is not None for name in pointer.by)]
        # By number: texts of a trace are no part of a query.
        numbers = sorted({value for one in wanted if isinstance(value := one[key], int)})
        if wanted and pointer.few:
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
        found[int(answer.name)] = {values: list(_in_turn(lines)) for values, lines in kinds.items()}
    return found


def _in_turn(by_kind: Mapping[int, list[_Line]]) -> Iterator[_Line]:
    """Of each kind of line the first, then of each the second, and so on."""
    in_order = [sorted(lines) for _, lines in sorted(by_kind.items())]
    for several in zip_longest(*in_order):
        yield from (line for line in several if line is not None)


def _lines_of(witness: Row, found: _Found) -> Iterator[_Line]:
    """The lines that the first pointer finds, and those of what stands beside it."""
    found_one = False
    for pointer, lines in zip(_POINTERS, found, strict=True):
        is_other = pointer.by[0] in _BOTH
        values = [witness.get(name) for name in pointer.by]
        if None not in values and (is_other or not found_one):
            there = lines.get((witness.get("run"), *values), ())
            found_one |= bool(there) and not is_other
            yield from there[: 1 if is_other else _MOST]


def _sources(engine: Engine) -> dict[tuple[Cell, ...], Path]:
    """The files of converted histories."""
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
