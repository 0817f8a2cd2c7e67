"""Which files of a CommitLog may go, and whether there is room to write. Pure decisions.

As RocketMQ decides every 10 s: files whose newest message is older than `reserved_hours` go at the hours of
`delete_when`, at any hour beyond 75 % of the disk; beyond 85 % files go whatever their age, the oldest
first; beyond 90 % producers are refused. Beyond 85 % RocketMQ removes ten files at a time; here no more go
than bring the disk back to that. Facts: CleanCommitLogService and deleteExpiredFileByTime of RocketMQ 5.5.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from dledger import Code, ConfigError

_HOUR_MS = 3_600_000
_HOUR = re.compile(r"([01]?[0-9]|2[0-3])\Z")


class RetentionPolicy(NamedTuple):
    """RocketMQ's fileReservedTime, deleteWhen (hours of the day, local time), diskMaxUsedSpaceRatio,
    diskSpaceCleanForciblyRatio, diskSpaceWarningLevelRatio, cleanFileForciblyEnable, deleteFileBatchMax."""

    reserved_hours: int = 72
    delete_when: frozenset[int] = frozenset({4})
    clean_percent: int = 75
    forced_percent: int = 85
    full_percent: int = 90
    may_force: bool = True
    most_files: int = 10


class OldFile(NamedTuple):
    """A file that is not written any more. `newest_ms`: no message of it was stored later."""

    begin: int
    newest_ms: int


class Decision(NamedTuple):
    """`purge_below` 0: nothing goes. `refusal`: why nothing may be written, "" if it may."""

    purge_below: int
    refusal: str
    reason: str = ""


def parse_delete_when(text: str) -> frozenset[int]:
    """RocketMQ's form: hours with semicolons between, "04" or "02;14". ConfigError (CONFIG_INVALID)."""
    hours = set()
    for part in text.split(";"):
        if not _HOUR.match(part.strip()):
            raise ConfigError(f"delete_when: {part[:32]!r} is no hour", code=Code.CONFIG_INVALID)
        hours.add(int(part))
    return frozenset(hours)


def check_policy(policy: RetentionPolicy) -> None:
    """ConfigError (CONFIG_INVALID). RocketMQ forces these bounds upon what is configured."""
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
            raise ConfigError(f"{name} {value} is not {low} to {high}", code=Code.CONFIG_INVALID)


def used_percent(used: int, usable: int) -> int:
    """Of a disk, rounded up. `usable`: bytes that an unprivileged process can still write."""
    return -(-100 * used // max(1, used + usable))


def decide(
    policy: RetentionPolicy,
    files: Sequence[OldFile],
    file_size: int,
    *,
    now_ms: int,
    hour: int,
    used: int,
    usable: int,
    keep_from: int,
    asked: bool = False,
) -> Decision:
    """`files`: all but the one that is written, the oldest first. `used`, `usable`: bytes of the disk.
    `keep_from`: an offset that is needed still, by the dispatcher for instance; nothing from there on goes.
    `asked`: an operator wants old files to go at this hour."""
    percent = used_percent(used, usable)
    refusal = f"{percent} % of the disk are used" if percent > policy.full_percent else ""
    reason = ""
    if asked:
        reason = "asked for"
    elif hour in policy.delete_when:
        reason = f"hour {hour}"
    elif percent > policy.clean_percent:
        reason = f"{percent} % of the disk are used"
    if not reason:
        return Decision(0, refusal)
    purge_below = 0
    for file in files[: policy.most_files]:
        end = file.begin + file_size
        is_forced = policy.may_force and used_percent(used, usable) > policy.forced_percent
        is_old = now_ms - file.newest_ms >= policy.reserved_hours * _HOUR_MS
        if end > keep_from or not (is_old or is_forced):
            break
        purge_below = end
        used, usable = max(0, used - file_size), usable + file_size
    return Decision(purge_below, refusal, reason)
