"""docs/reference/evidence.md: which check reads which field of the trace, as their SQL says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from chaos.checker.checks import CHECKS
from chaos.checker.checks.registry import Severity
from chaos.checker.engine import Answer, Row
from chaos.checker.files import file_troubles
from chaos.checker.intake import Intake
from chaos.checker.needs import needs_by_check
from chaos.checker.reporting.figures import take_figures
from chaos.checker.shapes import THERE
from chaos.checker.tables import LACKING, make_tables
from chaos.trace.schema import ENVELOPE, EVENTS
from tools.reference.lineage import Atom, Atoms, Column, Lineage, Relation
from tools.reference.markdown import GENERATED, table
from tools.reference.quick_reads import quick_reads

_SHOWN = "for people, in the witness"
_FOR_PEOPLE = "for people, who look for the cause"
#: What no check reads, and why it is in the trace. A name without a kind is meant in every kind.
UNREAD: dict[tuple[str, str], str] = {
    ("meta/taken_over", "size"): "for people: what was known to be lacking; checks look at the files",
    ("", "error"): f"{_FOR_PEOPLE}; `code` says what it means",
    ("fault", "evidence"): f"{_FOR_PEOPLE}; `effective` says whether the fault happened",
    ("fault/begin", "params"): "for people: the plan of the fault",
    ("fault/begin", "aim"): "for people: the role at which the plan aimed; `targets` says whom it hit",
    ("meta/run_begin", "config"): "for people, and for the figures: a history without times says so",
    ("meta/run_begin", "seed"): "for people, who repeat the run",
    ("meta/run_begin", "git"): "for people, who repeat the run",
    ("meta/dumped", "text"): f"{_FOR_PEOPLE}; `dump_hole` says what was damaged",
    ("meta/dump_hole", "text"): f"{_SHOWN}: what is wrong with the entries",
    ("meta/log_error", "text"): f"{_SHOWN}: the line in the node's log",
    ("meta/log_error", "node"): f"{_SHOWN}: where it was",
    ("meta/memory", "node"): f"{_SHOWN}: where it was",
    ("role/role_wait", "text"): _FOR_PEOPLE,
    ("role/slave", "role_epoch"): "no other line names the epoch of the role that made a broker a slave",
    ("role/refused", "code"): "for people: a refused write promises nothing",
}

_PAGE = """# The table of evidence

This page is for readers who ask what a field of the trace is for, or what a check rests on.
[The schema](../../chaos/trace/schema.py) says what the fields mean, [the checker](../checker.md) what the
checks promise.

