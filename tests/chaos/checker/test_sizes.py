"""How a trace is checked depends on how much there is of it, whether it is lines or columns."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from chaos.checker.intake import Intake, take_in
from chaos.checker.spark import ONE_TASK_BYTES, SparkEngine, is_quick, lines_bytes
from chaos.checker.synthetic import clean_trace
from chaos.trace.parquet import convert

pytestmark = pytest.mark.xdist_group("spark")


def test_converted_traces_count_by_what_they_were_as_lines(tmp_path: Path) -> None:
    clean_trace("r", rounds=2000).write(tmp_path)
    lines = take_in([tmp_path])
    convert(tmp_path, remove_raw=True)
    columns = take_in([tmp_path])
    assert columns.parquet_bytes == (tmp_path / "parquet" / "events.parquet").stat().st_size
    assert lines_bytes(lines) / 2 < lines_bytes(columns) < 2 * lines_bytes(lines)
    assert is_quick(columns)


def test_a_large_converted_trace_is_not_small() -> None:
    assert not is_quick(Intake((), (Path("parquet"),), ONE_TASK_BYTES, {}))


def test_no_row_of_a_short_trace_is_moved_to_be_grouped(spark: SparkSession, tmp_path: Path) -> None:
    clean_trace("r").write(tmp_path / "r")
    engine = SparkEngine(spark, tmp_path / "tables")
    engine.load(take_in([tmp_path / "r"]))
    short = spark.conf.get("spark.sql.maxPlanStringLength")
    spark.conf.set("spark.sql.maxPlanStringLength", "10000")
    try:
        frame = spark.sql("SELECT run, count(*) FROM events GROUP BY run")
        plan = frame._jdf.queryExecution().executedPlan().toString()
    finally:
        spark.conf.set("spark.sql.maxPlanStringLength", str(short))
    assert "Aggregate" in plan
    assert "Exchange" not in plan
