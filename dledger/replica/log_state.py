"""What a replica derives from the internal entries of its log: sessions, cluster time, images, purges.

All of it covers the log to its end, the uncommitted tail included, and is undone when that is truncated. At a
start the log has to be read for it, which takes time, and waits for the repair of damage: see
dledger.replica.rebuilding.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import NamedTuple

from dledger.core.cluster_clock import ClusterClock
from dledger.core.sessions import Result, SessionTable
from dledger.core.values import ENTRY_HEADER_SIZE, NO_BASE, Base
from dledger.logs import get_logger
from dledger.replica.images import Image, ImageCollector, find_image
from dledger.store.api import LogStore
from dledger.store.format.internal import (
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

_log = get_logger("log")

_LAYOUT = b"LST2"
#: The layout; the newest image, and where it begins and ends; the last begin mark; the last stamp; the newest
#: purge. The session table follows.
_STORED = struct.Struct(">4s qqq qq q qqqI")


class ImageSpan(NamedTuple):
    """A complete, committed image, and how much of the log lies between its begin and end marks."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    begin_pos: int
    end_pos: int

    @property
    def byte_size(self) -> int:
        return self.end_pos - self.begin_pos


NO_IMAGE = ImageSpan(-1, 0, 0)


class Head(NamedTuple):
    """The internal entry that leads a batch, and where."""

    value: Internal
    first_index: int
    last_index: int
    term: int
    pos: int
    first_body_pos: int


