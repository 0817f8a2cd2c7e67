"""The leader's housekeeping of its log: state images, then PURGE entries (docs/guarantees.md, Retention).

Runs inside the replica, one step at a time: at most one image is under way, its chunks are appended as there
is room for them, and a purge is asked for only once an image above it is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dledger.core.values import Base
from dledger.errors import ReadFailed
from dledger.logs import get_logger
from dledger.replica.images import CHUNK_BYTES, ImageWriter
from dledger.replica.parts import ReplicaParts
from dledger.replica.retention import Border, RetentionPolicy, held_back, kept_for_owner, wanted_base
from dledger.store.api import EntryDamaged
from dledger.store.format.internal import ImageBegin, ImageEnd, Internal, Purge, decode_internal, strip_stamp

_log = get_logger("log")

_CHUNK_OVERHEAD = 128  # of the entry that carries a chunk: more than its header, stamp and tag
_NEVER = 1 << 62
_PENDING_BYTES = 1 << 20  # chunks wait while so much of the log is uncommitted: appends of users go first


class Retainer:
    def __init__(self, replica: ReplicaParts, policy: RetentionPolicy) -> None:
        self._replica = replica
        self.policy = policy
        self.asked_before = -1  # an operator wants entries below this index to go
        #: The position from which on the program around the node still reads the log.
        self.needed_from: Callable[[], int] = lambda: _NEVER
        #: On the leader: the log would begin at this position if that program needed nothing before it.
        self.wanted_pos = -1
        self._writer: ImageWriter | None = None
        self.waits_for_room = False  # the next chunk of an image has no space reserved
        self._purge_pending = False
        self._next_check_ms = 0
        self._stamps: dict[int, int] = {}  # by base.index: cluster time right after a border

    def stop(self) -> None:
        """Leadership is over: a half-written image is nobody's, and is never completed."""
        self._writer = None
        self._purge_pending = False
        self.waits_for_room = False
        self.wanted_pos = -1

    @property
    def is_writing(self) -> bool:
        """An image is under way, on the leader."""
        return self._writer is not None

    @property
    def next_check_ms(self) -> int:
        """When the leader looks next for entries that may go; far away if nothing lets any go."""
        leadership = self._replica.core.leadership
        if leadership is None or not (self.policy.is_on or self.asked_before >= 0):
            return _NEVER
        return self._next_check_ms if leadership.noop_is_committed else _NEVER

    def ask(self, before_index: int | None, age_ms: int, now_ms: int) -> int:
        """An operator wants entries gone. Returns the index before which they may go."""
        if before_index is None:
            replica = self._replica
            youngest = replica.admission.state.clock.read(now_ms, replica.wall_ms()) - age_ms
            old = [b.base.index for b in self._borders() if 0 <= b.stamp_ms <= youngest]
            before_index = max(old, default=-1) + 1
        # Not what is yet to come: the images themselves would for ever be among it.
        before_index = min(before_index, self._replica.core.committed_index + 1)
        self.asked_before = max(self.asked_before, before_index)
        self._next_check_ms = 0
        return before_index

    def tick(self, now_ms: int) -> None:
        if not self._replica.core.leadership or not self._replica.core.leadership.noop_is_committed:
            return
        self._write_image(now_ms)
        if now_ms >= self._next_check_ms and (self.policy.is_on or self.asked_before >= 0):
            self._next_check_ms = now_ms + self.policy.check_ms
            self._check(now_ms)

    def provide(self, image_index: int, state: Sequence[bytes]) -> None:
        """The state machine's state as of image_index."""
        writer = self._writer
        if writer is not None and writer.image_index == image_index and writer.chunks is None:
            writer.provide(state)

    def marked(self, mark: Internal) -> None:
        """A mark is committed."""
        if isinstance(mark, ImageEnd) and self._writer and mark.image_index == self._writer.image_index:
            self._writer = None
            self._next_check_ms = 0
        elif isinstance(mark, Purge):
            self._purge_pending = False

    def is_border(self, base: Base) -> bool:
        """Whether the log can begin behind `base`, which a committed PURGE names. It is believed if damage
        around there leaves nothing to prove it by."""
        store = self._replica.store
        if base.pos % store.data_file_size == 0 and (base in store.borders() or store.damages):
            return True
        _log.error("a PURGE entry is set aside: the log cannot begin there", base=base)
        return False

    def _write_image(self, now_ms: int) -> None:
        replica = self._replica
        while self._writer is not None and replica.admission.pending_bytes < _PENDING_BYTES:
            entry = self._writer.next_entry()
            if entry is None:
                return
            self.waits_for_room = not replica.admission.has_room_for_internal(entry, replica.core.term)
            if self.waits_for_room:
                return
            self._writer.advance()
            self._append(entry, now_ms)

    def _check(self, now_ms: int) -> None:
        replica = self._replica
        if self._writer is not None or self._purge_pending or replica.core.transferring_to is not None:
            return
        borders = self._borders()
        time_ms = replica.admission.state.clock.read(now_ms, replica.wall_ms())
        end_pos = replica.log_tail.pos
        store = replica.store
        wanted = wanted_base(
            self.policy, borders, store.base.pos, end_pos, time_ms, self.asked_before, store.free_bytes()
        )
        self.wanted_pos = -1 if wanted is None else wanted.pos
        if wanted is not None:
            wanted = kept_for_owner(borders, wanted, self.needed_from())
        if wanted is not None:
            wanted = held_back(borders, wanted, self.follower_ends(), end_pos, self.policy.hold_bytes)
        if wanted is None:
            return
        image = replica.admission.state.image
        newest = image.index
        below = [b.base for b in borders if b.base.index <= wanted.index and b.base.index < newest]
        # The borders are those of our own disk, on which a purge may have been put off.
        if below and below[-1].index > replica.admission.state.purge.index:
            self._purge_pending = True
            self._append(Purge(below[-1]), now_ms)
        # An image larger than max_bytes would else call for the next one, for ever, on an idle cluster, too.
        has_grown = end_pos - image.begin_pos >= 2 * image.byte_size
        if wanted.index >= newest and (has_grown or wanted.index < self.asked_before):
            self._begin_image(now_ms)

    def _begin_image(self, now_ms: int) -> None:
        replica = self._replica
        # The table to the end of the log, which is committed when the begin mark is.
        sessions = replica.admission.sessions.encode_all()
        index = self._append(ImageBegin(), now_ms)
        room = max(1, replica.config.limits.max_batch_bytes - _CHUNK_OVERHEAD)
        self._writer = ImageWriter(index, sessions, min(CHUNK_BYTES, room))
        replica.shell.save_state(index)

    def _append(self, value: Internal, now_ms: int) -> int:
        """An entry of the log's own. Returns its index."""
        replica = self._replica
        return replica.admission.append_internal(value, replica.core.term, now_ms, replica.wall_ms())

    def follower_ends(self) -> list[tuple[int, int]]:
        """(index, position) up to which each follower has stored the log."""
        leadership = self._replica.core.leadership
        ends = [p.stored_index for p in leadership.progress.values()] if leadership else []
        return [(index, self._replica.pos_after(index)) for index in ends]

    def _borders(self) -> list[Border]:
        store = self._replica.store
        borders: list[Border] = []
        for base in store.borders():
            if base.index > self._replica.core.committed_index:
                break
            borders.append(Border(base, self._stamp_after(base)))
        return borders

    def _stamp_after(self, base: Base) -> int:
        if base.index not in self._stamps:
            try:
                for head in self._replica.store.iter_heads(base.index + 1):
                    stamp, _ = strip_stamp(decode_internal(head.head))
                    if stamp is not None:
                        self._stamps[base.index] = stamp
                        break
            except EntryDamaged as error:
                self._replica.suspects.append(error.index)
            except ReadFailed:
                pass  # the disk thread has purged it meanwhile
        return self._stamps.get(base.index, -1)
