"""The second engine in the place of Spark, for tests of the command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chaos.checker.intake import Intake
from chaos.checker.main import Load
from tests.chaos.checker.duck import DuckEngine


@contextmanager
def duck_loader(work_dir: Path, *, master: str | None, memory: str | None, growing: bool) -> Iterator[Load]:
    """In the place of `spark_loader`."""

    def load(intake: Intake) -> DuckEngine:
        engine = DuckEngine()
        engine.load_files([file.path for file in intake.raw])
        return engine

    yield load
