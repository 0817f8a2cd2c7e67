"""What shows only while a minority of the nodes is gone for good, and never once everybody is back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dledger.core import leadership
from dledger.core.values import Membership
from dledger.testing import Profile, RunOptions, run_seed

GONE = Profile(faults=("isolate",), fault_phase_ms=1500, minority_gone=True)
SEEDS = 3


def _every_member_has_to_store(patch: pytest.MonkeyPatch) -> None:
    """Entries are committed once all members have them: more than is promised, until one is gone."""

    def committed_by(membership: Membership, match_indexes: dict[str, int]) -> int:
        return min(match_indexes.get(voter, -1) for voter in membership.voters)

    patch.setattr(leadership, "committed_by", committed_by)


def _failures(profile: Profile) -> list[str | None]:
    return [run_seed(seed, RunOptions(profile=profile)).rule for seed in range(SEEDS)]


@pytest.mark.slow
def test_planted_wait_for_all_members_shows_only_while_a_minority_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _failures(GONE) == [None] * SEEDS
    _every_member_has_to_store(monkeypatch)
    assert _failures(replace(GONE, minority_gone=False)) == [None] * SEEDS
    assert _failures(GONE) == ["liveness"] * SEEDS
