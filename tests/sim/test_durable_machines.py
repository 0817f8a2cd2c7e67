"""Machines with files of their own end every step with the state of one that applied the log once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from dledger.infra.files.disk import CrashKind
from dledger.testing import MachineFiles, RunOptions, RunResult, Violation, run_seed
from tests.seed_records import SeedRecords
from tests.sim import planted_state
from tests.sim.cluster import KINDS, SOON_MS
from tests.sim.durable_machine import Ledger
from tests.sim.test_retention_scenarios import Retaining

SEEDS = SeedRecords(Path(__file__).with_name("found_by.json"), most_seeds=60)


class Keen(Ledger):
    """One that writes after everything that it applies, all of it."""

    def __init__(self, files: MachineFiles, durable_index: Callable[[], int], rng: Random) -> None:
        super().__init__(files, durable_index, Random(0))

    def _persist(self) -> None:
        self._write(self._rows)

    def apply(self, entries: object) -> None:
        super().apply(entries)  # type: ignore[arg-type]
        self._persist()


def run(seed: int) -> RunResult:
    return run_seed(seed, RunOptions(durable_machine=Ledger))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 10), marks=pytest.mark.long)], ids=str)
def test_random_runs_recover_reject_load_and_replay(seeds: range) -> None:
    total: Counter[str] = Counter()
    for seed in seeds:
        result = run(seed)
        assert result.failure is None, result.failure
        total += result.counts
    for name in ("states recovered", "states not used", "states loaded", "state pieces replayed"):
        assert total[name] > 0, name


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [
        planted_state.taken_over_whatever_the_log_says,
        planted_state.applied_twice,
        planted_state.one_left_out,
        planted_state.not_noted_as_committed,
        planted_state.rest_of_the_batch_not_committed,
        planted_state.not_replayed,
        planted_state.saved_too_late,
        planted_state.uncommitted_applied_from_the_cache,
    ],
    ids=lambda plant: plant.__name__,
)
def test_planted_mistakes_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    found = SEEDS.find(plant.__name__, run, plant.__doc__)
    assert found.rule in ("state machine", "batches are atomic", "AssertionError"), found.failure


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_state_that_was_kept_is_not_made_again(kind: CrashKind, on_disk: bool) -> None:
    c = Retaining(durable_machine=Keen, on_disk=on_disk)
    leader = c.begin()
    c.fill_files(2)
    c.run_until(c.is_settled, limit_ms=SOON_MS)
    loaded = c.counts["states loaded"]
    for node in c.profile.node_ids:
        c.crash(node, kind)
    for node in c.profile.node_ids:
        c.boot(node)
    assert c.committed(leader) > 0, "what state was made of is known to be committed"
    c.elect()
    c.fill_files(1)
    c.end()
    assert c.counts["states recovered"] == 3 and c.counts["states loaded"] == loaded


def test_a_graceful_stop_lets_the_machine_write() -> None:
    c = Retaining(durable_machine=Lazy)
    leader = c.begin()
    c.fill_files(1)
    c.run_until(c.is_settled, limit_ms=SOON_MS)
    node = c.others(leader)[0]
    assert c.nodes[node].files.read() is None
    c.stop(node)
    c.run_until(lambda: c.nodes[node].process is None, limit_ms=SOON_MS)
    c.boot(node)
    assert c.counts["states recovered"] == 1
    c.end()


class Lazy(Ledger):
    """One that writes only when it is closed."""

    def __init__(self, files: MachineFiles, durable_index: Callable[[], int], rng: Random) -> None:
        super().__init__(files, durable_index, rng)
        self._eagerness = 0.0

    def close(self) -> None:
        self._write(self._rows)


def test_state_that_ends_before_the_log_begins_is_loaded_anew() -> None:
    c = Retaining(durable_machine=Keen)
    leader = c.begin()
    c.fill_files(1)
    c.run_until(c.is_settled, limit_ms=SOON_MS)
    late = c.others(leader)[0]
    c.crash(late, CrashKind.PROCESS)
    c.fill_files(3)
    c.purge_everywhere()
    c.fill_files(1)
    c.boot(late)
    assert c.counts["states recovered"] == 1, "its own log is as old as its state"
    c.end()
    assert c.counts["states loaded"] == 4, "and was replaced"


def _with_a_tail_that_nobody_else_has(c: Retaining) -> str:
    """A node whose log goes on, uncommitted, with other entries than those that the others have purged."""
    old = c.begin()
    c.fill_files(1)
    c.run_until(c.is_settled, limit_ms=SOON_MS)
    c.isolate(old)
    for _ in range(60):
        c.write(old)
    others = c.others(old)
    c.run_until(lambda: c.leader() in others and c.term(c.elect()) > c.term(old), limit_ms=SOON_MS)
    c.fill_files(4)
    leader = c.elect()
    before = c.counts["purges committed"]
    c.ask_purge(leader)
    c.run_until(lambda: c.counts["purges committed"] > before, limit_ms=SOON_MS)
    c.run_until(lambda: all(c.begin_of(n) > 0 for n in others), limit_ms=SOON_MS)
    return old


def _replaced_slowly() -> None:
    c = Retaining(durable_machine=Keen, group_bytes=1)
    old = _with_a_tail_that_nobody_else_has(c)
    process = c.process(old)
    replaced = process.log_is_replaced

    def stuck() -> None:
        process.disk_stuck_until_ms = c.clock.now_ms + 1_500
        replaced()

    process.log_is_replaced = stuck  # type: ignore[method-assign]
    c.network.heal_all()
    c.run_until(lambda: process.replica.core.log.base.index > 0, limit_ms=SOON_MS)
    assert process.store.base.index == -1, "the disk has not come to it"
    c.run_until(lambda: process.store.base.index > 0, limit_ms=SOON_MS)
    c.end()


def test_a_log_that_is_being_replaced_counts_as_far_as_it_did() -> None:
    _replaced_slowly()


def test_planted_old_log_read_as_the_new_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    planted_state.old_log_read_as_the_new_one(monkeypatch)
    with pytest.raises(Violation, match="state machine"):
        _replaced_slowly()
