"""Verdicts of the Spark checker on runs, from a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from chaos.checker.engines.java import JavaNotFound, java_home
from chaos.verdict import RunVerdict
from dledger.errors import ConfigError

#: Exit codes of `dledger-check`.
_EXITS = {"valid": 0, "invalid": 1, "unknown": 2}
_VERDICTS = {"valid": RunVerdict.VALID, "invalid": RunVerdict.INVALID, "unknown": RunVerdict.VOID}


def require_checker() -> None:
    """Check that Spark and Java are available. Raises ConfigError, which names what is missing."""
    if find_spec("pyspark") is None:
        raise ConfigError("--check needs Spark: pip install 'dledger[checker]'")
    with tempfile.TemporaryDirectory() as folder:
        try:
            java_home(Path(folder))
        except JavaNotFound as error:
            raise ConfigError(f"--check: {error}") from None


def check_runs(folders: Sequence[Path], report: Path) -> dict[Path, tuple[RunVerdict, str]]:
    """Judge runs in one pass and write the report to the directory `report`; return verdict and sentence of
    each.

    The verdicts are read from the checker's output, because a file in `report` may belong to another run, or
    it may have been impossible to write.

    Raises:
      ConfigError: the checker itself failed.
    """
    command = [sys.executable, "-m", "chaos.checker.main", *map(str, folders), "--json", "--out", str(report)]
    # Files instead of pipes: the checker's JVM may still clean up after the checker has exited.
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        code = subprocess.run(command, stdout=output, stderr=errors, check=False).returncode
        output.seek(0)
        errors.seek(0)
        result_json, log = output.read(), errors.read()
    try:
        results = json.loads(result_json)
        if code != _EXITS[results["verdict"]]:
            raise ValueError(f"the verdict is {results['verdict']}")
        verdicts = {run["run"]: (_VERDICTS[run["verdict"]], run["sentence"]) for run in results["runs"]}
        return {folder: verdicts[_name_of(folder)] for folder in folders}
    except (ValueError, LookupError) as error:
        why = log[-2000:] or f"{type(error).__name__}: {error}"
        raise ConfigError(f"the checker failed ({code}): {why}") from None


def _name_of(folder: Path) -> str:
    """Return the name of a run, which every line of its trace contains."""
    with next((folder / "raw").iterdir()).open() as file:
        return str(json.loads(file.readline())["run"])
