"""The disk thread: order, one sync for many writes, completions, and what it does when the disk fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from threading import Event

import pytest

from dledger.core.values import EMPTY_TAIL, Base, FlushMode, HardState, Tail
from dledger.errors import Code, DLedgerError, StorageError
from dledger.metrics import NodeMetrics
from dledger.node.disk import disk_worker
from dledger.node.disk.disk_worker import CheckpointJob, DiskWorker, HardStateReport, Report, StoredReport
from dledger.replica.shell import HardStateJob, TruncateJob, WriteJob
from dledger.store.format.batch import Batch, encode_batch

WAIT_S = 5.0


class FakeStore:
    """Notes what is asked of it; `hold` keeps the first sync waiting; `fail` names what raises."""

    def __init__(self) -> None:
        self.on_synced: Callable[[], None] = lambda: None
        self.done: list[str] = []
        self.hold: Event | None = None
        self.syncing = Event()
        self.between: Callable[[], None] | None = None  # before and after a part of a checkpoint is durable
        self.fail = ""
        self.full = ""  # what finds no room, and changes nothing

    def _do(self, what: str) -> None:
        if self.fail and what.startswith(self.fail):
            raise StorageError(f"{what} fails", code=Code.FSYNC_FAILED)
        if self.full and what.startswith(self.full):
            raise StorageError(f"no room for {what}", code=Code.DISK_FULL)
        self.done.append(what)

    def append(self, batches: Sequence[Batch]) -> None:
        self._do(f"append {batches[0].first_index}..{batches[-1].last_index}")

    def sync(self) -> int:
        self.syncing.set()
        if self.hold is not None:
            assert self.hold.wait(WAIT_S)
        self._do("sync")
        return 0

    def drop_cached(self, begin_pos: int, end_pos: int) -> None:
        self._do(f"drop {begin_pos}..{end_pos}")

    def truncate_after(self, index: int, tail: Tail | None = None) -> None:
        self._do(f"truncate {index}")

    def reset_to(self, base: Base) -> None:
        self._do(f"reset {base.index}")

    def purge_to(self, base: Base) -> None:
        self._do(f"purge {base.index}")

    def save_hard_state(self, state: HardState) -> None:
        self._do(f"state {state.term}")

    def save_checkpoint(self, committed_index: int, sessions: tuple[int, bytes] | None) -> None:
        self._do(f"checkpoint {committed_index}" + (" without sessions" if sessions is None else ""))
        if self.between is not None:
            self.between()
            self.on_synced()
            self.between()


class Rig:
    def __init__(self, mode: FlushMode = FlushMode.SYNC_FLUSH, flush_interval_ms: int = 500) -> None:
        self.store = FakeStore()
        self.reports: SimpleQueue[Report] = SimpleQueue()
        self.fatals: SimpleQueue[DLedgerError] = SimpleQueue()
        self.metrics = NodeMetrics()
        self.worker = DiskWorker(
            self.store,
            mode,
            deliver=self.reports.put,
            on_fatal=self.fatals.put,
            metrics=self.metrics,
            flush_interval_ms=flush_interval_ms,
        )


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    assert rig.worker.stop(WAIT_S)


def write_jobs(count: int, generation: int = 0) -> list[WriteJob]:
    jobs = []
    tail = EMPTY_TAIL
    for _ in range(count):
        batch = encode_batch(tail, 3, [b"body"], data_file_size=1 << 20)
        jobs.append(WriteJob(generation, [batch]))
        tail = batch.tail
    return jobs


def test_rule_9_each_part_of_a_checkpoint_has_its_own_patience(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader made way for the stuck disk that it seemed to have: one as slow as everybody's."""
    now = 100.0
    busy: list[float] = []

    def a_sync_takes_three_seconds() -> None:
        nonlocal now
        now += 3
        busy.append(rig.worker.busy_seconds)

    monkeypatch.setattr(disk_worker, "monotonic", lambda: now)
    rig.store.between = a_sync_takes_three_seconds
    rig.worker.start()
    rig.worker.submit_checkpoint(CheckpointJob(5, None))
    assert rig.worker.stop(WAIT_S)
    assert busy == [3, 3]


@pytest.mark.parametrize("is_late", [True, False])
def test_what_comes_late_leaves_the_page_cache_after_its_sync(
    rig: Rig, is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_worker, "KEPT_BYTES", 0)
    monkeypatch.setattr(disk_worker, "STEP_BYTES", 1)
    (job,) = write_jobs(1)
    job.is_late = is_late
    rig.worker.start()
    rig.worker.submit(job)
    assert rig.worker.stop(WAIT_S)
    dropped = [f"drop 0..{job.batches[0].end_pos}"]
    assert rig.store.done == ["append 0..0", "sync", *(dropped if is_late else [])]


def test_writes_that_wait_share_one_sync(rig: Rig) -> None:
    rig.store.hold = Event()
    first, *others = write_jobs(4)
    rig.worker.start()
    rig.worker.submit(first)
    assert rig.store.syncing.wait(WAIT_S)
    for job in others:  # these arrive while the first is being synced
        rig.worker.submit(job)
    rig.store.hold.set()
    assert rig.reports.get(timeout=WAIT_S) == StoredReport(0, 0, 3)
    assert rig.reports.get(timeout=WAIT_S) == StoredReport(0, 3, 3)
    assert rig.store.done == ["append 0..0", "sync", "append 1..3", "sync"]
    assert sum(rig.metrics.fsync_latency.counts) == 2


