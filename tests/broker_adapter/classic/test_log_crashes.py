"""Every crash of a CommitLog: what a flush has covered is there, and nothing that was never written is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import pytest

from broker_adapter.errors import BrokerError
from broker_adapter.log.classic.commit_log_files import CommitLogFiles
from dledger.testing.virtual.sim_disk import CrashKind, CrashPoint, SimDisk, SimulatedCrash
from tests.broker_adapter.classic.log_helpers import FILE_SIZE, PATHS, on_disk, opened, record
from tests.broker_adapter.classic.slow_log import records_of

Records = list[tuple[int, bytes]]


@dataclass
class Witness:
    """What a workload was promised. `logs`: all that may be found, `written` the newest of them. `begins`:
    where it may begin."""

    durable: Records = field(default_factory=list)
    written: Records = field(default_factory=list)
    logs: list[Records] = field(default_factory=lambda: [[]])
    begins: list[int] = field(default_factory=lambda: [0])
    number: int = 0
    properties: str = ""

    def append(self, log: CommitLogFiles, *sizes: int) -> None:
        places = log.place([len(record(bytes(size), 0, properties=self.properties)) for size in sizes])
        records = []
        for size, place in zip(sizes, places, strict=True):
            self.number += 1
            body = (b"%03d" % self.number * size)[:size]
            stamp = 1_000_000 + self.number * 1_000
            records.append((place, bytes(record(body, place, stamp=stamp, properties=self.properties))))
        self.written = [*self.written, *records]
        self.logs.append(self.written)
        log.append([raw for _, raw in records])

    def flush(self, log: CommitLogFiles) -> None:
        written = self.written
        log.flush()
        self.durable = written
        log.checkpoint.logics_ms = log.checkpoint.physic_ms

    def truncate(self, log: CommitLogFiles, count: int) -> None:
        """All but the last `count`."""
        cut = self.written[: len(self.written) - count]
        self.durable = self.durable[: len(cut)]
        # Half-way it may be as long as before, or anything between.
        self.logs = [self.written[:length] for length in range(len(cut), len(self.written) + 1)]
        log.truncate(self.written[len(cut)][0])
        self.written, self.logs = cut, [cut]

    def purge(self, log: CommitLogFiles, offset: int) -> None:
        self.begins += [begin for begin in range(0, offset + 1, FILE_SIZE) if begin > self.begins[-1]]
        log.purge_below(offset)
        self.begins = [log.begin_offset]

    def close(self, log: CommitLogFiles) -> None:
        log.close()
        self.durable = self.written


def workload(disk: SimDisk, witness: Witness) -> None:
    log = opened(disk)
    witness.append(log, 100)
    witness.flush(log)
    witness.append(log, 10, 500, 300, 300)
    log.prepare()
    witness.append(log, 200)
    witness.flush(log)
    log.save_checkpoint()
    witness.append(log, 700, 700, 700)
    witness.truncate(log, 2)
    witness.append(log, 50, 400)
    witness.flush(log)
    witness.purge(log, FILE_SIZE)
    log.save_checkpoint()
    witness.append(log, 333)
    witness.close(log)
    log = opened(disk)
    witness.append(log, 1, 2, 3)
    witness.append(log, 900, 900)
    witness.flush(log)
    witness.truncate(log, 1)
    witness.purge(log, 4 * FILE_SIZE)
    witness.append(log, 500, 20)
    witness.close(log)


def operations() -> int:
    disk = SimDisk()
    workload(disk, Witness())
    return len(disk.operations)


def check(disk: SimDisk, witness: Witness, where: object) -> None:
    log = opened(disk)
    assert log.begin_offset in witness.begins, where
    found, end = records_of(on_disk(disk), log.begin_offset, FILE_SIZE)
    assert end == log.end_offset == log.flushed_offset, where
    kept = [one for one in witness.durable if one[0] >= log.begin_offset]
    assert found[: len(kept)] == kept, where
    assert any(found == above(one, log.begin_offset)[: len(found)] for one in witness.logs), where
    assert not on_disk(disk)[end - log.begin_offset :].strip(b"\0"), where
    witness.durable = witness.written = found
    witness.append(log, 77)
    witness.flush(log)
    disk.crash(CrashKind.POWER, Random(1))
    again = opened(disk)
    after, _ = records_of(on_disk(disk), again.begin_offset, FILE_SIZE)
    assert above(after, again.begin_offset) == above(witness.durable, again.begin_offset), where


def above(records: Records, begin: int) -> Records:
    return [one for one in records if one[0] >= begin]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["process", "power", "reordered"])
def test_every_crash_point(kind: str, seed: int) -> None:
    for number in range(1 + seed, operations() + 1, 4):
        for point in (CrashPoint.BEFORE, CrashPoint.DURING):  # after one is before the next
            disk, witness = SimDisk(), Witness()
            disk.schedule_crash(number, point)
            with pytest.raises(SimulatedCrash):
                workload(disk, witness)
            crash = CrashKind.PROCESS if kind == "process" else CrashKind.POWER
            disk.crash(crash, Random(number), reorder=kind == "reordered")
            check(disk, witness, (number, point, disk.operations[-1:]))


@pytest.mark.parametrize("seed", range(40))
def test_crashes_of_random_workloads(seed: int) -> None:
    """Life after life, each of which ends somewhere, also in its recovery."""
    rng = Random(seed)
    disk, witness = SimDisk(), Witness()
    for life in range(6):
        disk.schedule_crash(len(disk.operations) + rng.randrange(1, 60), rng.choice(list(CrashPoint)))
        with suppress(SimulatedCrash):
            random_life(disk, witness, rng)
        kind = rng.choice(list(CrashKind))
        disk.crash(kind, rng, reorder=rng.random() < 0.5)
        # The recovery crashes, too, and again.
        for _ in range(2):
            disk.schedule_crash(len(disk.operations) + rng.randrange(1, 12), rng.choice(list(CrashPoint)))
            with suppress(SimulatedCrash):
                opened(disk)
            disk.crash(rng.choice(list(CrashKind)), rng, reorder=rng.random() < 0.5)
        check(disk, witness, (seed, life))
        disk.crash(CrashKind.PROCESS, rng)
        log = opened(disk)
        witness.written, _ = records_of(on_disk(disk), log.begin_offset, FILE_SIZE)
        witness.durable, witness.logs = witness.written, [witness.written]
        witness.begins = [log.begin_offset]
        witness.close(log)


def random_life(disk: SimDisk, witness: Witness, rng: Random) -> None:
    log = opened(disk)
    steps: list[Callable[[], object]] = [
        lambda: witness.append(log, *[rng.randrange(900) for _ in range(rng.randrange(1, 5))]),
        lambda: witness.append(log, *[rng.randrange(100) for _ in range(rng.randrange(1, 9))]),
        lambda: witness.flush(log),
        log.prepare,
        log.save_checkpoint,
        lambda: witness.truncate(log, 1) if len(above(witness.written, log.begin_offset)) > 1 else None,
        lambda: witness.purge(log, log.flushed_offset - rng.randrange(3) * FILE_SIZE),
    ]
    for _ in range(30):
        rng.choices(steps, [4, 4, 5, 2, 2, 1, 1])[0]()
    witness.close(log)


def test_a_prefix_of_unsynced_records_may_survive_and_no_other() -> None:
    """Sectors reach the disk in any order: a hole ends the log, whatever is behind it."""
    lengths = set()
    for seed in range(200):
        disk, witness = SimDisk(), Witness()
        log = opened(disk)
        witness.append(log, 5)
        witness.flush(log)
        for size in (300, 400, 500, 600):
            witness.append(log, size)
        disk.crash(CrashKind.POWER, Random(seed), reorder=True)
        found, _ = records_of(on_disk(disk), 0, FILE_SIZE)
        again = opened(disk)
        assert again.end_offset == found[-1][0] + len(found[-1][1]) or again.end_offset % FILE_SIZE == 0
        lengths.add(len(found))
    assert lengths >= {1, 2, 4}


def test_a_record_that_lacks_a_sector_of_its_properties_does_not_come_back() -> None:
    """No checksum covers them: zeros in their place are no record that was ever written."""
    properties = "".join(f"key{number}\x01value{number}\x02" for number in range(60))
    cut = 0
    for seed in range(60):
        disk, witness = SimDisk(), Witness(properties=properties)
        log = opened(disk, file_size=8 * FILE_SIZE)
        for size in (5, 0, 300):
            witness.append(log, size)
        disk.crash(CrashKind.POWER, Random(seed), reorder=True)
        again = opened(disk, file_size=8 * FILE_SIZE)
        found, _ = records_of(on_disk(disk), 0, 8 * FILE_SIZE)
        assert again.end_offset == sum(len(raw) for _, raw in found)
        assert found == witness.written[: len(found)], seed
        cut += len(found) < 3
    assert cut


def test_a_record_that_is_durable_may_have_any_properties() -> None:
    """Zeros among them, which the checkpoint covers or a clean stop."""
    for properties in ("\0" * 2_000, "a\x01" + "\0" * 600):
        disk, witness = SimDisk(), Witness(properties=properties)
        log = opened(disk, file_size=8 * FILE_SIZE)
        witness.append(log, 10)
        log.flush()
        log.save_checkpoint()
        disk.crash(CrashKind.POWER, Random(1))
        log = opened(disk, file_size=8 * FILE_SIZE)
        witness.append(log, 10)
        log.close()
        assert records_of(on_disk(disk), 0, 8 * FILE_SIZE)[0] == witness.written
        assert opened(disk, file_size=8 * FILE_SIZE).end_offset == log.end_offset


def test_a_full_disk_at_any_moment_refuses_and_loses_nothing() -> None:
    for capacity in range(5_200, 14_000, 211):
        disk, witness = SimDisk(capacity=capacity), Witness()
        try:
            workload(disk, witness)
        except BrokerError as error:
            assert error.status.name in {"DISK_FULL", "LOG_FAILED"}
        except OSError:
            continue  # no room for the directory itself
        disk.capacity = 1 << 30
        disk.crash(CrashKind.POWER, Random(capacity))
        if disk.exists(PATHS.commit_log):
            check(disk, witness, capacity)
