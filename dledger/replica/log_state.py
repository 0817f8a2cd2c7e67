"""State that a replica derives from the internal entries of its log: sessions, cluster time, images and
purges.

The state covers the log to its end, including the uncommitted tail, and truncation reverts it. After a
start it is rebuilt by reading the log, which takes time and may wait for the repair of damage: see
dledger.replica.rebuilding.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import NamedTuple

from dledger.core.cluster_clock import ClockChange, ClusterClock, Stamp
from dledger.core.sessions import SessionTable, StoredBatch
from dledger.core.values import ENTRY_HEADER_SIZE, NO_BASE, Base
from dledger.infra.logs import get_logger
from dledger.replica.images import LoggedImage, copy_image, newest_logged
from dledger.store.api import LogStore
from dledger.store.format.internal import (
    Configuration,
    ImageBegin,
    ImageEnd,
    Internal,
    Purge,
    SessionBatch,
    SessionOpen,
    StampedInternal,
    decode_internal,
)
from dledger.store.image_files import ImageManifest, StoredImage

_log = get_logger("log")

_LAYOUT = b"LST3"
#: Layout tag; index, start and end of the newest image; the last start mark; the last stamp, the sum of
#: the steps of cluster time and the step for which purging by age pauses; the newest purge. The session
#: table follows.
_STORED = struct.Struct(">4s qqq qq qqq qqqI")
#: Version 0.1.0 stored only the last stamp.
_LAYOUT_0_1_0 = b"LST2"
_STORED_0_1_0 = struct.Struct(">4s qqq qq q qqqI")


class ImageSpan(NamedTuple):
    """The newest image of this node, as a range of positions: from its mark, as long as the image."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    begin_pos: int
    end_pos: int

    @property
    def byte_size(self) -> int:
        return self.end_pos - self.begin_pos


NO_IMAGE = ImageSpan(-1, 0, 0)


def span_of(manifest: ImageManifest | None) -> ImageSpan:
    if manifest is None:
        return NO_IMAGE
    mark = manifest.mark
    return ImageSpan(mark.index, mark.pos, mark.pos + manifest.size)


def _newest_in_log(store: LogStore, upto: int) -> ImageManifest | None:
    """Return the newest image in the files if it belongs to this log. Raises EntryDamaged and ReadFailed."""
    newest = store.images.newest
    if newest is None or not store.base.index < newest.mark.index <= upto:
        return None
    return newest if store.entry(newest.mark.index).term == newest.mark.term else None


class InternalHead(NamedTuple):
    """The internal entry at the head of a batch, with its position."""

    value: Internal
    first_index: int
    last_index: int
    term: int
    pos: int
    first_body_pos: int


