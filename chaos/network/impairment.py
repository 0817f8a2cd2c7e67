"""Impairments of a link, and counters of their effects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Self


@dataclass(frozen=True, slots=True)
class Impairment:
    """Impairment of a directed link. Times are in milliseconds; several impairments can be in force at
    once.

    cut: nothing passes, as with a firewall that drops packets; connections stall, and resume when the cut
    ends.
    hang: connections and data are accepted and discarded, without responses; connections break when it ends.
    reset: open connections break at the start, and new ones immediately, until it ends.
    reset_chance: probability that a piece (up to 64 KiB) breaks its connection instead of passing.
    delay_ms, jitter_ms: each piece arrives later by delay +- jitter, in order.
    bytes_per_second: limit of all connections of the link together; 0: no limit.
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
            raise ValueError(f"reset_chance {self.reset_chance} is not between 0 and 1")
        if min(self.delay_ms, self.jitter_ms, self.bytes_per_second) < 0:
            raise ValueError(f"an impairment must not have negative values: {self}")

    @property
    def slows(self) -> bool:
        """True if pieces are delayed."""
        return bool(self.delay_ms or self.jitter_ms or self.bytes_per_second)


CLEAR = Impairment()


def combined(impairments: Iterable[Impairment]) -> Impairment:
    """Combine impairments: delays add up, and the smallest rate limit applies."""
    result = CLEAR
    for impairment in impairments:
        limits = [rate for rate in (result.bytes_per_second, impairment.bytes_per_second) if rate]
        result = Impairment(
            cut=result.cut or impairment.cut,
            hang=result.hang or impairment.hang,
            reset=result.reset or impairment.reset,
            reset_chance=1 - (1 - result.reset_chance) * (1 - impairment.reset_chance),
            delay_ms=result.delay_ms + impairment.delay_ms,
            jitter_ms=result.jitter_ms + impairment.jitter_ms,
            bytes_per_second=min(limits, default=0),
        )
    return result


@dataclass(slots=True)
class LinkCounters:
    """Counters of one link, which show whether a fault affected any traffic.

    passed, passed_bytes: delivered pieces. held: pieces, ends and connections delayed by a cut.
    swallowed: pieces discarded by hang. delayed: pieces delayed by delay or throttle. resets: connections
    broken on purpose. connections: accepted connections.
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
        counters = list(all_of_them)
        return cls(*(sum(getattr(c, f.name) for c in counters) for f in fields(cls)))

    def hurt_by(self, impairment: Impairment) -> bool:
        """Return True if these counts, from the period in which the impairment was in force, show that it
        affected traffic."""
        stopped = (impairment.cut and self.held > 0) or (impairment.hang and self.swallowed > 0)
        broken = (impairment.reset or impairment.reset_chance > 0) and self.resets > 0
        return stopped or broken or (impairment.slows and self.delayed > 0)
