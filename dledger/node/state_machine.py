"""What a program gives to a node so that its log becomes state. Public.

A node applies committed entries to its state machine, in order, each once per life of the state. When the log
is to be shortened, the leader asks its own state machine to `save`, and the result travels in the log as a
state image; `load` gets it when a node starts, or when it was so far behind that the entries are gone.

The three methods are called on one thread, never two at a time, and never on the node's event loop. They must
be deterministic: the same entries lead to the same state on every node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol


class AppliedEntry(NamedTuple):
    """A committed entry, as `append` took it."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    term: int
    body: bytes


class StateMachine(Protocol):
    """An exception out of any of these ends the node: its state would be nobody's."""

    def apply(self, entries: Sequence[AppliedEntry]) -> None:
        """Consecutive entries of users; indexes in between belong to the log itself."""

    def save(self) -> Iterable[bytes]:
        """The whole state, as all entries applied so far made it, in pieces of any size."""

    def load(self, chunks: Iterable[bytes]) -> None:
        """Forget everything and take over what `save` gave, in other pieces. Nothing: the empty state."""
