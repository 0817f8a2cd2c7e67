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

#: What `dledger-check` ends with.
_EXITS = {"valid": 0, "invalid": 1, "unknown": 2}
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

    The verdict is taken from what the checker says, not from a file in `report`: that may be of another run,
    and may be impossible to write.

    Raises:
        ConfigError: the checker itself failed.
    """
    command = [sys.executable, "-m", "chaos.checker.main", *map(str, folders), "--json", "--out", str(report)]
    # Files and not pipes: the checker's JVM may have things to put away after the checker has ended.
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        code = subprocess.run(command, stdout=output, stderr=errors, check=False).returncode
        output.seek(0)
        errors.seek(0)
        told, said = output.read(), errors.read()
    try:
        results = json.loads(told)
        if code != _EXITS[results["verdict"]]:
            raise ValueError(f"the verdict is {results['verdict']}")
        found = {run["run"]: (_VERDICTS[run["verdict"]], run["sentence"]) for run in results["runs"]}
        return {folder: found[_name_of(folder)] for folder in folders}
    except (ValueError, LookupError) as error:
        why = said[-2000:] or f"{type(error).__name__}: {error}"
        raise ConfigError(f"the checker failed ({code}): {why}") from None


def _name_of(folder: Path) -> str:
    """Of a run, as in every line of its trace."""
    with next((folder / "raw").iterdir()).open() as file:
        return str(json.loads(file.readline())["run"])
