"""One Spark session for all tests of the checker: it takes longer to start than the tests take to run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from chaos.checker.checks import CHECKS
from chaos.checker.intake import inspect_runs
from chaos.checker.judge import RunJudgment, judge
from chaos.checker.main import check_loaded
from chaos.checker.tables import make_tables
from tests.chaos.checker.bad_traces import write_bad_traces, write_converted_twice
from tests.chaos.checker.duck import DuckEngine
from tests.chaos.checker.runs import (
    convert_cases,
    convert_histories,
    for_spark,
    histories_for_spark,
    write_as_parquet,
    write_mutations,
)
from tests.conftest import is_long

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: For tests that may be the first to wait for `by_spark`: minutes where other tests have the cores.
WAITS_FOR_SPARK = pytest.mark.timeout(1800)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from chaos.checker.engines.spark import start

    work_dir = tmp_path_factory.mktemp("spark")
    session = start(work_dir, master="local[2]", memory="1g", quick=True)
    yield session
    with warnings.catch_warnings():
        # py4j leaves its sockets to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        session.stop()


@pytest.fixture(scope="session")
def mutated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, RunJudgment]]:
    """Planted defects and clean traces, judged by the second engine: directory and result of each."""
    folders = write_mutations(tmp_path_factory.mktemp("mutations"))
    engine = DuckEngine()
    engine.load(folders)
    make_tables(engine)
    results = {result.run: result for result in judge(engine, CHECKS)}
    return {folder.name: (folder, results[folder.name]) for folder in folders}


@pytest.fixture(scope="session")
def by_spark(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> dict[str, RunJudgment]:
    """Run -> what was found. All checks, in one job over all that tests want to have judged by Spark: each of
    some hundred queries takes longer to plan than to run. Of planted defects and of histories it is a part,
    unless tests are long."""
    from chaos.checker.engines.spark import SparkEngine

    folder, everything = tmp_path_factory.mktemp("together"), is_long(pytestconfig)
    mutations = {path.name: path for path in write_mutations(folder / "mutations")}
    histories = convert_histories(folder / "histories")
    cases = convert_cases(folder / "cases")
    intake = inspect_runs(
        [
            *map(mutations.__getitem__, for_spark(mutations, everything=everything)),
            *map(histories.__getitem__, histories_for_spark(histories, everything=everything)),
            *map(cases.__getitem__, histories_for_spark(cases, everything=everything)),
            *write_as_parquet(folder / "parquet"),
            *write_bad_traces(folder / "bad"),
            # All lines twice violate nearly every check, and the witnesses of each are a query.
            *(write_converted_twice(folder) if everything else []),
        ]
    )
    engine = SparkEngine(spark, folder / "tables")
    engine.load(intake)
    results, _ = check_loaded(engine, intake, CHECKS)
    return {result.run: result for result in results}
