"""One life of a simulated node: a Replica, and the shell that connects it to virtual disks and networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from dledger.core.messages import (
    Append,
    Commit,
    Compare,
    Goodbye,
    InstallBase,
    Message,
    PushResponse,
    Truncate,
)
from dledger.core.values import Role
from dledger.errors import DLedgerError
from dledger.node.owned_append import Fill, prepare
from dledger.node.rebuilding import RebuildJob, Rebuilt
from dledger.node.shell import AppendOutcome, DiskJob, RoleNotice
from dledger.node.ticker import next_tick_ms
from dledger.store.api import EntryDamaged, Frames, LogStore
from dledger.testing.care import Care
from dledger.testing.disk_thread import CallJob, CheckpointJob, DiskThread
from dledger.testing.network import PushStream
from dledger.testing.violation import Violation

if TYPE_CHECKING:
    from dledger.testing.simulator import Simulation, StateMachine

STREAM_IDS_PER_LIFE = 1 << 20
EPOCH_MS = 1_700_000_000_000
AnswerAppend = Callable[[AppendOutcome | DLedgerError], None]
AnswerRead = Callable[[int | DLedgerError], None]
AnswerTransfer = Callable[[DLedgerError | None], None]


class SimProcess:
    """Implements `dledger.node.shell.Shell` for one replica. Once not `alive`, nothing happens any more.

    All that happens to the replica happens in a turn (`post`), and the invariants are checked after each.
    """

    def __init__(self, sim: Simulation, node_id: str, store: LogStore, rng: Random) -> None:
        self.sim = sim
        self.node_id = node_id
        self.store = store
        self.alive = True
        self.is_paused = False
        self.disk_factor = 1  # slow disks: every job takes so many times longer
        self.disk_stuck_until_ms = 0
        self.inbound: dict[tuple[str, int], PushStream] = {}
        self._outbound: dict[str, PushStream] = {}
        self._opening: dict[str, int] = {}  # peer -> id of the newest stream, or attempt at one
        self._rng = rng
        self._rate = 1 + rng.uniform(-sim.profile.skew, sim.profile.skew)
        self._clock_offset_ms = rng.randint(0, 1_000_000)
        self._started_ms = sim.clock.now_ms
        self._inbox: list[Callable[[], None]] = []  # what a paused process has not seen yet
        self._disk = DiskThread(self, rng)
        self.care = Care(self, rng)
        self.owner = sim.new_owner(self)
        self._in_turn = False
        self._flush_asked = False
        self._is_full = False  # the allocator found no room
        self._done = 0  # what the replica has sent, answered, or given to the disk, and its changes of role
        self._leads = False
        self._streams_opened = 0
        self._announcing = False  # followers are to be told of a commit
        self._applied_index = -1
        self._machine = sim.new_state_machine()
        self.state = sim.new_state_thread(self)
        state = replace(store.hard_state, incarnation=store.hard_state.incarnation + 1)
        self.incarnation = state.incarnation
        sim.invariants.saving_hard_state(node_id, state)
        sim.invariants.hard_state_starts(node_id, state)
        store.save_hard_state(state)
        sim.invariants.hard_state_saved(node_id, state)
        if self.state is not None:
            self.state.recover()
        self.replica = sim.new_replica(self, store)

    def start(self) -> None:
        """Let the replica begin, once the node knows of this process: its disk may fail at once."""
        self.post(self._start)
        self._tick()
        self._checkpoint()
        if self.owner is not None:
            self.owner.start()

    def _start(self) -> None:
        if self.state is not None:
            self.state.start()
        self.replica.start(self.now_ms())

    def die(self) -> None:
        self.alive = False
        if self.owner is not None:
            self.owner.died()

    def progressed(self) -> None:
        """More of the log can be read, or was applied."""
        if self.owner is not None:
            self.owner.progressed()

    # -- time and turns

    def now_ms(self) -> int:
        """Monotonic milliseconds of this process's own clock."""
        return self._clock_offset_ms + int((self.sim.clock.now_ms - self._started_ms) * self._rate)

    def post(self, action: Callable[[], None]) -> None:
        """Run in a turn of this process: now, or when it is no longer paused, or never if it has died."""
        if not self.alive:
            return
        if self.is_paused:
            self._inbox.append(action)
            return
        assert not self._in_turn, "a shell never calls back into its replica"
        self._in_turn = True
        try:
            action()
        finally:
            self._in_turn = False
        if self.alive:
            self.sim.invariants.after_step(self)

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        self.sim.clock.after(delay_ms, lambda: self.post(action))

    def resume(self) -> None:
        """SIGCONT: all that has come meanwhile, at once and in order; overdue timers first or last."""
        self.is_paused = False
        inbox, self._inbox = self._inbox, []
        if self._rng.random() < 0.5:
            inbox.insert(0, self._tick_replica)
        for action in inbox:
            self.post(action)

    def _tick(self) -> None:
        if not self.alive:
            return
        if not self.is_paused:
            # As an allocator does: on a thread of its own, where the machine may go down, too.
            self.on_disk(self._prepare)
            self.post(self._tick_replica)
        self.sim.clock.after(self.sim.profile.tick_ms, self._tick)

    def _tick_replica(self) -> None:
        now_ms, core, done = self.now_ms(), self.replica.core, self._done
        fitness = core.may_lead, core.has_room
        is_early = next_tick_ms(self.replica, now_ms) > now_ms
        self.replica.tick(now_ms)
        # Fitness is looked at with every tick, and needs none at a certain moment.
        if is_early and self._done != done and fitness == (core.may_lead, core.has_room):
            raise Violation("ticks", f"{self.node_id} did with a tick what it would have slept over")
        self.care.tick()
        retainer = self.replica.retainer
        self.replica.admission.reserve_in_use = retainer.is_writing and self._is_full

    def _prepare(self) -> None:
        """The allocator keeps space reserved ahead of need; an image that makes room may use the reserve."""
        size = self.store.data_file_size
        self._is_full = not self.store.prepare(2 * size)
        if self._is_full:
            self.sim.counts["found the disk full"] += 1
            if self.replica.retainer.waits_for_room:
                self.store.prepare(size, use_reserve=True)

    def _checkpoint(self) -> None:
        self.after(self.sim.profile.checkpoint_every_ms, self._store_checkpoint)

    def _store_checkpoint(self) -> None:
        if not self._disk.checkpoint_waits:
            self._disk.submit(CheckpointJob(*self.replica.checkpoint()))
        self._checkpoint()

    # -- requests of clients

    def append(
        self,
        bodies: list[bytes],
        answer: AnswerAppend,
        *,
        session: tuple[int, int] | None = None,
        open_session: bool = False,
        timeout_ms: int,
    ) -> None:
        """To be called in a turn. `answer` is called in some turn, at the moment of the answer."""
        self.replica.append(
            self.now_ms(), answer, bodies, session=session, open_session=open_session, timeout_ms=timeout_ms
        )
        self._want_flush()

    def append_batch(
        self,
        sizes: Sequence[int],
        fill: Fill,
        expected: tuple[int, int],
        answer: AnswerAppend,
        timeout_ms: int,
    ) -> None:
        """As NodeServer has it. To be called in a turn."""
        now_ms = self.now_ms()
        batch, head, count = prepare(self.replica, sizes, fill, expected, now_ms)
        self.replica.admission.gather(answer, batch, head, count, now_ms + timeout_ms, now_ms)
        self._want_flush()

    def _want_flush(self) -> None:
        if not self._flush_asked:
            self._flush_asked = True
            self.after(0, self._flush)

    def _flush(self) -> None:
        self._flush_asked = False
        self.replica.flush(self.now_ms())

    def read_index(self, answer: AnswerRead) -> None:
        self.replica.read_index(self.now_ms(), answer)

    def transfer(self, to: str | None, answer: AnswerTransfer) -> None:
        self.replica.transfer(self.now_ms(), answer, to)

    # -- the network calls these

    def deliver(self, peer: str, message: Message, payload: bytes | memoryview | None) -> None:
        self.post(lambda: self.receive(peer, message, payload))

    def receive(self, peer: str, message: Message, payload: bytes | memoryview | None) -> None:
        """In a turn."""
        self.sim.trace.add(self.sim.clock.now_ms, self.node_id, "<-", peer, message)
        self.replica.receive(self.now_ms(), peer, message, payload)

    def stream_opened(self, stream: PushStream) -> None:
        peer = stream.follower.node_id
        if not self._leads or self._opening.get(peer) != stream.stream_id:
            stream.finish()
            return
        stream.is_up = True
        self._outbound[peer] = stream
        self.sim.trace.add(self.sim.clock.now_ms, self.node_id, f"stream {stream.stream_id} up to", peer)
        self.replica.stream_up(self.now_ms(), peer, stream.stream_id, stream.follower.incarnation)

    def stream_failed(self, peer: str, stream_id: int) -> None:
        if self._leads and self._opening.get(peer) == stream_id:
            self.after(self._rng.randint(10, 60), lambda: self._open_stream(peer, stream_id))

    def stream_ended(self, stream: PushStream) -> None:
        """The leader's end has noticed that the stream broke."""
        peer = stream.follower.node_id
        if not stream.is_up or self._outbound.get(peer) is not stream:
            return
        del self._outbound[peer]
        self.sim.trace.add(self.sim.clock.now_ms, self.node_id, f"stream {stream.stream_id} down to", peer)
        self.replica.stream_down(self.now_ms(), peer, stream.stream_id)
        self.after(self._rng.randint(0, 60), lambda: self._open_stream(peer, stream.stream_id))

    def leader_stream_lost(self, leader_id: str, stream_id: int) -> None:
        self.sim.counts["leader streams lost"] += 1
        self.sim.trace.add(self.sim.clock.now_ms, self.node_id, f"stream {stream_id} lost from", leader_id)
        self.replica.leader_stream_lost(self.now_ms(), leader_id, stream_id)

    # -- Shell

    def send(self, peer: str, message: Message, payload: bytes | memoryview | None) -> None:
        if not self.alive:
            return
        self._done += 1
        self.sim.trace.add(self.sim.clock.now_ms, self.node_id, "->", peer, message)
        self.sim.invariants.sent(self, peer, message)
        match message:
            case Compare() | Truncate() | Append() | Commit() | Goodbye() | InstallBase():
                stream = self._outbound.get(peer)
                if stream is not None and stream.stream_id == message.stream_id:
                    stream.push(message, payload)
            case PushResponse():
                inbound = self.inbound.get((peer, message.stream_id))
                if inbound is not None:
                    inbound.answer(message)
            case _:
                self.sim.network.send(self.node_id, peer, message)

    def submit(self, job: DiskJob) -> None:
        if not self.alive:
            return
        self._done += 1
        self.sim.trace.add(self.sim.clock.now_ms, self.node_id, "disk", job)
        self.sim.invariants.submitted(self, job)
        if self.state is not None:
            self.state.submitted(job)
        self._disk.submit(job)

    def fsync_began_ms(self) -> int | None:
        began = self._disk.sync_began_ms
        return None if began is None else self._clock_offset_ms + int((began - self._started_ms) * self._rate)

    def wall_ms(self) -> int:
        """Of this machine, and it may jump."""
        return EPOCH_MS + self.sim.clock.now_ms + self.sim.nodes[self.node_id].wall_offset_ms

    def save_state(self, image_index: int) -> None:
        """Machines that are not durable are checked against the log, and not kept in it."""
        if self.state is not None:
            state = self.state
            self.after(0, lambda: state.save(image_index))
            return
        self.after(0, lambda: self.replica.state_saved(self.now_ms(), image_index, ()))

    def rebuild(self, job: RebuildJob) -> None:
        """A reader thread takes its time, and the node goes on meanwhile."""
        max_sessions = self.sim.profile.max_sessions
        if job.behind >= 0:
            self.sim.counts["rebuilds behind damage that others have purged"] += 1

        def read() -> None:
            outcome = job.run(self.store, max_sessions, self.now_ms())
            self.after(self._rng.choice((0, 0, 5, 60)), lambda: self._log_read(job, outcome))

        self.after(self._rng.choice((0, 0, 1, 5, 60)), read)

    def _log_read(self, job: RebuildJob, outcome: Rebuilt | EntryDamaged | None) -> None:
        if isinstance(outcome, EntryDamaged):
            self.sim.counts["damages found by a rebuild"] += 1
        self.replica.log_read(self.now_ms(), job.number, outcome)

    def rebuilt(self) -> None:
        self.sim.trace.add(self.sim.clock.now_ms, self.node_id, "sessions are rebuilt")
        if self.state is not None:
            self.after(0, self.state.rebuilt)

    def load_push(self, peer: str, stream_id: int, first_index: int, last_index: int, max_bytes: int) -> None:
        if not self.alive:
            return
        self.sim.counts["pushes loaded from disk"] += 1

        def load() -> None:
            frames: Frames | None = None
            try:
                frames = self.store.read(first_index, last_index, max_bytes, whole_batches=True)
            except DLedgerError as error:
                self.sim.trace.add(self.sim.clock.now_ms, self.node_id, "cannot load", error)
                if isinstance(error, EntryDamaged):
                    self.care.suspect(error.index)
            self.replica.push_loaded(self.now_ms(), peer, stream_id, first_index, frames)

        self.after(self._rng.randint(0, 5), load)

    def answer_append(self, token: object, outcome: AppendOutcome | DLedgerError) -> None:
        if not self.alive:
            return
        self._done += 1
        self.sim.trace.add(self.sim.clock.now_ms, self.node_id, "append answered:", outcome)
        if isinstance(outcome, AppendOutcome) and outcome.index >= 0:
            self.sim.invariants.acknowledged(self, outcome.index + max(outcome.count, 1) - 1)
        assert callable(token)
        token(outcome)

    def answer_read(self, token: object, outcome: int | DLedgerError) -> None:
        if not self.alive:
            return
        self._done += 1
        self.sim.trace.add(self.sim.clock.now_ms, self.node_id, "read answered:", outcome)
        assert callable(token)
        token(outcome)

    def answer_transfer(self, token: object, outcome: DLedgerError | None) -> None:
        if not self.alive:
            return
        self._done += 1
        self.sim.trace.add(self.sim.clock.now_ms, self.node_id, "transfer answered:", outcome)
        assert callable(token)
        token(outcome)

    def role_changed(self, notice: RoleNotice) -> None:
        if not self.alive:
            return
        self._done += 1
        self.sim.trace.add(
            self.sim.clock.now_ms,
            self.node_id,
            f"{notice.role.value} term={notice.term} epoch={notice.role_epoch & 0xFFFFFFFF}"
            f" leader={notice.leader_id} ({notice.cause})",
        )
        self.sim.invariants.role_changed(self, notice)
        self.sim.roles.append((self.sim.clock.now_ms, self.node_id, notice))
        if self.owner is not None:
            self.owner.role_changed(notice)
        self._leads = notice.role is Role.LEADER
        streams, self._outbound = self._outbound, {}
        self._opening = {}
        for stream in streams.values():
            stream.finish()
        if self._leads:
            for peer in self.sim.profile.node_ids:
                if peer != self.node_id:
                    self._opening[peer] = -1
                    self._open_stream(peer, -1)

    def committed(self, committed_index: int) -> None:
        if not self.alive:
            return
        self.sim.trace.add(self.sim.clock.now_ms, self.node_id, f"committed {committed_index}")
        self.sim.invariants.advanced(self, committed_index)
        self._apply(committed_index)
        if self.state is not None:
            self.state.committed(committed_index)
        self.sim.wake_readers(self)

    def commit_moved(self) -> None:
        if self.alive and not self._announcing:
            self._announcing = True
            self.after(self._rng.choice((0, 0, 1, 5)), self._announce_commit)

    def _announce_commit(self) -> None:
        self._announcing = False
        self.replica.announce_commit(self.now_ms())

    def fatal(self, error: DLedgerError) -> None:
        raise Violation("fatal", f"{self.node_id} stops: {error}")

    # -- inside

    def _open_stream(self, peer: str, instead_of: int) -> None:
        """Ask for a new stream with a higher id, unless another attempt has been made meanwhile."""
        if not self._leads or self._opening.get(peer) != instead_of:
            return
        self._streams_opened += 1
        stream_id = self.incarnation * STREAM_IDS_PER_LIFE + self._streams_opened
        self._opening[peer] = stream_id
        self.sim.network.open_stream(self, peer, stream_id)

    def _apply(self, committed_index: int) -> None:
        if self._machine is not None:
            for index in range(self._applied_index + 1, committed_index + 1):
                self.sim.apply(self._machine, index)
        self._applied_index = committed_index

    @property
    def machine(self) -> StateMachine | None:
        """The state machine of this life, if the simulation has any."""
        return self._machine

    # -- the disk thread calls these

    def stored(self, generation: int, last_index: int, term: int) -> None:
        """In a turn."""
        if self.state is not None:
            self.state.stored(generation, last_index)
        self.replica.stored(self.now_ms(), generation, last_index, term)

    def on_disk(self, action: Callable[[], None]) -> None:
        """Now, on the disk thread: outside of turns, and not after death."""
        if self.alive:
            self.sim.guarded_disk(self, action)

    def call_on_disk(self, job: CallJob) -> None:
        self._disk.submit(job)

    def after_disk_time(self, action: Callable[[], None]) -> None:
        profile, clock = self.sim.profile, self.sim.clock
        cost_ms = self._rng.randint(profile.fsync_min_ms, profile.fsync_max_ms) * self.disk_factor
        wait_ms = max(0, self.disk_stuck_until_ms - clock.now_ms) + cost_ms
        clock.after(wait_ms, lambda: self.on_disk(action))
