"""Interface of the SQL engines that run the checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Cell = int | str | bool | None
Row = dict[str, Cell]


class EngineError(Exception):
    """Raised if the engine failed and is unusable. The text states the problem; `details` contains the
    traceback."""

    def __init__(self, text: str, details: str = "") -> None:
        super().__init__(text)
        self.details = details


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Result of one of several queries. `seconds`: its duration."""

    name: str
    rows: list[Row]
    seconds: float


class Engine(Protocol):
    """Runs the SQL of the checks, which uses only constructs that Spark and DuckDB both support."""

    def view(self, name: str, sql: str) -> None:
        """Define a view."""

    def facts(self, queries: Mapping[str, str]) -> None:
        """Define tables from independent queries. Materializes a table if that is cheaper than recomputing
        it."""

    def fold(self, name: str, sql: str, function: Callable[[str, list[str]], str]) -> None:
        """Define a table from a Python function over groups of rows, for results that SQL cannot express.

        The rows (run, log, kind, item) of the query are grouped by run, log and kind. The table has the
        columns (run, log, found), with one row per group. `function` receives the kind and the items, in no
        order, and must be importable by worker processes.
        """

    def rows(self, sql: str) -> list[Row]:
        """Return the rows of a query with a small result."""

    def all_rows(self, queries: Mapping[str, str]) -> Iterator[QueryResult]:
        """Yield the results of queries, which must be small, as the queries complete. Several may run
        concurrently."""


def union(queries: Sequence[str]) -> str:
    """Combine queries with UNION ALL."""
    return "\nUNION ALL\n".join(queries)
