"""One life of a simulated node: the parts of a real one, wired to virtual disks, networks and clocks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from dledger.core.messages import Message
from dledger.core.values import HardState
from dledger.errors import DLedgerError
from dledger.node.loop.readable import ReadableLog
from dledger.node.loop.ticker import next_tick_ms
from dledger.node.members.fetching import LogFetcher
from dledger.node.members.read_points import ReadPoints
from dledger.node.parts import Makers, NodeParts, begin_life
from dledger.replica.owned_append import Fill
from dledger.replica.shell import AppendOutcome, RoleNotice
from dledger.rpc.envelope import Identity
from dledger.rpc.peer_transport import PeerUnreachable, Question
from dledger.store.api import LogStore
from dledger.testing import peer_transport
from dledger.testing.allocating import FILES_AHEAD, SimAllocator
from dledger.testing.disk_thread import DiskThread
from dledger.testing.network import Fetched, Outcome, PushStream, Request
from dledger.testing.repairs import repairer_of, scrubber_of
from dledger.testing.sim_shell import SimShell
from dledger.testing.stores import DIRECTORY
from dledger.testing.virtual.event_loop import virtual_loop
from dledger.testing.virtual.violation import Violation

if TYPE_CHECKING:
    from dledger.testing.simulator import Simulation, StateMachine

EPOCH_MS = 1_700_000_000_000
_MAX_WAITING_READS = 1000
AnswerAppend = Callable[[AppendOutcome | DLedgerError], None]
AnswerRead = Callable[[int | DLedgerError], None]
AnswerTransfer = Callable[[DLedgerError | None], None]


class _Token:
    """Implements dledger.rpc.ports.AppendToken."""

    def __init__(self, answer: AnswerAppend) -> None:
        self._answer = answer

    def answer(self, outcome: Any) -> None:
        self._answer(outcome)


class _StartingStore:
    """Implements dledger.node.parts.StartingStore: the store of a process, seen by the invariants."""

    def __init__(self, process: SimProcess) -> None:
        self._store = process.store
        self._node_id = process.node_id
        self._invariants = process.sim.invariants
        self.prepare = process.store.prepare

    @property
    def hard_state(self) -> HardState:
        return self._store.hard_state

    def save_hard_state(self, state: HardState) -> None:
        self._invariants.saving_hard_state(self._node_id, state)
        self._invariants.hard_state_starts(self._node_id, state)
        self._store.save_hard_state(state)
        self._invariants.hard_state_saved(self._node_id, state)


class SimProcess:
    """Once not `alive`, nothing happens any more.

    All that happens in the process happens in a turn (`post`), on its event loop.
    """

    def __init__(self, sim: Simulation, node_id: str, store: LogStore, rng: Random) -> None:
        self.sim = sim
        self.node_id = node_id
        self.store = store
        self.alive = True
        self.is_paused = False
        self.disk_factor = 1  # slow disks: every job takes so many times longer
        self.disk_stuck_until_ms = 0
        self._rng = rng
        #: Ticked only when something is due, as a real node is; else always, and what would have been slept
        #: over is looked for.
        self.sleeps = rng.random() < 0.5
        self._rate = 1 + rng.uniform(-sim.profile.skew, sim.profile.skew)
        self._clock_offset_ms = rng.randint(0, 1_000_000)
        self._started_ms = sim.clock.now_ms
        self._inbox: list[Callable[[], object]] = []  # what a paused process has not seen yet
        self.loop = virtual_loop(self.after, self.now_ms, rng, on_thread=self.on_disk)
        self.is_stopping = False  # in order: nobody is served any more
        self.disk = DiskThread(self, rng)
        self.owner = sim.new_owner(self)
        self._applied_index = -1
        self._machine = sim.new_state_machine()
        self.applier = sim.new_applier(self)
        begin_life(_StartingStore(self), DIRECTORY, FILES_AHEAD * store.data_file_size)
        self.incarnation = store.hard_state.incarnation
        self.applier.recover_now()
        self.loop.entered(self._put_together)
        timeout_ms = sim.profile.request_timeout_ms
        self._read_points = ReadPoints(self.shell.read_index, _MAX_WAITING_READS, timeout_ms)

    def _put_together(self) -> None:
        """What a NodeServer puts together, of parts that are its own but for disk, network and threads."""
        rng, profile = self._rng, self.sim.profile
        makers = Makers(
            shell=self._make_shell,
            disk=lambda shell: self.disk,
            allocator=lambda shell: SimAllocator(self, shell.room_was_made, rng),
            replica=lambda shell: self.sim.new_replica(self, self.store),
            transport=partial(peer_transport.SimTransport, self),
            fetch=lambda parts: LogFetcher(self.store, parts.readable, None, self.suspect).fetch,
            repairer=lambda parts: repairer_of(self, parts, rng),
            scrubber=lambda parts: scrubber_of(self),
            peers=[peer for peer in profile.node_ids if peer != self.node_id],
            identity=Identity("sim", "sim", self.node_id, profile.node_ids, self.incarnation),
            call_timeout_ms=profile.timing.election_min_ms,
            max_waiting_reads=_MAX_WAITING_READS,
            state_failed=self.applier.failed,
            uniform=rng.uniform,
        )
        self.parts = parts = NodeParts(self.store, self.applier, makers)
        self.replica, self.readable, self.inbound = parts.replica, parts.readable, parts.inbound

    def _make_shell(self, readable: ReadableLog) -> SimShell:
        self.shell = SimShell(
            self.store,
            {node_id: node_id for node_id in self.sim.profile.node_ids},
            readable,
            None,
            on_role=self._on_role,
            on_fatal=self._on_fatal,
            on_damage=self.suspect,
            catch_up_bytes_per_second=0,
            yields_to=None,
            now_ms=self.now_ms,
        )
        self.shell.observe(self)
        return self.shell

    def start(self) -> None:
        """Let the replica begin, once the node knows of this process: its disk may fail at once."""
        self.post(self._begin)
        self._checkpoint()
        if self.owner is not None:
            self.owner.start()

    def _begin(self) -> None:
        self.parts.begin()
        self.parts.run(self.sim.profile.tick_ms, self._tick)

    def stop_parts(self, stopped: Callable[[], object]) -> None:
        """As NodeServer stops them, once nobody is served any more. In a turn."""
        if not self.is_stopping:
            self.is_stopping = True
            self.parts.finish()
            self._spawn(self.parts.stop()).add_done_callback(lambda _: stopped())

    def die(self) -> None:
        self.alive = False
        self.shell.give_up()
        self.loop.die()
        if self.owner is not None:
            self.owner.died()

    # -- time and turns

    def now_ms(self) -> int:
        """Monotonic milliseconds of this process's own clock."""
        return self._clock_offset_ms + int((self.sim.clock.now_ms - self._started_ms) * self._rate)

    def at_ms(self, sim_ms: int) -> int:
        """What this process's own clock showed at some moment."""
        return self._clock_offset_ms + int((sim_ms - self._started_ms) * self._rate)

    def wall_ms(self) -> int:
        """Of this machine, and it may jump."""
        return EPOCH_MS + self.sim.clock.now_ms + self.sim.nodes[self.node_id].wall_offset_ms

    def post(self, action: Callable[[], object]) -> None:
        """Run in a turn of this process: now, or when it is no longer paused, or never if it has died."""
        if not self.alive:
            return
        if self.is_paused:
            self._inbox.append(action)
            return
        self.loop.entered(action)
        self.loop.raise_failure()

    def after(self, delay_ms: int, action: Callable[[], object]) -> None:
        self.sim.clock.after(delay_ms, partial(self.post, action))

    def resume(self) -> None:
        """SIGCONT: all that has come meanwhile, at once and in order; overdue timers first or last."""
        self.is_paused = False
        inbox, self._inbox = self._inbox, []
        if self._rng.random() < 0.5:
            inbox.insert(0, self._tick)
        for action in inbox:
            self.post(action)

    def _tick(self) -> None:
        now_ms, core, done = self.now_ms(), self.replica.core, self.shell.done
        fitness = core.may_lead, core.has_room
        is_early = next_tick_ms(self.replica, now_ms) > now_ms
        self.parts.tick()
        # Fitness is looked at with every tick, and needs none at a certain moment.
        if is_early and self.shell.done != done and fitness == (core.may_lead, core.has_room):
            raise Violation("ticks", f"{self.node_id} did with a tick what it would have slept over")

    def _checkpoint(self) -> None:
        if self.is_stopping:
            return
        self.after(self.sim.profile.checkpoint_every_ms, self._store_checkpoint)

    def _store_checkpoint(self) -> None:
        self.shell.checkpoint()
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
        self.shell.append(_Token(answer), bodies, session, open_session, timeout_ms)

    def append_batch(
        self,
        sizes: Sequence[int],
        fill: Fill,
        expected: tuple[int, int],
        answer: AnswerAppend,
        timeout_ms: int,
    ) -> None:
        """As NodeServer has it. To be called in a turn."""
        self.shell.append_batch(_Token(answer), sizes, fill, expected, timeout_ms)

    def read_index(self, answer: AnswerRead) -> None:
        """A linearizable read point of this node as leader. To be called in a turn."""

        def done(task: asyncio.Task[int]) -> None:
            error = task.exception()
            if error is None:
                answer(task.result())
            elif isinstance(error, DLedgerError):
                answer(error)

        self.loop.create_task(self._read_points.get()).add_done_callback(done)

    def transfer(self, to: str | None, answer: AnswerTransfer) -> None:
        def done(future: asyncio.Future[None]) -> None:
            error = future.exception()
            if error is None or isinstance(error, DLedgerError):
                answer(error)

        self.shell.transfer(to).add_done_callback(done)

    # -- the network calls these

    def serve(self, peer: str, message: Request, deadline_ms: int, answer: Callable[[Outcome], None]) -> None:
        """In a turn."""

        async def serve() -> None:
            answer(await peer_transport.answer(self, peer, message))

        def give_up() -> None:
            if not task.done():
                self.post(task.cancel)

        task = self._spawn(serve())
        self.sim.clock.after(deadline_ms, give_up)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """What serves others. That it fails is a finding."""

        def done(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self.loop.fail(error)

        task = self.loop.create_task(work)
        task.add_done_callback(done)
        return task

    def deliver(self, peer: str, message: Message, payload: bytes | memoryview | None) -> None:
        """A message of a peer that took a way of its own. An answer to it finds its way back."""
        network = self.sim.network

        def back(outcome: Outcome) -> None:
            source = self.sim.nodes[peer].process
            if source is not None and not isinstance(outcome, Fetched | DLedgerError | PeerUnreachable):
                asker, answer = source, outcome
                asker.after(network.delay_ms(), lambda: asker.shell.peer_answered(self.node_id, answer))

        if isinstance(message, Question):
            question = message
            self.post(lambda: self.serve(peer, question, self.sim.profile.request_timeout_ms, back))
        else:
            self.post(lambda: self.shell.receive(peer, message, payload))

    def serve_push(self, stream: PushStream) -> None:
        """In a turn."""
        task = self._spawn(peer_transport.receive_pushes(self, stream))
        stream.on_follower_notices = task.cancel

    def push_refused(self, error: DLedgerError) -> None:
        """No history makes a leader push what a follower refuses."""
        raise Violation("pushes", f"{self.node_id} refuses a push stream: {error}")

    def suspect(self, index: int) -> None:
        """A read of `index` failed."""
        self.parts.suspect(index)

    def disk_failed(self, error: DLedgerError) -> None:
        """As NodeServer has it: this process promises nothing more, and ends."""

        def fail() -> None:
            raise error

        self.shell.give_up()
        self.sim.clock.after(0, lambda: self.on_disk(fail))

    # -- the shell calls these

    def _on_role(self, notice: RoleNotice) -> None:
        if self.owner is not None:
            self.owner.role_changed(notice)

    def _on_fatal(self, error: DLedgerError) -> None:
        self.loop.fail(Violation("fatal", f"{self.node_id} stops: {error}"))

    def log_is_replaced(self) -> None:
        """As if a piece of the state machine's had just ended: what is named now is done while the old log
        is still there."""
        self.after(0, self.applier.committed)

    def committed(self, committed_index: int) -> None:
        if self._machine is not None:
            for index in range(self._applied_index + 1, committed_index + 1):
                self.sim.apply(self._machine, index)
        self._applied_index = committed_index
        self.sim.wake_readers(self)

    @property
    def machine(self) -> StateMachine | None:
        """The state machine of this life, if the simulation has any."""
        return self._machine

    # -- the disk thread calls these

    def on_disk(self, action: Callable[[], None]) -> None:
        """Now, on the disk thread: outside of turns, and not after death."""
        if self.alive:
            self.sim.guarded_disk(self, action)

    def after_disk_time(self, action: Callable[[], None]) -> None:
        profile, clock = self.sim.profile, self.sim.clock
        cost_ms = self._rng.randint(profile.fsync_min_ms, profile.fsync_max_ms) * self.disk_factor
        wait_ms = max(0, self.disk_stuck_until_ms - clock.now_ms) + cost_ms
        clock.after(wait_ms, lambda: self.on_disk(action))
