"""A second engine: the same SQL on DuckDB, reading the same lines by a way of its own."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import duckdb

from chaos.checker.engine import Cell, QueryResult, Row
from chaos.trace.schema import FIELDS, RAW_DIR, Ev, Kind

_TYPES = {Kind.INT: "BIGINT", Kind.STR: "VARCHAR", Kind.BOOL: "BOOLEAN"}


class DuckEngine:
    def __init__(self) -> None:
        self._connection = duckdb.connect(config={"threads": 2})

    def load(self, run_dirs: Iterable[Path]) -> None:
        """Well-formed lines only: what is torn or unknown is the business of the engine of record."""
        self.load_files([path for run in run_dirs for path in sorted((run / RAW_DIR).glob("*.jsonl"))])

    def load_shared(self, recorded: str, files: Mapping[str, Sequence[Path]]) -> None:
        """The files of several runs, by run. A run may take files of the run `recorded`: where they say that
        name, the name of the run stands then."""
        self.load_files(sorted({path for paths in files.values() for path in paths}))
        self._connection.execute("ALTER TABLE events RENAME TO lines")
        taken = [(run, str(path)) for run, paths in files.items() for path in paths]
        self._connection.execute(
            """CREATE TABLE events AS SELECT l.* REPLACE (replace(l.run, $recorded, t.run) AS run)
            FROM lines l JOIN (SELECT unnest($runs) AS run, unnest($paths) AS path) t ON t.path = l.file""",
            {
                "recorded": recorded,
                "runs": [run for run, _ in taken],
                "paths": [path for _, path in taken],
            },
        )
        self._connection.execute("DROP TABLE lines")

    def load_files(self, files: Sequence[Path]) -> None:
        """Of lines, as `load`."""
        # Not by read_json: it takes three times as long where files are small and many. Nor by read_text:
        # DuckDB takes paths for patterns, and backslashes for slashes.
        columns = json.dumps({name: _TYPES[kind] for name, kind in FIELDS.items()})
        names = ", ".join(f'"{name}"' for name in FIELDS if name not in {"ev", "group", "digest"})
        kinds = ", ".join(f"'{ev}'" for ev in Ev)
        self._connection.execute(
            f"""CREATE TABLE events AS SELECT {names}, "group" AS grp, filename AS file,
            CASE WHEN digest IS NOT NULL THEN CAST(hash(digest) >> 1 AS BIGINT) END AS digest,
            CASE WHEN chain IS NOT NULL THEN CAST(hash(chain) >> 1 AS BIGINT) END AS chain_key,
            CASE WHEN ev IN ({kinds}) THEN ev ELSE 'unknown' END AS ev
            FROM (SELECT filename, unnest(from_json(line, $columns)) FROM (
              SELECT filename, unnest(string_split(content, chr(10))) AS line
              FROM (SELECT unnest($files) AS filename, unnest($contents) AS content)
            ) WHERE line <> '')""",
            {
                "columns": columns,
                "files": [str(path) for path in files],
                "contents": [path.read_text(encoding="utf-8") for path in files],
            },
        )

    def view(self, name: str, sql: str) -> None:
        self._connection.execute(f"CREATE VIEW {name} AS {sql}")

    def facts(self, queries: Mapping[str, str]) -> None:
        for name, sql in queries.items():
            self._connection.execute(f"CREATE TABLE {name} AS {sql}")

    def fold(self, name: str, sql: str, function: Callable[[str, list[str]], str]) -> None:
        groups: dict[tuple[Cell, Cell, str], list[str]] = defaultdict(list)
        for row in self.rows(sql):
            groups[row["run"], row["log"], str(row["kind"])].append(str(row["item"]))
        self._connection.execute(f"CREATE TABLE {name} (run VARCHAR, log VARCHAR, found VARCHAR)")
        for (run, log, kind), items in groups.items():
            found = function(kind, items)
            self._connection.execute(f"INSERT INTO {name} VALUES (?, ?, ?)", [run, log, found])

    def rows(self, sql: str) -> list[Row]:
        cursor = self._connection.execute(sql)
        names = [column[0] for column in cursor.description or ()]
        return [cast(dict[str, Cell], dict(zip(names, row, strict=True))) for row in cursor.fetchall()]

    def all_rows(self, queries: Mapping[str, str]) -> Iterator[QueryResult]:
        for name, sql in queries.items():
            started = time.monotonic()
            yield QueryResult(name, self.rows(sql), time.monotonic() - started)
