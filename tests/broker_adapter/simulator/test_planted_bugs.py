"""The alarm is tested: each mistake is planted, and the simulator has to notice it within some seeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dledger.replica.retention import RetentionLimits
from dledger.testing import Profile
from tests.broker_adapter.simulator import broker_profile, planted, planted_delivery, run_seed
from tests.seed_records import SeedRecords
from tests.sim import planted_owners

MOST_SEEDS = 60
SEEDS = SeedRecords(Path(__file__).with_name("found_by.json"), MOST_SEEDS)

#: A log that is shortened all the time, and nodes that lose theirs, or what they had derived from it.
SHORTENED = replace(
    broker_profile(0),
    faults=("lose_disk", "crash_power", "crash_in_derived_files", "isolate"),
    fault_every_ms=250,
    fault_phase_ms=8000,
    loss=0.0,
    think_max_ms=15,
    fsync_max_ms=5,
    retention=RetentionLimits(max_bytes=16_384, hold_bytes=0, check_ms=20),
)

BY_PROFILE: list[tuple[planted.Plant, Profile]] = [
    (planted.image_without_floors, SHORTENED),
    (planted.queues_not_refilled_after_an_image, SHORTENED),
    (planted_delivery.delayed_messages_purged, SHORTENED),
    (planted_delivery.carried_messages_lost, SHORTENED),
]
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
    planted.purged_one_too_many,
    planted.deleted_messages_come_back,
    planted.messages_behind_the_deletion_of_their_topic,
    planted.deletions_under_way_overlooked,
    planted.topics_expire_with_their_messages,
    planted.files_of_deleted_topics_stay,
    planted.files_go_that_were_taken_back,
    planted.queries_find_what_was_deleted,
    planted.index_forgets_a_batch,
    planted.last_of_a_batch_skipped,
    planted.commits_undo_a_reset,
    planted.lower_offset_wins,
    planted.commit_acknowledged_before_the_log_has_it,
    planted_delivery.image_without_delivery,
    planted_delivery.ids_not_looked_up,
    planted_delivery.ids_of_rolled_back_messages_stay,
    planted_delivery.acks_answered_at_once,
    planted_delivery.two_ends_of_a_deferred_message,
    planted_delivery.overdue_acks_count,
    planted_delivery.order_not_kept,
    planted_delivery.lost_grants_renewed,
    planted_delivery.letters_stored_before_the_state_has_spoken,
    planted_delivery.first_offset_of_the_proposer,
    planted_delivery.one_group_takes_all_the_room,
    planted_delivery.purged_messages_stay_pending,
    planted_delivery.grants_without_an_end,
]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("plant", "profile"),
    [*((plant, None) for plant in PLANTS), *BY_PROFILE],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_found_by_seeds(
    plant: planted.Plant, profile: Profile | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    SEEDS.find(plant.__name__, lambda seed: run_seed(seed, profile), plant.__doc__)


def test_canary(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this one is not seen at once, by every seed, nothing that the simulator says is worth anything."""
    planted.messages_never_given(monkeypatch)
    for seed in range(5):
        assert run_seed(seed).failure is not None
