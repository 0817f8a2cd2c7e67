"""What is to be done next with a state machine, and how far it is. Pure: a node drives it, or the simulator.

One piece at a time: `next` names it, whoever drives does it on the machine's thread, through
dledger.node.machine.state_feeder, and reports it. A piece that fails is not reported, and named again if it
still is what is to be done.
"""

from __future__ import annotations

from typing import NamedTuple


class Load(NamedTuple):
    """Load the newest committed image, or the empty state if newest_image is -1."""

    newest_image: int
    readable_index: int


class Loaded(NamedTuple):
    """A state was loaded that covers a log, which begins after base_index, up to `applied`."""

    applied: int
    base_index: int
    size: int  # of the image, in bytes


class Replay(NamedTuple):
    """Hand over some entries, from `first` on and up to `last`, that the loaded state is made of."""

    first: int
    last: int


class Apply(NamedTuple):
    """Apply some entries, from `first` on and up to `last`."""

    first: int
    last: int


class Save(NamedTuple):
    """Save the state: all before image_index is applied, and nothing after it."""

    image_index: int


Piece = Load | Replay | Apply | Save


class StatePlan:
    """`replays`: after a load the machine wants the entries that are still there."""

    def __init__(self, *, replays: bool) -> None:
        self.applied = -1
        self._replays = replays
        self._loaded = False  # the machine holds a state: the empty one, that of an image, or one of its own
        self._replayed = -1
        self._replay_end = -1  # up to there entries are replayed, before `applied` says that all is there
        self._save_at: int | None = None  # image index: nothing from there on is applied before it is saved

    def recovered(self, applied: int) -> None:
        """The machine has a state of its own that the log agrees with."""
        self.applied = applied
        self._loaded = True

    def forget(self) -> None:
        """Whatever it holds: begin from an image."""
        self.applied = -1
        self._loaded = False

    def save(self, image_index: int) -> None:
        """The state as of an image is wanted."""
        self._save_at = image_index

    def next(
        self, base_index: int, readable_index: int, newest_image: int, *, needs_image: bool
    ) -> Piece | None:
        """The next piece, for a log that begins after base_index; None: there is nothing to do now."""
        readable_end = max(readable_index, base_index)
        assert not self._loaded or self.applied <= readable_end, f"{self.applied} applied of {readable_end}"
        is_replaying = self._replayed < self._replay_end
        if self._loaded and (self._replayed if is_replaying else self.applied) < base_index:
            self.forget()  # purged before it was handed over: begin from the image instead
        if not self._loaded:
            return None if needs_image else Load(newest_image, readable_index)
        if is_replaying:
            return Replay(self._replayed + 1, self._replay_end)
        last = readable_index
        if self._save_at is not None:
            if self.applied >= self._save_at - 1:
                image_index, self._save_at = self._save_at, None
                if self.applied == image_index - 1:
                    return Save(image_index)
                # It is of a leadership that is over: other entries are there now.
            else:
                last = min(last, self._save_at - 1)
        return Apply(self.applied + 1, last) if self.applied < last else None

    def loaded(self, found: Loaded) -> None:
        """`Load` is done."""
        self._loaded = True
        self._replayed = self._replay_end = -1
        if self._replays and found.base_index < found.applied:
            self._replayed, self._replay_end = found.base_index, found.applied
        else:
            self.applied = found.applied

    def replayed(self, last_index: int) -> None:
        """`Replay` is done up to there."""
        self._replayed = last_index
        if last_index == self._replay_end:
            self.applied = last_index

    def has_applied(self, last_index: int) -> None:
        """`Apply` is done up to there."""
        assert last_index > self.applied
        self.applied = last_index
