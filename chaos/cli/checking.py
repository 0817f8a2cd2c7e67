"""Having the Spark checker judge runs, as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from chaos.checker.engines.java import NoJava, java_home
from chaos.verdict import Verdict
from dledger.errors import ConfigError

_VERDICTS = {"valid": Verdict.VALID, "invalid": Verdict.INVALID, "unknown": Verdict.VOID}


def require_checker() -> None:
    """ConfigError says what the checker lacks to run here."""
    if find_spec("pyspark") is None:
        raise ConfigError("--check needs Spark: pip install 'dledger[checker]'")
    with tempfile.TemporaryDirectory() as folder:
        try:
            java_home(Path(folder))
        except NoJava as error:
            raise ConfigError(f"--check: {error}") from None


def check_runs(folders: Sequence[Path], report: Path) -> dict[Path, tuple[Verdict, str]]:
    """Judge runs in one go, into the directory `report`: verdict and sentence of each.

    ConfigError: the checker itself failed.
    """
    command = [sys.executable, "-m", "chaos.checker.main", *map(str, folders), "--out", str(report)]
    # A file and not a pipe: the checker's JVM may have things to put away after the checker has ended.
    with tempfile.TemporaryFile("w+") as errors:
        code = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=errors, check=False).returncode
        errors.seek(0)
        said = errors.read()
    try:
        runs = json.loads((report / "results.json").read_text())["runs"]
    except (OSError, ValueError):
        raise ConfigError(f"the checker failed ({code}): {said[-2000:]}") from None
    found = {run["run"]: (_VERDICTS[run["verdict"]], run["sentence"]) for run in runs}
    return {folder: found[_name_of(folder)] for folder in folders}


def _name_of(folder: Path) -> str:
    """Of a run, as in every line of its trace."""
    with next((folder / "raw").iterdir()).open() as file:
        return str(json.loads(file.readline())["run"])
