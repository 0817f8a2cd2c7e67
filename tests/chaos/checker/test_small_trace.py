"""One small trace by Spark, for `make test`: the other tests of Spark judge hundreds of them in one job."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from chaos.checker.checks import CHECKS
from chaos.checker.engines.spark import SparkEngine
from chaos.checker.intake import inspect_runs
from chaos.checker.judge import CheckVerdict
from chaos.checker.main import check_loaded
from tests.chaos.checker.mutations.base import MUTATIONS
from tests.chaos.checker.runs import short_trace

pytestmark = pytest.mark.xdist_group("spark")
LOST = "a_slave_takes_over_without_what_was_acknowledged"


def test_spark_finds_a_lost_entry_in_a_small_trace_and_nothing_in_a_clean_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    mutation = next(one for one in MUTATIONS if one.name == LOST)
    folders = []
    for name in ("clean", "lost"):
        trace = short_trace(name, broker=mutation.broker)
        if name == "lost":
            mutation.change(trace)
        trace.write(tmp_path / name)
        folders.append(tmp_path / name)
    intake = inspect_runs(folders)
    engine = SparkEngine(spark, tmp_path / "tables")
    engine.load(intake)
    results, _ = check_loaded(engine, intake, [check for check in CHECKS if check.id in mutation.expected])
    assert {result.run: result.verdict is CheckVerdict.INVALID for result in results} == {
        "clean": False,
        "lost": True,
    }
