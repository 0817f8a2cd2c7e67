"""What a user of the client gets back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

#: Told of each attempt, before it is made: the bodies of one call, and the attempt number, starting at 1.
AttemptHook = Callable[[Sequence[bytes], int], object]


class AppendResult(NamedTuple):
    """Where an acknowledged entry is in the log.

    `index` and `pos` are -1 for a retry in a session so old that the cluster knows that it stored the entry,
    but no longer where.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    term: int
    pos: int


class Entry(NamedTuple):
    """One committed entry: its number, the term of the leader that wrote it, its byte position, its body."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    term: int
    pos: int
    body: bytes
