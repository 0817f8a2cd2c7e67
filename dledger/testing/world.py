"""The shared base of a simulated cluster: the environment of its nodes, and one process of a node.

`Simulation` drives a `SimWorld`, and `SimProcess` assembles the parts of a `NodeLife`. All other parts depend
on these two.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, NamedTuple, Protocol, TextIO

from dledger.core.cluster_clock import Stamp, slewed_ms
from dledger.core.membership_change import MembershipChange
from dledger.core.messages import Message
from dledger.core.quorum import majority
from dledger.core.values import UNKNOWN_UID
from dledger.errors import DLedgerError
from dledger.infra.files.disk import CrashKind
from dledger.infra.logs import silence_logging
from dledger.infra.loops.readable import ReadableLog
from dledger.node.async_shell import AsyncShell
from dledger.node.machine.applier import Applier
from dledger.node.members.inbound import PeerRequests
from dledger.node.members.read_points import ReadPoints
from dledger.node.parts import NodeParts
from dledger.replica.owned_append import Fill
from dledger.replica.replica import Replica
from dledger.replica.shell import AppendOutcome, RoleNotice
from dledger.rpc.envelope import PeerClaims, PeerIdentity
from dledger.rpc.peer_transport import Answer, Question
from dledger.store.api import LogStore
from dledger.store.format.batch import Batch
from dledger.testing.checks.mirror import NodeMirror
from dledger.testing.checks.oracle import Oracle
from dledger.testing.checks.owned_log import OwnedLog
from dledger.testing.invariants import Invariants
from dledger.testing.network import Outcome, Request, SimNetwork, SimPushStream
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
    """A user's state machine under test. There is one per process of a node, to which committed entries are
    applied."""

    def apply(self, index: int, body: bytes) -> None: ...

    def digest(self) -> object:
        """Return a value that is equal on all nodes that have applied the same entries."""


class NodeFiles(Protocol):
    """Files of a node's durable state machines, which survive crashes."""

    def crash(self, kind: CrashKind, rng: Random) -> None: ...


class NodeOwner(Protocol):
    """The program that owns one process of a node. All methods except `died` are called in turns of the
    process."""

    def start(self) -> None: ...

    def role_changed(self, notice: RoleNotice) -> None:
        """Called within a turn of the replica. The method must not call the replica."""

    def died(self) -> None:
        """Called when the process dies, which happens immediately."""


class RemovedDisk(NamedTuple):
    disk: object  # of a StoreHost
    mirror: NodeMirror


@dataclass(slots=True)
class SimNode:
    """A machine, with the state that survives its processes."""

    node_id: str
    host: StoreHost
    rng: Random
    files: NodeFiles  # of its durable state machine
    process: NodeLife | None = None
    lives: int = 0
    disk_factor: int = 1
    wall_offset_ms: int = 0  # offset of its wall clock: machines differ, and clocks jump
    crash_kind: CrashKind = CrashKind.POWER  # of a crash inside a disk operation
    restart_after_ms: int | None = None  # after a crash inside a disk operation, or a failure of the disk
    disk_fails: bool = False  # one of its next calls fails
    crash_in: str = ""  # crash in the next job of this name: "purge" or "repair"
    earlier: RemovedDisk | None = None  # the disk that it lost last
    later: RemovedDisk | None = None  # while `earlier` is back in use: the disk that replaced it


@dataclass(slots=True)
class _WaitingRead:
    process: NodeLife
    index: int
    action: Callable[[], None]


@dataclass(slots=True)
class _Seeds:
    """One random source per part, so that a change in one part does not affect the others."""

    root: Random
    taken: list[str] = field(default_factory=list)

    def random_for(self, name: str) -> Random:
        self.taken.append(name)
        return Random(f"{self.root.random()}/{name}")


class _Token:
    """Implements dledger.rpc.ports.AppendToken."""

    def __init__(self, answer: AnswerAppend) -> None:
        self._answer = answer

    def answer(self, outcome: Any) -> None:
        self._answer(outcome)