class LogState:
    def __init__(self, *, max_sessions: int, is_rebuilding: bool = False) -> None:
        """`is_rebuilding`: another LogState object reads the existing log, while this one only notes new
        entries."""
        self._max_sessions = max_sessions
        self.is_rebuilding = is_rebuilding
        self.sessions = SessionTable(max_sessions=max_sessions)
        self.clock = ClusterClock()
        self.image = NO_IMAGE  # the newest in the files of this node whose mark is committed in this log
        self.offered: StoredImage | None = None  # in the files, while this state waits for an image
        #: A complete image in this log, written by an earlier release, that is not in the files yet.
        self.logged: LoggedImage | None = None
        self.purge = NO_BASE  # base of the newest committed PURGE
        self.set_aside = 0  # invalid internal entries since the start of this node
        self.needs_image = False  # the log starts at an installed base: no sessions are known yet
        self._marks: deque[InternalHead] = deque()  # uncommitted start and end marks of images, and purges
        self._begun = (-1, 0)  # index and position of the last committed start mark
        # Entries after an installed base, until the image is committed; or entries noted during a rebuild.
        self._deferred: deque[InternalHead] = deque()
        # Mark of the image from which the sessions were loaded, until it is known to be committed.
        self._image_mark: int | None = None
        # Last result of `encode_if_due`: size, end of the log, and marks.
        self._given: tuple[int, int, ImageSpan, Base] = (0, 0, self.image, self.purge)

    @property
    def newest_image(self) -> int:
        """Mark of this node's newest image; -1 if there is none."""
        return self.image.index

    @property
    def uncommitted_image(self) -> int:
        """Mark of the image from which the sessions were loaded; -1 once the mark is committed.

        A session missing from the image was evicted by an entry before it, which may still be truncated.
        """
        return -1 if self._image_mark is None else self._image_mark

    # -- at start -----------------------------------------------------------------------------------------

    def rebuild(self, store: LogStore, upto: int, now_ms: int) -> list[Internal]:
        """Rebuild from the stored state, or the newest image, and the entries after it, up to the end of a
        batch.

        Returns committed marks that a crash may have left unexecuted. Raises EntryDamaged and ReadFailed.
        """
        covered = store.base.index
        stored = store.load_sessions()
        in_log = stored is not None and store.base.index <= stored[0] <= upto
        if stored is not None and in_log and self._load(stored[1], now_ms):
            covered = stored[0]
            self._copy_logged(store, self.image.index, upto)
            self.image = span_of(_newest_in_log(store, upto))
        elif store.base.index >= 0:
            covered = self._load_image(store, upto, now_ms)
        self.read_on(store, covered, upto, now_ms)
        # A full disk or a crash may have delayed a purge. The entries that the state covers are not read
        # again.
        return [Purge(self.purge)] if self.purge.index > store.base.index else []

    def rebuild_behind(self, index: int, store: LogStore, upto: int, now_ms: int) -> None:
        """Skip damaged entries that another member has purged, as if this node had purged them.

        The state then waits for an image, which must follow in the log, because a purge requires an image
        after the purged entries.
        """
        self.reset(store.base)
        self.needs_image = True
        self.read_on(store, index, upto, now_ms)

    def read_on(self, store: LogStore, covered: int, upto: int, now_ms: int) -> None:
        """Note the entries after `covered`, up to the end of a batch. Raises EntryDamaged and ReadFailed."""
        for batch in store.iter_heads(covered + 1):
            if batch.first_index > upto:
                break
            self.note(batch.head, batch.first_index, batch.last_index, batch.term, batch.pos, now_ms)

    def add_noted(self, noted: LogState, upto: int) -> None:
        """Add the entries after `upto`, the end of this state, that a rebuilding state has noted."""
        for head in noted._deferred:
            if head.first_index > upto:
                self._note_head(head)
        self.clock.learn_again(noted.clock, upto)

    @property
    def noted_count(self) -> int:
        return len(self._deferred)

    def forget_noted(self, upto: int) -> None:
        """While rebuilding: drop noted entries up to `upto`, which will be read instead."""
        assert self.is_rebuilding
        while self._deferred and self._deferred[0].last_index <= upto:
            self._deferred.popleft()
        self.clock.committed(upto)

    def _load(self, stored: bytes, now_ms: int) -> bool:
        """Load a stored state. Returns False, without a change, if it has another layout."""
        layout = _STORED_0_1_0 if stored.startswith(_LAYOUT_0_1_0) else _STORED
        if len(stored) < layout.size or not stored.startswith((_LAYOUT, _LAYOUT_0_1_0)):
            return False
        _, index, begin_pos, end_pos, begun, begun_pos, stamp_ms, *fields = layout.unpack_from(stored)
        steps_ms, pause_ms = (0, 0) if layout is _STORED_0_1_0 else fields[:2]
        self.sessions.load(stored[layout.size :])
        self.image = ImageSpan(index, begin_pos, end_pos)
        self._begun = (begun, begun_pos)
        self.purge = Base(*fields[-4:])
        if stamp_ms >= 0:
            # The entries that the state covers are not read again. Without their stamp, cluster time would
            # start from the wall clock.
            self.clock.learn(-1, Stamp(stamp_ms, ClockChange(0, 0, steps_ms, pause_ms)), now_ms)
        return True

    def _copy_logged(self, store: LogStore, known: int, upto: int) -> None:
        """Copy the newest image of the log into files, unless they have it or a newer one. `known`: first
        entry of the newest image in the log, as far as is known."""
        newest = store.images.newest
        if newest is not None and newest.mark.index >= known:
            return
        image = newest_logged(store.iter_heads(max(known, store.begin_index)), upto)
        if image is not None and not copy_image(store, image):
            self._set_aside(image.first_index, "the image is damaged")

    def _load_image(self, store: LogStore, upto: int, now_ms: int) -> int:
        """Load the sessions from the newest image, which is the only source if the log starts after 0 and no
        table is stored. Returns the last index that they cover."""
        self._copy_logged(store, store.begin_index, upto)
        manifest = _newest_in_log(store, upto)
        image = None if manifest is None else store.images.stored()
        if manifest is None or image is None or not self._load_sessions(image):
            self.needs_image = True
            return store.base.index
        mark = manifest.mark
        self.image = span_of(manifest)
        self._begun = (mark.index, mark.pos)
        if mark.index > store.committed_checkpoint:
            self._image_mark = mark.index
        head = decode_internal(next(store.iter_heads(mark.index)).head)
        if isinstance(head, StampedInternal):
            self.clock.learn(mark.index, head.stamp, now_ms)
        return mark.index

    def reset(self, base: Base) -> None:
        """Note that a log starting after `base` replaced the log (INSTALL_BASE)."""
        self.sessions = SessionTable(max_sessions=self._max_sessions)
        self.image = NO_IMAGE
        self._begun = (-1, 0)
        self.is_rebuilding = False  # there is nothing left to read
        self.needs_image = base.index >= 0
        self._marks.clear()
        self._deferred.clear()
        self._image_mark = self.offered = self.logged = None
        self.clock.reset()

    # -- as the log grows and shrinks ---------------------------------------------------------------------

    def note(self, head: bytes, first_index: int, last_index: int, term: int, pos: int, now_ms: int) -> None:
        """Note an appended batch with an internal head; `pos` is the position of the head's entry."""
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
        """Like `note`, with a decoded head whose encoding has `size` bytes."""
        if type(value) is StampedInternal:
            self.clock.learn(first_index, value.stamp, now_ms)
            value = value.inner
        self._note_head(
            InternalHead(value, first_index, last_index, term, pos, pos + ENTRY_HEADER_SIZE + size)
        )

    def _note_head(self, noted: InternalHead) -> None:
        if self.is_rebuilding:
            self._deferred.append(noted)
            return
        value = noted.value
        # Nearly all heads belong to sessions.
        if type(value) is not SessionBatch and isinstance(value, ImageBegin | ImageEnd | Purge):
            self._marks.append(noted)
        if self.needs_image:
            self._deferred.append(noted)
            if isinstance(value, ImageBegin) and self.offered is not None:
                self.offer(self.offered)
            elif isinstance(value, ImageEnd):
                self.logged = LoggedImage(value.image_index, noted.last_index)
            return
        if self._image_mark is not None:
            self._deferred.append(noted)
        self._apply(noted)

    def _apply(self, head: InternalHead) -> None:
        value = head.value
        if isinstance(value, SessionBatch):
            result = StoredBatch(
                head.first_index + 1, value.count, value.crc, head.term, head.first_body_pos, head.last_index
            )
            if not self.sessions.appended(value.session_id, value.seq, result):
                self._set_aside(head.first_index, f"{value} is not the next batch of its session")
        elif isinstance(value, SessionOpen):
            self.sessions.opened(head.first_index)
        elif isinstance(value, Configuration):
            self.sessions.recovered(value.membership.recovery.session_offset)

    def truncate_after(self, last_index: int) -> None:
        self.sessions.truncate_after(last_index)
        self.clock.truncate_after(last_index)
        while self._marks and self._marks[-1].last_index > last_index:
            self._marks.pop()
        while self._deferred and self._deferred[-1].last_index > last_index:
            self._deferred.pop()
        if self.logged is not None and last_index < self.logged.last_index:
            self.logged = None
        if self._image_mark is not None and last_index < self._image_mark:
            self._image_mark = None
            self.needs_image = True
            self.sessions = SessionTable(max_sessions=self._max_sessions)

    def committed(self, committed_index: int) -> list[Internal]:
        """Return the purges that are now committed, in order. Returns none during a rebuild, because they are
        not known yet.
        """
        if self.is_rebuilding:
            return []
        self.sessions.committed(committed_index)
        self.clock.committed(committed_index)
        done: list[Internal] = []
        while self._marks and self._marks[0].last_index <= committed_index:
            head = self._marks.popleft()
            if isinstance(head.value, Purge) and not self._is_possible(head.value.base, head.first_index):
                self._set_aside(head.first_index, f"{head.value} has an invalid base")
                continue
            self._mark_committed(head)
            if isinstance(head.value, Purge):
                done.append(head.value)
        if self._image_mark is not None and self._image_mark <= committed_index:
            self._image_mark = None
            self._deferred.clear()
        return done

    def _mark_committed(self, head: InternalHead) -> None:
        match head.value:
            case ImageBegin():
                self._begun = (head.first_index, head.pos)
            case ImageEnd(image_index) if image_index > self.image.index:
                # Otherwise this log holds only the end of an image that started before the base.
                if self._begun[0] == image_index:
                    self.logged = LoggedImage(image_index, head.last_index)
            case Purge(base) if base.index > self.purge.index:
                self.purge = base
            case _:
                pass

    def _is_possible(self, base: Base, index: int) -> bool:
        """Return True if the PURGE at this index is valid. A PURGE that was already executed may have any
        base."""
        return -1 <= base.index < index and min(base.pos, base.term) >= 0

    def _set_aside(self, index: int, reason: str) -> None:
        self.set_aside += 1
        _log.error("an invalid internal entry is set aside", index=index, reason=reason)

    def _load_sessions(self, image: StoredImage) -> bool:
        try:
            self.sessions.load(image.sessions)
        except ValueError as error:
            self._set_aside(image.mark.index, f"invalid image: {error}")
            return False
        return True

    def offer(self, image: StoredImage) -> bool:
        """While waiting for an image: load this one if the log has its mark, and apply the entries after it.
        Otherwise keep it, because the log may be shorter than the image. Returns True if it was loaded.

        The mark need not be committed, because it belongs to the same log and is truncated with it. After a
        crash of all nodes the commit index is unknown. If all nodes waited for the commit of the mark, none
        could ever lead.
        """
        self.offered = image
        mark = image.mark
        is_in_log = any((head.first_index, head.term) == mark[:2] for head in self._deferred)
        if not is_in_log or not self._load_sessions(image):
            return False
        self.needs_image = False
        self.offered = None
        for head in self._deferred:
            if head.first_index > mark.index:
                self._apply(head)
        self._image_mark = mark.index
        return True

    def encode_if_due(self, committed_pos: int) -> bytes | None:
        """Like `encode_committed`, but only once the log has grown by the size of the last encoding, or
        after a new image or purge.

        A table may have many megabytes, and a start reads the entries after it anyway.
        """
        size, pos, *marks = self._given
        if 0 <= committed_pos - pos < size and marks == [self.image, self.purge]:
            return None
        encoded = self.encode_committed()
        if encoded is not None:
            self._given = len(encoded), committed_pos, self.image, self.purge
        return encoded

    def encode_committed(self) -> bytes | None:
        """Encode the state for the checkpoint, or return None if there is no complete state."""
        if self.is_rebuilding or self.needs_image or self._image_mark is not None:
            return None
        stored = _STORED.pack(_LAYOUT, *self.image, *self._begun, *self.clock.stored, *self.purge)
        return stored + self.sessions.encode_committed()