- *decide*: checks whose verdict depends on the field, read from their SQL: what is joined, grouped, ordered
  and compared. Checks that decide [what a verdict needs](../checker.md#what-a-verdict-needs) stand first;
  *files* is the search for lines that cannot be read.
- *show*: the field appears only in witnesses of these checks, or in the figures of the report.
- *quick*: the [quick check](../chaos.md) reads the field too. It shares no code with the checks. Kinds of
  lines are told apart by `ev` only.

A field that no check reads has a reason in italics; a test fails for a field without either.

{counts}

"""
_HEAD = ("field", "decide", "show", "quick")
#: So many names of checks stand in a cell at most.
_MOST = 14


@dataclass(slots=True)
class Evidence:
    """By field: ids of checks in the order of their table."""

    decide: dict[Atom, list[str]] = field(default_factory=lambda: defaultdict(list))
    show: dict[Atom, list[str]] = field(default_factory=lambda: defaultdict(list))
    quick: Atoms = frozenset()


class _Recorder:
    """Implements `Engine`: asks nobody, and keeps what would have been asked."""

    def __init__(self) -> None:
        self.lineage = Lineage()
        self.asked: Atoms = frozenset()

    def view(self, name: str, sql: str) -> None:
        relation = self.lineage.of(sql)
        if not relation.everything:
            # Made by Python of the rows that it asked for.
            columns = {column: Column(self.asked) for column in relation.columns}
            relation = Relation(columns, self.asked)
        self.lineage.name(name, relation)

    def facts(self, queries: Mapping[str, str]) -> None:
        for name, sql in queries.items():
            # Whether a field is there decides nothing about its value.
            self.lineage.name(name, self.lineage.of(sql.replace(LACKING, "false").replace(THERE, "0")))

    def fold(self, name: str, sql: str, function: Callable[[str, list[str]], str]) -> None:
        atoms = self.lineage.of(sql).everything
        columns = dict.fromkeys(("run", "log", "found"), Column(atoms))
        self.lineage.name(name, Relation(columns, atoms))

    def rows(self, sql: str) -> list[Row]:
        self.asked |= self.lineage.of(sql).everything
        # Tables of histories are made if there are such histories.
        return [{"history": "register"}, {"history": "kafka"}] if "GROUP BY history" in sql else []

    def all_rows(self, queries: Mapping[str, str]) -> Iterator[Answer]:
        for name, sql in queries.items():
            yield Answer(name, self.rows(sql), 0.0)


@cache
def evidence() -> Evidence:
    """What all checks read."""
    recorder = _Recorder()
    make_tables(recorder)
    found = Evidence(quick=quick_reads())
    for check in sorted(CHECKS, key=lambda one: one.severity is not Severity.VOID):
        decide: Atoms = frozenset()
        show: Atoms = frozenset()
        for part in check.parts:
            told = recorder.lineage.of(f"SELECT {part.shows} FROM {part.rows} WHERE {part.where}")
            decide |= told.conditions
            show |= told.everything
        for atom in decide:
            found.decide[atom].append(check.id)
        for atom in show - decide:
            found.show[atom].append(check.id)
    for name, ask in (("files", _ask_files), ("figures", take_figures)):
        recorder.asked = frozenset()
        ask(recorder)
        for atom in recorder.asked:
            (found.decide if name == "files" else found.show)[atom].append(name)
    return found


def _ask_files(recorder: _Recorder) -> None:
    file_troubles(recorder, Intake((), (), {}))


def reason(atom: Atom) -> str:
    """Why no check reads a field; "" if there is no reason."""
    kinds = ("", str(atom.ev), f"{atom.ev}/{atom.what}")
    return next((UNREAD[kind, atom.name] for kind in kinds if (kind, atom.name) in UNREAD), "")


def fields() -> Iterator[Atom]:
    """All fields of all kinds of lines, those that all lines have left out."""
    for (ev, what), event in EVENTS.items():
        for name in (*event.required, *event.optional):
            yield Atom(ev, what, name)


def unread() -> list[Atom]:
    """Fields that decide nothing in any check."""
    return [atom for atom in fields() if not evidence().decide.get(atom)]


def page() -> str:
    found = evidence()
    decided = sum(bool(found.decide.get(atom)) for atom in fields())
    every = len(list(fields()))
    counts = (
        f"{len(EVENTS)} kinds of lines have {every} fields besides the envelope. {decided} decide checks."
    )
    lines = [_PAGE.format(counts=counts)]
    lines += ["## In every line", "", *table(_HEAD, map(_of_envelope, ENVELOPE)), ""]
    for ev, what in EVENTS:
        kind = f"{ev}/{what}" if what else str(ev)
        rows = [_row(atom) for atom in fields() if (atom.ev, atom.what) == (ev, what)]
        lines += [f"## {kind}", "", *table(_HEAD, rows), ""]
    return GENERATED + "\n\n" + "\n".join(lines).rstrip() + "\n"


def _of_envelope(name: str) -> tuple[str, ...]:
    atoms = [Atom(ev, what, name) for ev, what in EVENTS]
    found = evidence()
    decide = list(dict.fromkeys(id_ for atom in atoms for id_ in found.decide.get(atom, ())))
    show = [
        id_ for id_ in dict.fromkeys(i for a in atoms for i in found.show.get(a, ())) if id_ not in decide
    ]
    return (f"`{name}`", _ids(decide) or "*for people: where the writer ran*", _ids(show), "")


def _row(atom: Atom) -> tuple[str, ...]:
    found = evidence()
    decide = _ids(found.decide.get(atom, []))
    show = _ids(found.show.get(atom, []))
    quick = "yes" if atom in found.quick else ""
    return (f"`{atom.name}`", decide or f"*{reason(atom)}*", show, quick)


def _ids(ids: list[str]) -> str:
    deciding = needs_by_check()
    order = sorted(range(len(ids)), key=lambda i: (ids[i] not in deciding, i))
    told = [ids[i] for i in order]
    more = f" and {len(told) - _MOST} more" if len(told) > _MOST else ""
    return ", ".join(told[:_MOST]) + more
