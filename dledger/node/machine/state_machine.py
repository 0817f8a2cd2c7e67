"""The state machine interface of a program. Public.

A node applies committed entries to its state machine, in order, each once. Before the log is shortened, the
leader calls its own state machine's `save`, and the result becomes a state image, which the other members
copy. `load` receives an image when a node starts, or when it was so far behind that the entries are purged.

A machine that stores its state in its own files does not have to load an image at each start. Such a machine
is a `DurableStateMachine`, which also has `recover`, `replay` and `close`.

All methods are called on one thread, never two at a time, and never on the node's event loop. They must be
deterministic: the same entries lead to the same state on every node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable


class AppliedEntry(NamedTuple):
    """A committed entry."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    term: int
    body: bytes
    pos: int  # position of its 48-byte header in the log


class Applied(NamedTuple):
    """How far a state extends: the index of the last applied entry, and the position after it."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    term: int
    end_pos: int  # entry.pos + 48 + len(entry.body)


class ImageRefused(Exception):
    """Raised by `StateMachine.load` if the bytes are not the result of `save`.

    The node logs the error, tries earlier images, and waits for a newer one if there is none.
    """


class StateMachine(Protocol):
    """A state machine. Any exception except `ImageRefused` stops the node, because the state is undefined
    then.
    """

    def apply(self, entries: Sequence[AppliedEntry]) -> None:
        """Apply consecutive user entries. Missing indexes belong to internal entries.

        Entries are passed in whole batches, except that the first may be the rest of a batch in which
        `recover` ended. A node passes an `EntryRun`. Must not raise for any content of an entry: the entry
        is committed, and is applied again on every node at every start.
        """

    def save(self) -> Iterable[bytes]:
        """Return the whole state after all entries applied so far, in pieces of any size. A piece is written
        before the next one is requested, and no other method is called meanwhile."""

    def load(self, chunks: Iterable[bytes]) -> None:
        """Replace the state by saved bytes, in pieces of other sizes. No pieces: the empty state.

        Raises ImageRefused.
        """


@runtime_checkable
class SnapshotStateMachine(StateMachine, Protocol):
    """A state machine that can apply entries while an image of an earlier state is being written.

    Without this, no entries are applied on the leader until the image is written.
    """

    def snapshot(self) -> Iterable[bytes]:
        """Like `save`, and called instead of it. The pieces are requested one by one, and entries may be
        applied in between; together they must be the state at the time of the call."""


@runtime_checkable
class DurableStateMachine(StateMachine, Protocol):
    """A state machine that stores its state in its own files and recovers it after a crash.

    It may write them at any time, provided that the state returned by `recover` is never ahead of
    `NodeServer.durable_index`: if the log loses its unsynced end, it may get other entries at these indexes.
    """

    def recover(self) -> Applied | None:
        """Return how far the state in the files extends. Called once, before all other methods.

        The machine must reduce its state to exactly this extent. If the log has this entry, applying
        continues with the next one. Otherwise, or after None (no usable files), `load` follows.
        """

    def replay(self, entries: Sequence[AppliedEntry]) -> None:
        """Process entries contained in the loaded state that are still in the log, to rebuild derived data.

        Called after `load` with consecutive entries in whole batches, from the start of the log up to the
        image. They must not be applied. `load` may be called again before all are replayed; then replay
        restarts.
        """

    def close(self) -> None:
        """Write the files for `recover`. This is the last call when the node stops in an orderly way. It is
        omitted if an earlier call failed.
        """
