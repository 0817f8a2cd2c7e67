"""One Spark session for all tests of the checker: it takes longer to start than the tests take to run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from chaos.checker.checks import CHECKS
from chaos.checker.checks.registry import Check, Severity
from chaos.checker.intake import take_in
from chaos.checker.judge import RunResult, judge
from chaos.checker.main import check_loaded
from chaos.checker.tables import make_tables
from tests.chaos.checker.duck import DuckEngine
from tests.chaos.checker.runs import convert_cases, convert_histories, for_spark, write_mutations

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Checks that one can wait for when what is tested is something else.
FEW = tuple(c for c in CHECKS if c.severity is Severity.VOID or c.id in {"L1", "L2", "L4", "L5", "L6b", "L7"})

#: For tests that may be the first to wait for `by_spark`: minutes where other tests have the cores.
WAITS_FOR_SPARK = pytest.mark.timeout(1800)

CheckRuns = Callable[..., dict[str, RunResult]]


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


@pytest.fixture
def check_runs(spark: SparkSession, tmp_path: Path) -> CheckRuns:
    """Checks run directories with Spark; run -> what was found."""
    number = count()

    def check(*run_dirs: Path, checks: tuple[Check, ...] = FEW) -> dict[str, RunResult]:
        return _check(spark, tmp_path / f"tables{next(number)}", run_dirs, checks)

    return check


@pytest.fixture(scope="session")
def mutated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, RunResult]]:
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
) -> dict[str, RunResult]:
    """All checks on planted defects (all where tests are long) and all histories in one go: each of some
    hundred queries takes longer to plan than to run. Run -> what was found."""
    folder = tmp_path_factory.mktemp("together")
    mutations = {path.name: path for path in write_mutations(folder / "mutations")}
    run_dirs = [
        *map(mutations.__getitem__, for_spark(mutations, everything=pytestconfig.getoption("--long"))),
        *convert_histories(folder / "histories").values(),
        *convert_cases(folder / "cases").values(),
    ]
    return _check(spark, folder / "tables", run_dirs, CHECKS)


def _check(
    spark: SparkSession, tables: Path, run_dirs: Sequence[Path], checks: tuple[Check, ...]
) -> dict[str, RunResult]:
    from chaos.checker.engines.spark import SparkEngine

    intake = take_in(list(run_dirs))
    engine = SparkEngine(spark, tables)
    engine.load(intake)
    results, _ = check_loaded(engine, intake, checks)
    return {result.run: result for result in results}
