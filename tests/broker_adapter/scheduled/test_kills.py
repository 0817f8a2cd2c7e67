"""A process that is killed at any call by which it writes the index of delayed messages loses nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.forked import environment

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("delay-index-kills")]

#: Every so many calls, of all together.
_PART = 30
_PARTS = (0, *(pytest.param(first, marks=pytest.mark.long) for first in range(1, _PART)))


def lives(folder: Path, kind: str, *numbers: int) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.broker_adapter.scheduled.killed_lives", str(folder), kind]
        + [str(number) for number in numbers],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many there are in one life."""
    return int(lives(tmp_path_factory.mktemp("whole"), "each", 0).split()[-1])


@pytest.mark.parametrize("first", _PARTS)
def test_a_kill_at_each_call_costs_neither_rows_nor_the_file(tmp_path: Path, calls: int, first: int) -> None:
    assert calls > 200
    lives(tmp_path, "each", *range(1 + first, calls + 1, _PART))


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 30))])
def test_kills_again_and_again_while_another_thread_syncs(tmp_path: Path, seed: int) -> None:
    lives(tmp_path, "random", seed)


def test_kills_before_the_first_checkpoint_do_not_let_the_write_ahead_log_grow(tmp_path: Path) -> None:
    lives(tmp_path, "early", 20)
