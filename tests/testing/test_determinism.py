"""The same seed is the same run, byte for byte: otherwise no failure could be looked at twice."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from dledger.testing import run_seed

ROOT = Path(__file__).resolve().parents[2]


def _trace(seed: int) -> str:
    sink = io.StringIO()
    result = run_seed(seed, sink=sink)
    assert result.failure is None, result.failure
    return sink.getvalue()


@pytest.mark.parametrize("seed", [1, 7, 12])
def test_same_seed_same_trace(seed: int) -> None:
    first, second = _trace(seed), _trace(seed)
    assert len(first.splitlines()) > 1000
    assert first == second


def test_other_seed_other_trace() -> None:
    assert _trace(1) != _trace(2)


@pytest.mark.parametrize("hash_seed", ["0", "1", "4711"])
def test_trace_does_not_depend_on_hashes(hash_seed: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    done = subprocess.run(
        [sys.executable, "-m", "dledger.testing", "--first", "7", "--trace", str(path)],
        env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert path.read_text(encoding="utf-8") == _trace(7)
