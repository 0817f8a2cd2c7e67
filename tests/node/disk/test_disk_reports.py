"""The disk thread over a disk that can lose its power: what it reports is what such a loss leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from dledger.core.values import NO_BASE, Base, FlushMode, HardState, Tail
from dledger.errors import DLedgerError
from dledger.infra.files.disk import CrashKind
from dledger.metrics import NodeMetrics
from dledger.node.disk.disk_worker import DiskWorker, HardStateReport, Report, StoredReport
from dledger.replica.shell import DiskJob, HardStateJob, PurgeJob, ResetJob, TruncateJob, WriteJob
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.batch import Batch, encode_batch
from dledger.store.identity import Identity, init_directory
from dledger.testing.stores import OrderedDisk
from dledger.testing.virtual.sim_disk import SimDisk
from tests.store.helpers import ROOT

WAIT_S = 30.0
FILE = 1024
IDENTITY = Identity("cluster", "group", "n0", data_file_size=FILE)
LARGE = [bytes(400)]  # two of these fill a file


@dataclass
class Expected:
    """What has to be there once a job is reported."""

    base: Base
    tail: Tail
    hard_state: HardState


@dataclass
class Model:
    """Jobs as a replica hands them over, and what each leaves."""

    jobs: list[DiskJob] = field(default_factory=list)
    reports: list[tuple[Report, Expected]] = field(default_factory=list)
    base: Base = NO_BASE
    batches: list[Batch] = field(default_factory=list)
    hard_state: HardState = field(default_factory=HardState)
    generation: int = 0
    term: int = 1

    @property
    def tail(self) -> Tail:
        base = self.base
        return (
            self.batches[-1].tail if self.batches else Tail(base.index, base.term, base.pos, base.chain_crc)
        )

    def write(self, count: int = 1) -> None:
        fresh = []
        for _ in range(count):
            fresh.append(encode_batch(self.tail, self.term, LARGE, data_file_size=FILE))
            self.batches.append(fresh[-1])
        self.jobs.append(WriteJob(self.generation, fresh))
        self._report(StoredReport(self.generation, self.tail.index, self.tail.term))

    def truncate(self, count: int) -> None:
        del self.batches[len(self.batches) - count :]
        self.generation += 1
        self.term += 1
        self.jobs.append(TruncateJob(self.generation, self.tail.index, self.tail.term))
        self._report(StoredReport(self.generation, self.tail.index, self.tail.term))

    def reset(self, ahead: int) -> None:
        """`ahead`: from the end to the new base; less than 0: the old log has an entry at its index."""
        self.generation += 1
        self.term += 1
        pos = (self.tail.pos // FILE + 2) * FILE
        self.base = Base(self.tail.index + ahead, self.term, pos, 77)
        self.batches.clear()
        self.jobs.append(ResetJob(self.generation, self.base))
        self._report(StoredReport(self.generation, self.base.index, self.base.term))

    def vote(self) -> None:
        self.term += 1
        self.hard_state = HardState(self.term, "n1", 1)
        self.jobs.append(HardStateJob(len(self.jobs), self.hard_state))
        self._report(HardStateReport(len(self.jobs) - 1))

    def purge(self) -> None:
        """To the last border between files; no report."""
        at = next((i for i in range(len(self.batches) - 1, 0, -1) if self.batches[i].pos % FILE == 0), None)
        if at is None:
            return
        before = self.batches[at - 1].tail
        self.base = Base(before.index, before.term, self.batches[at].pos, before.chain_crc)
        del self.batches[:at]
        self.jobs.append(PurgeJob(self.base))

    def _report(self, report: Report) -> None:
        self.reports.append((report, Expected(self.base, self.tail, self.hard_state)))


class Rig:
    """Takes what a loss of power would leave, at the moment of each report and on the disk thread."""

    def __init__(self) -> None:
        self.disk = OrderedDisk(ROOT, FILE)
        init_directory(ROOT, IDENTITY, disk=self.disk)
        self.store = DiskLogStore.open(ROOT, disk=self.disk)
        self.reported: list[tuple[Report, SimDisk]] = []
        self.fatals: list[DLedgerError] = []
        self.worker = DiskWorker(
            self.store,
            FlushMode.SYNC_FLUSH,
            deliver=lambda report: self.reported.append((report, self.disk.copy())),
            on_fatal=self.fatals.append,
            metrics=NodeMetrics(),
        )

    def run(self, jobs: list[DiskJob]) -> None:
        for job in jobs:
            self.worker.submit(job)
        self.worker.start()
        assert self.worker.stop(WAIT_S) and self.fatals == []


def found_after_power_loss(disk: SimDisk, seed: int) -> DiskLogStore:
    disk.crash(CrashKind.POWER, Random(seed), reorder=bool(seed % 2))
    return DiskLogStore.open(ROOT, disk=disk)


def check(rig: Rig, model: Model) -> None:
    """Each report has its number and its ground; writes in a row may share the report of the last."""
    expected = iter(model.reports)
    for seed, (report, disk) in enumerate(rig.reported):
        want = next(want for known, want in expected if known == report)
        store = found_after_power_loss(disk, seed)
        if isinstance(report, HardStateReport):
            assert store.hard_state == want.hard_state
        else:
            assert (store.base, store.tail, store.durable_index) == (want.base, want.tail, want.tail.index)
    assert rig.reported[-1][0] == model.reports[-1][0]


def reset_behind_the_end(model: Model) -> None:
    model.write(3)
    model.reset(5)


def reset_within_the_log(model: Model) -> None:
    """The old log has another entry at the base's index: a reader must not see it under the new number."""
    model.write(5)
    model.reset(-2)


def reset_and_on(model: Model) -> None:
    model.write(3)
    model.reset(1)
    model.write(2)
    model.truncate(1)
    model.write(1)


def truncated_and_on(model: Model) -> None:
    model.write(4)
    model.truncate(3)
    model.write(2)
    model.truncate(2)


def votes_between(model: Model) -> None:
    model.vote()
    model.write(1)
    model.vote()
    model.truncate(1)
    model.vote()


@pytest.mark.parametrize(
    "history",
    [reset_behind_the_end, reset_within_the_log, reset_and_on, truncated_and_on, votes_between],
)
def test_rule_1_what_is_reported_outlives_a_power_loss(history: Callable[[Model], None]) -> None:
    rig, model = Rig(), Model()
    history(model)
    rig.run(model.jobs)
    assert [report for report, _ in rig.reported] == [report for report, _ in model.reports]
    check(rig, model)


@pytest.mark.parametrize("seed", range(20))
def test_rule_1_what_is_reported_of_any_jobs_outlives_a_power_loss(seed: int) -> None:
    rng = Random(seed)
    rig, model = Rig(), Model()
    for _ in range(15):
        match rng.choice(("write", "write", "write", "truncate", "reset", "vote", "purge")):
            case "truncate" if model.batches:
                model.truncate(rng.randint(1, len(model.batches)))
            case "reset":
                model.reset(rng.randint(min(0, 1 - len(model.batches)), 3))
            case "vote":
                model.vote()
            case "purge":
                model.purge()
            case _:
                model.write(rng.randint(1, 3))
    model.vote()
    rig.run(model.jobs)
    check(rig, model)
