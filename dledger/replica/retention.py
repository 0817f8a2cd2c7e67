"""Decides when the leader writes an image and purges (docs/guarantees.md, Retention). Pure.

Only a committed PURGE entry moves ledger_begin_index, equally on all nodes, to a border between data files
below a committed image. A slow follower delays purging up to a number of bytes. If it is further behind,
entries that it needs are purged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dledger.core.values import Base


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """Limits beyond which entries may be purged. A limit of None does not apply."""

    max_age_ms: int | None = None  # by cluster time
    max_bytes: int | None = None  # minimum kept after the last border
    min_free_bytes: int | None = None  # on the leader's file system
    hold_bytes: int = 1 << 30  # a follower further behind than this no longer holds purging back
    check_ms: int = 1000

    @property
    def is_on(self) -> bool:
        return any(bound is not None for bound in (self.max_age_ms, self.max_bytes, self.min_free_bytes))


@dataclass(frozen=True, slots=True)
class Border:
    """A possible start of the log, with the cluster time at which the entries before it were written."""

    base: Base
    stamp_ms: int  # stamp of the first stamped batch after it, or -1 if not known yet
    written_ms: int = 0  # wall clock time of the last write to the file before it, or 0 if unknown

    def is_older(self, age_ms: int, now_ms: int, wall_ms: int) -> bool:
        """Return True if both clocks agree that it is older; `now_ms` is cluster time.

        Suppose a cluster of one node starts after it was stopped for four days. It uses the old time for half
        a minute, so entries that are appended during that time have stamps that are four days old, although
        their file was just written. A file time in the future proves nothing, because the clock was set back
        in the meantime.
        """
        was_written_long_ago = not 0 <= wall_ms - self.written_ms < age_ms
        return self.stamp_ms >= 0 and now_ms - self.stamp_ms >= age_ms and was_written_long_ago


def select_base(
    policy: RetentionLimits,
    borders: Sequence[Border],
    begin_pos: int,
    end_pos: int,
    now_ms: int,
    requested_before: int,
    free_bytes: int,
    *,
    wall_ms: int = 0,
    age_counts: bool = True,
) -> Base | None:
    """Return the highest base up to which the log may be purged by age, by size, for free space or at an
    operator's request. Return None if nothing may be purged.

    If the only reason for a purge is low disk space, purge only enough to free the space that is needed.
    `requested_before`: index requested by an operator. `now_ms`: cluster time. `age_counts`: False while
    purging by age is paused.
    """
    target: Base | None = None
    missing = 0 if policy.min_free_bytes is None else policy.min_free_bytes - free_bytes
    for border in borders:
        too_little_room = missing > 0
        missing -= border.base.pos - begin_pos
        begin_pos = border.base.pos
        too_old = (
            age_counts
            and policy.max_age_ms is not None
            and border.is_older(policy.max_age_ms, now_ms, wall_ms)
        )
        too_much = policy.max_bytes is not None and end_pos - border.base.pos >= policy.max_bytes
        if too_old or too_much or too_little_room or border.base.index < requested_before:
            target = border.base
    return target


def kept_for_owner(borders: Sequence[Border], target: Base, needed_from: int) -> Base | None:
    """Lower `target` so that everything from position `needed_from` onward is kept. Returns None if nothing
    may be purged."""
    fitting = [b.base for b in borders if b.base.index <= target.index and b.base.pos <= needed_from]
    return fitting[-1] if fitting else None


def held_back(
    borders: Sequence[Border], target: Base, match: Sequence[tuple[int, int]], end_pos: int, hold_bytes: int
) -> Base | None:
    """Lower `target` for slow followers. `match`: (index, position) stored by each follower."""
    floor = target.index
    for index, pos in match:
        if index < floor and end_pos - pos <= hold_bytes:
            floor = index
    fitting = [border.base for border in borders if border.base.index <= floor]
    return fitting[-1] if fitting else None
