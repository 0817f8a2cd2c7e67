"""The alarm is tested: each mistake is planted, and the simulator has to notice it within some seeds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker_adapter.testing import run_seed
from tests.broker_adapter.testing import planted
from tests.sim import planted_owners

MOST_SEEDS = 60

PLANTS: list[planted.Plant] = [
    planted_owners.stamp_not_reckoned_with,
    planted.table_not_recovered,
    planted.dispatch_not_waited_for,
    planted.offsets_taken_before_the_log_agrees,
    planted.fence_late,
    planted.gate_opened_by_an_older_event,
    planted.acknowledged_before_it_is_committed,
    planted.uncommitted_entries_dispatched,
    planted.derived_files_trusted,
    planted.checkpoint_with_old_metadata,
    planted.image_without_floors,
    planted.queues_not_refilled_after_an_image,
    planted.purged_one_too_many,
    planted.deleted_messages_come_back,
    planted.index_forgets_a_batch,
    planted.last_of_a_batch_skipped,
    planted.stale_generation_accepted,
    planted.lower_offset_wins,
    planted.generation_does_not_grow,
    planted.commit_acknowledged_before_the_log_has_it,
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_found_by_seeds(
    plant: planted.Plant, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    plant(monkeypatch)
    for seed in range(MOST_SEEDS):
        result = run_seed(seed)
        if result.failure is not None:
            record_property("seeds", seed + 1)
            print(f"{plant.__name__}: found by seed {seed + 1} of {MOST_SEEDS}, [{result.rule}]")
            return
    pytest.fail(f"{plant.__name__} was not noticed in {MOST_SEEDS} seeds: {plant.__doc__}")


def test_canary(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this one is not seen at once, by every seed, nothing that the simulator says is worth anything."""
    planted.messages_never_given(monkeypatch)
    for seed in range(5):
        assert run_seed(seed).failure is not None
