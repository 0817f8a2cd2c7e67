"""Which files go when, and when producers are refused; and the thread that sees to it."""

from __future__ import annotations

import asyncio
import errno
from random import Random
from typing import Any

import pytest
from pydantic import ValidationError

from broker_adapter.config.classic import ClassicSettings
from broker_adapter.errors import BrokerError, Status
from broker_adapter.log.classic.age_pause import AgePause
from broker_adapter.log.classic.commit_log_files import CommitLogFiles
from broker_adapter.log.classic.log_retention import (
    CurrentTimes,
    DiskRetentionPolicy,
    OldFile,
    check_policy,
    decide,
    parse_delete_when,
    used_percent,
)
from broker_adapter.log.classic.log_upkeep import LogUpkeep, UpkeepClocks, UpkeepOptions
from dledger import ConfigError
from dledger.testing.virtual.sim_disk import CrashKind, SimDisk
from tests.broker_adapter.classic.log_helpers import FILE_SIZE, PATHS, opened, put, record

HOUR = 3_600_000
NOW = 1_000 * HOUR
SIZE = 10
#: Files of 100, 90, ... hours of age.
FILES = [OldFile(number * SIZE, NOW - (100 - number * 10) * HOUR) for number in range(8)]


def purged(
    used: int, hour: int = 12, *, keep_from: int = 1 << 40, asked: bool = False, **policy: object
) -> int:
    """How many files go of a disk of 1,000 bytes."""
    decision = decide(
        DiskRetentionPolicy(**policy),  # type: ignore[arg-type]
        FILES,
        SIZE,
        now=CurrentTimes(NOW, NOW, hour),
        used=used,
        usable=1_000 - used,
        keep_from=keep_from,
        is_requested=asked,
    )
    return decision.purge_below // SIZE


def test_files_that_are_old_go_at_their_hour() -> None:
    assert purged(100) == 0
    assert purged(100, 4) == 3, "72 hours"
    assert purged(100, 3, delete_when=frozenset({3, 5})) == 3
    assert purged(100, 4, reserved_hours=101) == 0
    assert purged(100, asked=True) == 3


def test_beyond_75_percent_they_go_at_any_hour() -> None:
    assert purged(750) == 0
    assert purged(751) == 3
    assert purged(751, reserved_hours=101) == 0


def test_beyond_85_percent_young_files_go_until_it_is_less() -> None:
    assert purged(850, reserved_hours=101) == 0
    assert purged(851, reserved_hours=101) == 1
    assert purged(890, reserved_hours=101) == 4
    assert purged(890, reserved_hours=72) == 4
    assert purged(851, reserved_hours=72) == 3
    assert purged(950, reserved_hours=101) == 8, "all there are"
    assert purged(950, reserved_hours=101, may_force=False) == 0
    assert purged(950, reserved_hours=101, most_files=2) == 2


def test_what_is_needed_stays_whatever_the_disk() -> None:
    assert purged(950, keep_from=2 * SIZE + 9) == 2
    assert purged(950, keep_from=SIZE - 1) == 0


def test_a_young_file_keeps_the_older_ones_behind_it() -> None:
    """Files go in the order of the log: a clock that jumped does not make a hole."""
    files = [OldFile(0, NOW), OldFile(SIZE, NOW - 100 * HOUR)]
    decision = decide(
        DiskRetentionPolicy(),
        files,
        SIZE,
        now=CurrentTimes(NOW, NOW, 4),
        used=0,
        usable=100,
        keep_from=1 << 40,
    )
    assert decision.purge_below == 0


@pytest.mark.parametrize(("used", "is_refused"), [(0, False), (900, False), (901, True), (1_000, True)])
def test_beyond_90_percent_producers_are_refused(used: int, is_refused: bool) -> None:
    decision = decide(
        DiskRetentionPolicy(),
        [],
        SIZE,
        now=CurrentTimes(NOW, NOW, 12),
        used=used,
        usable=1_000 - used,
        keep_from=0,
    )
    assert bool(decision.refusal) is is_refused


