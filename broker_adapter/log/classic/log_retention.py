"""Decide which CommitLog files to remove, and whether to accept writes. Pure functions.

RocketMQ checks every 10 s. In the hours of `delete_when`, or above 75 % disk usage, it removes files whose
newest message is older than `reserved_hours`. Above 85 % it removes the oldest files regardless of their age,
and above 90 % it refuses sends. Above 85 % RocketMQ removes ten files at a time, while this module removes
only as many as needed to return to 85 %. Source: CleanCommitLogService and deleteExpiredFileByTime of
RocketMQ 5.5.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from dledger import Code, ConfigError

_HOUR_MS = 3_600_000
_HOUR = re.compile(r"([01]?[0-9]|2[0-3])\Z")


class DiskRetentionPolicy(NamedTuple):
    """Retention settings.

    They correspond to RocketMQ's fileReservedTime, deleteWhen (hours of the day, local time),
    diskMaxUsedSpaceRatio, diskSpaceCleanForciblyRatio, diskSpaceWarningLevelRatio, cleanFileForciblyEnable
    and deleteFileBatchMax.
    """

    reserved_hours: int = 72
    delete_when: frozenset[int] = frozenset({4})
    clean_percent: int = 75
    forced_percent: int = 85
    full_percent: int = 90
    may_force: bool = True
    most_files: int = 10


class OldFile(NamedTuple):
    """A file of the log that is no longer written.

    `newest_ms`: upper bound for its store timestamps. `modified_ms`: modification time, by the machine's wall
    clock at the last write.
    """

    begin: int
    newest_ms: int
    modified_ms: int = 0


class CurrentTimes(NamedTuple):
    """Current times.

    `log_ms`: time on the clock of store timestamps. `does_age_count`: False after a step of that clock, which
    may make messages look old.
    """

    log_ms: int
    wall_ms: int
    hour: int  # local time
    does_age_count: bool = True


class Decision(NamedTuple):
    """Result of `decide`. `purge_below`: 0 to remove nothing. `refusal`: reason to refuse writes, or ""."""

    purge_below: int
    refusal: str
    reason: str = ""


def parse_delete_when(text: str) -> frozenset[int]:
    """Parse hours in RocketMQ's format: "04" or "02;14". Raises ConfigError (CONFIG_INVALID)."""
    hours = set()
    for part in text.split(";"):
        if not _HOUR.match(part.strip()):
            raise ConfigError(f"delete_when: {part[:32]!r} is not a valid hour", code=Code.CONFIG_INVALID)
        hours.add(int(part))
    return frozenset(hours)


def check_policy(policy: DiskRetentionPolicy) -> None:
    """Check the limits that RocketMQ enforces. Raises ConfigError (CONFIG_INVALID)."""
    bounds = {
        "reserved_hours": (1, 10**6),
        "clean_percent": (10, 95),
        "forced_percent": (30, 85),
        "full_percent": (35, 90),
        "most_files": (1, 10**6),
    }
    for name, (low, high) in bounds.items():
        value = getattr(policy, name)
        if not low <= value <= high:
            raise ConfigError(f"{name} {value} is not between {low} and {high}", code=Code.CONFIG_INVALID)


def used_percent(used: int, usable: int) -> int:
    """Return the used share of a disk in percent, rounded up.

    `usable`: bytes available to unprivileged processes.
    """
    return -(-100 * used // max(1, used + usable))


def decide(
    policy: DiskRetentionPolicy,
    files: Sequence[OldFile],
    file_size: int,
    *,
    now: CurrentTimes,
    used: int,
    usable: int,
    keep_from: int,
    is_requested: bool = False,
) -> Decision:
    """Decide what to do with `files`, which are all files except the current one, oldest first.

    `used` and `usable`: bytes of the disk. `keep_from`: offset from which data is still needed, for example
    by the dispatcher. `is_requested`: an operator has requested the removal of old files.
    """
    percent = used_percent(used, usable)
    refusal = f"{percent} % of the disk are used" if percent > policy.full_percent else ""
    reason = ""
    if is_requested:
        reason = "requested"
    elif now.hour in policy.delete_when:
        reason = f"hour {now.hour}"
    elif percent > policy.clean_percent:
        reason = f"{percent} % of the disk are used"
    if not reason:
        return Decision(0, refusal)
    purge_below = 0
    for file in files[: policy.most_files]:
        end = file.begin + file_size
        is_forced = policy.may_force and used_percent(used, usable) > policy.forced_percent
        is_old = now.does_age_count and _is_old(file, now, policy.reserved_hours * _HOUR_MS)
        if end > keep_from or not (is_old or is_forced):
            break
        purge_below = end
        used, usable = max(0, used - file_size), usable + file_size
    return Decision(purge_below, refusal, reason)


def _is_old(file: OldFile, now: CurrentTimes, reserved_ms: int) -> bool:
    """True if store timestamps and modification time both show that the file is old.

    Suppose that a broker starts after 100 h of downtime. For half a minute, until its clock has proved
    steady, it continues from the time of its newest message. Messages stored during that time have timestamps
    that are 100 h old. Their files, however, have a recent modification time, also on slaves and after
    restarts. A modification time in the future is ignored, because the machine's clock has since been set
    back.
    """
    was_modified_long_ago = not 0 <= now.wall_ms - file.modified_ms < reserved_ms
    return now.log_ms - file.newest_ms >= reserved_ms and was_modified_long_ago
