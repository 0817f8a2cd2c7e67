"""What a replica derives from the internal entries of its log: sessions, cluster time, images, purges.

All of it covers the log to its end, the uncommitted tail included, and is undone when that is truncated.
"""

from __future__ import annotations

import struct
from collections import deque
from contextlib import suppress
from typing import NamedTuple

from dledger.core.cluster_clock import ClusterClock
from dledger.core.sessions import Result, SessionTable
from dledger.core.values import Base
from dledger.node.images import find_image
from dledger.store.api import EntryDamaged, LogStore
from dledger.store.batch import HEADER_SIZE
from dledger.store.internal import (
    ImageBegin,
    ImageEnd,
    Internal,
    Purge,
    SessionBatch,
    SessionOpen,
    Stamped,
    decode_internal,
    strip_stamp,
)

_STORED = struct.Struct(">qq")  # the newest image, the last stamp; the session table follows


class Head(NamedTuple):
    """The internal entry that leads a batch, and where."""

    value: Internal
    first_index: int
    last_index: int
    term: int
    first_body_pos: int


class LogState:
    def __init__(self, *, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self.sessions = SessionTable(max_sessions=max_sessions)
        self.clock = ClusterClock()
        self.newest_image = -1  # index of the newest complete, committed image; -1: none
        self.image_pos = 0  # where the newest image begins, and how much of the log it takes; 0: not known
        self.image_bytes = 0
        self._begun = (-1, 0)  # index and position of the newest begin mark of an image
        self.needs_image = False  # the log begins at a base that was installed: nothing is served yet
        self._marks: deque[Head] = deque()  # image ends and purges that are not committed yet
        self._deferred: list[Head] = []  # what comes after an installed base, until the image is committed
        self._image_end: int | None = None  # of the image in use, while that is not known to be committed

    # -- at start -----------------------------------------------------------------------------------------

    def rebuild(self, store: LogStore, committed_index: int, now_ms: int) -> list[Internal]:
        """From the stored state, or the newest image, and what the log holds after it. Returns the committed
        marks found on the way, to be carried out again: a crash may have come between."""
        covered = store.base.index
        stored = store.load_sessions()
        if stored is not None and store.base.index <= stored[0] <= store.end_index:
            self.newest_image, stamp_ms = _STORED.unpack_from(stored[1])
            if stamp_ms >= 0:
                # What the table covers is not looked at again, and without a stamp the wall clock would rule.
                self.clock.learn(stamp_ms, now_ms)
            self.sessions.load(stored[1][_STORED.size :])
            covered = stored[0]
            self._measure_image(store)
        elif store.base.index >= 0:
            covered = self._load_newest_image(store, committed_index)
        for batch in store.iter_heads(covered + 1):
            self.note(batch.head, batch.first_index, batch.last_index, batch.term, batch.pos, now_ms)
        return self.committed(committed_index)

    def _measure_image(self, store: LogStore) -> None:
        """What the stored table leaves out. Damage there is no reason not to start."""
        if self.newest_image < store.begin_index:
            return
        with suppress(EntryDamaged):
            for batch in store.iter_heads(self.newest_image):
                value = strip_stamp(decode_internal(batch.head))[1]
                self._measure(value, batch.first_index, batch.pos)
                if isinstance(value, ImageEnd):
                    return

    def _measure(self, value: Internal, first_index: int, pos: int) -> None:
        if isinstance(value, ImageBegin):
            self._begun = (first_index, pos)
        elif isinstance(value, ImageEnd) and value.image_index == self._begun[0]:
            self.image_pos, self.image_bytes = self._begun[1], pos - self._begun[1]

    def _load_newest_image(self, store: LogStore, committed_index: int) -> int:
        """Without a stored table, a log that does not begin at 0 is only as good as its image."""
        heads = store.iter_heads(store.begin_index)
        image = find_image(
            (b.first_index, decode_internal(b.head)) for b in heads if b.last_index <= committed_index
        )
        if image is None:
            self.needs_image = True
            return store.base.index
        self.newest_image = image.image_index
        self.sessions.load(image.sessions)
        return image.image_index

    def reset(self, base: Base) -> None:
        """The log was replaced by one that begins after `base` (INSTALL_BASE)."""
        self.sessions = SessionTable(max_sessions=self._max_sessions)
        self.newest_image = -1
        self.image_pos = self.image_bytes = 0
        self.needs_image = base.index >= 0
        self._marks.clear()
        self._deferred.clear()
        self._image_end = None

    # -- as the log grows and shrinks ---------------------------------------------------------------------

    def note(self, head: bytes, first_index: int, last_index: int, term: int, pos: int, now_ms: int) -> None:
        """A batch that `head` leads was put after the end; `pos` is that of the head's entry."""
        self.note_value(decode_internal(head), len(head), first_index, last_index, term, pos, now_ms)

    def note_value(
        self,
        value: Internal,
        size: int,
        first_index: int,
        last_index: int,
        term: int,
        pos: int,
        now_ms: int,
    ) -> None:
        """The same for a head of `size` bytes that is known decoded."""
        if type(value) is Stamped:
            self.clock.learn(value.stamp_ms, now_ms)
            value = value.inner
        noted = Head(value, first_index, last_index, term, pos + HEADER_SIZE + size)
        if type(value) is not SessionBatch:  # nearly all are
            if type(value) is ImageEnd or type(value) is Purge:
                self._marks.append(noted)
            self._measure(value, first_index, pos)
        if self.needs_image:
            self._deferred.append(noted)
            if isinstance(value, ImageEnd):
                self._try_image()
            return
        if self._image_end is not None:
            self._deferred.append(noted)
        self._apply(noted)

    def _apply(self, head: Head) -> None:
        value = head.value
        if isinstance(value, SessionBatch):
            result = Result(
                head.first_index + 1, value.count, value.crc, head.term, head.first_body_pos, head.last_index
            )
            self.sessions.appended(value.session_id, value.seq, result)
        elif isinstance(value, SessionOpen):
            self.sessions.opened(head.first_index)

    def truncate_after(self, last_index: int) -> None:
        self.sessions.truncate_after(last_index)
        while self._marks and self._marks[-1].last_index > last_index:
            self._marks.pop()
        while self._deferred and self._deferred[-1].last_index > last_index:
            self._deferred.pop()
        if self._image_end is not None and last_index < self._image_end:
            self._image_end = None
            self.needs_image = True
            self.sessions = SessionTable(max_sessions=self._max_sessions)
            self._try_image()

    def committed(self, committed_index: int) -> list[Internal]:
        """Purges and image ends that are committed now, in order."""
        self.sessions.committed(committed_index)
        done: list[Internal] = []
        while self._marks and self._marks[0].last_index <= committed_index:
            mark = self._marks.popleft().value
            if isinstance(mark, ImageEnd) and not self.needs_image:
                self.newest_image = max(self.newest_image, mark.image_index)
            done.append(mark)
        if self._image_end is not None and self._image_end <= committed_index:
            self._image_end = None
            self._deferred.clear()
        return done

    def _try_image(self) -> None:
        """An image that was awaited may be complete: begin from it, then repeat what came after its mark.

        It need not be committed: it fits the log that it is in, and goes with it. After a crash of all nodes
        nobody knows what is committed, and if all had to wait for that, none would ever lead.
        """
        image = find_image((head.first_index, head.value) for head in self._deferred)
        if image is None:
            return
        self.sessions.load(image.sessions)
        self.needs_image = False
        for head in self._deferred:
            if head.first_index > image.image_index:
                self._apply(head)
            if isinstance(head.value, ImageEnd) and head.value.image_index == image.image_index:
                self._image_end = head.last_index

    def encode_committed(self) -> bytes | None:
        """For the checkpoint; None while there is nothing worth storing."""
        if self.needs_image or self._image_end is not None:
            return None
        stamp_ms = -1 if self.clock.last_stamp_ms is None else self.clock.last_stamp_ms
        return _STORED.pack(self.newest_image, stamp_ms) + self.sessions.encode_committed()


class Rebuilt(NamedTuple):
    """What a start made of the log: its state, and the committed marks to be carried out again."""

    state: LogState
    marks: list[Internal]


def rebuild(store: LogStore, max_sessions: int, now_ms: int) -> Rebuilt:
    """EntryDamaged if an entry that is needed for it cannot be read."""
    state = LogState(max_sessions=max_sessions)
    committed_index = max(store.base.index, store.committed_checkpoint)
    return Rebuilt(state, state.rebuild(store, committed_index, now_ms))
