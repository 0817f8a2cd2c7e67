"""Conversion to Parquet: the same rows with the schema's columns, and nothing passed over in silence."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest

from chaos.trace.parquet import ConversionError, convert
from chaos.trace.schema import FIELDS, Ev
from chaos.trace.writer import TraceWriter


def write_run(folder: Path, lines: int = 3) -> Path:
    """A run directory; the path of its only raw file."""
    with TraceWriter(folder, "r1", "nemesis") as writer:
        for n in range(lines):
            writer.write(Ev.META, {"e": "log_error", "node": "n1", "text": f"ä {n}"})
    return writer.path


def rows_of(folder: Path) -> list[dict[str, object]]:
    cursor = duckdb.sql(f"SELECT * FROM '{folder / 'parquet' / 'events.parquet'}'")
    return [dict(zip(cursor.columns, row, strict=True)) for row in cursor.fetchall()]


def test_rows_are_the_lines_in_their_order_with_all_columns_of_the_schema(tmp_path: Path) -> None:
    raw = write_run(tmp_path, 5)
    converted = convert(tmp_path)
    lines = [json.loads(line) for line in raw.read_text().splitlines()]
    found = rows_of(tmp_path)
    assert converted.lines == len(found) == len(lines) == 7
    assert list(found[0]) == list(FIELDS)
    for row, line in zip(found, lines, strict=True):
        assert {name: value for name, value in row.items() if value is not None} == line


def test_half_a_line_and_zeros_at_the_end_are_left_out_and_noted(tmp_path: Path) -> None:
    raw = write_run(tmp_path)
    whole = raw.read_bytes()
    raw.write_bytes(whole + whole[:40] + bytes(5000))
    convert(tmp_path)
    assert len(rows_of(tmp_path)) == 5
    [source] = json.loads((tmp_path / "parquet" / "_manifest.json").read_text())["sources"]
    assert (source["lines"], source["torn"], source["bytes"]) == (5, 40, len(whole) + 40)


@pytest.mark.parametrize(
    "bad",
    [
        b'{"v":1,"run":"r1"\n',
        b"\0\0\0\n",
        b'{"v":1,"run":"r1","term":9223372036854775808}\n',
        b'{"v":1,"run":"r1","term":"two"}\n',
    ],
)
def test_lines_that_do_not_fit_the_schema_stop_it_and_leave_everything_as_it_was(
    tmp_path: Path, bad: bytes
) -> None:
    raw = write_run(tmp_path)
    first, rest = raw.read_bytes().split(b"\n", 1)
    content = first + b"\n" + bad + rest
    raw.write_bytes(content)
    with pytest.raises(ConversionError):
        convert(tmp_path, remove_raw=True)
    assert raw.read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def test_a_run_is_converted_once_and_only_if_there_is_a_trace(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="contains no trace"):
        convert(tmp_path)
    write_run(tmp_path)
    convert(tmp_path, remove_raw=True)
    assert not (tmp_path / "raw").exists()
    write_run(tmp_path)
    with pytest.raises(ConversionError, match="already exists"):
        convert(tmp_path)
