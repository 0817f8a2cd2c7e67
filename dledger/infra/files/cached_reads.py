"""Small reads on the event loop, which the page cache must answer.

A read on another thread costs several times as much as the read itself: a submission, two switches of the
thread, and the interpreter lock. Most reads concern recent data, which is in the page cache.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, TypeVar

T = TypeVar("T")

#: Maximum bytes that are copied and verified in one call, which takes about 0.1 ms.
MAX_BYTES: Final = 512 << 10
_bytes_left: ContextVar[int | None] = ContextVar("bytes_left", default=None)


class NotCached(Exception):
    """Raised inside `read_cached` if a read is too large or would wait, for example for the disk."""


def read_cached(work: Callable[[], T]) -> T:
    """Run `work`, which reads files. Raises NotCached; `work` can then run again on a thread."""
    token = _bytes_left.set(MAX_BYTES)
    try:
        return work()
    finally:
        _bytes_left.reset(token)


def is_only_cached() -> bool:
    """Return True inside `read_cached`."""
    return _bytes_left.get() is not None


def take_bytes(size: int) -> None:
    """Count a read of `size` bytes inside `read_cached`."""
    left = _bytes_left.get()
    if left is None or left < size:
        raise NotCached
    _bytes_left.set(left - size)
