"""Random runs of clusters with brokers: 4 seeds in `make test`, 40 in `make test-long`; `make sim-broker
SEEDS=n` runs any number."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from io import StringIO
from itertools import zip_longest
from pathlib import Path

import pytest

from tests.broker_adapter.simulator import run_seed
from tests.broker_adapter.simulator.test_planted_bugs import SHORTENED

ROOT = Path(__file__).parents[3]
CHUNK = 4
#: 37: a consumer pulled while queues were made again from an image, and skipped messages.
SHORT = (0,)
LONG = range(4, 40, CHUNK)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", [*SHORT, *(pytest.param(first, marks=pytest.mark.long) for first in LONG)])
def test_seeds(first: int) -> None:
    for seed in range(first, first + CHUNK):
        result = run_seed(seed)
        assert result.failure is None, result.failure


@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds", [range(1002, 1008), pytest.param(range(1000, 1012), marks=pytest.mark.long)], ids=str
)
def test_much_of_what_can_happen_does_happen(seeds: range) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        result = run_seed(seed, SHORTENED if seed % 4 == 0 else None)
        assert result.failure is None, result.failure
        counts += result.counts
    expected = ["masterships", "messages acknowledged", "messages consumed", "commits acknowledged"]
    expected += ["offsets reset", "topics deleted", "states recovered", "states loaded", "purges committed"]
    expected += ["state pieces replayed", "crashes: process", "crashes: power", "graceful stops"]
    expected += [f"poison: {kind}" for kind in ("garbage", "metadata", "delivery", "hole", "far", "before")]
    expected += ["sends: NOT_MASTER", "sends: OUTCOME_UNKNOWN", "commits: GENERATION_STALE", "offsets read"]
    assert not [name for name in expected if not counts[name]], counts


@pytest.fixture(scope="module")
def trace() -> str:
    """Of seed 19, with the hashes of this process."""
    return trace_of_seed_19()


def trace_of_seed_19() -> str:
    sink = StringIO()
    assert run_seed(19, sink=sink).failure is None
    return sink.getvalue()


def assert_same(trace: str, other: str) -> None:
    """Name the first line that differs: pytest's comparison of two whole traces takes minutes."""
    for number, (line, other_line) in enumerate(zip_longest(trace.splitlines(), other.splitlines()), 1):
        assert line == other_line, f"line {number}"


@pytest.fixture
def frequent_collection() -> Iterator[None]:
    """Run the garbage collector after every 50 allocations."""
    thresholds = gc.get_threshold()
    gc.set_threshold(50, 3, 3)
    yield
    gc.set_threshold(*thresholds)


@pytest.mark.slow
@pytest.mark.usefixtures("frequent_collection")
def test_the_trace_does_not_depend_on_the_garbage_collector(trace: str) -> None:
    """Received batches that no consumer closed were released by the collector, in a turn of their own."""
    assert_same(trace_of_seed_19(), trace)
    assert "healing" in trace


@pytest.mark.slow
@pytest.mark.parametrize("hash_seed", [pytest.param("0", marks=pytest.mark.long), "4711"])
def test_the_trace_does_not_depend_on_hashes(tmp_path: Path, trace: str, hash_seed: str) -> None:
    """Receives that wait were woken in the order of a set once."""
    path = tmp_path / "trace.txt"
    subprocess.run(
        [sys.executable, "-m", "tests.broker_adapter.simulator", "--first", "19", "--trace", str(path)],
        env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    assert_same(path.read_text(encoding="utf-8"), trace)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed == 3 else pytest.mark.long) for seed in range(6)]
)
def test_nodes_that_make_their_queues_again_let_nobody_skip(seed: int) -> None:
    """It once was so with seed 3: the old queues of a node that had lost its log, and those of one that was
    filling them in from an image, seemed to begin later than they do."""
    result = run_seed(seed, SHORTENED)
    assert result.failure is None, result.failure
