"""The table in docs/rocketmq-tests.md: the results of each class of RocketMQ's integration tests."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from . import run
from .reasons import NOT_RUN, REASONS
from .servers import STORES

_ROOT = Path(__file__).resolve().parents[3]
PAGE = _ROOT / "docs/rocketmq-tests.md"
_BEGIN, _END = "<!-- table: written by `make test-suite` -->", "<!-- end of the table -->"
_HEAD = [f"| class | {' | '.join(STORES)} | remark |", f"|---|{'---|' * len(STORES)}---|"]
_CELL = re.compile(r"(\d+) (passed|failed|cannot|ignored)")
_EMPTY = "-"
#: Statuses in the order of a cell. A class that exceeds its time limit has failed.
_ORDER = ("passed", "failed", "cannot", "ignored")


def counts(results: Iterable[run.Result]) -> dict[str, Counter[str]]:
    """Return the number of tests of each status, by class."""
    by_class: dict[str, Counter[str]] = {}
    for result in results:
        status = "failed" if result.status == "late" else result.status
        by_class.setdefault(result.name, Counter())[status] += 1
    return by_class


def render(results: Mapping[str, Mapping[str, Counter[str]]]) -> list[str]:
    """Return the lines of the table. `results`: numbers by store and class."""
    remarks = {**REASONS, **NOT_RUN}
    names = {name for by_class in results.values() for name in by_class}
    rows = []
    for name in sorted(names | remarks.keys()):
        cells = [_cell(results[store].get(name, Counter())) for store in STORES]
        rows.append(f"| `{name}` | {' | '.join(cells)} | {remarks.get(name, '')} |")
    return [*_HEAD, *rows]


def _cell(numbers: Counter[str]) -> str:
    parts = [f"{numbers[status]} {status}" for status in _ORDER if numbers[status]]
    return ", ".join(parts) or _EMPTY


def committed(text: str) -> dict[str, dict[str, Counter[str]]]:
    """Return the numbers in the table of a page, by store and class."""
    table = text.split(_BEGIN)[1].split(_END)[0]
    results: dict[str, dict[str, Counter[str]]] = {store: {} for store in STORES}
    for line in table.splitlines():
        if not line.startswith("| `"):
            continue
        name, *cells = (cell.strip() for cell in line.strip("|").split("|")[: len(STORES) + 1])
        for store, cell in zip(STORES, cells, strict=True):
            numbers = Counter({status: int(number) for number, status in _CELL.findall(cell)})
            if numbers:
                results[store][name.strip("`")] = numbers
    return results


def worse(before: Counter[str], after: Counter[str]) -> bool:
    """Return True if fewer tests of a class passed, or more failed, than the table states."""
    return after["passed"] < before["passed"] or after["failed"] > before["failed"]


def replace_table(text: str, lines: Sequence[str]) -> str:
    head, rest = text.split(_BEGIN)
    return "\n".join([head + _BEGIN, *lines, _END + rest.split(_END)[1]])


def update(store: str, results: Iterable[run.Result]) -> None:
    """Replace the cells of this store for the classes with results, in the page."""
    text = PAGE.read_text()
    known = committed(text)
    known[store].update(counts(results))
    PAGE.write_text(replace_table(text, render(known)))