def test_percents_are_rounded_up_as_rocketmqs() -> None:
    assert [used_percent(used, 1_000 - used) for used in (0, 1, 10, 750, 751)] == [0, 1, 1, 75, 76]
    assert used_percent(0, 0) == 0


def test_hours_are_read_as_rocketmqs() -> None:
    assert parse_delete_when("04") == {4} and parse_delete_when("4;14; 23") == {4, 14, 23}
    for wrong in ("", ";", "24", "-1", "x", "4,5", "٤", "9" * 5_000, "004"):
        with pytest.raises(ConfigError):
            parse_delete_when(wrong)


@pytest.mark.parametrize(
    "policy",
    [
        DiskRetentionPolicy(reserved_hours=0),
        DiskRetentionPolicy(clean_percent=9),
        DiskRetentionPolicy(clean_percent=96),
        DiskRetentionPolicy(forced_percent=86),
        DiskRetentionPolicy(full_percent=91),
        DiskRetentionPolicy(most_files=0),
    ],
)
def test_a_policy_that_rocketmq_would_change_is_refused(policy: DiskRetentionPolicy) -> None:
    check_policy(DiskRetentionPolicy())
    with pytest.raises(ConfigError):
        check_policy(policy)


class Clock:
    """Each of the clocks that upkeep goes by."""

    def __init__(self) -> None:
        self.now_s = NOW / 1_000
        self.steps_ms = 0
        self.wall_ahead_ms = 0

    def now_ms(self) -> int:
        return int(self.now_s * 1_000)

    def for_upkeep(self, disk: SimDisk) -> dict[str, Any]:
        clocks = UpkeepClocks(
            self.now_ms, lambda: self.steps_ms, lambda: self.now_ms() + self.wall_ahead_ms, self.now_ms
        )
        return {"clocks": clocks, "pause": AgePause(disk, PATHS.root / "config", self.now_ms())}


def filled(disk: SimDisk, clock: Clock) -> CommitLogFiles:
    """One file an hour."""
    log = opened(disk)
    for number in range(10):
        put(log, bytes(800), stamp=int(clock.now_s * 1_000) - (100 - number) * HOUR)
    log.flush()
    return log


def upkeep(
    disk: SimDisk, log: CommitLogFiles, clock: Clock, *, keep_from: int = 1 << 40, **policy: object
) -> LogUpkeep:
    kept = DiskRetentionPolicy(**policy)  # type: ignore[arg-type]
    return LogUpkeep(log, kept, keep_from=lambda: keep_from, **clock.for_upkeep(disk))


