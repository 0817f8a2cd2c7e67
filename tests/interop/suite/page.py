"""The table in docs/rocketmq-tests.md: the results of each class of RocketMQ's integration tests."""

from __future__ import annotations

import datetime
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import run
from .reasons import NOT_RUN, REASONS
from .servers import STORES

_ROOT = Path(__file__).resolve().parents[3]
PAGE = _ROOT / "docs/rocketmq-tests.md"
_BEGIN, _END = "<!-- table: written by `make test-suite` -->", "<!-- end of the table -->"
_HEAD = [f"| class | {' | '.join(STORES)} | remark |", f"|---|{'---|' * len(STORES)}---|"]
_CELL = re.compile(r"(\d+) (passed|failed|cannot|ignored)")
_CELL_RUN = re.compile(r"\((\w+)\)$")
_RUN_LINE = re.compile(r"^- \((\w+)\): (.+)$", re.MULTILINE)
_EMPTY = "-"
#: Statuses in the order of a cell. A class that exceeds its time limit has failed.
_ORDER = ("passed", "failed", "cannot", "ignored")


@dataclass(frozen=True, slots=True)
class Cell:
    """The results of one class with one store. `run`: date and commit of their run."""

    numbers: Counter[str]
    run: str


def current_run() -> str:
    """Return the date and the commit of a run that starts now, and mention changed files outside docs/."""
    changes = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs")
    commit = _git("rev-parse", "--short=8", "HEAD")
    return f"{datetime.date.today()}, commit `{commit}`{' with changes' if changes else ''}"


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=_ROOT, check=True, capture_output=True, text=True).stdout.strip()


def counts(results: Iterable[run.Result]) -> dict[str, Counter[str]]:
    """Return the number of tests of each status, by class."""
    by_class: dict[str, Counter[str]] = {}
    for result in results:
        status = "failed" if result.status == "late" else result.status
        by_class.setdefault(result.name, Counter())[status] += 1
    return by_class


def render(results: Mapping[str, Mapping[str, Cell]]) -> list[str]:
    """Return the lines of the table and of the list of its runs. `results`: by store and class."""
    remarks = {**REASONS, **NOT_RUN}
    names = {name for by_class in results.values() for name in by_class}
    runs = sorted({cell.run for by_class in results.values() for cell in by_class.values()})
    rows = []
    for name in sorted(names | remarks.keys()):
        cells = [_cell(results[store].get(name), runs) for store in STORES]
        rows.append(f"| `{name}` | {' | '.join(cells)} | {remarks.get(name, '')} |")
    return [*_HEAD, *rows, "", *(f"- ({number}): {run}" for number, run in enumerate(runs, start=1))]


def _cell(cell: Cell | None, runs: Sequence[str]) -> str:
    if cell is None:
        return _EMPTY
    parts = [f"{cell.numbers[status]} {status}" for status in _ORDER if cell.numbers[status]]
    return f"{', '.join(parts)} ({runs.index(cell.run) + 1})"


def committed(text: str) -> dict[str, dict[str, Cell]]:
    """Return the results in the table of a page, by store and class."""
    table = text.split(_BEGIN)[1].split(_END)[0]
    runs = dict(_RUN_LINE.findall(table))
    results: dict[str, dict[str, Cell]] = {store: {} for store in STORES}
    for line in table.splitlines():
        if not line.startswith("| `"):
            continue
        name, *cells = (cell.strip() for cell in line.strip("|").split("|")[: len(STORES) + 1])
        for store, cell in zip(STORES, cells, strict=True):
            numbers = Counter({status: int(number) for number, status in _CELL.findall(cell)})
            run = _CELL_RUN.search(cell)
            if numbers and run:
                results[store][name.strip("`")] = Cell(numbers, runs[run.group(1)])
    return results


def worse(before: Counter[str], after: Counter[str]) -> bool:
    """Return True if fewer tests of a class passed, or more failed, than the table states."""
    return after["passed"] < before["passed"] or after["failed"] > before["failed"]


def replace_table(text: str, lines: Sequence[str]) -> str:
    head, rest = text.split(_BEGIN)
    return "\n".join([head + _BEGIN, *lines, _END + rest.split(_END)[1]])


def update(store: str, results: Iterable[run.Result], run_of_results: str) -> None:
    """Replace the cells of this store for the classes with results, in the page.

    `run_of_results`: from `current_run` at the start of the run.
    """
    text = PAGE.read_text()
    known = committed(text)
    known[store].update({name: Cell(numbers, run_of_results) for name, numbers in counts(results).items()})
    PAGE.write_text(replace_table(text, render(known)))