class SimWorld(ABC):
    """Clock, network, machines, and the checks. The seed determines all events."""

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
        self.network = SimNetwork(
            self.clock,
            self.seeds.random_for("network"),
            profile,
            self.trace,
            self.counts,
            self._listening,
        )
        self.owned = OwnedLog()
        self._waiting: list[_WaitingRead] = []
        self._bodies: list[bytes | None] = []  # committed bodies by index; None for internal entries
        self.nodes = {node_id: self._new_node(node_id) for node_id in profile.node_ids}
        self.cluster_time = ClusterTime(
            EPOCH_MS,
            profile.skew,
            lambda: self.clock.now_ms,
            lambda: {node_id: node.wall_offset_ms for node_id, node in self.nodes.items()},
        )

    @abstractmethod
    def _new_node(self, node_id: str) -> SimNode: ...

    @abstractmethod
    def _entry_committed(self, batch: Batch) -> None:
        """Process the next batch of the committed log."""

    @abstractmethod
    def directory_replaced(self, node_id: str) -> bool:
        """Stop a node that uses an earlier disk. Returns False if it uses its newest one."""

    @abstractmethod
    def go_down_in(self, job: str, node_id: str) -> None: ...

    @abstractmethod
    def guarded_disk(self, process: NodeLife, action: Callable[[], None]) -> None:
        """Run a disk operation; the machine may crash inside it, or the disk may fail."""

    def processes(self) -> list[NodeLife]:
        """Return all running processes, including paused ones."""
        return [node.process for node in self.nodes.values() if node.process is not None]

    def process(self, node_id: str) -> NodeLife:
        process = self.nodes[node_id].process
        assert process is not None, f"{node_id} is down"
        return process

    def _listening(self, node_id: str) -> NodeLife | None:
        process = self.nodes[node_id].process
        return None if process is None or process.is_stopping else process

    def wait_committed(self, process: NodeLife, index: int, action: Callable[[], None]) -> None:
        """Run the action once the process has committed `index`; never if it dies first."""
        if process.alive and process.replica.core.committed_index >= index:
            action()
        elif process.alive:
            self._waiting.append(_WaitingRead(process, index, action))

    def wake_readers(self, process: NodeLife) -> None:
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


