"""One replica of the log: the Raft core, the log's bytes and its sessions, without any I/O of its own.

The replica turns client appends into batches, carries out the core's effects, and answers callers. What has
to happen outside (sending, disk jobs, answers) goes through a `Shell`; the asyncio node and the simulator are
two shells around the same replica. All methods are to be called from one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from dledger.core.effects import (
    AppendNoop,
    CommitAdvanced,
    Effect,
    Fatal,
    MessageRefused,
    PersistHardState,
    PushAppended,
    PushRange,
    ReadReady,
    ReadRefused,
    ResetLog,
    RoleChanged,
    Send,
    StoreEntries,
    TransferEnded,
    TruncateLog,
)
from dledger.core.events import (
    Appended,
    Event,
    Fitness,
    LeaderStreamLost,
    Purged,
    Pushed,
    ReadIndexRequest,
    Receive,
    Settled,
    Stored,
    StreamDown,
    StreamUp,
    Tick,
    TransferRequest,
)
from dledger.core.log_view import LogView
from dledger.core.messages import Append, Compare, Message, Truncate
from dledger.core.raft import RaftCore
from dledger.core.values import Base, OwnerFitness, Role, Tail
from dledger.errors import Code, DLedgerError, InvalidRequest, NotLeader, Overloaded, StorageError, error_for
from dledger.replica import pushes
from dledger.replica.admission import NO_ROOM, Admission, ExpiryUnconfirmed, RoomIsComing
from dledger.replica.admission_queue import AdmissionQueue, WaitingAppend
from dledger.replica.log_state import LogState
from dledger.replica.outbox import OutboxUntilDurable
from dledger.replica.parts import ReplicaConfig
from dledger.replica.pushes import PushedTails, read_push, refusal
from dledger.replica.rebuild_job import Rebuilt
from dledger.replica.rebuilding import Rebuilding
from dledger.replica.replica_status import ReplicaStatus, status_of
from dledger.replica.retainer import Retainer
from dledger.replica.shell import (
    AppendOutcome,
    AppendToken,
    HardStateJob,
    PurgeJob,
    ResetJob,
    RoleNotice,
    Shell,
    TruncateJob,
    WriteJob,
)
from dledger.replica.tail_cache import TailCache
from dledger.store.api import EntryDamaged, Frames, LogStore
from dledger.store.format.batch import Batch, DamagedBatch
from dledger.store.format.internal import Internal, Purge


class Replica:
    """See the module. Construct on an opened store whose incarnation is already the new one; then `start`."""

    def __init__(
        self,
        config: ReplicaConfig,
        store: LogStore,
        shell: Shell,
        *,
        random_ms: Callable[[int, int], int],
        wall_ms: Callable[[], int],
    ) -> None:
        """`wall_ms`: this node's wall clock, ms since the Unix epoch; cluster time is drawn towards it."""
        self.config = config
        self.store = store
        self.shell = shell
        log = LogView(store.base, store.term_runs, store.end_index)
        self.core = RaftCore(config.core, store.hard_state, log, store.committed_checkpoint, random_ms)
        self.cache = TailCache(config.cache_bytes)
        self.log_tail = store.tail  # the end of what was handed to the disk thread
        self.committed_pos = store.base.pos
        self.wall_ms = wall_ms
        self.admission = Admission(config.limits, store.data_file_size)
        self.admission.state = LogState(max_sessions=config.limits.max_sessions, is_rebuilding=True)
        self.admission.tail = store.tail
        self.admission.room = lambda: NO_ROOM if self.core.log.is_being_cut else store.reserved_end
        self.admission.is_full = lambda: not store.has_room
        self.admission.others_are_full = self._others_are_full
        self.admission_queue = AdmissionQueue(
            config.limits.max_pending_bytes, config.limits.max_pending_appends
        )
        self.retainer = Retainer(self, config.retention)
        self.rebuilding = Rebuilding(self)
        self.purge_to: Base | None = None  # of a committed PURGE that is still to be carried out
        self._effects: deque[Effect] = deque()
        self._pushed = PushedTails(log, store, self._tail_at)
        self._hard_states_submitted = 0
        self._hard_states_saved = 0
        self._outbox = OutboxUntilDurable()
        self._requests: dict[int, Callable[[Any], None]] = {}  # reads and transfers: id -> who is answered
        self._next_request = 0
        self.suspects: list[int] = []  # could not be read: the shell is to look for damage there
        self.unread_probes: dict[str, Compare] = {}  # by peer: what they are to be told of is to be repaired
        self.owner: OwnerFitness | None = None  # what the program that owns this node said last of itself
        self._judged_pos = 0  # where the log ended when fitness was judged last
        self._leading = False
        self._commit_moved = False
        self._group_bytes = b""  # of the group that is being handed over

    def start(self, now_ms: int) -> None:
        """Once, before anything else."""
        self._note_committed_pos()
        self._judge_fitness(now_ms)
        self._effects.extend(self.core.start(now_ms))
        self._settle(now_ms)
        self.rebuilding.start(now_ms)

    # -- from the outside world ---------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Time has passed. Call it about every 20 ms, or when `next_tick_ms` of the node's ticker says."""
        self.rebuilding.tick(now_ms)
        self._judge_fitness(now_ms)
        self._purge(now_ms)
        self._repeat_probes()
        self._step(Tick(self.shell.fsync_began_ms()), now_ms)
        self.retainer.tick(now_ms)
        self.flush(now_ms)
        for token, error in self.admission.expire(now_ms):
            self.shell.answer_append(token, error)
        self.flush(now_ms)  # what waited for a transfer that has failed

    def receive(
        self, now_ms: int, peer: str, message: Message, payload: bytes | memoryview | None = None
    ) -> None:
        """A message from a peer; `payload` holds the batches of an Append."""
        if not isinstance(message, Append | Compare | Truncate):
            self._step(Receive(peer, message), now_ms)
            return
        try:
            matches = read_push(self.core, self._pushed, message, payload)
        except (DamagedBatch, EntryDamaged) as error:
            # Bytes that do not check out change nothing, and what is here and cannot be read is not built
            # upon: the leader compares again, and sends anew what is right by then.
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
            self._step(Receive(peer, message, matches), now_ms)
        self._pushed.received()

    def append(
        self,
        now_ms: int,
        token: AppendToken,
        bodies: Sequence[bytes],
        *,
        session: tuple[int, int] | None,
        open_session: bool,
        timeout_ms: int,
    ) -> None:
        """Append one batch, or open a session. Answered through shell.answer_append, now or later; the batch
        is written with the next `flush`."""
        problem = self.why_no_append()
        if problem is not None:
            self.shell.answer_append(token, problem)
            return
        deadline_ms = now_ms + timeout_ms
        # Who came first gets the room first; the batches of a session are to stay in order, too.
        answer = (
            self._admit(token, bodies, session, open_session, deadline_ms, now_ms)
            if not len(self.admission_queue)
            else RoomIsComing("others wait for room on the disk; try again later")
        )
        if answer is None:
            return
        if isinstance(answer, RoomIsComing):
            waiting = WaitingAppend(token, bodies, session, open_session, deadline_ms)
            if self.admission_queue.add(waiting, self.admission.pending_bytes):
                self.admission.want_room()
                return
            self.admission.count_limit("max_pending_bytes")
        self._answer_append(token, answer, now_ms)

    def _answer_append(self, token: AppendToken, answer: AppendOutcome | DLedgerError, now_ms: int) -> None:
        """An expiry that this log alone cannot tell is confirmed as a linearizable read is."""
        if not isinstance(answer, ExpiryUnconfirmed):
            self.shell.answer_append(token, answer)
            return
        error = answer
        self._read_point(
            lambda point: self.shell.answer_append(token, error if isinstance(point, int) else point), now_ms
        )

    def _admit(
        self,
        token: AppendToken,
        bodies: Sequence[bytes],
        session: tuple[int, int] | None,
        open_session: bool,
        deadline_ms: int,
        now_ms: int,
    ) -> AppendOutcome | DLedgerError | None:
        return self.admission.admit(
            token,
            bodies,
            session=session,
            open_session=open_session,
            deadline_ms=deadline_ms,
            term=self.core.term,
            committed_index=self.core.committed_index,
            now_ms=now_ms,
            wall_ms=self.wall_ms(),
        )

    def _retry_waiting(self, now_ms: int) -> None:
        """Space may have been prepared for those who wait for it."""
        problem = self.why_no_append()
        if problem is not None:
            for token in self.admission_queue.clear():
                self.shell.answer_append(token, problem)
            return

        def admit(it: WaitingAppend) -> AppendOutcome | DLedgerError | None:
            return self._admit(it.token, it.bodies, it.session, it.open_session, it.deadline_ms, now_ms)

        for token, outcome in self.admission_queue.retry(now_ms, admit):
            self._answer_append(token, outcome, now_ms)
        if len(self.admission_queue):
            self.admission.want_room()

    def flush(self, now_ms: int) -> None:
        """The end of a turn in which appends came. While a group is uncommitted, appends gather into the next
        one, unless enough bytes wait to be worth their own (ARCHITECTURE.md, The path of an append)."""
        if len(self.admission_queue):
            self._retry_waiting(now_ms)
        gathered = self.admission.gathered_bytes
        if not gathered or not self._leading or self.core.successor_asked:
            return
        idle = self.core.committed_index == self.core.log.end_index
        if idle or gathered >= self.config.limits.group_bytes:
            self._write_group(self.admission.take_group(), now_ms)
            self._settle(now_ms)

    def announce_commit(self, now_ms: int) -> None:
        """What shell.commit_moved asked for: tell followers that nothing was pushed to since."""
        self._step(Settled(), now_ms)

    def stored(self, now_ms: int, generation: int, last_index: int, term: int) -> None:
        """The disk thread reports: durable up to last_index."""
        self._step(Stored(last_index, term, generation), now_ms)
        if self.purge_to is not None:
            self._purge(now_ms)
            self._settle(now_ms)
        if self.log_tail.pos > self._judged_pos + self.store.data_file_size // 8:
            self._judge_fitness(now_ms)  # a tick may be too late to say that there is no room
        self.cache.evict(self.core.log.durable_index)

    def hard_state_saved(self, now_ms: int, number: int) -> None:
        """The disk thread reports: HardStateJob `number` is durable. What waited may leave (rule 2)."""
        self._hard_states_saved = number
        for waiting in self._outbox.release(number):
            self.shell.send(waiting.peer, waiting.message, waiting.payload)

    def push_loaded(self, now_ms: int, peer: str, stream_id: int, first: int, frames: Frames | None) -> None:
        """What shell.load_push(peer, stream_id, first, ...) asked for; None if it could not be read."""
        leadership = self.core.leadership
        if leadership is None or not leadership.awaits_push(peer, stream_id, first):
            return  # read for a stream, or a leadership, that is over
        if frames is None or frames.last_index > self.core.log.end_index:
            self._step(Pushed(peer, stream_id, first, first - 1, 0), now_ms)
        else:
            self._push(peer, stream_id, frames.first_index, frames.last_index, frames.data, now_ms)
            self._settle(now_ms)

    def log_read(self, now_ms: int, number: int, outcome: Rebuilt | EntryDamaged | None) -> None:
        """What shell.rebuild asked for."""
        self.rebuilding.read(now_ms, number, outcome)
        self._judge_fitness(now_ms)

    def purged_elsewhere(self, now_ms: int, last_index: int) -> None:
        """Damaged entries up to this one have been purged by another member: nobody can repair them."""
        self.rebuilding.purged_elsewhere(last_index)

    def stream_up(self, now_ms: int, peer: str, stream_id: int, incarnation: int) -> None:
        self._step(StreamUp(peer, stream_id, incarnation), now_ms)

    def stream_down(self, now_ms: int, peer: str, stream_id: int) -> None:
        self._step(StreamDown(peer, stream_id), now_ms)

    def leader_stream_lost(self, now_ms: int, leader_id: str, stream_id: int) -> None:
        self._step(LeaderStreamLost(leader_id, stream_id), now_ms)

    def read_index(self, now_ms: int, token: object) -> None:
        """A linearizable read point, on the leader. Answered through shell.answer_read."""
        self._read_point(partial(self.shell.answer_read, token), now_ms)

    def _read_point(self, answer: Callable[[int | DLedgerError], None], now_ms: int) -> None:
        if len(self._requests) >= self.config.max_waiting_reads:
            self.admission.count_limit("max_waiting_reads")
            text = f"{self.config.max_waiting_reads} reads are waiting already; try again later"
            answer(Overloaded(text, code=Code.TOO_MANY_WAITING_READS))
            return
        self._step(ReadIndexRequest(self._remember(answer)), now_ms)

    def transfer(self, now_ms: int, token: object, to: str | None) -> None:
        """Hand leadership over; to=None: to the best peer. Answered through shell.answer_transfer."""
        self._step(TransferRequest(self._remember(partial(self.shell.answer_transfer, token)), to), now_ms)

    def checkpoint(self) -> tuple[int, tuple[int, bytes] | None]:
        """(committed_index, (index, session table)) for store.save_checkpoint; mostly without the table."""
        committed = self.core.committed_index
        if committed > self.core.log.durable_index:
            return committed, None
        blob = self.admission.state.encode_if_due(self.committed_pos)
        return committed, None if blob is None else (committed, blob)

    def status(self) -> ReplicaStatus:
        return status_of(self)

    def pos_after(self, index: int) -> int:
        """Position after an entry that is the last of a batch here. Of one that is gone or cannot be read a
        bound has to do: that of the base, or of the end."""
        if index < self.core.log.base.index:
            return self.core.log.base.pos
        tail = self._tail_unless_damaged(index)
        return self.log_tail.pos if tail is None else tail.pos

    # -- carrying out effects -----------------------------------------------------------------------------

    def _step(self, event: Event, now_ms: int) -> None:
        self._effects.extend(self.core.step(event, now_ms))
        self._settle(now_ms)

    def _settle(self, now_ms: int) -> None:
        """Carry out effects until there are none. A commit lets the next group go: followers learn of the
        commit with its push, and only those that get none in time are told separately."""
        effects = self._effects
        while True:
            while effects:
                self._execute(effects.popleft(), now_ms)
            if not self._commit_moved:
                return
            self._commit_moved = False
            if self._leading:
                self.shell.commit_moved()
                if self.admission.gathered_bytes and not self.core.successor_asked:
                    self._write_group(self.admission.take_group(), now_ms)

    def _execute(self, effect: Effect, now_ms: int) -> None:
        match effect:  # what is frequent comes first
            case PushAppended():
                self._send(effect.peer, effect.message, self._group_bytes)
            case Send():
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
            case PersistHardState(hard_state):
                self._hard_states_submitted += 1
                self.shell.submit(HardStateJob(self._hard_states_submitted, hard_state))
            case RoleChanged():
                self._role_changed(effect)
            case AppendNoop(term):
                self._write_group([self.admission.noop(self.log_tail, term, now_ms, self.wall_ms())], now_ms)
            case ReadReady(request_id, read_index):
                self._requests.pop(request_id)(read_index)
            case ReadRefused(request_id, code):
                error = self._not_leader() if code is Code.NOT_LEADER else error_for(code, "read refused")
                self._requests.pop(request_id)(error)
            case TransferEnded(request_id, code, message):
                outcome = None if code is Code.SUCCESS else error_for(code, message)
                self._requests.pop(request_id)(outcome)
            case MessageRefused(peer, message, reason):
                self.admission.count_limit("term_advance")
                self.shell.refused(peer, message, InvalidRequest(reason, code=Code.TERM_REFUSED))
            case Fatal(code, reason):
                self._effects.clear()
                self.shell.fatal(StorageError(reason, code=code))

    def _send(self, peer: str, message: Message, payload: bytes | memoryview | None) -> None:
        """Rule 2: nothing leaves while a term or vote that it may depend on is not durable."""
        if isinstance(message, Compare):
            tail = self._tail_unless_damaged(message.index)
            if tail is None:
                self.unread_probes[peer] = message
                return
            message = replace(message, chain_crc=tail.chain_crc)
        if self._hard_states_saved < self._hard_states_submitted:
            self._outbox.add(self._hard_states_submitted, peer, message, payload)
        else:
            self.shell.send(peer, message, payload)

    def _repeat_probes(self) -> None:
        """What could not be read when it was to be sent may have been repaired."""
        unread, self.unread_probes = self.unread_probes, {}
        for peer, message in unread.items():
            leadership = self.core.leadership
            if leadership is not None and leadership.awaits_probe(peer, message):
                self._send(peer, message, None)

    def _role_changed(self, new: RoleChanged) -> None:
        leads = new.role is Role.LEADER
        assert not leads or self.rebuilding.is_done, "a leader that does not know its sessions"
        if self._leading and not leads:
            refused = self._not_leader()
            self.retainer.stop()
            for token in self.admission_queue.clear():
                self.shell.answer_append(token, refused)
            for token, error in self.admission.abandon(self.log_tail, refused):
                self.shell.answer_append(token, error)
        self._leading = leads
        # The first entry of a leadership is its no-op, which is appended next, alone.
        barrier = self.log_tail.index + 1 if leads else -1
        self.shell.role_changed(
            RoleNotice(new.role, new.term, new.role_epoch, new.leader_id, new.cause, barrier, new.detail)
        )

    def _committed(self, committed_index: int) -> None:
        self._commit_moved = True
        self._note_committed_pos()
        self.carry_out(self.admission.state.committed(committed_index))
        for token, outcome in self.admission.committed(committed_index):
            self.shell.answer_append(token, outcome)
        self.shell.committed(committed_index)

    def _note_committed_pos(self) -> None:
        """For those who watch: if the entry cannot be read, the next commit will say."""
        tail = self._tail_unless_damaged(self.core.committed_index)
        if tail is not None:
            self.committed_pos = tail.pos

    # -- the log's bytes ----------------------------------------------------------------------------------

    def _tail_at(self, index: int) -> Tail:
        """The end of the log as if `index` were its last entry. What is not cached is in the store."""
        if index == self.log_tail.index:
            return self.log_tail
        return self.cache.tail_at(index) or self.store.tail_at(index)

    def _tail_unless_damaged(self, index: int) -> Tail | None:
        """Rule 10: what cannot be read is handed to the shell, to be repaired, and stops nothing here."""
        try:
            return self._tail_at(index)
        except EntryDamaged as error:
            self.suspects.append(error.index)
            return None

    def _write_group(self, batches: list[Batch], now_ms: int) -> None:
        """Leader: the disk write and the pushes of a group start together (ARCHITECTURE.md)."""
        first, last = batches[0], batches[-1]
        assert first.first_index == self.log_tail.index + 1 and last.term == self.core.term
        self._hand_to_disk(batches)
        # Without what lies between data files: those bytes are not pushed.
        data = first.data if len(batches) == 1 else b"".join([batch.data for batch in batches])
        assert isinstance(data, bytes), "a batch of the leader's own is whole"
        self._group_bytes = data
        event = Appended(first.first_index, last.last_index, last.term, len(data))
        # Here and not in the queue: nothing else may come between a group and its pushes.
        for effect in self.core.step(event, now_ms):
            self._execute(effect, now_ms)
        self._group_bytes = b""

    def _hand_to_disk(self, batches: list[Batch], *, is_late: bool = False) -> None:
        self.shell.submit(WriteJob(self.core.log.generation, batches, is_late))
        for batch in batches:
            self.cache.append(batch)
        self.log_tail = batches[-1].tail

    def _store_entries(self, effect: StoreEntries, now_ms: int) -> None:
        """Follower: the core has taken the entries from first_index on of the Append in hand."""
        message, first_index = effect.message, effect.first_index
        incoming = self._pushed.incoming
        fresh = [batch for batch in incoming if batch.first_index >= first_index]
        assert fresh and fresh[0].first_index == first_index, "logs part and meet at ends of batches only"
        known = len(incoming) - len(fresh)
        if known and incoming[known - 1].tail != self.log_tail:
            # Rule 6, as for a COMPARE: the same index and term, but not the same entry.
            self._effects.clear()
            self.core.fatal(
                Code.DATA_DAMAGED,
                f"entry {first_index - 1} is here and at the leader, but with different histories",
            )
            self._effects.extend(self.core.take_effects())
            return
        self._hand_to_disk(fresh, is_late=message.last_index <= message.committed_index)
        self.admission.follow(fresh, now_ms)

    def _truncate(self, last_index: int, generation: int) -> None:
        # What is left may end with a batch of the push in hand, which was verified just now.
        tail = self._pushed.of_push(last_index) or self._tail_at(last_index)
        self.cache.truncate_after(last_index)
        self.log_tail = tail
        self.admission.truncate_after(tail)
        self.rebuilding.truncated(last_index)
        self.shell.submit(TruncateJob(generation, last_index, tail.term, tail))

    def _reset(self, base: Base, generation: int) -> None:
        """The leader's log begins after ours ended: begin where it does (INSTALL_BASE)."""
        self.cache.clear()
        self.log_tail = Tail(base.index, base.term, base.pos, base.chain_crc)
        self.committed_pos = max(self.committed_pos, base.pos)
        self.rebuilding.reset()
        self.admission.reset(self.log_tail, base)
        self.shell.submit(ResetJob(generation, base))

    def carry_out(self, marks: Sequence[Internal]) -> None:
        """Committed marks: images that are complete, purges. Repeating one changes nothing."""
        for mark in marks:
            if isinstance(mark, Purge):
                self.purge_to = mark.base
            self.retainer.marked(mark)

    def _purge(self, now_ms: int) -> None:
        """Forget what a committed PURGE names, once our own disk has it and what proves that border."""
        base, log = self.purge_to, self.core.log
        if base is None or base.index >= log.durable_index:
            return
        self.purge_to = None
        if base.index > log.base.index and self.retainer.is_border(base):
            self._effects.extend(self.core.step(Purged(base), now_ms))
            self.shell.submit(PurgeJob(base))

    def state_saved(self, now_ms: int, image_index: int, state: Sequence[bytes]) -> None:
        """What shell.save_state(image_index) asked for."""
        self.retainer.provide(image_index, state)

    def purge_before(self, index: int | None, age_ms: int, now_ms: int) -> int:
        """An operator lets entries go: those below an index, or older than an age. The index; NotLeader."""
        if not self._leading:
            raise self._not_leader()
        return self.retainer.ask(index, age_ms, now_ms)

    def _judge_fitness(self, now_ms: int) -> None:
        """Rules 9 to 11: who may not lead, says so in time."""
        self._judged_pos = self.log_tail.pos
        state = self.admission.state
        may_lead = not (self.rebuilding.lacks_entries() or state.needs_image or state.is_rebuilding)
        has_room = self.store.has_room
        owner, core = self.owner, self.core
        if (may_lead, has_room, owner) != (core.may_lead, core.has_room, core.owner):
            self._step(Fitness(may_lead, has_room, owner), now_ms)

    def _push_range(self, effect: PushRange, now_ms: int) -> None:
        cached = self.cache.read(effect.first_index, effect.last_index, effect.max_bytes)
        if cached is not None:
            last_index, data = cached
            self._push(effect.peer, effect.stream_id, effect.first_index, last_index, data, now_ms)
        else:
            last_index = effect.last_index
            if self.cache.first_index is not None:
                last_index = min(last_index, self.cache.first_index - 1)
            self.shell.load_push(
                effect.peer, effect.stream_id, effect.first_index, last_index, effect.max_bytes
            )

    def _push(
        self, peer: str, stream_id: int, first: int, last: int, data: bytes | memoryview, now_ms: int
    ) -> None:
        core = self.core
        prev_term = core.log.term_at(first - 1)
        runs = core.log.runs_between(first, last)
        message = Append(
            core.term,
            core.node_id,
            stream_id,
            core.committed_index,
            first - 1,
            prev_term,
            first,
            last,
            runs,
        )
        self._send(peer, message, data)
        self._effects.extend(core.step(Pushed(peer, stream_id, first, last, len(data)), now_ms))

    # -- callers ------------------------------------------------------------------------------------------

    def why_no_append(self) -> DLedgerError | None:
        """Why this node takes no append at the moment; None: it leads, and does."""
        if not self._leading:
            return self._not_leader()
        to = self.core.transferring_to
        if to is not None:
            text = f"leadership is being handed to {to}; try again there in a moment"
            return NotLeader(text, code=Code.LEADER_TRANSFERRING, leader_id=to)
        return None

    def _others_are_full(self) -> bool:
        leadership = self.core.leadership
        return leadership is not None and not leadership.majority_has_room

    def _not_leader(self) -> NotLeader:
        leader = self.core.leader_id
        text = f"the leader is {leader}" if leader else "no leader is known at the moment; try again"
        return NotLeader(f"{self.core.node_id} does not lead: {text}", leader_id=leader)

    def _remember(self, answer: Callable[[Any], None]) -> int:
        self._next_request += 1
        self._requests[self._next_request] = answer
        return self._next_request
