"""What the parts of a simulated cluster share: the world around its nodes, and one life of a node.

`Simulation` drives a `World`, `SimProcess` puts the parts of a `Life` together; everything between them takes
these two.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Protocol, TextIO

from dledger.core.messages import Message
from dledger.errors import DLedgerError
from dledger.logs import silence_logging
from dledger.node.async_shell import AsyncShell
from dledger.node.loop.readable import ReadableLog
from dledger.node.machine.applier import Applier
from dledger.node.members.inbound import Inbound
from dledger.node.members.read_points import ReadPoints
from dledger.node.parts import NodeParts
from dledger.replica.owned_append import Fill
from dledger.replica.replica import Replica
from dledger.replica.shell import AppendOutcome, RoleNotice
from dledger.rpc.peer_transport import PeerUnreachable, Question
from dledger.store.api import LogStore
from dledger.store.disk import CrashKind
from dledger.store.format.batch import Batch
from dledger.testing.checks.oracle import Oracle
from dledger.testing.checks.owned_log import OwnedLog
from dledger.testing.invariants import Invariants
from dledger.testing.network import Fetched, Network, Outcome, PushStream, Request
from dledger.testing.profile import Profile
from dledger.testing.stores import StoreHost
from dledger.testing.virtual.clock import VirtualClock
from dledger.testing.virtual.event_loop import virtual_loop
from dledger.testing.virtual.trace import Trace
from dledger.testing.virtual.violation import Violation

EPOCH_MS = 1_700_000_000_000
AnswerAppend = Callable[[AppendOutcome | DLedgerError], None]
AnswerRead = Callable[[int | DLedgerError], None]
AnswerTransfer = Callable[[DLedgerError | None], None]


class StateMachine(Protocol):
    """What a user of the log may put under test: one per life of a node, fed with committed entries."""

    def apply(self, index: int, body: bytes) -> None: ...

    def digest(self) -> object:
        """Equal on all nodes that have applied the same entries."""


class NodeFiles(Protocol):
    """What durable state machines of one node keep over its crashes."""

    def crash(self, kind: CrashKind, rng: Random) -> None: ...


class NodeOwner(Protocol):
    """The program around one life of a node. In turns of the process, but `died`."""

    def start(self) -> None: ...

    def role_changed(self, notice: RoleNotice) -> None:
        """Within a turn of the replica: nothing may be asked of it."""

    def died(self) -> None:
        """The process is gone, at once."""


@dataclass(slots=True)
class SimNode:
    """A machine: what outlives the processes on it."""

    node_id: str
    host: StoreHost
    rng: Random
    files: NodeFiles  # of its durable state machine
    process: Life | None = None
    lives: int = 0
    disk_factor: int = 1
    wall_offset_ms: int = 0  # of its wall clock: machines do not agree, and clocks jump
    crash_kind: CrashKind = CrashKind.POWER  # of a crash inside a disk operation
    restart_after_ms: int | None = None  # after a crash inside a disk operation, or a failure of the disk
    disk_fails: bool = False  # one of its next calls is to


@dataclass(slots=True)
class _Waiting:
    process: Life
    index: int
    action: Callable[[], None]


@dataclass(slots=True)
class _Seeds:
    """One random source per part, so that a change in one part does not reshuffle all others."""

    root: Random
    taken: list[str] = field(default_factory=list)

    def take(self, name: str) -> Random:
        self.taken.append(name)
        return Random(f"{self.root.random()}/{name}")


class _Token:
    """Implements dledger.rpc.ports.AppendToken."""

    def __init__(self, answer: AnswerAppend) -> None:
        self._answer = answer

    def answer(self, outcome: Any) -> None:
        self._answer(outcome)


class World(ABC):
    """Clock, network, machines, and what everything is checked against. `seed` decides all that happens."""

    def __init__(self, profile: Profile, *, seed: int, sink: TextIO | None) -> None:
        silence_logging()
        self.profile = profile
        self.seed = seed
        self.seeds = _Seeds(Random(seed))
        self.clock = VirtualClock()
        self.trace = Trace(sink=sink)
        self.counts: Counter[str] = Counter()
        self.roles: list[tuple[int, str, RoleNotice]] = []
        self.invariants = Invariants(profile.node_ids, self.counts, self._entry_committed)
        self.oracle = Oracle(self.invariants.committed_batch, profile.max_sessions)
        self.network = Network(
            self.clock,
            self.seeds.take("network"),
            profile,
            self.trace,
            self.counts,
            self._listening,
        )
        self.owned = OwnedLog()
        self._waiting: list[_Waiting] = []
        self._bodies: list[bytes | None] = []  # committed bodies by index; None for internal entries
        self.nodes = {node_id: self._new_node(node_id) for node_id in profile.node_ids}

    @abstractmethod
    def _new_node(self, node_id: str) -> SimNode: ...

    @abstractmethod
    def _entry_committed(self, batch: Batch) -> None:
        """The next batch of the one committed log."""

    @abstractmethod
    def guarded_disk(self, process: Life, action: Callable[[], None]) -> None:
        """Run something on a disk; the machine may go down inside it, or the disk may fail."""

    def processes(self) -> list[Life]:
        """All that run, paused ones included."""
        return [node.process for node in self.nodes.values() if node.process is not None]

    def process(self, node_id: str) -> Life:
        process = self.nodes[node_id].process
        assert process is not None, f"{node_id} is down"
        return process

    def _listening(self, node_id: str) -> Life | None:
        process = self.nodes[node_id].process
        return None if process is None or process.is_stopping else process

    def wait_committed(self, process: Life, index: int, action: Callable[[], None]) -> None:
        """Run the action when a process has committed so far, or never if it dies first."""
        if process.alive and process.replica.core.committed_index >= index:
            action()
        elif process.alive:
            self._waiting.append(_Waiting(process, index, action))

    def wake_readers(self, process: Life) -> None:
        committed = process.replica.core.committed_index
        ready = [w for w in self._waiting if w.process is process and w.index <= committed]
        if ready:
            self._waiting = [w for w in self._waiting if w not in ready]
            for waiting in ready:
                waiting.action()

    def apply(self, machine: StateMachine, index: int) -> None:
        body = self._bodies[index]
        if body is not None:
            machine.apply(index, body)


class Life(ABC):
    """One life of a node: one process. Once not `alive`, nothing happens any more.

    All that happens in the process happens in a turn (`post`), on its event loop.
    """

    #: Put together by `SimProcess`.
    applier: Applier
    incarnation: int
    inbound: Inbound
    owner: NodeOwner | None
    parts: NodeParts
    readable: ReadableLog
    replica: Replica
    shell: AsyncShell
    _machine: StateMachine | None
    _read_points: ReadPoints

    def __init__(self, sim: World, node_id: str, store: LogStore, rng: Random) -> None:
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
        self._applied_index = -1

    @abstractmethod
    def start(self) -> None:
        """Let the replica begin, once the node knows of this process: its disk may fail at once."""

    @property
    @abstractmethod
    def is_disk_idle(self) -> bool: ...

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

    @abstractmethod
    def _tick(self) -> None: ...

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

    @abstractmethod
    def serve(self, peer: str, message: Request, deadline_ms: int, answer: Callable[[Outcome], None]) -> None:
        """In a turn."""

    @abstractmethod
    def serve_push(self, stream: PushStream) -> None:
        """In a turn."""

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