def test_old_files_are_those_before_the_last() -> None:
    clock = Clock()
    log = filled(SimDisk(), clock)
    files = log.old_files()
    assert [file.begin for file in files] == [number * FILE_SIZE for number in range(9)]
    assert [(NOW - file.newest_ms) // HOUR for file in files] == list(range(99, 90, -1))
    assert opened(SimDisk()).old_files() == []


def test_a_file_that_cannot_be_read_stops_nothing() -> None:
    """What is before it stays, as long as the disk has room; the next look may read it."""
    clock, disk = Clock(), SimDisk()
    log = filled(disk, clock)
    disk.fail("pread", nth=3)
    upkeep(disk, log, clock, reserved_hours=95)._clean(clock.now_ms(), is_requested=True)
    assert log.begin_offset == 2 * FILE_SIZE
    upkeep(disk, log, clock, reserved_hours=95)._clean(clock.now_ms(), is_requested=True)
    assert log.begin_offset == 5 * FILE_SIZE and log.failure is None


def test_files_with_messages_that_were_stored_before_a_step_stay() -> None:
    """A broker that was stopped for 100 h stores messages on old time until its step."""
    clock = Clock()
    disk = SimDisk()
    log = filled(disk, clock)
    disk.wall_ms = clock.now_ms
    for _ in range(3):
        put(log, bytes(800), stamp=clock.now_ms() - 100 * HOUR)
    log.flush()
    care = upkeep(disk, log, clock, delete_when=frozenset(range(24)))
    clock.now_s += 10
    care.run_once()
    assert log.begin_offset == 9 * FILE_SIZE, "those of before the stop"
    clock.now_s += 72 * 3_600
    care.run_once()
    assert log.begin_offset == 12 * FILE_SIZE


def test_a_wall_clock_that_is_wrong_for_a_moment_removes_nothing() -> None:
    clock = Clock()
    disk = SimDisk()
    disk.wall_ms = clock.now_ms
    log = opened(disk)
    for _ in range(10):
        put(log, bytes(800), stamp=clock.now_ms())
    log.flush()
    care = upkeep(disk, log, clock, delete_when=frozenset(range(24)))
    clock.wall_ahead_ms = 100 * HOUR
    clock.now_s += 10
    care.run_once()
    assert log.begin_offset == 0


def test_a_clock_that_was_set_back_keeps_no_file_for_ever() -> None:
    clock = Clock()
    disk = SimDisk()
    disk.wall_ms = lambda: NOW + 10_000 * HOUR
    log = filled(disk, clock)
    care = upkeep(disk, log, clock, delete_when=frozenset(range(24)), reserved_hours=95)
    clock.now_s += 10
    care.run_once()
    assert log.begin_offset == 5 * FILE_SIZE


def test_after_a_step_of_more_than_an_hour_no_file_is_removed_by_age_for_an_hour() -> None:
    """Nor after a restart within that hour, which starts it again; a full disk is cleaned all the same."""
    clock = Clock()
    disk = SimDisk()
    log = filled(disk, clock)
    policy: dict[str, Any] = {"delete_when": frozenset(range(24)), "reserved_hours": 95}
    care = upkeep(disk, log, clock, **policy)
    clock.steps_ms = HOUR + 1
    care.run_once()
    care.clean_now()
    care.run_once()
    assert log.begin_offset == 0
    clock.now_s, clock.steps_ms = clock.now_s + 3_000, 0
    care = upkeep(disk, log, clock, **policy)
    for _ in range(2):
        clock.now_s += 1_500
        care.run_once()
        assert log.begin_offset == 0
    clock.now_s += 600
    care.run_once()
    assert log.begin_offset == 6 * FILE_SIZE
    disk.capacity = disk.used_bytes(PATHS.root) * 100 // 88
    care = upkeep(disk, log, clock, **policy)
    clock.steps_ms = HOUR + 1
    care.run_once()
    clock.now_s += 10
    care.run_once()
    assert log.begin_offset > 6 * FILE_SIZE


def test_a_pause_that_cannot_be_read_is_taken_for_one() -> None:
    clock = Clock()
    disk = SimDisk()
    log = filled(disk, clock)
    disk.mkdir(PATHS.root / "config")
    disk.set_content(PATHS.root / "config" / "agePause.json", b"{")
    care = upkeep(disk, log, clock, delete_when=frozenset(range(24)))
    clock.now_s += 10
    care.run_once()
    assert log.begin_offset == 0
    clock.now_s += 3_600
    care.run_once()
    assert log.begin_offset > 0


def test_old_files_are_removed_when_it_is_time() -> None:
    clock = Clock()
    disk = SimDisk()
    log = filled(disk, clock)
    purges: list[int] = []
    care = LogUpkeep(
        log,
        DiskRetentionPolicy(95, frozenset(range(24))),
        keep_from=lambda: 1 << 40,
        on_purged=purges.append,
        **clock.for_upkeep(disk),
    )
    care.run_once()
    assert log.begin_offset == 0
    clock.now_s += 10
    care.run_once()
    assert log.begin_offset == 5 * FILE_SIZE and purges == [5 * FILE_SIZE]
    clock.now_s += 2 * 3_600
    care.run_once()
    assert log.begin_offset == 7 * FILE_SIZE
    assert not disk.exists(PATHS.file(6 * FILE_SIZE))


def test_an_operator_may_ask_for_it() -> None:
    clock = Clock()
    disk = SimDisk()
    log = filled(disk, clock)
    care = upkeep(disk, log, clock, delete_when=frozenset(), reserved_hours=95)
    clock.now_s += 10
    care.run_once()
    assert log.begin_offset == 0
    care.clean_now()
    care.run_once()
    assert log.begin_offset == 5 * FILE_SIZE


def test_a_nearly_full_disk_refuses_producers_and_not_masters() -> None:
    clock = Clock()
    disk = SimDisk()
    log = filled(disk, clock)
    care = upkeep(disk, log, clock, delete_when=frozenset(), may_force=False)
    disk.capacity = (disk.used_bytes(PATHS.root) + FILE_SIZE) * 100 // 93
    clock.now_s += 10
    care.run_once()
    assert log.refusal
    place = log.place([93])[0]
    with pytest.raises(BrokerError) as caught:
        log.make_room([93])
    assert caught.value.status is Status.DISK_FULL
    log.append_bytes(log.end_offset, bytes(record(b"x", place)))
    disk.capacity *= 2
    clock.now_s += 10
    care.run_once()
    assert not log.refusal
    put(log, b"x")


def test_a_full_disk_is_cleaned_at_once() -> None:
    """Not in ten seconds: an append may need the next file before that."""
    clock = Clock()
    disk = SimDisk()
    log = filled(disk, clock)
    disk.capacity = disk.used_bytes(PATHS.root) + 100
    care = upkeep(disk, log, clock, delete_when=frozenset())
    care.run_once()
    assert care.is_full and log.begin_offset > 0
    care.run_once()
    assert not care.is_full


def test_the_checkpoint_is_saved_when_there_is_something_new() -> None:
    clock = Clock()
    disk = SimDisk()
    log = filled(disk, clock)
    care = upkeep(disk, log, clock)
    put(log, b"x")
    log.flush()
    for _ in range(3):
        before = len(disk.operations)
        clock.now_s += 10
        care.run_once()
        saved = any("checkpoint" in operation for operation in disk.operations[before:])
        assert saved is (_ == 0)
    disk.crash(CrashKind.POWER, Random(0))
    assert opened(disk).checkpoint.flushed_offset == log.flushed_offset


async def test_the_thread_tells_of_a_failed_disk_and_ends() -> None:
    clock = Clock()
    disk = SimDisk()
    log = filled(disk, clock)
    fatal: asyncio.Future[BrokerError] = asyncio.get_running_loop().create_future()
    care = LogUpkeep(
        log,
        DiskRetentionPolicy(),
        UpkeepOptions(interval_s=0.001),
        keep_from=lambda: 0,
        on_fatal=fatal.set_result,
        **clock.for_upkeep(disk),
    )
    disk.fail("allocate", errno.EIO)
    care.start()
    assert (await fatal).status is Status.LOG_FAILED
    await care.stop()


async def test_the_thread_prepares_the_next_file() -> None:
    clock = Clock()
    disk = SimDisk()
    log = filled(disk, clock)
    is_looked_at = asyncio.Event()
    loop = asyncio.get_running_loop()

    def keep_from() -> int:
        loop.call_soon_threadsafe(is_looked_at.set)
        return 0

    care = LogUpkeep(
        log, DiskRetentionPolicy(), UpkeepOptions(0.001, 0.0), keep_from=keep_from, **clock.for_upkeep(disk)
    )
    care.start()
    await is_looked_at.wait()
    await care.stop()
    assert disk.exists(PATHS.file(log.last_file_offset + FILE_SIZE))
    log.close()
    await LogUpkeep(log, DiskRetentionPolicy(), keep_from=lambda: 0, **clock.for_upkeep(disk)).stop()


@pytest.mark.parametrize("text", ["24", "99", "4;", "", "04;24", "\u0664"])
def test_settings_have_hours_of_a_day(text: str) -> None:
    assert ClassicSettings(delete_when="4;04;23").delete_when
    with pytest.raises(ValidationError):
        ClassicSettings(delete_when=text)
