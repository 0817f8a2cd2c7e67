"""Random runs whose members change all the time, by the series of `python -m dledger.testing --members`."""

from __future__ import annotations

from collections import Counter

import pytest

from dledger.testing import RunOptions, run_seed
from dledger.testing.profile import MEMBER_SERIES

SEEDS = 40
SHORT = 1
#: What happens in a few seeds of every series, and of one series.
ALWAYS = ("changes of members: done", "elections won", "disks of voters lost")
EXPECTED = {
    "3-5-3": ("numbers of voters reached: 5",),
    "1-3-1": ("numbers of voters reached: 1", "numbers of voters reached: 3"),
    "lost": ("disks of learners lost", "lost disks returned", "earlier disks refused"),
    "images": ("logs begun anew at a base", "images committed", "purges committed"),
    "leaders": (),
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("series", MEMBER_SERIES)
@pytest.mark.parametrize(
    "seed", [*range(SHORT), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(SHORT, SEEDS))]
)
def test_seeds_of_each_series(series: str, seed: int) -> None:
    result = run_seed(seed, RunOptions(members=series))
    assert result.failure is None, result.failure


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("series", MEMBER_SERIES)
def test_each_series_does_what_it_is_for(series: str) -> None:
    counts: Counter[str] = Counter()
    for seed in range(1000, 1010):
        result = run_seed(seed, RunOptions(members=series))
        assert result.failure is None, result.failure
        counts += result.counts
    assert not [name for name in (*ALWAYS, *EXPECTED[series]) if not counts[name]], counts


def test_a_failed_seed_names_the_series_to_repeat_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("planted")

    monkeypatch.setattr("dledger.testing.run.check_end", fail)
    monkeypatch.setattr("dledger.testing.run._await_progress", fail)
    result = run_seed(3, RunOptions(members="1-3-1"))
    assert result.failure is not None and "--first 3 --members 1-3-1" in result.failure