class NodeLife(ABC):
    """One process of a node. It does nothing after `alive` has become False.

    Everything in the process happens in a turn (`post`), on its event loop.
    """

    #: Assembled by `SimProcess`.
    applier: Applier
    identity: PeerIdentity
    incarnation: int
    inbound: PeerRequests
    owner: NodeOwner | None
    parts: NodeParts
    readable: ReadableLog
    replica: Replica
    shell: AsyncShell
    _machine: StateMachine | None
    _read_points: ReadPoints

    def __init__(self, sim: SimWorld, node_id: str, store: LogStore, rng: Random) -> None:
        self.sim = sim
        self.node_id = node_id
        self.store = store
        self.alive = True
        self.is_paused = False
        self.disk_factor = 1  # slow disks: every job takes this many times longer
        self.disk_stuck_until_ms = 0
        self._rng = rng
        #: If set, the node ticks only when something is due, like a real one. Otherwise it always ticks, and
        #: work that it would have slept through is a violation.
        self.sleeps = rng.random() < 0.5
        self._rate = 1 + rng.uniform(-sim.profile.skew, sim.profile.skew)
        self._clock_offset_ms = rng.randint(0, 1_000_000)
        self._started_ms = sim.clock.now_ms
        self._inbox: list[Callable[[], object]] = []  # actions for a paused process
        self.loop = virtual_loop(self.after, self.now_ms, rng, on_thread=self.on_disk)
        self.is_stopping = False  # graceful stop: no requests are served
        self._applied_index = -1

    @abstractmethod
    def start(self) -> None:
        """Start the replica. Called after the node has registered this process, because its disk may fail
        immediately."""

    @property
    @abstractmethod
    def is_disk_idle(self) -> bool: ...

    def stop_parts(self, stopped: Callable[[], object]) -> None:
        """Stop the parts in the order of NodeServer, once no requests are served. Call in a turn."""
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
        """Return monotonic milliseconds of this process's own clock."""
        return self._clock_offset_ms + int((self.sim.clock.now_ms - self._started_ms) * self._rate)

    def at_ms(self, sim_ms: int) -> int:
        """Convert a time of the simulation to this process's own clock."""
        return self._clock_offset_ms + int((sim_ms - self._started_ms) * self._rate)

    def wall_ms(self) -> int:
        """Return the wall clock of this machine, which may jump."""
        return EPOCH_MS + self.sim.clock.now_ms + self.sim.nodes[self.node_id].wall_offset_ms

    def post(self, action: Callable[[], object]) -> None:
        """Run in a turn of this process: now, after it resumes, or never if it dies first."""
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
        """Resume (SIGCONT): run all queued actions immediately and in order; overdue timers first or last."""
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
        """Append bodies. Call in a turn; `answer` is called in some turn, at the time of the answer."""
        self.shell.append(_Token(answer), bodies, session, open_session, timeout_ms)

    def append_batch(
        self,
        sizes: Sequence[int],
        fill: Fill,
        expected: tuple[int, int],
        answer: AnswerAppend,
        timeout_ms: int,
    ) -> None:
        """Append a batch like NodeServer. Call in a turn."""
        self.shell.append_batch(_Token(answer), sizes, fill, expected, timeout_ms)

    def read_index(self, answer: AnswerRead) -> None:
        """Get a linearizable read point from this node as leader. Call in a turn."""

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

    def change_members(self, change: MembershipChange, answer: AnswerTransfer) -> None:
        def done(future: asyncio.Future[None]) -> None:
            error = future.exception()
            if error is None or isinstance(error, DLedgerError):
                answer(error)

        self.shell.change_members(change).add_done_callback(done)

    # -- the network calls these

    @abstractmethod
    def serve(
        self,
        peer: str,
        claims: PeerClaims,
        message: Request,
        deadline_ms: int,
        answer: Callable[[Outcome], None],
    ) -> None:
        """Handle a call in a turn of the process."""

    @abstractmethod
    def serve_push(self, stream: SimPushStream) -> None:
        """Handle a push stream in turns of the process."""

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine that serves others. Its failure is a finding."""

        def done(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self.loop.fail(error)

        task = self.loop.create_task(work)
        task.add_done_callback(done)
        return task

    def deliver(self, peer: str, message: Message, payload: bytes | memoryview | None) -> None:
        """Deliver a peer's message outside its stream or call. A response is sent back to the peer."""
        network = self.sim.network

        def back(outcome: Outcome) -> None:
            source = self.sim.nodes[peer].process
            if source is not None and isinstance(outcome, Answer):
                asker, answer = source, outcome
                asker.after(network.delay_ms(), lambda: asker.shell.peer_answered(self.node_id, answer))

        if isinstance(message, Question):
            question = message
            within_ms = self.sim.profile.request_timeout_ms
            claims = PeerClaims(UNKNOWN_UID, UNKNOWN_UID, 0, 0)
            self.post(lambda: self.serve(peer, claims, question, within_ms, back))
        else:
            self.post(lambda: self.shell.receive(peer, message, payload))

    def push_refused(self, error: DLedgerError) -> None:
        """Raise a Violation: a leader must never push anything that a follower refuses."""
        raise Violation("pushes", f"{self.node_id} refused a push stream: {error}")

    def suspect(self, index: int) -> None:
        """Report that a read of `index` failed."""
        self.parts.suspect(index)

    def disk_failed(self, error: DLedgerError) -> None:
        """Stop the process in the same way as NodeServer after a disk failure."""

        def fail() -> None:
            raise error

        self.shell.give_up()
        self.sim.clock.after(0, lambda: self.on_disk(fail))

    # -- the shell calls these

    def log_is_replaced(self) -> None:
        """Notify the applier as if a piece of its work had just ended, so that work planned now runs while
        the old log still exists."""
        self.after(0, self.applier.committed)

    def committed(self, committed_index: int) -> None:
        if self._machine is not None:
            for index in range(self._applied_index + 1, committed_index + 1):
                self.sim.apply(self._machine, index)
        self._applied_index = committed_index
        self.sim.wake_readers(self)

    @property
    def machine(self) -> StateMachine | None:
        """The state machine of this process, if the simulation has any."""
        return self._machine

    # -- the disk thread calls these

    def on_disk(self, action: Callable[[], None]) -> None:
        """Run now on the disk thread, outside of turns. Does nothing if the process has died."""
        if self.alive:
            self.sim.guarded_disk(self, action)

    def after_disk_time(self, action: Callable[[], None]) -> None:
        profile, clock = self.sim.profile, self.sim.clock
        cost_ms = self._rng.randint(profile.fsync_min_ms, profile.fsync_max_ms) * self.disk_factor
        wait_ms = max(0, self.disk_stuck_until_ms - clock.now_ms) + cost_ms
        clock.after(wait_ms, lambda: self.on_disk(action))


# Checks of cluster time against the clocks of the machines.
#
# No node reads a time beyond the count from the newest stamp, and a single wrong clock has no effect.

#: Maximum age of a wall-clock sample: it must be fresh, but votes and paused processes delay it.
_MEMORY_MS = 30_000
_ROUNDING_MS = 20


class ObservedClock(Protocol):
    node_id: str
    incarnation: int
    replica: Replica

    def now_ms(self) -> int: ...


