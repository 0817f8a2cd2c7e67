"""What the checks need of an engine: SQL over named tables, and rows that fit into memory."""

from __future__ import annotations

from typing import Protocol

Cell = int | str | bool | None
Row = dict[str, Cell]


class Engine(Protocol):
    """Runs the SQL of the checks, which keeps to what Spark and DuckDB both understand."""

    def view(self, name: str, sql: str) -> None:
        """Name a query."""

    def fact(self, name: str, sql: str) -> None:
        """Name a query, and keep its result, so that it is computed once."""

    def rows(self, sql: str) -> list[Row]:
        """The rows of a query that gives few."""
