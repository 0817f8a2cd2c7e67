"""The alarm is tested: each classic mistake is planted, and the simulator has to notice it.

Most are found by seeds as `make sim` runs them. Some need histories that the protocol makes rare by other
rules, and are looked for under a profile that makes those histories frequent; and some cannot happen at all
without a message that is out of place, and are found by the named scenario that puts it there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from dledger.errors import StorageError
from dledger.infra.files.disk import CrashKind
from dledger.store import image_files
from dledger.testing import Profile, RunOptions, Violation, run_seed
from dledger.testing.virtual.sim_disk import CrashPoint, SimDisk
from tests.client import test_session_appends
from tests.conftest import is_long
from tests.core import test_commit_stall, test_installed_base, test_membership, test_rejoining
from tests.node import test_bad_days, test_owner, test_state_feeder
from tests.node.disk import test_disk_reports
from tests.replica import (
    test_admission,
    test_log_state,
    test_partly_purged_damage,
    test_rebuilding,
    test_replaced_logs,
    test_replica,
    test_shared_images,
)
from tests.rpc import test_peer_service
from tests.seed_records import SeedRecords
from tests.sim import (
    planted,
    planted_bad_days,
    planted_disk,
    planted_images,
    planted_members,
    planted_owners,
    planted_purges,
    planted_stalls,
    planted_streams,
    test_clock_scenarios,
    test_damage_scenarios,
    test_damaged_starts,
    test_disk_scenarios,
    test_liveness_scenarios,
    test_member_scenarios,
    test_rejoin_scenarios,
    test_retention_scenarios,
    test_scenarios,
    test_session_scenarios,
    test_stall_scenarios,
)
from tests.store import test_image_files, test_purged_damage

MOST_SEEDS = 300
SEEDS = SeedRecords(Path(__file__).with_name("found_by.json"), MOST_SEEDS)

#: Streams and links that break all the time, clocks far apart, many readers.
ROUGH = Profile(
    fault_phase_ms=5000,
    fault_every_ms=100,
    delay_max_ms=20,
    spike=0.05,
    late_delivery=0.9,
    keepalive_ms=80,
    think_max_ms=5,
    fsync_max_ms=5,
    skew=0.35,
    readers=4,
    duplication=0.1,
)
DEPOSED_READERS = replace(
    ROUGH,
    nodes=5,
    readers=12,
    think_max_ms=2,
    faults=("isolate", "split", "one_way", "pause", "break_stream"),
    fault_every_ms=200,
    keepalive_ms=40,
)

#: Nodes that lose their logs while others are cut off.
AMNESIA = replace(
    ROUGH,
    faults=("lose_disk", "isolate", "split", "crash_power", "slow_disk"),
    fault_every_ms=150,
    fault_phase_ms=8000,
)

#: Real files, processes killed and machines without power in turns.
POWER = replace(
    ROUGH,
    on_disk=True,
    faults=("crash_process", "crash_power", "crash_all", "crash_in_disk_operation"),
    fault_every_ms=80,
    fsync_max_ms=25,
)

#: Real files, and bits that flip under them.
ROTTEN = replace(
    ROUGH,
    on_disk=True,
    faults=("flip_bits", "flip_bits", "crash_process", "crash_power", "crash_all"),
    fault_every_ms=150,
    scrub_every_ms=100,
)

#: Leaders that hand over, lose their logs, and lead again.
REJOINED = replace(
    ROUGH,
    faults=("lose_disk", "transfer", "transfer", "transfer"),
    fault_every_ms=400,
    fault_phase_ms=8000,
    preferred_leaders=("n1",),
)

#: Owned nodes between which leadership goes to and fro.
OWNED = replace(
    ROUGH,
    owned=True,
    faults=("transfer", "isolate"),
    fault_every_ms=200,
    fault_phase_ms=10_000,
)

#: Members that change all the time, and machines that come back after they were replaced.
MEMBERS = replace(
    ROUGH,
    nodes=6,
    spares=3,
    skew=0.0,
    fault_phase_ms=6000,
    plain_clients=2,
    session_clients=1,
    faults=(
        *("change_members", "change_members", "change_members", "return_disk", "return_disk"),
        *("isolate", "split", "one_way", "pause", "crash_process", "break_all_streams", "transfer"),
    ),
)

#: Machines whose clocks are wrong by minutes or years.
CLOCKS = replace(
    ROUGH,
    faults=("clock_jump", "clock_jump", "transfer", "crash_all"),
    fault_every_ms=300,
    fault_phase_ms=8000,
)

BY_SEEDS: list[tuple[planted.Plant, Profile | None]] = [
    (planted_members.only_the_new_half_decides, MEMBERS),
    (planted_members.learners_count, MEMBERS),
    (planted_members.removed_leader_counts_itself, MEMBERS),
    (planted_members.only_its_own_change_is_ended, MEMBERS),
    (planted_members.members_not_recorded, MEMBERS),
    (planted_members.new_members_not_pushed_to, MEMBERS),
    (planted_members.removed_leader_stays, MEMBERS),
    (planted_members.only_the_old_half_decides, MEMBERS),
    (planted_members.halves_are_one_set, MEMBERS),
    (planted_members.voters_change_in_one_step, MEMBERS),
    (planted_members.in_force_when_committed, MEMBERS),
    (planted.vote_not_persisted, None),
    (planted.term_not_persisted, None),
    (planted.message_before_hard_state, None),
    (planted.old_term_committed_by_counting, None),
    (planted.leader_counts_itself_before_durable, None),
    (planted.follower_acknowledges_before_durable, None),
    (planted.next_index_off_by_one, None),
    (planted.previous_term_not_compared, None),
    (planted.read_before_noop, None),
    (planted.read_without_round, DEPOSED_READERS),
    (planted.stale_vote_answer, None),
    (planted.late_votes_dropped, None),
    (planted.shortcut_slept_over, None),
    (planted.quorum_slept_over, None),
    (planted.sessions_not_undone, None),
    (planted.sessions_without_tail, None),
    (planted.vote_by_current_term, None),
    (planted.commit_not_clamped, None),
    (planted.leader_again_in_its_own_term, None),
    (planted.votes_for_several, None),
    (planted.half_is_a_majority, None),
    (planted.acknowledged_when_written, None),
    (planted.unknown_reported_as_failed, None),
    (planted.truncation_not_written, None),
    (planted.leader_truncates_itself, None),
    (planted.rejoining_node_counted, None),
    (planted.rejoining_node_votes, None),
    (planted.rejoined_without_hearing_all, AMNESIA),
    (planted.purged_before_the_image, None),
    (planted.image_ignored_at_start, None),
    (planted.image_ignored_after_a_base, None),
    (planted.clock_jump_followed, None),
    (planted.wall_clock_stamped, None),
    (planted.latest_clock_followed, CLOCKS),
    (planted.room_not_reserved, None),
    (planted_bad_days.recovered_without_fdatasync, POWER),
    (planted_bad_days.repair_by_truncation, ROTTEN),
    (planted_bad_days.floor_forgotten, ROTTEN),
    (planted_bad_days.damage_never_repaired, None),
    (planted_bad_days.full_disk_told_after_the_push, None),
    (planted_disk.index_before_the_entries, POWER),
    (planted_bad_days.pushed_while_rebuilding_and_forgotten, None),
    (planted_streams.stream_not_opened_again, None),
    (planted_streams.rejoined_leader_never_pushes, REJOINED),
    (planted_streams.earlier_directories_admitted, test_rejoin_scenarios.RETURNED),
    (planted_owners.epoch_not_compared, OWNED),
    (planted_owners.filled_before_it_was_judged, None),
    (planted_owners.room_judged_after_the_fill, None),
    (planted_owners.stamp_not_reckoned_with, None),
]


def _leader_whose_fsync_hangs() -> None:
    test_disk_scenarios.test_leader_whose_fsync_hangs_is_replaced_and_is_no_candidate(3, on_disk=False)


def _one_disk_that_hangs() -> None:
    test_disk_scenarios.test_all_nodes_on_one_disk_that_hangs_keep_their_leader(3)


def _purge_put_off() -> None:
    test_retention_scenarios.test_purge_that_a_full_disk_put_off_outlives_a_restart(
        "follower", CrashKind.POWER
    )


def _images_truncated() -> None:
    test_log_state.test_an_image_whose_mark_is_in_the_log_gives_the_table_of_the_whole_log(0)


def _evicted_in_the_tail() -> None:
    test_session_scenarios.test_session_that_an_uncommitted_entry_evicts_lives_on()


def _opened_behind_the_end() -> None:
    test_session_scenarios.test_session_opened_behind_the_end_of_a_deposed_leader_is_not_said_to_be_unknown(0)


def _leader_whose_pushes_are_lost() -> None:
    test_stall_scenarios.test_leader_whose_pushes_are_lost_while_its_heartbeats_pass_is_replaced(
        3, "all pushes"
    )


def _needless_base() -> None:
    test_installed_base.test_a_log_that_holds_the_base_keeps_what_follows_it(1)


def _reset_within_the_log() -> None:
    test_disk_reports.test_rule_1_what_is_reported_outlives_a_power_loss(
        test_disk_reports.reset_within_the_log
    )


def _fetch_of_a_client() -> None:
    asyncio.run(test_peer_service.test_every_call_needs_the_certificate_of_its_sender("Fetch", ["app"]))


def _entries_of_another_term() -> None:
    test_damaged_starts.test_uncommitted_entries_of_another_term_repair_nothing(0)


def _two_damaged_nodes() -> None:
    test_damaged_starts.test_two_nodes_with_different_damage_go_on("body", [])


def _cut_while_it_is_read() -> None:
    test_rebuilding.test_a_job_that_has_read_what_is_truncated_meanwhile_is_void("the last entry")


def _step_not_committed() -> None:
    test_clock_scenarios.test_rule_12_a_step_that_was_not_committed_is_undone_with_its_entry()


def _disk_that_was_lost_before_a_promotion() -> None:
    test = test_member_scenarios
    test.test_a_promoted_learner_refuses_a_disk_that_was_lost_before_its_promotion(False)


def _rejoining_clock() -> None:
    test_clock_scenarios.test_rule_12_the_clock_of_a_rejoining_member_does_not_count(86_400_000)


BY_SCENARIO: list[tuple[planted.Plant, Callable[[], None]]] = [
    (planted.stamps_not_undone, _step_not_committed),
    (planted.rejoining_clocks_counted, _rejoining_clock),
    (planted_stalls.leader_that_commits_nothing_stays, _leader_whose_pushes_are_lost),
    (
        planted_stalls.busy_disks_blamed_on_the_leader,
        test_stall_scenarios.test_all_nodes_on_one_disk_that_hangs_do_not_blame_their_leader,
    ),
    (
        planted_stalls.stalled_leader_stands_again_at_once,
        test_commit_stall.test_rule_14_a_stalled_leader_leaves_the_election_to_the_others_for_a_while_only,
    ),
    (
        planted_stalls.stall_bound_never_grows,
        test_stall_scenarios.test_stalled_leader_that_nobody_can_replace_gives_up_less_and_less_often,
    ),
    (
        planted_stalls.leadership_handed_back_to_the_stalled,
        test_stall_scenarios.test_preferred_leader_that_commits_nothing_is_not_tried_over_and_over,
    ),
    (planted.blind_truncate, test_scenarios.test_delayed_truncate_of_the_current_leader),
    (planted.repeated_push_written_again, test_scenarios.test_repeated_and_overlapping_pushes),
    (planted.stale_push_answer, test_scenarios.test_answer_of_an_older_stream_is_not_counted),
    (planted.read_counts_older_round, test_scenarios.test_round_from_before_a_read_does_not_confirm_it),
    (planted.read_without_round, test_scenarios.test_round_from_before_a_read_does_not_confirm_it),
    (planted.older_generation_counted, test_scenarios.test_completion_of_an_older_generation_is_void),
    (
        planted.answered_past_the_core,
        test_scenarios.test_completion_of_an_older_generation_acknowledges_no_append,
    ),
    (planted.higher_term_ignored, test_scenarios.test_isolated_node_with_a_higher_term_is_taken_back),
    (planted.old_term_committed_by_counting, test_scenarios.test_figure_8_of_the_raft_paper),
    (
        planted.leader_again_in_its_own_term,
        test_scenarios.test_leader_that_restarts_campaigns_in_a_higher_term,
    ),
    (planted.expiry_answered_at_once, _evicted_in_the_tail),
    (planted.expiry_answered_at_once, _opened_behind_the_end),
    (
        planted.rejoined_by_old_answers,
        test_rejoin_scenarios.test_two_lost_votes_of_one_term_make_no_second_leader,
    ),
    (
        planted_bad_days.floor_forgotten,
        test_damage_scenarios.test_batch_on_a_bare_majority_survives_damage_at_the_end_of_one_copy,
    ),
    (
        planted_bad_days.damaged_node_leads,
        test_damage_scenarios.test_damaged_leader_hands_over_and_leads_no_more_until_it_is_repaired,
    ),
    (
        planted_bad_days.cache_believed_after_failed_fsync,
        test_disk_scenarios.test_batch_whose_fsync_failed_is_not_read_from_the_page_cache,
    ),
    (
        planted_bad_days.repair_not_compared_with_what_follows,
        _entries_of_another_term,
    ),
    (planted_bad_days.only_committed_entries_given, _two_damaged_nodes),
    (
        planted_bad_days.rebuilding_node_keeps_its_vote,
        test_damaged_starts.test_damage_in_what_only_its_node_had_is_cut_by_a_leader_that_needs_its_vote,
    ),
    (
        planted_bad_days.rebuild_outlives_a_truncation,
        _cut_while_it_is_read,
    ),
    (planted_bad_days.stalled_leader_stays, _leader_whose_fsync_hangs),
    (planted_bad_days.stalled_leader_always_goes, _one_disk_that_hangs),
    (planted_bad_days.purge_forgotten_over_a_restart, _purge_put_off),
    (planted_bad_days.image_outlives_its_truncation, _images_truncated),
    (
        planted_disk.joined_bytes_outlive_a_truncation,
        test_replica.test_a_push_after_a_truncation_carries_the_entries_of_the_new_log,
    ),
    (planted_disk.base_installed_over_stored_entries, _needless_base),
    (planted_disk.reset_reported_before_it_is_done, _reset_within_the_log),
    (planted_disk.fetch_without_certificate_check, _fetch_of_a_client),
    (
        planted_owners.leadership_begins_at_the_last_stamp,
        test_owner.test_stamps_are_those_of_the_log_and_do_not_fall_with_a_new_leader,
    ),
]


BY_SCENARIO += [
    (
        planted_members.changed_before_the_first_commit,
        test_membership.test_a_leader_commits_an_entry_of_its_term_before_a_change,
    ),
    (planted_members.truncated_changes_stay, test_membership.test_a_truncation_undoes_a_change),
    (
        planted_members.unknown_peers_ignored,
        test_membership.test_a_voter_elects_a_candidate_that_it_does_not_know,
    ),
    (
        planted_members.base_without_its_members,
        test_membership.test_a_log_that_starts_at_a_base_has_the_configuration_of_that_base,
    ),
    (
        planted_members.directories_only_of_added_members,
        _disk_that_was_lost_before_a_promotion,
    ),
    (
        planted_members.links_of_former_members_kept,
        test_membership.test_a_new_leader_has_links_to_the_members_of_its_configuration_only,
    ),
    (
        planted_members.learners_told_of_a_rejoining_directory,
        test_membership.test_a_rejoining_node_tells_its_directory_to_electors_only,
    ),
    (
        planted_members.undone_changes_waited_for,
        test_membership.test_a_rejoining_node_does_not_wait_for_members_of_a_change_that_was_undone,
    ),
    (
        planted_members.directory_not_in_the_addition,
        test_membership.test_the_directory_of_a_new_member_is_not_that_of_an_earlier_one_with_its_name,
    ),
]


def _leader_with_a_lower_incarnation() -> None:
    test_liveness_scenarios.test_leader_that_lost_its_disk_leads_again_whatever_its_incarnation(
        test_liveness_scenarios.LOW, False
    )


def _votes_of_slow_disks() -> None:
    test_disk_scenarios.test_a_leader_is_elected_where_votes_take_long_to_become_durable(2.0, 3)


def _disk_that_returns() -> None:
    test = test_rejoin_scenarios
    test.test_a_lost_disk_that_returns_elects_no_leader_without_the_entries_of_the_newer_one(False)


def _disk_that_is_asked() -> None:
    test_rejoin_scenarios.test_a_lost_disk_that_returns_is_refused_whoever_speaks_first(False)


def _restart_within_a_restart() -> None:
    test_liveness_scenarios.test_node_that_restarts_in_any_phase_of_anothers_restart(CrashKind.PROCESS, False)


BY_SCENARIO += [
    (planted_streams.ended_streams_kept, _leader_with_a_lower_incarnation),
    (
        planted_streams.lost_streams_not_reported,
        test_scenarios.test_killed_leader_is_replaced_long_before_the_time_out,
    ),
    (planted_streams.votes_given_up_early, _votes_of_slow_disks),
    (planted_streams.stream_not_opened_again, _restart_within_a_restart),
    (planted_streams.earlier_directories_admitted, _disk_that_returns),
    (planted_streams.reported_before_the_directory_is_recorded, _disk_that_returns),
    (planted_streams.own_directory_not_compared, _disk_that_is_asked),
    (
        planted_streams.reports_of_earlier_directories_kept,
        test_rejoin_scenarios.test_the_report_of_a_lost_disk_that_returns_does_not_count,
    ),
    (
        planted_streams.directories_not_passed_on,
        test_rejoin_scenarios.test_a_lost_disk_that_returns_is_refused_by_a_member_that_rejoined_later,
    ),
]


def _purge_of_a_deposed_leader() -> None:
    test_retention_scenarios.test_leader_that_is_deposed_in_the_middle_of_a_purge_purges_when_it_leads_again(
        test_retention_scenarios.has_appended_purge
    )


def _slowest_follower() -> None:
    test_retention_scenarios.test_purging_waits_for_the_slowest_follower("n0")


def _damaged_status() -> None:
    with TemporaryDirectory() as folder:
        asyncio.run(
            test_bad_days.test_rule_10_damage_that_nobody_can_repair_is_in_every_form_of_the_status(
                Path(folder)
            )
        )


def _new_sessions() -> None:
    asyncio.run(test_session_appends.test_concurrent_calls_for_a_new_session_get_the_same_one())


def _ends_no_process(scenario: Callable[[], None]) -> None:
    try:
        scenario()
    except StorageError as error:
        raise AssertionError(f"the process ended: {error}") from error


def _full_and_slow() -> None:
    test = test_disk_scenarios.test_follower_whose_full_disk_is_slow_takes_no_more_than_it_can_store
    _ends_no_process(lambda: test(False, 2))


def _damage_behind_the_border() -> None:
    test = test_purged_damage.test_rule_10_damage_at_the_new_begin_is_repaired_after_a_purge
    _ends_no_process(lambda: test("behind the border", is_restarted=False))


BY_SCENARIO += [
    (
        planted_purges.barred_pre_vote_granted,
        test_rejoining.test_rule_11_it_grants_no_pre_vote_for_a_term_in_which_it_would_not_vote,
    ),
    (planted_purges.interrupted_purge_waited_for, _purge_of_a_deposed_leader),
    (planted_purges.last_follower_holds_back, _slowest_follower),
    (
        planted_purges.partly_purged_damage_leads,
        test_partly_purged_damage.test_rule_10_a_damage_that_grows_beyond_what_others_have_purged,
    ),
    (planted_purges.damage_hidden, _damaged_status),
    (
        planted_purges.image_ends_sessions_before_it_is_committed,
        test_admission.test_an_image_that_is_not_committed_ends_no_session,
    ),
    (planted_purges.sessions_renewed_side_by_side, _new_sessions),
    (planted_purges.queue_not_counted, _full_and_slow),
    (planted_purges.damage_keeps_its_purged_begin, _damage_behind_the_border),
]


def _with_small_chunks(test: Callable[[], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image_files, "CHUNK_BYTES", test_image_files.SMALL_CHUNK)
        test()


def _crashes_while_images_are_written() -> None:
    _with_small_chunks(
        lambda: test_image_files.test_a_crash_leaves_the_old_image_or_the_new_one_and_never_a_part(
            CrashPoint.AFTER, test_image_files.write_both
        )
    )


def _half_an_image() -> None:
    test = test_image_files

    def run() -> None:
        files = test.opened(SimDisk())
        manifest = test.write(files, test.NEW, test.SESSIONS, test.state_of(test.NEW))
        test.test_a_receiver_continues_after_the_chunks_that_have_arrived((files, manifest))

    _with_small_chunks(run)


def _state_behind_the_mark() -> None:
    test_state_feeder.test_no_image_is_begun_of_another_entry_or_another_state(0, 5)


BY_SCENARIO += [
    (
        planted_images.purge_behind_the_image_of_the_leader_alone,
        test_shared_images.test_a_leader_writes_no_purge_before_a_majority_has_reported_its_image,
    ),
    (
        planted_images.purged_without_an_own_image,
        test_replaced_logs.test_a_node_without_an_image_of_its_own_wants_one_and_purges_nothing_until_it_arrives,
    ),
    (planted_images.image_reported_before_it_is_complete, _half_an_image),
    (
        planted_images.sessions_without_the_uncommitted_ones,
        test_shared_images.test_the_sessions_of_an_image_are_those_at_its_mark,
    ),
    (planted_images.state_of_a_later_point, _state_behind_the_mark),
    (planted_images.sessions_of_a_mark_of_another_term, _images_truncated),
    (
        planted_images.image_of_another_term_adopted,
        test_replaced_logs.test_an_image_whose_mark_was_truncated_is_removed_and_not_reported,
    ),
    (planted_images.manifest_before_its_data_is_durable, _crashes_while_images_are_written),
]


def _name(value: object) -> str:
    return getattr(value, "__name__", "")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("plant", "profile"),
    [pytest.param(*bug, marks=[pytest.mark.long] if bug[1] is MEMBERS else []) for bug in BY_SEEDS],
    ids=_name,
)
def test_found_by_seeds(
    plant: planted.Plant, profile: Profile | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    options = RunOptions(profile=profile)
    SEEDS.find(plant.__name__, lambda seed: run_seed(seed, options), plant.__doc__)


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "scenario"), BY_SCENARIO, ids=_name)
def test_found_by_scenario(
    plant: planted.Plant,
    scenario: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    pytestconfig: pytest.Config,
) -> None:
    if is_long(pytestconfig):
        # It is a test of its own, which passes.
        scenario()
    plant(monkeypatch)
    with pytest.raises(AssertionError) as caught:
        scenario()
    rule = caught.value.rule if isinstance(caught.value, Violation) else "assertion"
    print(f"{plant.__name__}: found by {scenario.__name__}, [{rule}]")


def test_canary(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this one is not seen at once, by every seed, nothing that the simulator says is worth anything."""
    planted.commit_by_minority(monkeypatch)
    for seed in range(5):
        assert run_seed(seed).failure is not None
