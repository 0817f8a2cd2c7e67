"""Values returned by the client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

#: Called before each attempt with the bodies of one call and the attempt number, starting at 1.
AttemptHook = Callable[[Sequence[bytes], int], object]


class AppendResult(NamedTuple):
    """The position of an acknowledged entry in the log.

    `index` and `pos` are -1 for a retry in a session that is so old that the cluster no longer knows the
    position of the entry, only that it is stored.
    """

    index: int  # type: ignore[assignment] # hides tuple.index
    term: int
    pos: int


class Entry(NamedTuple):
    """One committed entry: its index, the term of the leader that wrote it, its byte position, its body."""

    index: int  # type: ignore[assignment] # hides tuple.index
    term: int
    pos: int
    body: bytes
