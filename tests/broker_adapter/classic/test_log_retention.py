"""Which files go when, and when producers are refused; and the thread that sees to it."""

from __future__ import annotations

import asyncio
import errno
from random import Random

import pytest
from pydantic import ValidationError

from broker_adapter.classic.commit_log_files import CommitLogFiles
from broker_adapter.classic.log_retention import (
    OldFile,
    RetentionPolicy,
    check_policy,
    decide,
    parse_delete_when,
    used_percent,
)
from broker_adapter.classic.log_upkeep import LogUpkeep, UpkeepOptions
from broker_adapter.config.classic import ClassicSettings
from broker_adapter.errors import BrokerError, Status
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
        RetentionPolicy(**policy),  # type: ignore[arg-type]
        FILES,
        SIZE,
        now_ms=NOW,
        hour=hour,
        used=used,
        usable=1_000 - used,
        keep_from=keep_from,
        asked=asked,
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
        RetentionPolicy(), files, SIZE, now_ms=NOW, hour=4, used=0, usable=100, keep_from=1 << 40
    )
    assert decision.purge_below == 0


@pytest.mark.parametrize(("used", "is_refused"), [(0, False), (900, False), (901, True), (1_000, True)])
def test_beyond_90_percent_producers_are_refused(used: int, is_refused: bool) -> None:
    decision = decide(
        RetentionPolicy(), [], SIZE, now_ms=NOW, hour=12, used=used, usable=1_000 - used, keep_from=0
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
        RetentionPolicy(reserved_hours=0),
        RetentionPolicy(clean_percent=9),
        RetentionPolicy(clean_percent=96),
        RetentionPolicy(forced_percent=86),
        RetentionPolicy(full_percent=91),
        RetentionPolicy(most_files=0),
    ],
)
def test_a_policy_that_rocketmq_would_change_is_refused(policy: RetentionPolicy) -> None:
    check_policy(RetentionPolicy())
    with pytest.raises(ConfigError):
        check_policy(policy)


class Clock:
    def __init__(self) -> None:
        self.now_s = NOW / 1_000

    def __call__(self) -> float:
        return self.now_s


def filled(disk: SimDisk, clock: Clock) -> CommitLogFiles:
    """One file an hour."""
    log = opened(disk)
    for number in range(10):
        put(log, bytes(800), stamp=int(clock.now_s * 1_000) - (100 - number) * HOUR)
    log.flush()
    return log


def upkeep(log: CommitLogFiles, clock: Clock, *, keep_from: int = 1 << 40, **policy: object) -> LogUpkeep:
    return LogUpkeep(log, RetentionPolicy(**policy), keep_from=lambda: keep_from, now_s=clock)  # type: ignore[arg-type]


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
    upkeep(log, clock, reserved_hours=95)._clean(clock.now_s, asked=True)
    assert log.begin_offset == 2 * FILE_SIZE
    upkeep(log, clock, reserved_hours=95)._clean(clock.now_s, asked=True)
    assert log.begin_offset == 5 * FILE_SIZE and log.failure is None


def test_old_files_are_removed_when_it_is_time() -> None:
    clock = Clock()
    disk = SimDisk()
    log = filled(disk, clock)
    purges: list[int] = []
    care = LogUpkeep(
        log,
        RetentionPolicy(95, frozenset(range(24))),
        keep_from=lambda: 1 << 40,
        on_purged=purges.append,
        now_s=clock,
    )
    care.look()
    assert log.begin_offset == 0
    clock.now_s += 10
    care.look()
    assert log.begin_offset == 5 * FILE_SIZE and purges == [5 * FILE_SIZE]
    clock.now_s += 2 * 3_600
    care.look()
    assert log.begin_offset == 7 * FILE_SIZE
    assert not disk.exists(PATHS.file(6 * FILE_SIZE))


def test_an_operator_may_ask_for_it() -> None:
    clock = Clock()
    log = filled(SimDisk(), clock)
    care = upkeep(log, clock, delete_when=frozenset(), reserved_hours=95)
    clock.now_s += 10
    care.look()
    assert log.begin_offset == 0
    care.clean_now()
    care.look()
    assert log.begin_offset == 5 * FILE_SIZE


def test_a_nearly_full_disk_refuses_producers_and_not_masters() -> None:
    clock = Clock()
    disk = SimDisk()
    log = filled(disk, clock)
    care = upkeep(log, clock, delete_when=frozenset(), may_force=False)
    disk.capacity = (disk.used_bytes(PATHS.root) + FILE_SIZE) * 100 // 93
    clock.now_s += 10
    care.look()
    assert log.refusal
    place = log.place([93])[0]
    with pytest.raises(BrokerError) as caught:
        log.make_room([93])
    assert caught.value.status is Status.DISK_FULL
    log.append_bytes(log.end_offset, bytes(record(b"x", place)))
    disk.capacity *= 2
    clock.now_s += 10
    care.look()
    assert not log.refusal
    put(log, b"x")


def test_a_full_disk_is_cleaned_at_once() -> None:
    """Not in ten seconds: an append may need the next file before that."""
    clock = Clock()
    disk = SimDisk()
    log = filled(disk, clock)
    disk.capacity = disk.used_bytes(PATHS.root) + 100
    care = upkeep(log, clock, delete_when=frozenset())
    care.look()
    assert care.is_full and log.begin_offset > 0
    care.look()
    assert not care.is_full


def test_the_checkpoint_is_saved_when_there_is_something_new() -> None:
    clock = Clock()
    disk = SimDisk()
    log = filled(disk, clock)
    care = upkeep(log, clock)
    put(log, b"x")
    log.flush()
    for _ in range(3):
        before = len(disk.operations)
        clock.now_s += 10
        care.look()
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
        RetentionPolicy(),
        UpkeepOptions(look_s=0.001),
        keep_from=lambda: 0,
        on_fatal=fatal.set_result,
        now_s=clock,
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

    care = LogUpkeep(log, RetentionPolicy(), UpkeepOptions(0.001, 0.0), keep_from=keep_from, now_s=clock)
    care.start()
    await is_looked_at.wait()
    await care.stop()
    assert disk.exists(PATHS.file(log.last_file_offset + FILE_SIZE))
    log.close()
    await LogUpkeep(log, RetentionPolicy(), keep_from=lambda: 0).stop()


@pytest.mark.parametrize("text", ["24", "99", "4;", "", "04;24", "\u0664"])
def test_settings_have_hours_of_a_day(text: str) -> None:
    assert ClassicSettings(delete_when="4;04;23").delete_when
    with pytest.raises(ValidationError):
        ClassicSettings(delete_when=text)