def test_rule_13_a_checkpoint_that_waits_is_known_to_wait(rig: Rig) -> None:
    """Each carries the session table: behind an fsync that is stuck, no second one is to be queued."""
    rig.store.hold = Event()
    (job,) = write_jobs(1)
    rig.worker.start()
    assert not rig.worker.checkpoint_waits
    rig.worker.submit(job)
    assert rig.store.syncing.wait(WAIT_S)
    rig.worker.submit_checkpoint(CheckpointJob(0, None))
    assert rig.worker.checkpoint_waits
    rig.store.hold.set()
    assert rig.worker.stop(WAIT_S)
    assert not rig.worker.checkpoint_waits and rig.store.done[-1] == "checkpoint 0 without sessions"


def test_a_call_that_nobody_waits_for_any_more_is_left_out(rig: Rig) -> None:
    """A node that stops in the middle of a repair ends in good order."""
    given_up = rig.worker.call(lambda: rig.store.done.append("given up"))
    wanted = rig.worker.call(lambda: rig.store.done.append("wanted"))
    assert given_up.cancel()
    rig.worker.start()
    assert rig.worker.stop(WAIT_S)
    assert rig.fatals.empty() and wanted.done()
    assert rig.store.done == ["wanted"]


def test_a_call_that_has_begun_comes_to_its_end(rig: Rig) -> None:
    started, going_on = Event(), Event()

    def work() -> None:
        started.set()
        assert going_on.wait(WAIT_S)
        rig.store.done.append("called")

    outcome = rig.worker.call(work)
    rig.worker.start()
    assert started.wait(WAIT_S)
    assert not outcome.cancel()
    going_on.set()
    assert rig.worker.stop(WAIT_S)
    assert rig.fatals.empty() and rig.store.done == ["called"]


def test_jobs_keep_their_order(rig: Rig) -> None:
    one, two = write_jobs(2)
    rig.worker.submit(one)
    rig.worker.submit(HardStateJob(7, HardState(term=5)))
    rig.worker.submit(two)
    rig.worker.submit(TruncateJob(1, 0, 3))
    rig.worker.submit(CheckpointJob(0, None))
    rig.worker.start()
    got = [rig.reports.get(timeout=WAIT_S) for _ in range(4)]
    assert got == [
        StoredReport(0, 0, 3),
        HardStateReport(7),
        StoredReport(0, 1, 3),
        StoredReport(1, 0, 3),
    ]
    assert rig.worker.stop(WAIT_S)
    assert rig.store.done == [
        "append 0..0", "sync", "state 5", "append 1..1", "sync", "truncate 0", "sync",
        "checkpoint 0 without sessions",
    ]  # fmt: skip


@pytest.mark.parametrize("what", ["append", "sync", "truncate", "state", "checkpoint"])
def test_a_failing_disk_is_fatal_and_nothing_is_reported_after_it(rig: Rig, what: str) -> None:
    rig.store.fail = what
    for job in (
        write_jobs(1)[0],
        TruncateJob(1, -1, -1),
        HardStateJob(1, HardState()),
        CheckpointJob(0, None),
    ):
        rig.worker.submit(job)
    rig.worker.start()
    assert rig.fatals.get(timeout=WAIT_S).code is Code.FSYNC_FAILED
    assert rig.worker.stop(WAIT_S)
    reports = [rig.reports.get() for _ in range(rig.reports.qsize())]
    expected = {"append": 0, "sync": 0, "truncate": 1, "state": 2, "checkpoint": 3}
    assert len(reports) == expected[what]


def test_async_flush_reports_before_the_sync_and_syncs_on_its_own() -> None:
    rig = Rig(FlushMode.ASYNC_FLUSH, flush_interval_ms=30)
    rig.store.hold = Event()
    rig.worker.start()
    rig.worker.submit(write_jobs(1)[0])
    assert rig.reports.get(timeout=WAIT_S) == StoredReport(0, 0, 3)
    assert "sync" not in rig.store.done
    assert rig.store.syncing.wait(WAIT_S)  # by the timer
    rig.store.hold.set()
    assert rig.worker.stop(WAIT_S)
    assert rig.store.done == ["append 0..0", "sync"]


def test_async_flush_syncs_at_the_end() -> None:
    rig = Rig(FlushMode.ASYNC_FLUSH, flush_interval_ms=60_000)
    rig.worker.submit(write_jobs(1)[0])
    rig.worker.start()
    assert rig.worker.stop(WAIT_S)
    assert rig.store.done == ["append 0..0", "sync"]


def test_a_stuck_disk_is_not_waited_for() -> None:
    rig = Rig()
    rig.store.hold = Event()
    rig.worker.start()
    rig.worker.submit(write_jobs(1)[0])
    assert rig.store.syncing.wait(WAIT_S)
    assert not rig.worker.stop(0.01)
    assert rig.worker.busy_seconds > 0
    rig.store.hold.set()
    assert rig.worker.stop(WAIT_S)
