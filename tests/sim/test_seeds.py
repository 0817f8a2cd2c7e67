"""Random runs: 5 seeds in `make test`, 10 in `make test-all`, 500 in `make test-long`, more in `make sim`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from dledger.testing import RunOptions, run_seed
from dledger.testing.profile import FAULTS, draw_profile

SEEDS = 500
SHORT = 10
CHUNK = 5
#: Seeds in which all happens that the longer range makes happen, by 3 nodes and by 5.
SOME = (5002, 5003, 5004, 5006)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "first",
    [
        pytest.param(0, marks=pytest.mark.smoke),
        *range(CHUNK, SHORT, CHUNK),
        *(pytest.param(first, marks=pytest.mark.long) for first in range(SHORT, SEEDS, CHUNK)),
    ],
)
def test_seeds(first: int) -> None:
    for seed in range(first, first + CHUNK):
        result = run_seed(seed)
        assert result.failure is None, result.failure


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 50))]
)
def test_seeds_with_early_pre_votes_after_a_silence_of_the_leader(seed: int) -> None:
    profile = draw_profile(Random(f"profile {seed}"))
    timing = replace(profile.timing, silence_ms=profile.timing.election_min_ms // 2)
    result = run_seed(seed, RunOptions(profile=replace(profile, timing=timing)))
    assert result.failure is None, result.failure


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1344, 5006, 30008, 30053, 70035, 501299])
def test_seeds_that_once_failed(seed: int) -> None:
    """Damage that all others had purged; ends and headers that were damaged while a node was down; and of the
    simulator's own making: clients less patient than the queue in front of them was long, a flipped bit that
    was forgotten when it was repaired in the page cache only."""
    result = run_seed(seed)
    assert result.failure is None, result.failure


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("nodes", "on_disk", "seeds"),
    [
        *((3, False, SOME), (5, True, range(4998, 5009))),
        *(
            pytest.param(nodes, on_disk, range(5000, 5008), marks=pytest.mark.long)
            for nodes in (3, 5)
            for on_disk in (False, True)
        ),
    ],
    ids=str,
)
def test_each_size_and_store(nodes: int, on_disk: bool, seeds: Sequence[int]) -> None:
    """What is asked for is what runs; and much of what can happen does happen."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        result = run_seed(seed, RunOptions(nodes=nodes, on_disk=on_disk))
        assert result.failure is None, result.failure
        assert (result.profile.nodes, result.profile.on_disk) == (nodes, on_disk)
        counts += result.counts
    expected = ["elections won", "truncations", "crashes: power", "crashes: process", "leader streams lost"]
    expected += ["duplicates answered", "reads", "pushes loaded from disk", "checkpoints", "graceful stops"]
    expected += ["pauses", "messages lost", "messages repeated", "transfers done", "appends acknowledged"]
    if on_disk:
        expected.append("crashes: inside a disk operation")
    assert not [name for name in expected if not counts[name]], counts
    assert not [name for name in FAULTS if not counts[f"faults: {name}"]], counts
