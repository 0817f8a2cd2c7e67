"""Conversion of the lines of a run to one Parquet file, with the columns of the schema.

Requires DuckDB (`pip install 'dledger[parquet]'`), which reads JSON lines with explicit types on all cores,
in memory that does not grow with the trace.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from chaos.trace.files import seal
from chaos.trace.schema import FIELDS, RAW_DIR, SUFFIX, VERSION, Kind

PARQUET_DIR = "parquet"
EVENTS_FILE = "events.parquet"
#: Spark ignores names that start with an underscore.
MANIFEST_FILE = "_manifest.json"
#: Each thread buffers a row group of all columns. With larger row groups, or more threads, DuckDB exceeds its
#: memory and becomes seven times slower.
ROW_GROUP = 122_880
_MAX_THREADS = 4
_TYPES = {Kind.INT: "BIGINT", Kind.STR: "VARCHAR", Kind.BOOL: "BOOLEAN"}
_BLOCK_BYTES = 1 << 20


class ConversionError(Exception):
    """Raised if the trace was not converted. The trace is unchanged. The text states the reason."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of lines. `torn`: size of an incomplete last line, which is omitted."""

    name: str
    bytes: int
    lines: int
    torn: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Conversion:
    path: Path
    sources: tuple[SourceFile, ...]

    @property
    def lines(self) -> int:
        return sum(source.lines for source in self.sources)


def convert(run_directory: Path, *, remove_raw: bool = False, memory: str = "1GB") -> Conversion:
    """Write `<run>/parquet/events.parquet`, in the order of the files, and a manifest of its sources.

    All writers must have ended. An incomplete last line is omitted, because a killed writer may leave one;
    any other line that does not fit the schema is an error. `remove_raw`: delete the lines after the
    conversion. `memory`: limit for DuckDB, beyond which it spills to the run's directory.

    Raises:
        ConversionError: DuckDB is missing, there is no trace, it is already converted, or a line is
        unreadable.
    """
    raw, target = run_directory / RAW_DIR, run_directory / PARQUET_DIR
    files = sorted(raw.glob(f"*{SUFFIX}"))
    if not files:
        raise ConversionError(f"{raw} contains no trace")
    if target.exists():
        raise ConversionError(f"{target} already exists")
    with tempfile.TemporaryDirectory(prefix="converting-", dir=run_directory) as folder:
        work = Path(folder)
        whole, sources = [], []
        for file in files:
            seal(file)
            source = _inspect(file)
            sources.append(source)
            whole.append(_without_tail(file, source, work) if source.torn else file)
        made = work / PARQUET_DIR
        made.mkdir(0o700)
        rows = _write(whole, work, memory)
        converted = Conversion(target / EVENTS_FILE, tuple(sources))
        if rows != converted.lines:
            raise ConversionError(f"converting {converted.lines} lines produced {rows} rows")
        manifest = {"v": VERSION, "rows": rows, "sources": [asdict(source) for source in sources]}
        (made / MANIFEST_FILE).write_text(json.dumps(manifest, indent=1) + "\n")
        made.rename(target)
    if remove_raw:
        shutil.rmtree(raw)
    return converted


def _inspect(path: Path) -> SourceFile:
    digest, size, lines, torn = hashlib.sha256(), 0, 0, 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
            lines += block.count(b"\n")
            end = block.rfind(b"\n")
            torn = torn + len(block) if end < 0 else len(block) - end - 1
    return SourceFile(path.name, size, lines, torn, digest.hexdigest())


def _without_tail(path: Path, source: SourceFile, work: Path) -> Path:
    copy = work / path.name
    shutil.copyfile(path, copy)
    os.truncate(copy, source.bytes - source.torn)
    return copy


def _write(files: list[Path], work: Path, memory: str) -> int:
    """Write the Parquet file below `work`, and return the number of rows."""
    # DuckDB interprets paths as patterns and backslashes as slashes, so use plain names.
    with tempfile.TemporaryDirectory(prefix="dledger-convert-") as folder:
        plain = Path(folder)
        names: dict[Path, Path] = {}
        for number, path in enumerate(path for path in files if path.stat().st_size):
            link = plain / f"{number:09}{SUFFIX}"
            link.symlink_to(path.resolve())
            names[link] = path
        (plain / "work").symlink_to(work.resolve())
        try:
            return _copy(list(names), plain / "work", memory)
        except ConversionError as error:
            message = str(error)
            for link, path in names.items():
                message = message.replace(str(link), str(path))
            raise ConversionError(message) from error


def _copy(files: list[Path], work: Path, memory: str) -> int:
    try:
        import duckdb
    except ImportError as error:
        raise ConversionError("DuckDB is not installed: pip install 'dledger[parquet]'") from error
    target = _quoted(work / PARQUET_DIR / EVENTS_FILE)
    columns = ", ".join(f"'{name}': '{_TYPES[kind]}'" for name, kind in FIELDS.items())
    names = ", ".join(f'"{name}"' for name in FIELDS)
    threads = min(_MAX_THREADS, os.cpu_count() or 1)
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": memory,
        "temp_directory": str(work / "spill"),
        "threads": threads,
    }
    with duckdb.connect(config=config) as connection:
        try:
            [[rows]] = connection.execute(
                f"""COPY (SELECT {names} FROM read_json(?, columns = {{{columns}}},
                  format = 'newline_delimited', ignore_errors = false))
                TO '{target}' (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {ROW_GROUP})""",
                [[str(path) for path in files]],
            ).fetchall()
        except duckdb.Error as error:
            raise ConversionError(str(error)) from error
    return int(rows)


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")
