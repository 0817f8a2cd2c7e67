"""What the checks need of an engine: SQL over named tables, and rows that fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Cell = int | str | bool | None
Row = dict[str, Cell]


class EngineFailed(Exception):
    """What went wrong in an engine, as text: it has ended, and cannot be asked any more. `details`: where."""

    def __init__(self, said: str, details: str = "") -> None:
        super().__init__(said)
        self.details = details


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of one of several queries, and how long it took."""

    name: str
    rows: list[Row]
    seconds: float


class Engine(Protocol):
    """Runs the SQL of the checks, which keeps to what Spark and DuckDB both understand."""

    def view(self, name: str, sql: str) -> None:
        """Name a query."""

    def facts(self, queries: Mapping[str, str]) -> None:
        """Name queries, and keep their results, if that is cheaper than to compute them again. None needs
        another."""

    def fold(self, name: str, sql: str, function: Callable[[str, list[str]], str]) -> None:
        """Name what a function makes of groups of rows, for what no SQL can say: (run, log, found), one row
        for each run, log and kind of the rows (run, log, kind, item) of a query. `function` is given the
        kind and the items, in no order, and is run where the rows are: other processes import it."""

    def rows(self, sql: str) -> list[Row]:
        """The rows of a query that gives few."""

    def all_rows(self, queries: Mapping[str, str]) -> Iterator[Answer]:
        """The rows of queries that give few, in the order in which they come; several may run at once."""


def union(queries: Sequence[str]) -> str:
    """One query for the rows of all of them."""
    return "\nUNION ALL\n".join(queries)
