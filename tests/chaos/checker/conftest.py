"""One Spark session for all tests of the checker: it takes longer to start than the tests take to run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from chaos.checker.checks import CHECKS
from chaos.checker.intake import take_in
from chaos.checker.judge import RunResult
from chaos.checker.main import check_loaded
from chaos.checker.registry import Check, Severity

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Checks that one can wait for when what is tested is something else.
FEW = tuple(c for c in CHECKS if c.severity is Severity.VOID or c.id in {"L1", "L2", "L4", "L5", "L6b", "L7"})

CheckRuns = Callable[..., dict[str, RunResult]]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from chaos.checker.spark import start

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
    from chaos.checker.spark import SparkEngine

    number = count()

    def check(*run_dirs: Path, checks: tuple[Check, ...] = FEW) -> dict[str, RunResult]:
        intake = take_in(list(run_dirs))
        engine = SparkEngine(spark, tmp_path / f"tables{next(number)}")
        engine.load(intake)
        results, _ = check_loaded(engine, intake, checks)
        return {result.run: result for result in results}

    return check
