"""What can be wrong with a link, and what a link has done: plain values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Self


@dataclass(frozen=True, slots=True)
class Impairment:
    """What is wrong with a directed link. Times in milliseconds; several impairments can be in force at once.

    cut: nothing passes, as behind a firewall that drops; connections stall, and go on when it is over.
    hang: everything is accepted and swallowed, nothing is answered; connections break when it is over.
    reset: connections break now, and new ones at once, until it is over.
    reset_chance: of each piece (up to 64 KiB) to break its connection instead of passing.
    delay_ms, jitter_ms: each piece arrives later by delay +- jitter, in order.
    bytes_per_second: of all connections of the link together; 0: no limit.
    """

    cut: bool = False
    hang: bool = False
    reset: bool = False
    reset_chance: float = 0.0
    delay_ms: int = 0
    jitter_ms: int = 0
    bytes_per_second: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.reset_chance <= 1:
            raise ValueError(f"reset_chance {self.reset_chance} is not in 0..1")
        if min(self.delay_ms, self.jitter_ms, self.bytes_per_second) < 0:
            raise ValueError(f"negative: {self}")

    @property
    def slows(self) -> bool:
        """Whether pieces have to wait for their time."""
        return bool(self.delay_ms or self.jitter_ms or self.bytes_per_second)


CLEAR = Impairment()


def combined(impairments: Iterable[Impairment]) -> Impairment:
    """All of them at once: delays add up, the narrowest throttle counts."""
    found = CLEAR
    for one in impairments:
        limits = [rate for rate in (found.bytes_per_second, one.bytes_per_second) if rate]
        found = Impairment(
            cut=found.cut or one.cut,
            hang=found.hang or one.hang,
            reset=found.reset or one.reset,
            reset_chance=1 - (1 - found.reset_chance) * (1 - one.reset_chance),
            delay_ms=found.delay_ms + one.delay_ms,
            jitter_ms=found.jitter_ms + one.jitter_ms,
            bytes_per_second=min(limits, default=0),
        )
    return found


@dataclass(slots=True)
class LinkCounters:
    """What one link has done: enough to tell a fault that hurt from one that nobody noticed.

    passed, passed_bytes: pieces that arrived. held: pieces, ends and connections that a cut kept waiting.
    swallowed: pieces that hang took. delayed: pieces that had to wait for delay or throttle. resets:
    connections broken on purpose. connections: accepted by us.
    """

    passed: int = 0
    passed_bytes: int = 0
    held: int = 0
    swallowed: int = 0
    delayed: int = 0
    resets: int = 0
    connections: int = 0

    def copy(self) -> LinkCounters:
        return replace(self)

    def __sub__(self, other: LinkCounters) -> LinkCounters:
        return LinkCounters(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))

    @classmethod
    def total(cls, all_of_them: Iterable[LinkCounters]) -> Self:
        found = list(all_of_them)
        return cls(*(sum(getattr(one, f.name) for one in found) for f in fields(cls)))

    def hurt_by(self, impairment: Impairment) -> bool:
        """Whether, by what was counted while it was in force, the impairment touched any traffic."""
        stopped = (impairment.cut and self.held > 0) or (impairment.hang and self.swallowed > 0)
        broken = (impairment.reset or impairment.reset_chance > 0) and self.resets > 0
        return stopped or broken or (impairment.slows and self.delayed > 0)
