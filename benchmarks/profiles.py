"""Flame graphs of a process, with py-spy."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.common import BenchError, child

_END_SECONDS = 60.0


def py_spy() -> str:
    """Return the path of py-spy. Raises BenchError if it is not installed."""
    found = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if found is None:
        raise BenchError(f"--profile needs py-spy: {sys.executable} -m pip install py-spy")
    return found


@contextmanager
def flame_graph(pid: int, path: Path, seconds: float) -> Iterator[None]:
    """Profile a process for `seconds` while the block puts load on it. Write the flame graph to `path` (SVG).

    Raises BenchError if py-spy fails.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    log = path.with_suffix(".log")
    command = [py_spy(), "record", "--pid", str(pid), "--duration", str(max(1, round(seconds))),
               "--format", "flamegraph", "--output", str(path)]  # fmt: skip
    with child(command, log) as process:
        yield
        try:
            code = process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
    if code or not path.exists():
        raise BenchError(f"py-spy failed ({log}): {log.read_text()[-500:].strip()}")
    log.unlink()
