"""Performs log retention: the leader requests state images and writes PURGE entries, and every node learns of
its images and executes the purges (docs/guarantees.md, Retention).

Runs inside the replica, one step at a time. A PURGE is written only below an image that a majority of the
voters has stored, and executed by a node only below an image of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dledger.core.quorum import committed_by
from dledger.core.values import Base
from dledger.errors import Code, ReadFailed, Refused
from dledger.infra.logs import get_logger
from dledger.replica.images import ImageRequest
from dledger.replica.log_state import NO_IMAGE, span_of
from dledger.replica.parts import ReplicaParts
from dledger.replica.retention import Border, RetentionLimits, held_back, kept_for_owner, select_base
from dledger.store.api import EntryDamaged
from dledger.store.format.internal import ImageBegin, Internal, Purge, decode_internal, strip_stamp
from dledger.store.image_files import ImageManifest, ImageMark, StoredImage

_log = get_logger("log")

_NEVER = 1 << 62
#: Pause after an image that could not be written, for example on a full disk; doubled with each failure.
_RETRY_MS = 1000
_LONGEST_RETRY_MS = 60_000


class Retainer:
    def __init__(self, replica: ReplicaParts, policy: RetentionLimits) -> None:
        self._replica = replica
        self.policy = policy
        self.requested_before = -1  # an operator requested to purge entries below this index
        #: First log position that the owner of the node still reads.
        self.needed_from: Callable[[], int] = lambda: _NEVER
        #: On the leader: the position at which the log would start if the owner needed nothing before it.
        self.wanted_pos = -1
        self._saving: int | None = None  # mark of the image that the leader's state machine is saving
        self._retry_ms = self._pause_ms = 0  # after a failure: when to try again, and the length of the pause
        self._offered: ImageManifest | None = None  # in the files, but its mark is not committed here yet
        self._purge_pending = False
        self.purge_to: Base | None = None  # base of a committed PURGE that is not executed yet
        self._next_check_ms = 0
        self._stamps: dict[int, int] = {}  # by base.index: cluster time right after a border
        self._warned_of: list[str] = []  # members with an older release

    def stop(self) -> None:
        """Forget an unfinished image after losing leadership."""
        self._saving = None
        self._purge_pending = False
        self.wanted_pos = -1

    @property
    def is_writing(self) -> bool:
        """An image is in progress on this leader."""
        return self._saving is not None

    @property
    def has_work(self) -> bool:
        """The next tick may execute a purge or copy an image."""
        state = self._replica.admission.state
        return state.logged is not None or (
            self.purge_to is not None and self.purge_to.index < state.image.index
        )

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
        self._copy_logged()
        if not self._replica.core.leadership or not self._replica.core.leadership.noop_is_committed:
            return
        if now_ms >= self._next_check_ms and (self.policy.is_on or self.requested_before >= 0):
            self._next_check_ms = now_ms + self.policy.check_ms
            self._check(now_ms)

    def marked(self, marks: Sequence[Internal]) -> None:
        """Process committed purges. Idempotent."""
        for mark in marks:
            if isinstance(mark, Purge):
                self.purge_to = mark.base
                self._replica.core.purged_index = self._replica.admission.state.purge.index
                self._purge_pending = False
        if self._offered is not None:
            self._adopt()

    # -- images of this node ------------------------------------------------------------------------------

    def image_stored(self, image: StoredImage) -> None:
        """Process the newest image in the files of this node. Idempotent."""
        core, state, mark = self._replica.core, self._replica.admission.state, image.mark
        self._offered = image.manifest
        if self._saving == mark.index:
            self._saving, self._pause_ms, self._next_check_ms = None, 0, 0
        if not state.needs_image or state.offer(image):
            self.publish()
            self.marked(state.committed(core.committed_index))
        elif mark.index <= core.log.end_index:
            state.offered = None
            self._discard(mark)

    def image_failed(self, now_ms: int, index: int) -> None:
        """Try again later, because the image with this mark could not be saved."""
        if self._saving == index:
            self._saving = None
            self._pause_ms = min(max(_RETRY_MS, 2 * self._pause_ms), _LONGEST_RETRY_MS)
            self._retry_ms = now_ms + self._pause_ms

    def image_lost(self, now_ms: int, mark: ImageMark) -> None:
        """Fetch another image, because the files of this one are damaged."""
        if self._replica.admission.state.image.index == mark.index:
            self._replica.admission.state.image = NO_IMAGE
            self.publish()
        self._discard(mark)

    def publish(self) -> None:
        """Announce the newest image of this node to the other members, or that it lacks one."""
        core, state = self._replica.core, self._replica.admission.state
        core.image_index = state.image.index
        core.lacks_image = state.needs_image or (state.is_rebuilding and core.log.base.index >= 0)

    def wanted_image(self) -> int | None:
        """Return the least mark of an image that this node should fetch from another member, if any."""
        core, state = self._replica.core, self._replica.admission.state
        base_index = core.log.base.index
        if state.is_rebuilding:
            return None
        if state.needs_image:
            return None if state.offered is not None or state.logged is not None else base_index + 1
        if self._offered is not None or state.logged is not None:
            return None
        least = base_index + 1 if base_index >= 0 else -1
        if core.leadership is None and core.announced_image <= core.committed_index:
            least = max(least, core.announced_image)
        if self.purge_to is not None:
            least = max(least, self.purge_to.index + 1)
        return least if least > state.image.index else None

    def _adopt(self) -> None:
        """Use an image once its mark is committed in this log."""
        core, state, offered = self._replica.core, self._replica.admission.state, self._offered
        if offered is None or state.is_rebuilding or state.needs_image:
            return
        if offered.mark.index > core.committed_index:
            return
        self._offered = None
        if core.log.base.index < offered.mark.index and core.log.holds(*offered.mark[:2]):
            state.image = span_of(offered)
            core.images_in_files = core.images_in_files or not offered.is_copy
            self.publish()
        else:
            self._discard(offered.mark)

    def _discard(self, mark: ImageMark) -> None:
        _log.warning("an image is removed: it does not belong to this log, or is damaged", index=mark.index)
        self._offered = None
        self._replica.shell.discard_image(mark)

    def _copy_logged(self) -> None:
        """Copy an image of the log into files once it is durable: an earlier release writes such images."""
        state = self._replica.admission.state
        logged = state.logged
        if logged is not None and logged.last_index <= self._replica.core.log.durable_index:
            state.logged = None
            self._replica.shell.copy_image(logged)

    # -- purges -------------------------------------------------------------------------------------------

    def due_purge(self) -> Base | None:
        """Return the base of a committed PURGE, once: when this node has an image of the purged entries, and
        the border and the mark of the image are durable."""
        base, log, image = self.purge_to, self._replica.core.log, self._replica.admission.state.image
        if base is None or not base.index < image.index <= log.durable_index:
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

    def _check(self, now_ms: int) -> None:
        replica = self._replica
        leadership = replica.core.leadership
        assert leadership is not None
        if self._saving is not None or self._purge_pending or replica.core.transferring_to is not None:
            return
        if leadership.changes.is_submitted:
            return  # a PURGE would follow a configuration whose voters are not in force yet
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
        shared = self._shared_image()
        below = [b.base for b in borders if b.base.index <= target.index and b.base.index < shared]
        # Borders come from the local disk, on which a purge may have been delayed.
        purge = Purge(below[-1]) if below else None
        if purge and purge.base.index > replica.admission.state.purge.index and self._can_store(purge):
            self._purge_pending = True
            self._append(purge, now_ms)
        if self._image_is_due(target, end_pos, now_ms) and self._can_store(ImageBegin()):
            self._begin_image(now_ms)

    def _shared_image(self) -> int:
        """Return the newest mark such that a majority of the voters has stored this image or a later one."""
        core = self._replica.core
        assert core.leadership is not None
        images = {peer: progress.image_index for peer, progress in core.leadership.progress.items()}
        return committed_by(core.membership, images | {core.node_id: core.image_index})

    def _image_is_due(self, target: Base, end_pos: int, now_ms: int) -> bool:
        image = self._replica.admission.state.image
        if target.index < image.index or now_ms < self._retry_ms or self._awaits_image(end_pos):
            return False
        # Otherwise a state much larger than max_bytes would be saved and copied again for every few entries.
        has_grown = end_pos - image.begin_pos >= 2 * image.byte_size
        return (has_grown or target.index < self.requested_before) and not self._outdated()

    def _awaits_image(self, end_pos: int) -> bool:
        """Return True while a member in contact fetches the newest image. A slow one has until the log has
        grown by `hold_bytes`, because a newer image replaces the one that it is fetching."""
        replica = self._replica
        leadership, image = replica.core.leadership, replica.admission.state.image
        assert leadership is not None
        if image.index < 0 or end_pos - image.begin_pos > self.policy.hold_bytes:
            return False
        return any(leadership.progress[peer].image_index < image.index for peer in leadership.in_contact())

    def _outdated(self) -> bool:
        """Return True while a member may run a release that finds images in the log only."""
        outdated = self._replica.core.outdated_members()
        if outdated and outdated != self._warned_of:
            _log.warning(
                "the log is not purged: these members are not known to run release 0.3 or later",
                members=outdated,
            )
        self._warned_of = outdated
        return bool(outdated)

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
        # The table at the end of the log, which is committed once the mark is.
        sessions = replica.admission.sessions.encode_all()
        self._saving = self._append(ImageBegin(), now_ms)
        replica.shell.save_state(ImageRequest(self._saving, replica.core.term, sessions))

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
