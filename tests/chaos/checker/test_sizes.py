"""How a trace is checked depends on how much there is of it, whether it is lines or columns."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from chaos.checker.engines.spark import (
    LARGE_HEAP_BYTES,
    ONE_TASK_BYTES,
    SparkEngine,
    heap_for,
    is_quick,
    lines_bytes,
)
from chaos.checker.intake import ColumnFile, Intake, inspect_runs
from chaos.trace.parquet import convert
from tests.chaos.checker.synthetic import clean_trace

pytestmark = pytest.mark.xdist_group("spark")


@pytest.mark.slow
def test_converted_traces_count_by_what_they_were_as_lines(tmp_path: Path) -> None:
    clean_trace("r", rounds=2000).write(tmp_path)
    lines = inspect_runs([tmp_path])
    convert(tmp_path, remove_raw=True)
    columns = inspect_runs([tmp_path])
    assert columns.parquet_bytes == (tmp_path / "parquet" / "events.parquet").stat().st_size
    assert lines_bytes(lines) / 2 < lines_bytes(columns) < 2 * lines_bytes(lines)
    assert is_quick(columns)


def columns_of(size: int) -> Intake:
    return Intake((), (ColumnFile(Path("run"), Path("run/parquet/events.parquet"), size),), {})


def test_a_large_converted_trace_is_not_small() -> None:
    assert not is_quick(columns_of(ONE_TASK_BYTES))


def test_only_a_large_trace_gets_the_large_heap() -> None:
    assert heap_for(columns_of(ONE_TASK_BYTES)) == "2g"
    assert heap_for(columns_of(LARGE_HEAP_BYTES)) == "4g"


def plan(spark: SparkSession, sql: str) -> str:
    short = spark.conf.get("spark.sql.maxPlanStringLength")
    spark.conf.set("spark.sql.maxPlanStringLength", "10000")
    try:
        return str(spark.sql(sql)._jdf.queryExecution().executedPlan().toString())
    finally:
        spark.conf.set("spark.sql.maxPlanStringLength", str(short))


def test_no_row_of_a_short_trace_is_moved_to_be_grouped(spark: SparkSession, tmp_path: Path) -> None:
    clean_trace("r").write(tmp_path / "r")
    engine = SparkEngine(spark, tmp_path / "tables")
    engine.load(inspect_runs([tmp_path / "r"]))
    found = plan(spark, "SELECT run, count(*) FROM events GROUP BY run")
    assert "Aggregate" in found
    assert "Exchange" not in found


def test_no_row_of_a_short_trace_is_sorted_to_be_joined(spark: SparkSession, tmp_path: Path) -> None:
    clean_trace("r").write(tmp_path / "r")
    engine = SparkEngine(spark, tmp_path / "tables")
    engine.load(inspect_runs([tmp_path / "r"]))
    engine.view("dump", "SELECT run, mid, node FROM events WHERE ev = 'dump'")
    engine.facts({"sent": "SELECT run, mid FROM events WHERE ev = 'op' AND mid IS NOT NULL"})
    found = plan(
        spark,
        "SELECT s.mid, n.n FROM sent s LEFT JOIN (SELECT run, mid, count(*) AS n FROM dump GROUP BY run, mid"
        ") n ON n.run = s.run AND n.mid = s.mid",
    )
    assert "ShuffledHashJoin" in found
    assert "Sort" not in found
    assert "Exchange" not in found