class ClusterTime:
    """Checks the cluster time of every process after each of its steps.

    The upper bound starts at each new stamp and advances at the rate of the fastest clock, including slews.
    No reading exceeds it. A step must be justified by the clocks of a majority of machines.
    """

    def __init__(
        self,
        epoch_ms: int,
        skew: float,
        now_ms: Callable[[], int],
        offsets: Callable[[], Mapping[str, int]],
    ) -> None:
        """`offsets`: the error of each machine's wall clock, in ms."""
        self._epoch_ms = epoch_ms
        self._fastest = 1 + skew
        self._now_ms = now_ms
        self._offsets = offsets
        self.ever_wrong: set[str] = set()
        self.steps = 0
        self._fewest = 3  # voters of any configuration
        self._past: deque[tuple[int, dict[str, int]]] = deque()  # (end of validity, offsets)
        self._current: dict[str, int] = {}
        self._seen: dict[tuple[str, int], tuple[int, Stamp]] = {}  # newest stamp of each life
        self._known: set[tuple[int, Stamp]] = set()
        self._bound: tuple[float, int, int] | None = None  # time, slew, when set

    def after_step(self, process: ObservedClock) -> None:
        self._note_clocks()
        self._fewest = min(self._fewest, *map(len, process.replica.core.membership.halves))
        clock = process.replica.admission.state.clock
        stamps = clock.stamps
        if not stamps:
            return
        life = (process.node_id, process.incarnation)
        if self._seen.get(life) != stamps[-1]:
            self._seen[life] = stamps[-1]
            for index, stamp in stamps:
                # Stamps that a node has stored or kept have lost their index.
                if index >= 0 and (index, stamp) not in self._known:
                    self._known.add((index, stamp))
                    self._stamped(process, stamp)
        if self._bound is None:
            return
        reading_ms = clock.read(process.now_ms(), 0)
        bound_ms = self._bound_now()
        if reading_ms > bound_ms + _ROUNDING_MS:
            raise Violation(
                "cluster time",
                f"{process.node_id} reads {reading_ms}, but the newest stamp allows at most {bound_ms}",
            )

    def _note_clocks(self) -> None:
        offsets, now_ms = self._offsets(), self._now_ms()
        if offsets != self._current:
            self._past.append((now_ms, self._current or dict(offsets)))
            self._current = dict(offsets)
            self.ever_wrong |= {node for node, offset in offsets.items() if offset}
        while self._past and self._past[0][0] < now_ms - _MEMORY_MS:
            self._past.popleft()

    def _bound_now(self) -> int:
        assert self._bound is not None
        time_ms, slew_ms, at_ms = self._bound
        elapsed_ms = int((self._now_ms() - at_ms) * self._fastest) + 1
        return int(time_ms) + elapsed_ms + max(0, slewed_ms(slew_ms, elapsed_ms))

    def _stamped(self, process: ObservedClock, stamp: Stamp) -> None:
        """Check a stamp that is new to all logs."""
        change = stamp.change
        first = self._bound is None
        allowed_ms = stamp.time_ms if self._bound is None else self._bound_now()
        slew_ms = 0 if change is None else max(0, change.slew_ms)
        step_ms = 0 if change is None else change.step_ms
        if step_ms or first:
            self.steps += not first
            self._check_step(process, stamp)
        if self._bound is not None:
            _, old_ms, at_ms = self._bound
            elapsed_ms = int((self._now_ms() - at_ms) * self._fastest)
            slew_ms = max(slew_ms, old_ms - slewed_ms(old_ms, elapsed_ms))
        # An election may advance time by the owners' interval: `ClockKeeper.first_stamp`.
        slack_ms = process.replica.config.limits.owner_stamp_every_ms
        if stamp.time_ms - step_ms > allowed_ms + slack_ms:
            raise Violation(
                "cluster time",
                f"{process.node_id} stamps {stamp}, but elapsed time allows at most {allowed_ms}",
            )
        self._bound = max(allowed_ms, stamp.time_ms), slew_ms, self._now_ms()

    def _check_step(self, process: ObservedClock, stamp: Stamp) -> None:
        voters = process.replica.core.membership.voters
        latest = {node: offset for node, offset in self._current.items() if node in voters}
        for _, offsets in self._past:
            latest = {node: max(offset, offsets.get(node, offset)) for node, offset in latest.items()}
        shown = sorted(latest.values())[-majority(voters)]
        limit_ms = self._epoch_ms + self._now_ms() + shown
        # The process's own clock extrapolates a sample until the next one.
        slack_ms = _ROUNDING_MS + int(_MEMORY_MS * (self._fastest - 1))
        if stamp.time_ms > limit_ms + slack_ms:
            raise Violation(
                "cluster time",
                f"{process.node_id} steps to {stamp}, but a majority of clocks shows at most {limit_ms}",
            )

    def check_end(self) -> None:
        """Check that a single wrong clock had no effect. Two voters cannot tell which of them is wrong."""
        if self._bound is None or len(self.ever_wrong) > 1 or min(self._fewest, len(self._current)) < 3:
            return
        right_ms = self._epoch_ms + self._now_ms()
        slack_ms = 2000 + int(self._now_ms() * (self._fastest - 1)) + 2000
        for _, stamp in self._seen.values():
            if stamp.time_ms > right_ms + slack_ms:
                raise Violation(
                    "cluster time",
                    f"cluster time is {stamp} after one clock was wrong; the other clocks show {right_ms}",
                )
