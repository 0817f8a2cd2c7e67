"""The asyncio shell of a replica: time, disk thread, reader threads, peers and callers around one event
loop.

All input of the replica passes through this module. An exception from the replica means that a step failed
halfway. It is fatal: the node stops and does not continue with an inconsistent state.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Protocol

from dledger.core.membership_change import MembershipChange
from dledger.core.messages import (
    Append,
    Commit,
    Compare,
    Goodbye,
    Heartbeat,
    InstallBase,
    Message,
    PositionRequest,
    PushResponse,
    TakeLeadership,
    Truncate,
    VoteRequest,
)
from dledger.core.values import MembershipAt, Role
from dledger.errors import Code, DLedgerError, InvalidRequest, NotLeader, ReadFailed, StorageError
from dledger.infra.logs import get_logger
from dledger.infra.loops.polling import wake_lock_of, when_idle
from dledger.infra.loops.readable import ReadableLog
from dledger.metrics import LatencyHistogram
from dledger.node.disk.disk_worker import CheckpointJob, HardStateReport, Report, StoredReport
from dledger.node.members.catch_up import CatchUp, PushReadRequest
from dledger.node.members.catch_up_throttle import NO_APPENDS, AppendTotals
from dledger.node.members.inbound import PeerRequests
from dledger.node.members.links import PeerLinks
from dledger.node.setup.member_book import MemberBook
from dledger.node.ticker import Ticker, next_tick_ms
from dledger.replica.images import ImageRequest, LoggedImage, copy_image
from dledger.replica.owned_append import Fill, prepare
from dledger.replica.rebuild_job import RebuildJob, RebuildResult
from dledger.replica.replica import Replica
from dledger.replica.shell import (
    AppendHandle,
    AppendOutcome,
    DiskJob,
    PurgeJob,
    ResetJob,
    RoleNotice,
    TruncateJob,
)
from dledger.store.api import Damage, EntryDamaged, Frames, LogStore
from dledger.store.image_files import ImageMark, StoredImage

_log = get_logger("node")


#: A commit without other traffic waits this long for a push to carry it. A message of its own costs as
#: much as a push.
_COMMIT_WAIT_S = 0.005
#: Interval at which refused messages of one peer are logged.
_REFUSAL_LOG_INTERVAL_S = 10.0


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class StateKeeper(Protocol):
    """Feeds the log to a state machine; see dledger.node.machine.applier."""

    def start(self) -> None: ...
    def save(self, request: ImageRequest) -> None: ...
    def committed(self) -> None: ...


class DiskQueue(Protocol):
    """The writing thread; see dledger.node.disk.disk_worker."""

    @property
    def fsync_began_ms(self) -> int | None: ...

    @property
    def checkpoint_waits(self) -> bool: ...

    @property
    def has_put_off(self) -> bool: ...

    def submit(self, job: DiskJob) -> None: ...
    def submit_checkpoint(self, job: CheckpointJob) -> None: ...


class AsyncShell:
    """Implements dledger.replica.shell.Shell, and the events of peers and disk. Call `wire` once before
    use.
    """

    def __init__(
        self,
        store: LogStore,
        book: MemberBook,
        readable: ReadableLog,
        readers: Executor | None,
        *,
        on_role: Callable[[RoleNotice], None],
        on_fatal: Callable[[DLedgerError], None],
        on_damage: Callable[[int], None],
        catch_up_bytes_per_second: int,
        yields_to: LatencyHistogram | None,
        on_uid: Callable[[], None] = lambda: None,
        now_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        """If `readers` is None, the loop's default executor reads. `on_damage` is called on the loop with the
        index of an unreadable entry, `on_uid` when this node has become a member. `yields_to` measures the
        latency of client appends, to which catch-up adapts its rate; None: catch-up does not adapt. `now_ms`
        is the replica's clock, which must agree with the loop's clock.
        """
        self._now_ms = now_ms
        self._on_damage = on_damage
        self.catch_up = CatchUp(catch_up_bytes_per_second, self._read_range, self._appends)
        self._yields_to = yields_to
        self._store = store
        self._book = book
        self._readable = readable
        self._readers = readers
        self._on_role = on_role
        self._on_uid = on_uid
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self._wake_lock = wake_lock_of(self._loop)
        self._flush_scheduled = False
        self._commit_at = 0.0  # last change of the committed index, loop time
        self._commit_timer: asyncio.TimerHandle | None = None
        self._leading_epoch: int | None = None
        # by peer: earliest time of the next log line about a refusal
        self._next_refusal_log_s: dict[str, float] = {}
        self._last_checkpoint: tuple[int, tuple[int, bytes] | None] | None = None
        self._closing: set[asyncio.Task[None]] = set()  # links to members that have left
        self._logged_members: MembershipAt | None = None
        self._is_stopping = False
        self._dead = False
        self.ticker: Ticker | None = None  # while ticks run

    def wire(
        self,
        replica: Replica,
        worker: DiskQueue,
        inbound: PeerRequests,
        links: PeerLinks,
        keeper: StateKeeper,
    ) -> None:
        self._replica = replica
        self._keeper = keeper
        self._worker = worker
        self._inbound = inbound
        self._links = links

    # -- input of the replica -----------------------------------------------------------------------------

    def start(self) -> None:
        self._step(self._replica.start)

    def run_ticks(self, period_ms: int, tick: Callable[[], None]) -> None:
        """Start calling `tick`, which must call this object's `tick`, as often as the replica needs."""
        self.ticker = Ticker(
            period_ms, tick, self._next_tick_ms, now_ms=self._now_ms, later=self._loop.call_later
        )
        self.ticker.run()

    def _next_tick_ms(self, now_ms: int) -> int:
        return next_tick_ms(self._replica, now_ms)

    def tick(self) -> None:
        self._step(self._replica.tick)
        suspects = self._replica.suspects
        while suspects:
            self._on_damage(suspects.pop())

    def purge(self, before_index: int | None, age_ms: int) -> int:
        """Purge entries below an index or above an age. Returns the index. Raises NotLeader."""
        try:
            return self._replica.purge_before(before_index, age_ms, self._now_ms())
        except NotLeader as error:
            self._name_leader(error)
            raise

    def state_saved(self, image_index: int, is_stored: bool) -> None:
        """Process the end of a requested image."""
        if is_stored:
            self.load_image()
        else:
            self._step(self._replica.retainer.image_failed, image_index)

    def image_damaged(self, mark: ImageMark) -> None:
        """Process damage of an image in the files."""
        self._step(self._replica.retainer.image_lost, mark)

    def append(
        self,
        token: AppendHandle,
        bodies: Sequence[bytes],
        session: tuple[int, int] | None,
        open_session: bool,
        timeout_ms: int,
    ) -> None:
        self._step(
            self._replica.append,
            token,
            bodies,
            session=session,
            open_session=open_session,
            timeout_ms=timeout_ms,
        )
        self._want_flush()

    def append_batch(
        self,
        token: AppendHandle,
        sizes: Sequence[int],
        fill: Fill,
        expected: tuple[int, int],
        timeout_ms: int,
    ) -> None:
        """Append a batch as described in `prepare`. Unless this raises, the result is passed to
        `token.answer`."""
        if self._dead:
            raise NotLeader("this node has stopped")
        now_ms = self._now_ms()
        try:
            batch, head, count = prepare(self._replica, sizes, fill, expected, now_ms)
        except DLedgerError as error:
            self._name_leader(error)
            raise
        try:
            self._replica.admission.gather(token, batch, head, count, now_ms + timeout_ms, now_ms)
        except Exception as error:
            self._broken(error)
            raise
        self._want_flush()

    def _want_flush(self) -> None:
        self._wake_lock.work()
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def read_index(self) -> asyncio.Future[int]:
        """Return the read point of this node as leader. The future fails with NotLeader on other nodes."""
        if self._commit_timer is not None:  # the reader is going to wait for these commits
            self._step(self._replica.announce_commit)
        future: asyncio.Future[int] = self._loop.create_future()
        self._step(self._replica.read_index, future)
        return future

    def transfer(self, to: str | None) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        self._step(self._replica.transfer, future, to)
        return future

    def change_members(self, change: MembershipChange) -> asyncio.Future[None]:
        """Change the members. The future is done once the change is committed."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._step(self._replica.change_members, future, change)
        return future

    def receive(self, peer: str, message: Message, payload: bytes | memoryview | None) -> None:
        if payload is not None:
            self._wake_lock.work()
        self._step(self._replica.receive, peer, message, payload)

    def peer_answered(self, peer: str, message: Message) -> None:
        self._step(self._replica.receive, peer, message)

    def stream_up(self, peer: str, stream_id: int, incarnation: int) -> None:
        self._step(self._replica.stream_up, peer, stream_id, incarnation)

    def stream_down(self, peer: str, stream_id: int) -> None:
        self.catch_up.forget(peer)
        self._step(self._replica.stream_down, peer, stream_id)

    def directory_seen(self, peer: str, number: int) -> None:
        self._step(self._replica.directory_seen, peer, number)

    def uid_assigned(self, uid: int) -> None:
        _log.info("added to the group", uid=uid)
        self._step(self._replica.uid_assigned, uid)
        self._on_uid()

    def member_replaced(self, reason: str) -> None:
        """Stop, because another machine is the member with this node id."""
        if not self._dead:
            text = f"{reason}: this machine was replaced, and its log is of no use to the group any more"
            self.fatal(StorageError(text, code=Code.MEMBER_REPLACED))

    def directory_replaced(self, peer: str, reason: str) -> None:
        """Stop, because this node might vote and count twice, unless the peer is no member: it may have seen
        a directory of this node that never counted."""
        if not self._dead and peer in self._replica.core.membership.nodes:
            self.fatal(
                StorageError(
                    f"{reason}. It may lack votes and entries of this node: start the node with its newest "
                    "directory, or remove this one and start the node with --rejoin",
                    code=Code.DIRECTORY_REPLACED,
                )
            )

    def leader_stream_lost(self, leader_id: str, stream_id: int) -> None:
        self._step(self._replica.leader_stream_lost, leader_id, stream_id)

    def checkpoint(self) -> None:
        """Queue a checkpoint unless nothing changed since the last one or one is still queued. A checkpoint
        or purge that a full disk has delayed also counts as a change.
        """
        if self._dead or self._worker.checkpoint_waits:
            return
        state = self._replica.checkpoint()
        if state != self._last_checkpoint or self._worker.has_put_off:
            self._last_checkpoint = state
            self._worker.submit_checkpoint(CheckpointJob(*state))

    def disk_reported(self, report: Report) -> None:
        """Process a report. Called on the disk thread, which may outlive the loop if the disk was stuck."""
        if self._dead:
            return
        self._loop.call_soon_threadsafe(self._on_report, report)

    def on_space_prepared(self) -> None:
        """Retry appends that wait for space. Called on the allocator's thread."""
        if len(self._replica.admission_queue) and not self._dead:
            with suppress(RuntimeError):  # the loop is gone
                self._loop.call_soon_threadsafe(self._flush)

    def _on_report(self, report: Report) -> None:
        match report:
            case StoredReport(generation, last_index, term):
                self._readable.stored(generation, last_index)
                self._keeper.committed()
                self._step(self._replica.stored, generation, last_index, term)
            case HardStateReport(number):
                self._step(self._replica.hard_state_saved, number)

    def _flush(self) -> None:
        self._flush_scheduled = False
        self._step(self._replica.flush)

    def _step(self, work: Callable[..., None], *arguments: object, **options: object) -> None:
        if self._dead:
            return
        try:
            work(self._now_ms(), *arguments, **options)
        except Exception as error:
            self._broken(error)
        self.reschedule_tick()

    def reschedule_tick(self) -> None:
        """Reschedule the tick if the last step needs an earlier one."""
        if self.ticker is not None and self.ticker.sleeps:
            self.ticker.reschedule()

    def _broken(self, error: Exception) -> None:
        _log.error("the replica failed", exc_info=error)
        fatal = (
            error
            if isinstance(error, DLedgerError)
            else StorageError(f"internal error: {type(error).__name__}: {error}", code=Code.INTERNAL_ERROR)
        )
        self.fatal(fatal)

    # -- Shell: output of the replica ---------------------------------------------------------------------

    def send(self, peer: str, message: Message, payload: bytes | memoryview | None) -> None:
        match message:  # frequent messages first
            case Append() | Commit() | Compare() | Truncate() | Goodbye() | InstallBase():
                if (link := self._links.get(peer)) is not None:
                    link.push(message, payload)
            case PushResponse():
                self._inbound.respond(peer, message)
            case Heartbeat() | VoteRequest() | TakeLeadership() | PositionRequest():
                if (link := self._links.get(peer)) is not None:
                    link.send_request(message)
            case _:
                self._inbound.resolve(peer, message)

    def submit(self, job: DiskJob) -> None:
        if isinstance(job, TruncateJob):
            self._readable.truncating(job.generation, job.last_index)
        elif isinstance(job, ResetJob):
            _log.warning("the log is replaced: it starts after", index=job.base.index, term=job.base.term)
            self._readable.resetting(job.generation, job.base.index)
        elif isinstance(job, PurgeJob):
            _log.info("purging up to", index=job.base.index)
        self._worker.submit(job)

    def fsync_began_ms(self) -> int | None:
        return self._worker.fsync_began_ms

    def save_state(self, request: ImageRequest) -> None:
        self._loop.call_soon(self._keeper.save, request)

    def load_image(self) -> None:
        self._with_images(lambda: None)

    def copy_image(self, image: LoggedImage) -> None:
        self._with_images(partial(copy_image, self._store, image))

    def discard_image(self, mark: ImageMark) -> None:
        self._with_images(partial(self._store.images.discard, mark))

    def _with_images(self, work: Callable[[], object]) -> None:
        """Change the image files on a reader thread, and then report the newest image."""

        def run() -> StoredImage | ImageMark | None:
            try:
                work()
            except (OSError, StorageError, ReadFailed) as error:
                _log.error("cannot change the state images", reason=str(error))
            newest = self._store.images.newest
            return None if newest is None else self._store.images.stored() or newest.mark

        self._loop.run_in_executor(self._readers, run).add_done_callback(self._image_read)

    def _image_read(self, reading: asyncio.Future[StoredImage | ImageMark | None]) -> None:
        """Report the image that was read, or that it is damaged. If another one has replaced it meanwhile,
        its own read reports that one: two reads may end in any order."""
        if self._dead or self._is_stopping or reading.cancelled():
            return
        image, newest = reading.result(), self._store.images.newest
        if isinstance(image, StoredImage) and newest is not None and image.mark == newest.mark:
            self._step(self._replica.image_stored, image)
            self._keeper.committed()
        elif isinstance(image, ImageMark) and newest is not None and image == newest.mark:
            _log.error("a state image is damaged: its sessions cannot be read", index=image.index)
            self.image_damaged(image)

    def rebuild(self, job: RebuildJob) -> None:
        max_sessions = self._replica.config.limits.max_sessions
        reading = self._loop.run_in_executor(
            self._readers, job.run, self._store, max_sessions, self._now_ms()
        )
        reading.add_done_callback(partial(self._log_read, job))

    def _log_read(
        self, job: RebuildJob, reading: asyncio.Future[RebuildResult | EntryDamaged | None]
    ) -> None:
        if self._dead or self._is_stopping or reading.cancelled():
            return
        error = reading.exception()
        if isinstance(error, Exception):
            self._broken(error)
            return
        outcome = reading.result()
        if isinstance(outcome, EntryDamaged):
            _log.error("damaged: the session rebuild waits for a repair", reason=str(outcome))
        self._step(self._replica.log_read, job.number, outcome)

    def rebuilt(self) -> None:
        _log.info("sessions are rebuilt", ledger_end_index=self._replica.log_tail.index)
        self.load_image()
        self._loop.call_soon(self._keeper.start)

    def purged_elsewhere(self, damage: Damage) -> None:
        self._step(self._replica.purged_elsewhere, damage)

    def load_push(self, peer: str, stream_id: int, first_index: int, last_index: int, max_bytes: int) -> None:
        """Read entries that are not in the cache. A follower that needs them is catching up, so other work
        has priority.
        """
        deliver = partial(self._push_loaded, peer, stream_id, first_index)
        self.catch_up.load(PushReadRequest(peer, stream_id, first_index, last_index, max_bytes), deliver)

    def _push_loaded(self, peer: str, stream_id: int, first_index: int, frames: Frames | None) -> None:
        self._wake_lock.work()
        self._step(self._replica.push_loaded, peer, stream_id, first_index, frames)

    def answer_append(self, token: AppendHandle, outcome: AppendOutcome | DLedgerError) -> None:
        if isinstance(outcome, DLedgerError):
            self._name_leader(outcome)
        token.answer(outcome)

    def answer_read(self, token: object, outcome: int | DLedgerError) -> None:
        assert isinstance(token, asyncio.Future)
        if token.done():
            return
        if isinstance(outcome, DLedgerError):
            self._name_leader(outcome)
            token.set_exception(outcome)
        else:
            token.set_result(outcome)

    def answer_transfer(self, token: object, outcome: DLedgerError | None) -> None:
        assert isinstance(token, asyncio.Future)
        if token.done():
            return
        if outcome is None:
            token.set_result(None)
        else:
            self._name_leader(outcome)
            token.set_exception(outcome)

    def role_changed(self, notice: RoleNotice) -> None:
        leading = notice.role_epoch if notice.role is Role.LEADER else None
        if leading != self._leading_epoch:
            self._leading_epoch = leading
            self._links.set_leading(leading is not None)
        self._on_role(notice)

    def members_changed(self, in_force: MembershipAt, peers: Sequence[str]) -> None:
        membership = in_force.membership
        if in_force != self._logged_members:  # not if links to removed members end
            self._logged_members = in_force
            _log.info(
                "the members changed",
                index=in_force.index,
                voters=", ".join(membership.voters),
                outgoing=", ".join(membership.outgoing) or None,
                learners=", ".join(membership.learners) or None,
            )
        earlier = [known.membership for known in self._replica.core.log.memberships]
        self._book.update(membership, earlier)
        for link in self._links.keep_only(peers, self._book.peer_address):
            task = self._loop.create_task(link.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def committed(self, committed_index: int) -> None:
        self._readable.committed(committed_index)
        self._keeper.committed()

    def commit_moved(self) -> None:
        self._commit_at = self._loop.time()
        if self._commit_timer is None:
            self._commit_timer = self._loop.call_later(_COMMIT_WAIT_S, self._on_commit_timer)

    def _on_commit_timer(self) -> None:
        """Announce the commit once the loop is idle, because a busy loop may be about to append.

        Waits until the loop is idle twice, because work that waits for the first idle moment is scheduled
        only then.
        """
        when_idle(partial(when_idle, self._commit_is_due))

    def _commit_is_due(self) -> None:
        """Announce the commit if it is due. Checks the time, because a commit does not restart the timer."""
        due = self._commit_at + _COMMIT_WAIT_S
        if due - self._loop.time() > _COMMIT_WAIT_S / 10:
            self._commit_timer = self._loop.call_at(due, self._on_commit_timer)
            return
        self._commit_timer = None
        self._step(self._replica.announce_commit)

    def refused(self, peer: str, message: Message, error: InvalidRequest) -> None:
        now = self._loop.time()
        if now >= self._next_refusal_log_s.get(peer, 0.0):
            self._next_refusal_log_s[peer] = now + _REFUSAL_LOG_INTERVAL_S
            _log.error("refused a message of a peer", peer=peer, reason=error.message)
        self._inbound.refuse(peer, message, error)

    def fatal(self, error: DLedgerError) -> None:
        self.give_up()
        self._on_fatal(error)

    def stop(self) -> None:
        """Prepare for closing the store, which a rebuild may still be reading."""
        self._is_stopping = True

    def give_up(self) -> None:
        """Stop executing the replica. May be called on any thread."""
        self._dead = True

    # -- helpers ------------------------------------------------------------------------------------------

    def _name_leader(self, error: DLedgerError) -> None:
        """Add the leader's address, which clients need and the replica does not know."""
        if error.leader_id is not None:
            error.leader_address = self._book.get(error.leader_id)

    def _appends(self) -> AppendTotals:
        latency = self._yields_to
        if latency is None:
            return NO_APPENDS
        return AppendTotals(sum(latency.counts), latency.sum, self._store.tail.pos)

    def _read_range(self, first_index: int, last_index: int, max_bytes: int) -> asyncio.Future[Frames | None]:
        """Read stored entries off the loop."""
        last = min(last_index, self._readable.stored_index)
        if last >= first_index:
            work = partial(self._read_frames, first_index, last, max_bytes)
            return self._loop.run_in_executor(self._readers, work)
        nothing: asyncio.Future[Frames | None] = self._loop.create_future()
        nothing.set_result(None)
        return nothing

    def _read_frames(self, first_index: int, last_index: int, max_bytes: int) -> Frames | None:
        """Read entries for a push, on a reader thread."""
        try:
            return self._store.read(first_index, last_index, max_bytes, whole_batches=True)
        except ReadFailed:
            return None
        except StorageError as error:
            _log.error("cannot read entries for a follower", first_index=first_index, reason=str(error))
            if isinstance(error, EntryDamaged):
                self._loop.call_soon_threadsafe(self._on_damage, error.index)
            return None
