"""Performs the leader's log retention: writes state images, then PURGE entries (docs/guarantees.md,
Retention).

Runs inside the replica, one step at a time. At most one image is in progress. Its chunks are appended as disk
space permits, and a purge is appended only below a committed image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dledger.core.values import Base
from dledger.errors import Code, ReadFailed, Refused
from dledger.infra.logs import get_logger
from dledger.replica.images import CHUNK_BYTES, ImageWriter
from dledger.replica.parts import ReplicaParts
from dledger.replica.retention import Border, RetentionLimits, held_back, kept_for_owner, select_base
from dledger.store.api import EntryDamaged
from dledger.store.format.internal import ImageBegin, ImageEnd, Internal, Purge, decode_internal, strip_stamp

_log = get_logger("log")

_CHUNK_OVERHEAD = 128  # size of the entry around a chunk: more than its header, stamp and tag
_NEVER = 1 << 62
_PENDING_BYTES = 1 << 20  # chunks wait while this much of the log is uncommitted: user appends go first


class Retainer:
    def __init__(self, replica: ReplicaParts, policy: RetentionLimits) -> None:
        self._replica = replica
        self.policy = policy
        self.requested_before = -1  # an operator requested to purge entries below this index
        #: First log position that the owner of the node still reads.
        self.needed_from: Callable[[], int] = lambda: _NEVER
        #: On the leader: the position at which the log would start if the owner needed nothing before it.
        self.wanted_pos = -1
        self._writer: ImageWriter | None = None
        self.waits_for_room = False  # the next chunk of an image has no reserved space
        self._purge_pending = False
        self.purge_to: Base | None = None  # base of a committed PURGE that is not executed yet
        self._next_check_ms = 0
        self._stamps: dict[int, int] = {}  # by base.index: cluster time right after a border

    def stop(self) -> None:
        """Abandon an unfinished image after losing leadership."""
        self._writer = None
        self._purge_pending = False
        self.waits_for_room = False
        self.wanted_pos = -1

    @property
    def is_writing(self) -> bool:
        """An image is in progress on this leader."""
        return self._writer is not None

    @property
    def next_check_ms(self) -> int:
        """Time of the leader's next retention check; far in the future if no limit is set."""
        leadership = self._replica.core.leadership
        if leadership is None or not (self.policy.is_on or self.requested_before >= 0):
            return _NEVER
        return self._next_check_ms if leadership.noop_is_committed else _NEVER

    def request_purge(self, before_index: int | None, age_ms: int, now_ms: int) -> int:
        """Let an operator purge entries. Returns the index before which entries may be purged.

        Raises Refused if no index was given while purging by age is paused.
        """
        if before_index is None:
            replica = self._replica
            self._refuse_pause(now_ms)
            wall_ms = replica.wall_ms()
            time_ms = replica.admission.state.clock.read(now_ms, wall_ms)
            old = [b.base.index for b in self._borders() if b.is_older(age_ms, time_ms, wall_ms)]
            before_index = max(old, default=-1) + 1
        # Exclude future entries: the images themselves would always be among them.
        before_index = min(before_index, self._replica.core.committed_index + 1)
        self.requested_before = max(self.requested_before, before_index)
        self._next_check_ms = 0
        return before_index

    def _refuse_pause(self, now_ms: int) -> None:
        keeper = self._replica.clock_keeper
        if keeper.age_purge_step_ms:
            left_s, step_s = keeper.pause_left_ms(now_ms) // 1000, keeper.age_purge_step_ms // 1000
            raise Refused(
                f"purging by age is paused for {left_s} s: cluster time stepped by {step_s} s, so "
                "entries may appear older than they are. To purge now, specify an index",
                code=Code.AGE_PURGE_PAUSED,
            )

    def tick(self, now_ms: int) -> None:
        if not self._replica.core.leadership or not self._replica.core.leadership.noop_is_committed:
            return
        self._write_image(now_ms)
        if now_ms >= self._next_check_ms and (self.policy.is_on or self.requested_before >= 0):
            self._next_check_ms = now_ms + self.policy.check_ms
            self._check(now_ms)

    def provide(self, image_index: int, state: Sequence[bytes]) -> None:
        """Set the saved state machine as of image_index."""
        writer = self._writer
        if writer is not None and writer.image_index == image_index and writer.chunks is None:
            writer.provide(state)

    def marked(self, marks: Sequence[Internal]) -> None:
        """Process committed marks: completed images and purges. Idempotent."""
        for mark in marks:
            if isinstance(mark, Purge):
                self.purge_to = mark.base
                self._purge_pending = False
            elif isinstance(mark, ImageEnd) and self._writer and mark.image_index == self._writer.image_index:
                self._writer = None
                self._next_check_ms = 0

    def due_purge(self) -> Base | None:
        """Return the base of a committed PURGE, once: when the border and the entries that prove it are
        durable on this node."""
        base, log = self.purge_to, self._replica.core.log
        if base is None or base.index >= log.durable_index:
            return None
        self.purge_to = None
        return base if base.index > log.base.index and self.is_border(base) else None

    def is_border(self, base: Base) -> bool:
        """Return True if the log can start after `base` of a committed PURGE.

        If the log has damage, the border may be unreadable. Then the PURGE is trusted.
        """
        store = self._replica.store
        if base.pos % store.data_file_size == 0 and (base in store.borders() or store.damages):
            return True
        _log.error("a PURGE entry is set aside: the log cannot start there", base=base)
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
        target = select_base(
            self.policy,
            borders,
            store.base.pos,
            end_pos,
            time_ms,
            self.requested_before,
            store.free_bytes(),
            wall_ms=replica.wall_ms(),
            age_counts=not replica.clock_keeper.age_purge_step_ms,
        )
        self.wanted_pos = -1 if target is None else target.pos
        if target is not None:
            target = kept_for_owner(borders, target, self.needed_from())
        if target is not None:
            target = held_back(borders, target, self.follower_ends(), end_pos, self.policy.hold_bytes)
        if target is None:
            return
        image = replica.admission.state.image
        newest = image.index
        below = [b.base for b in borders if b.base.index <= target.index and b.base.index < newest]
        # Borders come from the local disk, on which a purge may have been delayed.
        purge = Purge(below[-1]) if below else None
        if purge and purge.base.index > replica.admission.state.purge.index and self._can_store(purge):
            self._purge_pending = True
            self._append(purge, now_ms)
        # Without this, an image larger than max_bytes would trigger the next one forever, even on an idle
        # cluster.
        has_grown = end_pos - image.begin_pos >= 2 * image.byte_size
        is_due = target.index >= newest and (has_grown or target.index < self.requested_before)
        if is_due and self._can_store(ImageBegin()):
            self._begin_image(now_ms)

    def _can_store(self, value: Internal) -> bool:
        """Return True if the disk has room for an entry, including most of the reserve.

        If an image has used up the reserve, the next check tries again.
        """
        replica = self._replica
        batch = replica.admission.measure_internal(value, replica.core.term)
        has_room = replica.admission.has_room_for(batch)
        return has_room or replica.store.could_take(batch.end_pos, batch.last_index)

    def _begin_image(self, now_ms: int) -> None:
        replica = self._replica
        # The table at the end of the log, which is committed once the start mark is.
        sessions = replica.admission.sessions.encode_all()
        index = self._append(ImageBegin(), now_ms)
        room = max(1, replica.config.limits.max_batch_bytes - _CHUNK_OVERHEAD)
        self._writer = ImageWriter(index, sessions, min(CHUNK_BYTES, room))
        replica.shell.save_state(index)

    def _append(self, value: Internal, now_ms: int) -> int:
        """Append an internal entry and return its index."""
        replica = self._replica
        return replica.admission.append_internal(value, replica.core.term, now_ms, replica.wall_ms())

    def follower_ends(self) -> list[tuple[int, int]]:
        """(index, position) of each follower's stored end."""
        leadership = self._replica.core.leadership
        ends = [p.stored_index for p in leadership.progress.values()] if leadership else []
        return [(index, self._replica.pos_after(index)) for index in ends]

    def _borders(self) -> list[Border]:
        store = self._replica.store
        borders: list[Border] = []
        for base in store.borders():
            if base.index > self._replica.core.committed_index:
                break
            try:
                written_ms = store.written_ms(base)
            except OSError:
                break  # keep entries of unknown age
            borders.append(Border(base, self._stamp_after(base), written_ms))
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
                pass  # purged by the disk thread meanwhile
        return self._stamps.get(base.index, -1)
