"""Pacing, the allocator, the watch over the wall clock, and jobs of the disk thread beside writing."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Event

import pytest
from structlog.testing import capture_logs

from dledger.core.values import Base
from dledger.errors import Code, ConfigError, DLedgerError, StorageError
from dledger.infra.loops.pacing import Pacer
from dledger.infra.loops.wall_clock import JumpWatch, SpreadWatch, suspicious_clocks
from dledger.node.disk.allocator import Allocator
from dledger.node.disk.disk_worker import CheckpointJob, StoredReport
from dledger.node.setup.config import duration_ms, parse_config
from dledger.replica.shell import PurgeJob, ResetJob
from tests.node.disk.test_disk_worker import WAIT_S, Rig, write_jobs


def test_rule_13_a_pace_holds_its_rate_and_saves_nothing_up() -> None:
    pace = Pacer(1000)
    assert pace.wait_s(10.0) == 0
    pace.record(500, 10.0)
    assert pace.wait_s(10.0) == pytest.approx(0.5)
    pace.record(500, 10.5)
    assert pace.wait_s(10.5) == pytest.approx(0.5)
    assert pace.wait_s(99.0) == 0
    pace.record(100, 99.0)
    assert pace.wait_s(99.0) == pytest.approx(0.1), "an idle hour is no credit"
    free = Pacer(0)
    free.record(1 << 40, 0.0)
    assert free.wait_s(0.0) == 0


def test_rule_12_a_jump_of_the_wall_clock_is_told_once() -> None:
    time = {"wall": 1_000_000, "monotonic": 500}
    watch = JumpWatch(lambda: time["wall"], lambda: time["monotonic"])
    for _ in range(3):
        time["wall"] += 3_010
        time["monotonic"] += 3_000
        watch.check()
    assert watch.jumps == 0
    time["wall"] -= 3_600_000
    for _ in range(3):
        watch.check()
    assert watch.jumps == 1


def test_durations() -> None:
    assert [duration_ms(t) for t in ("20ms", "10s", "15m", "12h", "7d")] == [
        20, 10_000, 900_000, 43_200_000, 604_800_000,
    ]  # fmt: skip
    for text in ("", "7", "7 d", "0s", "-1s", "1w"):
        with pytest.raises(ConfigError):
            duration_ms(text)


def test_stalls_are_bounded_in_election_timeouts_unless_configured() -> None:
    content = {"directory": "/d", "node_id": "n1", "cluster_id": "c", "members": {"n1": "127.0.0.1:1"}}
    timing = parse_config({**content, "timing": {"election_max_ms": 3000}}).timing.core()
    assert (timing.fsync_stall_ms, timing.commit_stall_ms) == (6000, 15_000)
    timing = parse_config({**content, "timing": {"commit_stall_ms": 60_000}}).timing.core()
    assert (timing.fsync_stall_ms, timing.commit_stall_ms) == (4000, 60_000)
    with pytest.raises(ConfigError, match="commit_stall_ms must be at least election_max_ms"):
        parse_config({**content, "timing": {"commit_stall_ms": 1999}})


def test_retention_and_scrub_are_configured_by_names() -> None:
    content = {"directory": "/d", "node_id": "n1", "cluster_id": "c", "members": {"n1": "127.0.0.1:1"}}
    config = parse_config({**content, "retention": {"max_age": "7d", "max_bytes": 5}})
    policy = config.retention.policy()
    assert (policy.max_age_ms, policy.max_bytes, policy.check_ms) == (604_800_000, 5, 10_000)
    assert not parse_config(content).retention.policy().is_on
    assert parse_config(content).timing.core().fsync_stall_ms == 4000
    with pytest.raises(ConfigError, match=r"retention\.max_age"):
        parse_config({**content, "retention": {"max_age": "a week"}})


class RoomyStore:
    """As much as the allocator needs."""

    def __init__(self) -> None:
        self.room = True
        self.asked: SimpleQueue[int] = SimpleQueue()
        self.error: StorageError | None = None

    def prepare(self, ahead_bytes: int) -> bool:
        if self.error is not None:
            raise self.error
        self.asked.put(ahead_bytes)
        return self.room

    def free_bytes(self) -> int:
        return 0


def test_the_allocator_notices_a_full_disk_and_space_again() -> None:
    store, fatals = RoomyStore(), SimpleQueue[DLedgerError]()
    allocator = Allocator(store, 100, on_fatal=fatals.put)
    allocator.start()
    assert store.asked.get(timeout=WAIT_S) == 100
    store.room = False
    while not allocator.is_full:
        allocator.request_check()
        store.asked.get(timeout=WAIT_S)
    store.room = True
    while allocator.is_full:
        allocator.request_check()
        store.asked.get(timeout=WAIT_S)
    store.error = StorageError("the disk is gone")
    allocator.request_check()
    assert fatals.get(timeout=WAIT_S) is store.error
    assert allocator.stop(WAIT_S)


BASE = Base(9, 2, 4096, 7)


def test_a_reset_is_reported_and_a_purge_waits_for_room() -> None:
    rig = Rig()
    rig.worker.start()
    rig.worker.submit(ResetJob(3, BASE))
    assert rig.reports.get(timeout=WAIT_S) == StoredReport(3, 9, 2)
    rig.store.full = "purge"
    rig.worker.submit(PurgeJob(BASE))
    assert rig.worker.call(lambda: 1).result(WAIT_S) == 1
    rig.store.full = ""
    assert rig.worker.call(lambda: 2).result(WAIT_S) == 2
    assert rig.worker.stop(WAIT_S)
    assert rig.store.done == ["reset 9", "purge 9"]
    assert rig.fatals.empty()


def test_what_changed_nothing_goes_to_the_caller_and_what_failed_ends_the_node() -> None:
    rig = Rig()
    rig.worker.start()

    def fail(code: Code) -> None:
        raise StorageError("no", code=code)

    with pytest.raises(StorageError):
        rig.worker.call(lambda: fail(Code.DATA_DAMAGED)).result(WAIT_S)
    assert rig.fatals.empty()
    with pytest.raises(StorageError):
        rig.worker.call(lambda: fail(Code.FSYNC_FAILED)).result(WAIT_S)
    assert rig.fatals.get(timeout=WAIT_S).code is Code.FSYNC_FAILED


def test_rule_9_a_sync_that_is_stuck_can_be_seen_from_outside() -> None:
    rig = Rig()
    rig.store.hold = Event()
    rig.worker.start()
    assert rig.worker.fsync_began_ms is None
    rig.worker.submit(*write_jobs(1))
    assert rig.store.syncing.wait(WAIT_S)
    began = rig.worker.fsync_began_ms
    assert began is not None and rig.worker.busy_seconds >= 0
    rig.store.hold.set()
    rig.reports.get(timeout=WAIT_S)
    assert rig.worker.stop(WAIT_S)
    assert rig.worker.fsync_began_ms is None


@pytest.mark.parametrize("what", ["checkpoint", "call", "purge"])
def test_rule_9_whatever_keeps_the_disk_thread_can_be_seen_from_outside(what: str) -> None:
    rig = Rig()
    began, go_on = Event(), Event()

    def be_stuck(*_: object) -> None:
        began.set()
        assert go_on.wait(WAIT_S)

    rig.store.save_checkpoint = rig.store.purge_to = be_stuck  # type: ignore[assignment]
    rig.worker.start()
    if what == "call":
        rig.worker.call(be_stuck)
    else:
        rig.worker.submit(CheckpointJob(5, None) if what == "checkpoint" else PurgeJob(BASE))
    assert began.wait(WAIT_S)
    since = rig.worker.fsync_began_ms
    go_on.set()
    assert rig.worker.stop(WAIT_S)
    assert since is not None
    assert rig.worker.fsync_began_ms is None


@pytest.mark.parametrize(
    ("ahead_s", "suspicious"),
    [
        ([], ""),
        ([-100], ""),
        ([0, 5], ""),
        ([0, 6], "ab"),
        ([0, 1, 86_400], "c"),
        ([0, -86_400, 86_400], "bc"),
        ([0, 1, 100, 101], "abcd"),
        ([100, 0, 1, 2], "a"),
        ([0, 1, -100, 2, 100], "ce"),
    ],
)
def test_clocks_far_from_the_median_are_suspicious_and_all_where_there_is_no_majority(
    ahead_s: list[int], suspicious: str
) -> None:
    clocks = {name: 1000 * ahead for name, ahead in zip("abcde", ahead_s, strict=False)}
    assert suspicious_clocks(clocks) == tuple(suspicious)


def test_clocks_that_disagree_are_logged_once_and_again_when_others_do() -> None:
    watch, day_ms = SpreadWatch(), 86_400_000
    with capture_logs() as logs:
        for ahead_ms in (0, day_ms, day_ms, -day_ms, 0, day_ms):
            watch.check({"n0": ahead_ms, "n1": 0, "n2": 10})
        watch.check({"n0": 0, "n1": day_ms, "n2": 10})
    assert [log["members"] for log in logs] == [["n0"], ["n0"], ["n1"]]
    assert all("check NTP" in log["event"] for log in logs)
