"""Traces as Parquet files are judged as the raw lines that they were made of."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from chaos.checker.checks import CHECKS
from chaos.checker.intake import PARQUET_DIR
from chaos.checker.judge import RunResult, Verdict
from chaos.trace.parquet import convert
from chaos.trace.schema import FIELDS, RAW_DIR, Kind
from tests.chaos.checker.conftest import FEW, WAITS_FOR_SPARK, CheckRuns
from tests.chaos.checker.runs import write_mutations

pytestmark = pytest.mark.xdist_group("spark")

_TYPES = {Kind.INT: "BIGINT", Kind.STR: "VARCHAR", Kind.BOOL: "BOOLEAN"}


def convert_without_a_column(run_dir: Path, folder: Path) -> None:
    """A run directory with Parquet instead of raw lines. One of the columns that no line has is left out."""
    names = {name: _TYPES[kind] for name, kind in FIELDS.items() if name != "broker"}
    columns = ", ".join(f"'{name}': '{kind}'" for name, kind in names.items())
    (folder / PARQUET_DIR).mkdir(parents=True)
    duckdb.execute(
        f"""COPY (SELECT * FROM read_json('{run_dir / RAW_DIR}/*.jsonl', columns = {{{columns}}},
        format = 'newline_delimited')) TO '{folder / PARQUET_DIR}/part-0.parquet' (FORMAT parquet)"""
    )


def counted(result: RunResult, ids: set[str]) -> list[tuple[str, Verdict, int, int]]:
    return [(f.check.id, f.verdict, f.population, f.violations) for f in result.findings if f.check.id in ids]


@WAITS_FOR_SPARK
def test_parquet_is_judged_as_raw_lines(
    check_runs: CheckRuns, by_spark: dict[str, RunResult], tmp_path: Path
) -> None:
    """Of either writer: files that lack a column, and those of the product."""
    for run_dir in write_mutations(tmp_path / "raw"):
        if run_dir.name in ("clean_True", "a_late_read_claims_to_know_the_end"):
            convert_without_a_column(run_dir, tmp_path / "parquet" / run_dir.name)
        elif run_dir.name in ("clean_kinds", "a_node_votes_twice"):
            convert(run_dir, remove_raw=True)
            run_dir.rename(tmp_path / "parquet" / run_dir.name)
    checks = tuple(check for check in CHECKS if check in FEW or check.id in {"C4", "L14", "R2", "R16"})
    parquet = check_runs(*sorted((tmp_path / "parquet").iterdir()), checks=checks)
    assert {run: result.verdict for run, result in parquet.items()} == {
        "clean_True": Verdict.VALID,
        "a_late_read_claims_to_know_the_end": Verdict.INVALID,
        "clean_kinds": Verdict.VALID,
        "a_node_votes_twice": Verdict.INVALID,
    }
    ids = {check.id for check in checks}
    for run, result in parquet.items():
        raw = by_spark[run]
        assert (counted(result, ids), result.reasons) == (counted(raw, ids), raw.reasons)
    assert [f.check.id for f in parquet["a_node_votes_twice"].findings if f.violations] == ["R2", "R16"]