class LogState:
    def __init__(self, *, max_sessions: int, is_rebuilding: bool = False) -> None:
        """`is_rebuilding`: another one is made of what the log has already; this one notes what is added."""
        self._max_sessions = max_sessions
        self.is_rebuilding = is_rebuilding
        self.sessions = SessionTable(max_sessions=max_sessions)
        self.clock = ClusterClock()
        self.image = NO_IMAGE  # the newest complete, committed one
        self.purge = NO_BASE  # where the newest committed PURGE lets the log begin
        self.set_aside = 0  # entries that no leader can have written so, since the start of this node
        self.needs_image = False  # the log begins at a base that was installed: nothing is served yet
        self._marks: deque[Head] = deque()  # begins and ends of images, purges: those not committed yet
        self._begun = (-1, 0)  # index and position of the last begin mark that is committed
        # What comes after an installed base, until the image is committed; or what was added meanwhile.
        self._deferred: deque[Head] = deque()
        self._image_end: int | None = None  # of the image in use, while that is not known to be committed
        # By `encode_if_due` last: bytes, where the log ended, and its marks.
        self._given: tuple[int, int, ImageSpan, Base] = (0, 0, self.image, self.purge)

    @property
    def newest_image(self) -> int:
        """Index of the newest complete, committed image; -1: none."""
        return self.image.index

    # -- at start -----------------------------------------------------------------------------------------

    def rebuild(self, store: LogStore, upto: int, now_ms: int) -> list[Internal]:
        """From the stored state, or the newest image, and what the log holds after it, up to the end of a
        batch. Returns what a crash may have kept from being carried out. EntryDamaged, ReadFailed."""
        covered = store.base.index
        stored = store.load_sessions()
        in_log = stored is not None and store.base.index <= stored[0] <= upto
        if stored is not None and in_log and self._load(stored[1], now_ms):
            covered = stored[0]
        elif store.base.index >= 0:
            covered = self._load_newest_image(store, store.committed_checkpoint)
        self.read_on(store, covered, upto, now_ms)
        # A purge may have been put off, by a full disk or by the crash: what is covered is not read again.
        return [Purge(self.purge)] if self.purge.index > store.base.index else []

    def rebuild_behind(self, index: int, store: LogStore, upto: int, now_ms: int) -> None:
        """When some of what `rebuild` reads is damaged, and all who could repair it have purged it: begin
        behind it, as if it was purged here, too. An image is awaited; behind a purge there always is one."""
        self.reset(store.base)
        self.needs_image = True
        self.read_on(store, index, upto, now_ms)

    def read_on(self, store: LogStore, covered: int, upto: int, now_ms: int) -> None:
        """Note what the log holds behind `covered`, up to the end of a batch. EntryDamaged, ReadFailed."""
        for batch in store.iter_heads(covered + 1):
            if batch.first_index > upto:
                break
            self.note(batch.head, batch.first_index, batch.last_index, batch.term, batch.pos, now_ms)

    def add_noted(self, noted: LogState, upto: int, now_ms: int) -> None:
        """What a state that was rebuilding has noted behind `upto`, where this one ends."""
        for head in noted._deferred:
            if head.first_index > upto:
                self._note_head(head)
        if noted.clock.last_stamp_ms is not None:
            self.clock.learn(noted.clock.last_stamp_ms, now_ms)

    @property
    def noted_count(self) -> int:
        return len(self._deferred)

    def forget_noted(self, upto: int) -> None:
        """While rebuilding: what is noted up to there is going to be read."""
        assert self.is_rebuilding
        while self._deferred and self._deferred[0].last_index <= upto:
            self._deferred.popleft()

    def _load(self, stored: bytes, now_ms: int) -> bool:
        """False, with nothing changed, if it is of another layout."""
        if len(stored) < _STORED.size or not stored.startswith(_LAYOUT):
            return False
        _, index, begin_pos, end_pos, begun, begun_pos, stamp_ms, *base = _STORED.unpack_from(stored)
        self.sessions.load(stored[_STORED.size :])
        self.image = ImageSpan(index, begin_pos, end_pos)
        self._begun = (begun, begun_pos)
        self.purge = Base(*base)
        if stamp_ms >= 0:
            # What the table covers is not looked at again, and without a stamp the wall clock would rule.
            self.clock.learn(stamp_ms, now_ms)
        return True

    def _load_newest_image(self, store: LogStore, committed_index: int) -> int:
        """Without a stored table, a log that does not begin at 0 is only as good as its image."""
        collector, begins, spans = ImageCollector(), {}, {}
        for batch in store.iter_heads(store.begin_index):
            if batch.last_index > committed_index:
                break
            _, value = strip_stamp(decode_internal(batch.head))
            collector.see(batch.first_index, value)
            if isinstance(value, ImageBegin):
                begins[batch.first_index] = batch.pos
            elif isinstance(value, ImageEnd):
                end_pos = batch.pos + ENTRY_HEADER_SIZE + len(batch.head)
                spans[value.image_index] = ImageSpan(
                    value.image_index, begins.get(value.image_index, 0), end_pos
                )
        image = collector.newest
        if image is None or not self._load_sessions(image):
            self.needs_image = True
            return store.base.index
        self.image = spans[image.image_index]
        self._begun = (image.image_index, self.image.begin_pos)
        return image.image_index

    def reset(self, base: Base) -> None:
        """The log was replaced by one that begins after `base` (INSTALL_BASE)."""
        self.sessions = SessionTable(max_sessions=self._max_sessions)
        self.image = NO_IMAGE
        self._begun = (-1, 0)
        self.is_rebuilding = False  # there is nothing left to be read
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
        self._note_head(Head(value, first_index, last_index, term, pos, pos + ENTRY_HEADER_SIZE + size))

    def _note_head(self, noted: Head) -> None:
        if self.is_rebuilding:
            self._deferred.append(noted)
            return
        value = noted.value
        # Nearly all are of sessions.
        if type(value) is not SessionBatch and isinstance(value, ImageBegin | ImageEnd | Purge):
            self._marks.append(noted)
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
            if not self.sessions.appended(value.session_id, value.seq, result):
                self._set_aside(head.first_index, f"{value} is not the next batch of its session")
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
        """Purges and image ends that are committed now, in order. While rebuilding that is not known."""
        if self.is_rebuilding:
            return []
        self.sessions.committed(committed_index)
        done: list[Internal] = []
        while self._marks and self._marks[0].last_index <= committed_index:
            head = self._marks.popleft()
            if isinstance(head.value, Purge) and not self._is_possible(head.value.base, head.first_index):
                self._set_aside(head.first_index, f"{head.value} of what may not be purged")
                continue
            self._mark_committed(head)
            if not isinstance(head.value, ImageBegin):
                done.append(head.value)
        if self._image_end is not None and self._image_end <= committed_index:
            self._image_end = None
            self._deferred.clear()
        return done

    def _mark_committed(self, head: Head) -> None:
        match head.value:
            case ImageBegin():
                self._begun = (head.first_index, head.pos)
            case ImageEnd(image_index) if not self.needs_image:
                begun, begin_pos = self._begun
                # Of one that began before the base, this log holds the end only.
                if begun == image_index:
                    self.image = ImageSpan(image_index, begin_pos, head.first_body_pos)
            case Purge(base) if base.index > self.purge.index:
                self.purge = base
            case _:
                pass

    def _is_possible(self, base: Base, index: int) -> bool:
        """Whether the PURGE at this index can be carried out. One that is over may say anything."""
        return -1 <= base.index < index and min(base.pos, base.term) >= 0

    def _set_aside(self, index: int, reason: str) -> None:
        self.set_aside += 1
        _log.error("an entry of the log's own is set aside", index=index, reason=reason)

    def _load_sessions(self, image: Image) -> bool:
        try:
            self.sessions.load(image.sessions)
        except ValueError as error:
            self._set_aside(image.image_index, f"the image that begins here: {error}")
            return False
        return True

    def _try_image(self) -> None:
        """An image that was awaited may be complete: begin from it, then repeat what came after its mark.

        It need not be committed: it fits the log that it is in, and goes with it. After a crash of all nodes
        nobody knows what is committed, and if all had to wait for that, none would ever lead.
        """
        image = find_image((head.first_index, head.value) for head in self._deferred)
        if image is None or not self._load_sessions(image):
            return
        self.needs_image = False
        for head in self._deferred:
            if head.first_index > image.image_index:
                self._apply(head)
            if isinstance(head.value, ImageEnd) and head.value.image_index == image.image_index:
                self._image_end = head.last_index

    def encode_if_due(self, committed_pos: int) -> bytes | None:
        """As `encode_committed`, once the log has grown by as much as was given last, or there is a new image
        or purge: a table may have many megabytes, and a start reads what lies behind it anyway."""
        size, pos, *marks = self._given
        if 0 <= committed_pos - pos < size and marks == [self.image, self.purge]:
            return None
        encoded = self.encode_committed()
        if encoded is not None:
            self._given = len(encoded), committed_pos, self.image, self.purge
        return encoded

    def encode_committed(self) -> bytes | None:
        """For the checkpoint; None while there is nothing worth storing."""
        if self.is_rebuilding or self.needs_image or self._image_end is not None:
            return None
        stamp_ms = -1 if self.clock.last_stamp_ms is None else self.clock.last_stamp_ms
        stored = _STORED.pack(_LAYOUT, *self.image, *self._begun, stamp_ms, *self.purge)
        return stored + self.sessions.encode_committed()
