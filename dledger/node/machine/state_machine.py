"""What a program gives to a node so that its log becomes state. Public.

A node applies committed entries to its state machine, in order, each once per life of the state. When the log
is to be shortened, the leader asks its own state machine to `save`, and the result travels in the log as a
state image; `load` gets it when a node starts, or when it was so far behind that the entries are gone.

A machine that keeps files of its own, and need not be given its state at each start, is a
`DurableStateMachine`: it has `recover`, `replay` and `close`, too.

All methods are called on one thread, never two at a time, and never on the node's event loop. They must
be deterministic: the same entries lead to the same state on every node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable


class AppliedEntry(NamedTuple):
    """A committed entry, as `append` took it."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    term: int
    body: bytes
    pos: int  # of its first byte, that of its 48-byte header, in the log


class Applied(NamedTuple):
    """How far a log was applied: the last entry, and the position behind it."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    term: int
    end_pos: int  # entry.pos + 48 + len(entry.body)


class ImageRefused(Exception):
    """Out of `StateMachine.load`: these are not the bytes that `save` gives. The node logs it, tries the
    images before this one, and waits for a newer one if there is none."""


class StateMachine(Protocol):
    """An exception out of any of these ends the node, except `ImageRefused`: its state would be nobody's."""

    def apply(self, entries: Sequence[AppliedEntry]) -> None:
        """Consecutive entries of users; indexes in between belong to the log itself. Whole batches, except
        that the first may be the rest of one that `recover` had ended in. A node gives an `EntryRun`.

        Not to raise for what an entry holds, whatever that is: the entry is committed, and is applied again
        on every node at every start."""

    def save(self) -> Iterable[bytes]:
        """The whole state, as all entries applied so far made it, in pieces of any size."""

    def load(self, chunks: Iterable[bytes]) -> None:
        """Forget everything and take over what `save` gave, in other pieces. Nothing: the empty state.
        ImageRefused."""


@runtime_checkable
class DurableStateMachine(StateMachine, Protocol):
    """A state machine with files of its own, made of the entries, which it finds again after a crash.

    It writes them whenever it likes, on condition that nothing which it would `recover` is ever ahead of
    `NodeServer.durable_index`: a log that lost its unsynced end may get other entries there.
    """

    def recover(self) -> Applied | None:
        """Called once, before anything else: how far the state reaches that was found in the files.

        The state has been cut to exactly that: applying goes on with the next entry if the log agrees, that
        is, if it has this entry. If not, or with None (nothing was found that can be believed), `load`
        follows.
        """

    def replay(self, entries: Sequence[AppliedEntry]) -> None:
        """After `load`: entries which that state is made of and which are still in the log, from its begin
        up to the image, consecutive and in whole batches. Not to be applied; what is derived from single
        entries can be made again. `load` may come again before all of them came, then so do they."""

    def close(self) -> None:
        """The last call, when the node stops in order: write what is to be found by `recover`. Not after a
        call that has failed."""
