"""What a log that begins at a base knows of its sessions, against one that still has all of its entries."""

from __future__ import annotations

from random import Random

import pytest

from dledger.core.sessions import SequenceStatus
from dledger.core.values import Base
from dledger.replica.log_state import LogState, span_of
from dledger.store.format.internal import (
    ImageBegin,
    Internal,
    NoOp,
    Purge,
    SessionBatch,
    SessionOpen,
    StampedInternal,
    encode_internal,
)
from dledger.store.image_files import ImageManifest, ImageMark, StoredImage

SESSIONS = 4
BYTES = 100  # of every batch: positions matter only for their order


class History:
    """A log grows, is truncated and committed at random. `whole` saw all of it, `late` began later."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.whole = LogState(max_sessions=SESSIONS)
        self.late: LogState | None = None
        self.heads: list[tuple[bytes, int]] = []  # by index: the head, and its term
        self.term = 1
        self.committed = -1
        self.images: list[StoredImage] = []  # of all marks, those that were truncated included
        self.opened: list[int] = []

    @property
    def end(self) -> int:
        return len(self.heads) - 1

    def append(self, value: Internal) -> None:
        index = len(self.heads)
        head = encode_internal(StampedInternal(1000 + index, value))
        self.heads.append((head, self.term))
        for state in (self.whole, self.late):
            if state is not None:
                state.note(head, index, index, self.term, index * BYTES, 0)

    def grow(self) -> None:
        kind = self.rng.random()
        if kind < 0.15:
            self.opened.append(self.end + 1)
            self.append(SessionOpen())
        elif kind < 0.55 and self.opened:
            self._batch(self.rng.choice(self.opened[-SESSIONS:]))
        elif kind < 0.62:
            self._mark()
        elif kind < 0.95 and self.images and self.late is not None and self.late.needs_image:
            self.late.offer(self.rng.choice(self.images[-3:]))
        else:
            self.append(NoOp())

    def _mark(self) -> None:
        sessions = self.whole.sessions.encode_all()
        self.append(ImageBegin())
        mark = ImageMark(self.end, self.term, self.end * BYTES)
        self.images.append(StoredImage(ImageManifest(mark, len(sessions), 0, ()), sessions))

    def _batch(self, session_id: int) -> None:
        for seq in range(1, 1000):
            judgement, _ = self.whole.sessions.judge(session_id, seq, 0, 7, self.committed)
            if judgement is SequenceStatus.NEW:
                self.append(SessionBatch(session_id, seq, 0, 7))
            if judgement is not SequenceStatus.REPEAT and judgement is not SequenceStatus.FORGOTTEN:
                return

    def truncate(self) -> None:
        if self.committed >= self.end:
            return
        last = self.rng.randint(self.committed, self.end - 1)
        del self.heads[last + 1 :]
        self.opened = [session for session in self.opened if session <= last]
        self.term += 1
        self.whole.truncate_after(last)
        if self.late is not None:
            self.late.truncate_after(last)

    def commit(self) -> None:
        self.committed = self.rng.randint(self.committed, self.end)
        self.whole.committed(self.committed)
        if self.late is not None:
            self.late.committed(self.committed)

    def begin_late(self) -> None:
        """Another node is given the log from some committed index on."""
        base = self.rng.randint(0, self.committed)
        self.late = LogState(max_sessions=SESSIONS)
        self.late.reset(Base(base, 1, (base + 1) * BYTES, 5))
        for index in range(base + 1, self.end + 1):
            self.late.note(self.heads[index][0], index, index, self.heads[index][1], index * BYTES, 0)
        self.late.committed(self.committed)

    def step(self) -> None:
        kind = self.rng.random()
        if kind < 0.8:
            self.grow()
        elif kind < 0.88:
            self.truncate()
        elif kind < 0.97 and self.end >= 0:
            self.commit()
        elif self.committed >= 0:
            self.begin_late()


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 400, 50))
def test_an_image_whose_mark_is_in_the_log_gives_the_table_of_the_whole_log(first: int) -> None:
    """Committed or not, truncated or not, of another term or not: with an image the table is the right one,
    or there is none."""
    seen = {"image": 0, "none": 0, "uncommitted": 0}
    for seed in range(first, first + 50):
        history = History(seed)
        for _ in range(250):
            history.step()
            late, whole = history.late, history.whole
            if late is None:
                continue
            if late.needs_image:
                seen["none"] += 1
                assert len(late.sessions) == 0 and late.newest_image == -1
                assert late.encode_committed() is None
                continue
            seen["image"] += 1
            assert late.sessions.encode_all() == whole.sessions.encode_all(), seed
            stored = late.encode_committed()
            if late.uncommitted_image >= 0:
                seen["uncommitted"] += 1
                assert stored is None, "it may still be undone"
            else:
                assert stored is not None
                assert late.sessions.encode_committed() == whole.sessions.encode_committed()
    assert all(seen.values()), seen


def test_what_is_stored_is_what_is_loaded() -> None:
    history = History(3)
    while not history.images or history.end < 5 or history.committed < history.end:
        history.grow()
        history.commit()
    history.whole.image = span_of(history.images[-1].manifest)
    history.append(Purge(Base(2, 1, 3 * BYTES, 9)))
    history.committed = history.end
    history.whole.committed(history.end)
    stored = history.whole.encode_committed()
    assert stored is not None
    again = LogState(max_sessions=SESSIONS)
    assert again._load(stored, 0)
    assert again.encode_committed() == stored
    assert again.image == history.whole.image and again.purge == Base(2, 1, 3 * BYTES, 9)


def test_state_of_another_layout_is_not_loaded() -> None:
    state = LogState(max_sessions=SESSIONS)
    assert not state._load(b"\0" * 200, 0) and not state._load(b"", 0)


def test_a_table_is_given_again_when_the_log_has_grown_by_as_much_or_has_a_new_purge() -> None:
    """A large one, written each time, would be most of what is written."""
    state = LogState(max_sessions=SESSIONS)

    def note(value: Internal, index: int) -> None:
        state.note(encode_internal(StampedInternal(1000 + index, value)), index, index, 1, index * BYTES, 0)
        state.committed(index)

    note(SessionOpen(), 0)
    first = state.encode_if_due(BYTES)
    assert first == state.encode_committed() and first is not None
    note(SessionBatch(0, 1, 1, 7), 1)
    assert state.encode_if_due(BYTES + len(first) - 1) is None
    second = state.encode_if_due(BYTES + len(first))
    assert second == state.encode_committed() and second != first
    assert state.encode_if_due(BYTES + len(first)) is None
    note(Purge(Base(0, 1, BYTES, 0)), 2)
    assert state.encode_if_due(BYTES + len(first)) == state.encode_committed()
    assert state.encode_if_due(0) is not None, "the log was replaced by a shorter one"


def test_marks_of_a_log_that_was_replaced_are_never_committed() -> None:
    """INSTALL_BASE: an uncommitted PURGE of the old log would purge the new one when its index is reached."""
    state = LogState(max_sessions=SESSIONS)
    for index, value in enumerate((NoOp(), Purge(Base(90, 1, 9000, 0)), ImageBegin())):
        state.note(encode_internal(StampedInternal(1000, value)), index, index, 1, index * BYTES, 0)
    state.reset(Base(50, 2, 5000, 0))
    state.note(encode_internal(StampedInternal(1000, NoOp())), 51, 51, 2, 5000, 0)
    assert state.committed(51) == []
    assert state.purge.index == -1 and state.needs_image


@pytest.mark.parametrize(
    ("base", "is_possible"),
    [
        (Base(4, 1, 400, 0), True),
        (Base(5, 1, 500, 0), False),  # the PURGE itself
        (Base(4, -1, 400, 0), False),
        (Base(4, 1, -400, 0), False),
        (Base(-2, 1, 400, 0), False),
    ],
)
def test_a_purge_of_what_may_not_be_purged_is_set_aside(base: Base, is_possible: bool) -> None:
    state = LogState(max_sessions=SESSIONS)
    state.note(encode_internal(StampedInternal(1000, Purge(base))), 5, 5, 1, 500, 0)
    assert state.committed(5) == ([Purge(base)] if is_possible else [])
    assert state.set_aside == (not is_possible) and state.purge.index == (4 if is_possible else -1)
