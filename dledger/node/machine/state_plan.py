"""Next step and progress of a state machine. Pure: driven by a node or by the simulator.

`next` returns one piece. The driver executes it on the machine's thread through
dledger.node.machine.state_feeder, and reports it. The driver does not report a failed piece. `next` returns
it again if it is still needed.
"""

from __future__ import annotations

from typing import NamedTuple

from dledger.replica.images import ImageRequest


class LoadStep(NamedTuple):
    """Load the newest committed image, or the empty state if newest_image is -1."""

    newest_image: int
    readable_index: int


class LoadResult(NamedTuple):
    """A loaded state that covers a log starting after base_index, up to `applied`."""

    applied: int
    base_index: int
    size: int  # size of the image, in bytes


class ReplayStep(NamedTuple):
    """Replay the entries from `first` to `last`, which the loaded state already contains."""

    first: int
    last: int


class ApplyStep(NamedTuple):
    """Apply the entries from `first` to `last`."""

    first: int
    last: int


class SaveStep(NamedTuple):
    """Begin to save the state: all entries before the mark of the request are applied, and no later ones."""

    request: ImageRequest


class SaveOnStep(NamedTuple):
    """Save the next part of the state."""


StateStep = LoadStep | ReplayStep | ApplyStep | SaveStep | SaveOnStep


class StatePlan:
    """The plan of one machine. `replays`: after a load, the machine replays the entries that are still in the
    log. `saves_aside`: entries may be applied while the state is being saved."""

    def __init__(self, *, replays: bool, saves_aside: bool = False) -> None:
        self._saves_aside = saves_aside
        self.applied = -1
        self._replays = replays
        self._loaded = False  # the machine holds a state: empty, from an image, or its own
        self._replayed = -1
        self._replay_end = -1  # entries up to here are replayed before `applied` includes them
        self._request: ImageRequest | None = None  # entries from its mark on are applied after the save began
        self._is_saving = False
        self._save_is_next = True  # while saving aside, parts of the state alternate with entries

    def recovered(self, applied: int) -> None:
        """Start from the machine's own state, which agrees with the log."""
        self.applied = applied
        self._loaded = True

    def forget(self) -> None:
        """Discard the state and start from an image."""
        self.applied = -1
        self._loaded = False
        self._is_saving = False

    def save(self, request: ImageRequest) -> None:
        """Request an image."""
        self._request = request

    def saving(self, *, is_saving: bool) -> None:
        """Report a `SaveStep` or `SaveOnStep`, after which parts of the state remain or not."""
        self._is_saving = is_saving
        self._save_is_next = not self._saves_aside

    def next(
        self, base_index: int, readable_index: int, newest_image: int, *, needs_image: bool
    ) -> StateStep | None:
        """Return the next piece for a log that starts after base_index, or None."""
        readable_end = max(readable_index, base_index)
        assert not self._loaded or self.applied <= readable_end, f"{self.applied} applied of {readable_end}"
        is_replaying = self._replayed < self._replay_end
        if self._loaded and (self._replayed if is_replaying else self.applied) < base_index:
            self.forget()  # purged before it was replayed: start from the image instead
        if not self._loaded:
            return None if needs_image else LoadStep(newest_image, readable_index)
        if is_replaying:
            return ReplayStep(self._replayed + 1, self._replay_end)
        last = readable_index
        request = self._request
        if request is not None:
            is_due = self.applied >= request.index - 1 and readable_index >= request.index
            if is_due and not self._is_saving:
                self._request = None
                return SaveStep(request)
            last = min(last, request.index - 1)
        if self._is_saving and (self._save_is_next or self.applied >= last):
            return SaveOnStep()
        self._save_is_next = True
        return ApplyStep(self.applied + 1, last) if self.applied < last else None

    def loaded(self, result: LoadResult) -> None:
        """Report a finished `LoadStep`."""
        self._loaded = True
        self._replayed = self._replay_end = -1
        if self._replays and result.base_index < result.applied:
            self._replayed, self._replay_end = result.base_index, result.applied
        else:
            self.applied = result.applied

    def replayed(self, last_index: int) -> None:
        """Report `ReplayStep` up to last_index."""
        self._replayed = last_index
        if last_index == self._replay_end:
            self.applied = last_index

    def has_applied(self, last_index: int) -> None:
        """Report `ApplyStep` up to last_index."""
        assert last_index > self.applied
        self.applied = last_index
