"""One replica of the log: the Raft core, the log's bytes and its sessions, without any I/O of its own.

The replica turns client appends into batches, executes the core's effects, and answers callers. External
work (sends, disk jobs, answers) goes through a `Shell`. The asyncio node and the simulator are two shells
around the same replica. All methods must be called from one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from dledger.core.effects import (
    AppendMembership,
    AppendNoop,
    ChangeEnded,
    CommitAdvanced,
    Effect,
    Fatal,
    MembershipChanged,
    MessageRefused,
    PersistHardState,
    PushAppended,
    PushRange,
    ReadReady,
    ReadRefused,
    ResetLog,
    RoleChanged,
    SendMessage,
    StoreEntries,
    TransferEnded,
    TruncateLog,
)
from dledger.core.events import (
    ChangeRequest,
    CommitSettled,
    DirectorySeen,
    EntriesAppended,
    EntriesPushed,
    EntriesStored,
    Event,
    FitnessChanged,
    LeaderStreamLost,
    LogPurged,
    MessageReceived,
    ReadIndexRequest,
    StreamDown,
    StreamUp,
    Tick,
    TransferRequest,
    UidAssigned,
)
from dledger.core.log_view import LogView, confirmed_memberships
from dledger.core.membership_change import MembershipChange
from dledger.core.messages import COUNTED, Append, Compare, Message, Truncate
from dledger.core.raft import RaftCore
from dledger.core.values import Base, MembershipAt, OwnerFitness, Role, Tail
from dledger.errors import Code, DLedgerError, InvalidRequest, NotLeader, Overloaded, StorageError, error_for
from dledger.replica import pushes
from dledger.replica.admission import (
    NO_ROOM,
    AdmissionQueue,
    AppendAdmission,
    ExpiryUnconfirmed,
    SpacePending,
    WaitingAppend,
)
from dledger.replica.clock_keeper import ClockKeeper
from dledger.replica.log_state import LogState
from dledger.replica.outbox import DurableOutbox, with_clock
from dledger.replica.parts import ReplicaConfig
from dledger.replica.pushes import PushTails, read_push, refusal
from dledger.replica.rebuild_job import RebuildResult
from dledger.replica.rebuilding import StateRebuild
from dledger.replica.replica_status import ReplicaStatus, status_of
from dledger.replica.retainer import Retainer
from dledger.replica.shell import (
    AppendHandle,
    AppendOutcome,
    HardStateJob,
    PurgeJob,
    ResetJob,
    RoleNotice,
    Shell,
    TruncateJob,
    WriteJob,
)
from dledger.replica.tail_cache import TailCache
from dledger.store.api import Damage, EntryDamaged, Frames, LogStore
from dledger.store.format.batch import Batch, DamagedBatch
from dledger.store.format.internal import Configuration
from dledger.store.identity import CHANGED_FORMAT
from dledger.store.image_files import StoredImage


class Replica:
    """A replica on an opened store whose incarnation has already been raised. Call `start` first."""

    def __init__(
        self,
        config: ReplicaConfig,
        store: LogStore,
        shell: Shell,
        *,
        random_ms: Callable[[int, int], int],
        wall_ms: Callable[[], int],
    ) -> None:
        """`wall_ms`: this node's wall clock, ms since the Unix epoch, used to correct cluster time."""
        self.config = config
        self.store = store
        self.shell = shell
        place = (store.base, store.term_runs, store.end_index)
        recorded = store.hard_state.memberships or (MembershipAt(-1, -1, config.membership),)
        log = LogView(*place, confirmed_memberships(recorded, *place))
        self.core = RaftCore(config.core, store.hard_state, log, store.committed_checkpoint, random_ms)
        self.core.lacks_image = store.base.index >= 0  # until it is found
        self.core.images_in_files = store.identity.format_version >= CHANGED_FORMAT
        self.cache = TailCache(config.cache_bytes)
        self.log_tail = store.tail  # the end of the batches submitted to the disk thread
        self.committed_pos = store.base.pos
        self.wall_ms = wall_ms
        self.admission = AppendAdmission(config.limits, store.data_file_size)
        self.admission.state = LogState(max_sessions=config.limits.max_sessions, is_rebuilding=True)
        self.admission.tail = store.tail
        self.admission.room = lambda: NO_ROOM if self.core.log.is_being_cut else store.reserved_end
        self.admission.is_full = lambda: not store.has_room_after(self.admission.tail)
        self.admission.others_are_full = self._others_are_full
        bounds = (config.limits.max_pending_bytes, config.limits.max_pending_appends)
        self.admission_queue = AdmissionQueue(*bounds)
        self.clock_keeper = ClockKeeper(self)
        self.retainer = Retainer(self, config.retention)
        self.rebuilding = StateRebuild(self)
        self._effects: deque[Effect] = deque()
        self._pushed = PushTails(log, store, self._tail_at)
        self._outbox = DurableOutbox()
        self._requests: dict[int, Callable[[Any], None]] = {}  # pending reads and transfers: id -> callback
        self._next_request = 0
        self.suspects: list[int] = []  # unreadable entries: the shell must check them for damage
        self.unread_probes: dict[str, Compare] = {}  # by peer: probes of unreadable entries, sent later
        self.owner: OwnerFitness | None = None  # last report of the program that owns this node
        self._judged_pos = 0  # end of the log at the last fitness check
        self._leading = False
        self._commit_moved = False
        self._group_bytes = b""  # encoded group being written

    def start(self, now_ms: int) -> None:
        """Start the replica. Call once, before anything else."""
        self._note_committed_pos()
        self._judge_fitness(now_ms)
        self._effects.extend(self.core.start(now_ms))
        self._settle(now_ms)
        self.rebuilding.start(now_ms)

    # -- events -------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Process the passage of time. Call about every 20 ms, or as the node's ticker requires."""
        self.rebuilding.tick(now_ms)
        self._judge_fitness(now_ms)
        self._purge(now_ms)
        self._repeat_probes()
        self._step(Tick(self.shell.fsync_began_ms()), now_ms)
        self.clock_keeper.tick(now_ms)
        self.retainer.tick(now_ms)
        self.flush(now_ms)
        for token, error in self.admission.expire(now_ms):
            self.shell.answer_append(token, error)
        self.flush(now_ms)  # appends that waited for a failed transfer

    def receive(
        self, now_ms: int, peer: str, message: Message, payload: bytes | memoryview | None = None
    ) -> None:
        """Process a message from a peer; `payload` holds the batches of an Append."""
        if not isinstance(message, Append | Compare | Truncate):
            if isinstance(message, COUNTED) and peer in self.core.membership.electors:
                self.admission.state.clock.catch_up(message.cluster_time, now_ms)
            self._step(MessageReceived(peer, message), now_ms)
            return
        try:
            matches = read_push(self.core, self._pushed, message, payload)
        except (DamagedBatch, EntryDamaged) as error:
            # Invalid bytes change nothing, and nothing is appended after an unreadable local entry. The
            # leader compares again and resends, by which time the entry may be repaired.
            if isinstance(error, EntryDamaged):
                self.suspects.append(error.index)
            else:
                self.admission.count_limit("damaged_push")
            self._pushed.incoming = []
            answer = refusal(self.core, message, error.code, pushes.damage_met(self.store, error))
            self._send(peer, answer, None)
            return
        except StorageError as error:
            self.shell.fatal(error)
            return
        if pushes.lacks_room(self.core, self.admission, self.store, self._pushed.incoming):
            self.admission.count_limit("disk_reserve_bytes")
            self._send(peer, refusal(self.core, message, Code.DISK_FULL), None)
        else:
            members = pushes.memberships_of(self._pushed.incoming)
            self._step(MessageReceived(peer, message, matches, members), now_ms)
        self._pushed.received()

    def append(
        self,
        now_ms: int,
        token: AppendHandle,
        bodies: Sequence[bytes],
        *,
        session: tuple[int, int] | None,
        open_session: bool,
        timeout_ms: int,
    ) -> None:
        """Append one batch, or open a session, with the next `flush`. The result goes to answer_append."""
        problem = self.why_no_append()
        if problem is not None:
            self.shell.answer_append(token, problem)
            return
        request = WaitingAppend(token, bodies, session, open_session, now_ms + timeout_ms)
        # First come, first served. This also keeps the batches of a session in order.
        answer = (
            self._admit(request, now_ms)
            if not len(self.admission_queue)
            else SpacePending("earlier appends are waiting for disk space; try again later")
        )
        if answer is None:
            return
        if isinstance(answer, SpacePending):
            if self.admission_queue.add(request, self.admission.pending_bytes):
                self.admission.want_room()
                return
            self.admission.count_limit("max_pending_bytes")
        self._answer_append(token, answer, now_ms)

    def _answer_append(self, token: AppendHandle, answer: AppendOutcome | DLedgerError, now_ms: int) -> None:
        """Answer an append. If this log cannot prove that a session has expired, get a read point first."""
        if not isinstance(answer, ExpiryUnconfirmed):
            self.shell.answer_append(token, answer)
            return
        error = answer
        self._read_point(
            lambda point: self.shell.answer_append(token, error if isinstance(point, int) else point), now_ms
        )

    def _admit(self, request: WaitingAppend, now_ms: int) -> AppendOutcome | DLedgerError | None:
        return self.admission.admit(
            request.token,
            request.bodies,
            session=request.session,
            open_session=request.open_session,
            deadline_ms=request.deadline_ms,
            term=self.core.term,
            committed_index=self.core.committed_index,
            now_ms=now_ms,
            wall_ms=self.wall_ms(),
        )

    def _retry_waiting(self, now_ms: int) -> None:
        """Retry appends that wait for disk space."""
        problem = self.why_no_append()
        if problem is not None:
            for token in self.admission_queue.clear():
                self.shell.answer_append(token, problem)
            return
        for token, outcome in self.admission_queue.retry(now_ms, partial(self._admit, now_ms=now_ms)):
            self._answer_append(token, outcome, now_ms)
        if len(self.admission_queue):
            self.admission.want_room()

    def flush(self, now_ms: int) -> None:
        """Write gathered appends at the end of an event loop turn.

        While a group is uncommitted, appends gather for the next one, unless there are enough bytes for a
        group of their own (ARCHITECTURE.md, The path of an append).
        """
        if len(self.admission_queue):
            self._retry_waiting(now_ms)
        gathered = self.admission.gathered_bytes
        if not gathered or not self._leading or self.core.successor_prompted:
            return
        idle = self.core.committed_index == self.core.log.end_index
        if idle or gathered >= self.config.limits.group_bytes:
            self._write_group(self.admission.take_group(), now_ms)
            self._settle(now_ms)

    def announce_commit(self, now_ms: int) -> None:
        """After shell.commit_moved, send the commit index to followers that received no push since."""
        self._step(CommitSettled(), now_ms)

    def stored(self, now_ms: int, generation: int, last_index: int, term: int) -> None:
        """Process a report of the disk thread: the log is durable up to last_index."""
        self._step(EntriesStored(last_index, term, generation), now_ms)
        self._purge(now_ms)
        if self.log_tail.pos > self._judged_pos + self.store.data_file_size // 8:
            self._judge_fitness(now_ms)  # the next tick may be too late to report a full disk
        self.cache.evict(self.core.log.durable_index)

    def hard_state_saved(self, now_ms: int, number: int) -> None:
        """HardStateJob `number` is durable: release the messages that wait for it (rule 2)."""
        for _, peer, message, payload in self._outbox.release(number):
            self._send_now(peer, message, payload)

    def push_loaded(self, now_ms: int, peer: str, stream_id: int, first: int, frames: Frames | None) -> None:
        """Deliver the result of shell.load_push(peer, stream_id, first, ...), or None if reading failed."""
        leadership = self.core.leadership
        if leadership is None or not leadership.awaits_push(peer, stream_id, first):
            return  # belongs to a stream or leadership that has ended
        if frames is None or frames.last_index > self.core.log.end_index:
            self._step(EntriesPushed(peer, stream_id, first, first - 1, 0), now_ms)
        else:
            self._push(peer, stream_id, frames.first_index, frames.last_index, frames.data, now_ms)
            self._settle(now_ms)

    def purged_elsewhere(self, now_ms: int, damage: Damage) -> None:
        """Mark a damaged range of this log as unrepairable: another member has purged its first entry."""
        self.rebuilding.purged_elsewhere(damage)

    def log_read(self, now_ms: int, number: int, outcome: RebuildResult | EntryDamaged | None) -> None:
        """Deliver the result of shell.rebuild."""
        self.rebuilding.read(now_ms, number, outcome)
        self._judge_fitness(now_ms)

    def directory_seen(self, now_ms: int, peer: str, number: int) -> None:
        self._step(DirectorySeen(peer, number), now_ms)

    def uid_assigned(self, now_ms: int, uid: int) -> None:
        self._step(UidAssigned(uid), now_ms)

    def stream_up(self, now_ms: int, peer: str, stream_id: int, incarnation: int) -> None:
        self._step(StreamUp(peer, stream_id, incarnation), now_ms)

    def stream_down(self, now_ms: int, peer: str, stream_id: int) -> None:
        self._step(StreamDown(peer, stream_id), now_ms)

    def leader_stream_lost(self, now_ms: int, leader_id: str, stream_id: int) -> None:
        self._step(LeaderStreamLost(leader_id, stream_id), now_ms)

    def read_index(self, now_ms: int, token: object) -> None:
        """Request a linearizable read point of this leader. The result goes to shell.answer_read."""
        self._read_point(partial(self.shell.answer_read, token), now_ms)

    def _read_point(self, answer: Callable[[int | DLedgerError], None], now_ms: int) -> None:
        if len(self._requests) >= self.config.max_waiting_reads:
            self.admission.count_limit("max_waiting_reads")
            text = f"{self.config.max_waiting_reads} reads are already waiting; try again later"
            answer(Overloaded(text, code=Code.TOO_MANY_WAITING_READS))
            return
        self._step(ReadIndexRequest(self._remember(answer)), now_ms)

    def transfer(self, now_ms: int, token: object, to: str | None) -> None:
        """Hand leadership over to `to`, or to the best peer. The result goes to shell.answer_transfer."""
        self._step(TransferRequest(self._remember(partial(self.shell.answer_transfer, token)), to), now_ms)

    def change_members(self, now_ms: int, token: object, change: MembershipChange) -> None:
        """Change the members. The result is passed to shell.answer_transfer once the change is committed."""
        self._step(ChangeRequest(self._remember(partial(self.shell.answer_transfer, token)), change), now_ms)
        self.flush(now_ms)

    def checkpoint(self) -> tuple[int, tuple[int, bytes] | None]:
        """Return the committed index and, if due, (index, session table), for store.save_checkpoint."""
        committed = self.core.committed_index
        if committed > self.core.log.durable_index:
            return committed, None
        blob = self.admission.state.encode_if_due(self.committed_pos)
        return committed, None if blob is None else (committed, blob)

    def status(self) -> ReplicaStatus:
        return status_of(self)

    def pos_after(self, index: int) -> int:
        """Return the position after an entry that ends a batch of this log.

        If the entry is purged or unreadable, returns the position of the base or of the end, as a bound.
        """
        if index < self.core.log.base.index:
            return self.core.log.base.pos
        return (self._tail_unless_damaged(index) or self.log_tail).pos

    # -- execution of effects -----------------------------------------------------------------------------

    def _step(self, event: Event, now_ms: int) -> None:
        self._effects.extend(self.core.step(event, now_ms))
        self._settle(now_ms)

    def _settle(self, now_ms: int) -> None:
        """Execute effects until none are left.

        A commit releases the next group. Followers learn of the commit with its push; only followers
        without a timely push get a separate message.
        """
        effects = self._effects
        while True:
            while effects:
                self._execute(effects.popleft(), now_ms)
            if not self._commit_moved:
                return
            self._commit_moved = False
            if self._leading:
                self.shell.commit_moved()
                if self.admission.gathered_bytes and not self.core.successor_prompted:
                    self._write_group(self.admission.take_group(), now_ms)

    def _execute(self, effect: Effect, now_ms: int) -> None:
        match effect:  # frequent effects first
            case PushAppended():
                self._send(effect.peer, effect.message, self._group_bytes)
            case SendMessage():
                self._send(effect.peer, effect.message, None)
            case CommitAdvanced():
                self._committed(effect.committed_index)
            case StoreEntries():
                self._store_entries(effect, now_ms)
            case PushRange():
                self._push_range(effect, now_ms)
            case TruncateLog(last_index, generation):
                self._truncate(last_index, generation)
            case ResetLog(base, generation):
                self._reset(base, generation)
            case AppendMembership(membership):
                entry = (Configuration(membership), self.core.term)
                self.admission.append_internal(*entry, now_ms, self.wall_ms())
            case MembershipChanged(in_force, peers):
                self.shell.members_changed(in_force, peers)
            case PersistHardState(hard_state):
                self.shell.submit(HardStateJob(self._outbox.hard_state_submitted(), hard_state))
            case RoleChanged():
                self._role_changed(effect)
            case AppendNoop(term):
                stamp = self.clock_keeper.first_stamp(now_ms)
                self._write_group([self.admission.noop(self.log_tail, term, stamp, now_ms)], now_ms)
            case ReadReady(request_id, read_index):
                self._requests.pop(request_id)(read_index)
            case ReadRefused(request_id, code):
                error = self._not_leader() if code is Code.NOT_LEADER else error_for(code, "read refused")
                self._requests.pop(request_id)(error)
            case TransferEnded(request_id, code, message) | ChangeEnded(request_id, code, message):
                outcome = None if code is Code.SUCCESS else error_for(code, message)
                self._requests.pop(request_id)(outcome)
            case MessageRefused(peer, message, reason):
                self.admission.count_limit("term_advance")
                self.shell.refused(peer, message, InvalidRequest(reason, code=Code.TERM_REFUSED))
            case Fatal(code, reason):
                self._effects.clear()
                self.shell.fatal(StorageError(reason, code=code))

    def _send(self, peer: str, message: Message, payload: bytes | memoryview | None) -> None:
        """Hold messages back until the term or vote they may depend on is durable (rule 2)."""
        if isinstance(message, Compare):
            tail = self._tail_unless_damaged(message.index)
            if tail is None:
                self.unread_probes[peer] = message
                return
            message = replace(message, chain_crc=tail.chain_crc)
        if not self._outbox.holds(peer, message, payload):
            self._send_now(peer, message, payload)

    def _send_now(self, peer: str, message: Message, payload: bytes | memoryview | None) -> None:
        self.shell.send(peer, with_clock(message, self), payload)

    def _repeat_probes(self) -> None:
        """Retry probes whose entry was unreadable and may have been repaired."""
        unread, self.unread_probes = self.unread_probes, {}
        for peer, message in unread.items():
            leadership = self.core.leadership
            if leadership is not None and leadership.awaits_probe(peer, message):
                self._send(peer, message, None)

    def _role_changed(self, new: RoleChanged) -> None:
        leads = new.role is Role.LEADER
        assert not leads or self.rebuilding.is_done, "a leader must have rebuilt its sessions"
        if self._leading and not leads:
            refused = self._not_leader()
            self.retainer.stop()
            for token in self.admission_queue.clear():
                self.shell.answer_append(token, refused)
            for token, error in self.admission.abandon(self.log_tail, refused):
                self.shell.answer_append(token, error)
        self._leading = leads
        # The first entry of a leadership is its no-op, appended next and alone.
        barrier = self.log_tail.index + 1 if leads else -1
        role = (new.role, new.term, new.role_epoch, new.leader_id, new.cause)
        self.shell.role_changed(RoleNotice(*role, barrier, new.detail))

    def _committed(self, committed_index: int) -> None:
        self._commit_moved = True
        self._note_committed_pos()
        self.retainer.marked(self.admission.state.committed(committed_index))
        for token, outcome in self.admission.committed(committed_index):
            self.shell.answer_append(token, outcome)
        self.shell.committed(committed_index)

    def _note_committed_pos(self) -> None:
        """Update committed_pos. If the entry is unreadable, the next commit updates it."""
        if (tail := self._tail_unless_damaged(self.core.committed_index)) is not None:
            self.committed_pos = tail.pos

    # -- the log's bytes ----------------------------------------------------------------------------------

    def _tail_at(self, index: int) -> Tail:
        """Return the end of the log as if `index` were its last entry, from the cache or the store."""
        if index == self.log_tail.index:
            return self.log_tail
        return self.cache.tail_at(index) or self.store.tail_at(index)

    def _tail_unless_damaged(self, index: int) -> Tail | None:
        """Return None for an unreadable entry and report it to the shell for repair (rule 10)."""
        try:
            return self._tail_at(index)
        except EntryDamaged as error:
            self.suspects.append(error.index)
            return None

    def _write_group(self, batches: list[Batch], now_ms: int) -> None:
        """On the leader, start the disk write and the pushes of a group together (ARCHITECTURE.md)."""
        first, last = batches[0], batches[-1]
        assert first.first_index == self.log_tail.index + 1 and last.term == self.core.term
        # Gaps between data files are not pushed.
        data = first.data if len(batches) == 1 else b"".join([batch.data for batch in batches])
        assert isinstance(data, bytes), "a leader's own batch is contiguous"
        self._group_bytes = data
        members = pushes.memberships_of(batches)
        event = EntriesAppended(first.first_index, last.last_index, last.term, len(data), members)
        effects = self.core.step(event, now_ms)
        if members:  # recorded before its entry is stored
            self._execute(effects.pop(0), now_ms)
        self._hand_to_disk(batches)
        # Executed directly instead of queued: no other effect may separate a group from its pushes.
        for effect in effects:
            self._execute(effect, now_ms)
        self._group_bytes = b""

    def _hand_to_disk(self, batches: list[Batch], *, is_late: bool = False) -> None:
        self.shell.submit(WriteJob(self.core.log.generation, batches, is_late))
        for batch in batches:
            self.cache.append(batch)
        self.log_tail = batches[-1].tail

    def _store_entries(self, effect: StoreEntries, now_ms: int) -> None:
        """On a follower, write the entries of the current Append that the core accepted."""
        message, first_index = effect.message, effect.first_index
        incoming = self._pushed.incoming
        new_batches = [batch for batch in incoming if batch.first_index >= first_index]
        assert new_batches and new_batches[0].first_index == first_index, "logs diverge inside a batch"
        stored_count = len(incoming) - len(new_batches)
        if stored_count and incoming[stored_count - 1].tail != self.log_tail:
            # Rule 6, as for a COMPARE: the same index and term, but not the same entry.
            self._effects.clear()
            text = f"entry {first_index - 1} has another history at the leader: the logs have diverged"
            self.core.fatal(Code.DATA_DAMAGED, text)
            self._effects.extend(self.core.take_effects())
            return
        self._hand_to_disk(new_batches, is_late=message.last_index <= message.committed_index)
        self.admission.follow(new_batches, now_ms)

    def _truncate(self, last_index: int, generation: int) -> None:
        # The remaining log may end with a batch of the current push, which has just been verified.
        tail = self._pushed.of_push(last_index) or self._tail_at(last_index)
        self.cache.truncate_after(last_index)
        self.log_tail = tail
        self.admission.truncate_after(tail)
        self.rebuilding.truncated(last_index)
        self.retainer.publish()
        self.shell.submit(TruncateJob(generation, last_index, tail.term, tail))

    def _reset(self, base: Base, generation: int) -> None:
        """Restart the log at the leader's base, which is after the end of this log (INSTALL_BASE)."""
        self.cache.clear()
        self.log_tail = Tail(base.index, base.term, base.pos, base.chain_crc)
        self.committed_pos = max(self.committed_pos, base.pos)
        self.rebuilding.reset()
        self.admission.reset(self.log_tail, base)
        self.retainer.publish()
        self.shell.submit(ResetJob(generation, base))
        self.shell.load_image()

    def _purge(self, now_ms: int) -> None:
        base = self.retainer.due_purge()
        if base is not None:
            self._effects.extend(self.core.step(LogPurged(base), now_ms))
            self.shell.submit(PurgeJob(base))
            self._settle(now_ms)

    def image_stored(self, now_ms: int, image: StoredImage) -> None:
        """Deliver the newest image in the files of this node."""
        self.retainer.image_stored(image)
        self._judge_fitness(now_ms)
        self._purge(now_ms)

    def purge_before(self, index: int | None, age_ms: int, now_ms: int) -> int:
        """Allow old entries to be purged, and return the index before which. Raises NotLeader."""
        if not self._leading:
            raise self._not_leader()
        return self.retainer.request_purge(index, age_ms, now_ms)

    def _judge_fitness(self, now_ms: int) -> None:
        """Report changed fitness early, so that an unfit leader hands over in time (rules 9 to 11)."""
        self._judged_pos = self.log_tail.pos
        state = self.admission.state
        may_lead = not (self.rebuilding.lacks_entries() or state.needs_image or state.is_rebuilding)
        has_room = self.store.has_room_after(self.log_tail)
        fitness, core = (may_lead, has_room, self.owner), self.core
        if fitness != (core.may_lead, core.has_room, core.owner):
            self._step(FitnessChanged(*fitness), now_ms)

    def _push_range(self, effect: PushRange, now_ms: int) -> None:
        cached = self.cache.read(effect.first_index, effect.last_index, effect.max_bytes)
        if cached is not None:
            last_index, data = cached
            self._push(effect.peer, effect.stream_id, effect.first_index, last_index, data, now_ms)
        else:
            cached_from = self.cache.first_index
            last = effect.last_index if cached_from is None else min(effect.last_index, cached_from - 1)
            self.shell.load_push(effect.peer, effect.stream_id, effect.first_index, last, effect.max_bytes)

    def _push(
        self, peer: str, stream_id: int, first: int, last: int, data: bytes | memoryview, now_ms: int
    ) -> None:
        core, log = self.core, self.core.log
        ends = (first - 1, log.term_at(first - 1), first, last, log.runs_between(first, last))
        message = Append(core.term, core.node_id, stream_id, core.committed_index, *ends)
        self._send(peer, message, data)
        self._effects.extend(core.step(EntriesPushed(peer, stream_id, first, last, len(data)), now_ms))

    # -- callers ------------------------------------------------------------------------------------------

    def why_no_append(self) -> DLedgerError | None:
        """Return why this node accepts no append now, or None if it does."""
        if not self._leading:
            return self._not_leader()
        to = self.core.transferring_to
        if to is not None:
            text = f"leadership is being transferred to {to}; try again there in a moment"
            return NotLeader(text, code=Code.LEADER_TRANSFERRING, leader_id=to)
        return None

    def _others_are_full(self) -> bool:
        leadership = self.core.leadership
        return leadership is not None and not leadership.majority_has_room

    def _not_leader(self) -> NotLeader:
        leader = self.core.leader_id
        text = f"the leader is {leader}" if leader else "no leader is known; try again"
        return NotLeader(f"{self.core.node_id} does not lead: {text}", leader_id=leader)

    def _remember(self, answer: Callable[[Any], None]) -> int:
        self._next_request += 1
        self._requests[self._next_request] = answer
        return self._next_request
