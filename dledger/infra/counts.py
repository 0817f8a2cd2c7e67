"""Counters without entries for 0."""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

T = TypeVar("T")


def decrement(counts: Counter[T], key: T) -> None:
    """Decrease a count by 1, and remove it at 0."""
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
