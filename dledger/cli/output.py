"""Output as tables with colors on terminals, and as plain columns or JSON elsewhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table

_STYLES = {"LEADER": "bold green", "down": "bold red", "paused": "yellow", "CANDIDATE": "yellow"}
_EMPTY = "-"


def is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()  # None: closed by the parent process


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print aligned columns. If the output is not a terminal, it has no colors and is neither wrapped nor
    truncated."""
    cells = [[_text(value) for value in row] for row in rows]
    if is_terminal():
        _print_rich(columns, cells)
        return
    widths = [max(len(column), *(len(row[i]) for row in cells), 0) for i, column in enumerate(columns)]
    for line in (list(columns), *cells):
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        style = next((_STYLES[cell] for cell in row if cell in _STYLES), None)
        table.add_row(*row, style=style)
    Console().print(table, markup=False, highlight=False)


def _text(value: object) -> str:
    return _EMPTY if value is None or value == "" else str(value)


def human_bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("the last unit takes everything")


def counted(count: int, noun: str) -> str:
    """Format a count: `1 queue`, `2 queues`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
