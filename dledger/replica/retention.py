"""When the leader makes an image and purges, and up to where (docs/guarantees.md, Retention). Pure decisions.

Only a committed PURGE entry moves ledger_begin_index, equally on all nodes, at a border between data files,
and only behind a committed image. A slow follower holds purging back for so many bytes, then is left behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dledger.core.values import Base


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What may be forgotten. None: never for that reason."""

    max_age_ms: int | None = None  # by cluster time
    max_bytes: int | None = None  # kept behind the last border, at least
    min_free_bytes: int | None = None  # of the leader's file system
    hold_bytes: int = 1 << 30  # a follower further behind than this no longer holds purging back
    check_ms: int = 1000

    @property
    def is_on(self) -> bool:
        return any(bound is not None for bound in (self.max_age_ms, self.max_bytes, self.min_free_bytes))


@dataclass(frozen=True, slots=True)
class Border:
    """A place where the log may begin, and the cluster time when the entries before it were written."""

    base: Base
    stamp_ms: int  # of the first stamped batch after it; -1: not known yet


def wanted_base(
    policy: RetentionPolicy,
    borders: Sequence[Border],
    begin_pos: int,
    end_pos: int,
    now_ms: int,
    asked_before: int,
    free_bytes: int,
) -> Base | None:
    """The highest border that age, size, free space or an operator (`asked_before`, an index) allow; None:
    none. For space no more goes than is missing."""
    wanted: Base | None = None
    missing = 0 if policy.min_free_bytes is None else policy.min_free_bytes - free_bytes
    for border in borders:
        too_little_room = missing > 0
        missing -= border.base.pos - begin_pos
        begin_pos = border.base.pos
        too_old = (
            policy.max_age_ms is not None
            and border.stamp_ms >= 0
            and now_ms - border.stamp_ms >= policy.max_age_ms
        )
        too_much = policy.max_bytes is not None and end_pos - border.base.pos >= policy.max_bytes
        if too_old or too_much or too_little_room or border.base.index < asked_before:
            wanted = border.base
    return wanted


def kept_for_owner(borders: Sequence[Border], wanted: Base, needed_from: int) -> Base | None:
    """`wanted`, lowered so that all is kept from position `needed_from` on; None: nothing may go."""
    fitting = [b.base for b in borders if b.base.index <= wanted.index and b.base.pos <= needed_from]
    return fitting[-1] if fitting else None


def held_back(
    borders: Sequence[Border], wanted: Base, match: Sequence[tuple[int, int]], end_pos: int, hold_bytes: int
) -> Base | None:
    """`wanted`, lowered for slow followers. `match`: (index, position) that each follower has stored."""
    floor = wanted.index
    for index, pos in match:
        if index < floor and end_pos - pos <= hold_bytes:
            floor = index
    fitting = [border.base for border in borders if border.base.index <= floor]
    return fitting[-1] if fitting else None
