"""Traces as Parquet files are judged as the raw lines that they were made of."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from chaos.checker.intake import PARQUET_DIR
from chaos.checker.judge import RunResult, Verdict
from chaos.checker.synthetic import clean_trace
from chaos.trace.schema import FIELDS, RAW_DIR, Kind
from tests.chaos.checker.conftest import CheckRuns
from tests.chaos.checker.mutations import MUTATIONS

pytestmark = pytest.mark.xdist_group("spark")

_TYPES = {Kind.INT: "BIGINT", Kind.STR: "VARCHAR", Kind.BOOL: "BOOLEAN"}


def convert(run_dir: Path, folder: Path) -> Path:
    """A run directory with Parquet instead of raw lines. One of the columns that no line has is left out."""
    names = {name: _TYPES[kind] for name, kind in FIELDS.items() if name != "broker"}
    columns = ", ".join(f"'{name}': '{kind}'" for name, kind in names.items())
    (folder / PARQUET_DIR).mkdir(parents=True)
    duckdb.execute(
        f"""COPY (SELECT * FROM read_json('{run_dir / RAW_DIR}/*.jsonl', columns = {{{columns}}},
        format = 'newline_delimited')) TO '{folder / PARQUET_DIR}/part-0.parquet' (FORMAT parquet)"""
    )
    return folder


def counted(result: RunResult) -> list[tuple[str, Verdict, int, int]]:
    return [(f.check.id, f.verdict, f.population, f.violations) for f in result.findings]


def test_parquet_is_judged_as_raw_lines(check_runs: CheckRuns, tmp_path: Path) -> None:
    (mutation,) = [m for m in MUTATIONS if m.name == "an_id_is_used_twice"]
    for name in ("sound", "broken"):
        trace = clean_trace(name, seed=3)
        if name == "broken":
            mutation.change(trace)
        trace.write(tmp_path / name)
    raw = check_runs(tmp_path / "sound", tmp_path / "broken")
    converted = [convert(tmp_path / name, tmp_path / f"{name}-parquet") for name in ("sound", "broken")]
    parquet = check_runs(*converted)
    assert {run: result.verdict for run, result in parquet.items()} == {
        "sound": Verdict.VALID,
        "broken": Verdict.INVALID,
    }
    for run, result in parquet.items():
        assert (counted(result), result.reasons) == (counted(raw[run]), raw[run].reasons)
