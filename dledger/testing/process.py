"""One process of a simulated node: real parts, connected to virtual disks, networks and clocks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from dledger.core.values import Base, HardState, Tail
from dledger.errors import Code, DLedgerError, StorageError
from dledger.infra.loops.readable import ReadableLog
from dledger.node.disk.allocator import CHECK_INTERVAL_S, Allocator
from dledger.node.disk.disk_worker import HARMLESS, CallJob, CheckpointJob, DiskJobs, Job, Report
from dledger.node.members.fetching import LogFetcher
from dledger.node.members.read_points import ReadPoints
from dledger.node.members.repairer import Repairer, Scrubber
from dledger.node.parts import NodeParts, PartFactories, images_of, start_incarnation
from dledger.node.setup.member_book import MemberBook
from dledger.node.ticker import next_tick_ms
from dledger.replica.replica import Replica
from dledger.replica.shell import RoleNotice, WriteJob
from dledger.rpc.envelope import PeerClaims, PeerIdentity
from dledger.store.api import Damage, Frames, LogStore, RepairWork
from dledger.store.format.batch import Batch
from dledger.testing import peer_transport
from dledger.testing.durable import SimApplier
from dledger.testing.network import Outcome, Request, SimPushStream
from dledger.testing.sim_shell import SimShell
from dledger.testing.stores import DIRECTORY
from dledger.testing.virtual.violation import Violation
from dledger.testing.world import NodeLife, NodeOwner, SimWorld, StateMachine

if TYPE_CHECKING:
    from dledger.node.parts import NodeParts

_MAX_WAITING_READS = 1000


class _StartingStore:
    """Implements dledger.node.parts.StartingStore: a process's store, observed by the invariants."""

    def __init__(self, process: NodeLife) -> None:
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


class LifeMakers(NamedTuple):
    """Factories for the parts of a process that depend on its simulation."""

    owner: Callable[[NodeLife], NodeOwner | None]
    machine: Callable[[], StateMachine | None]
    applier: Callable[[NodeLife], SimApplier]
    replica: Callable[[NodeLife, LogStore], Replica]


class SimProcess(NodeLife):
    """Implements `NodeLife` with the parts of a real node."""

    applier: SimApplier
    shell: SimShell

    def __init__(self, sim: SimWorld, node_id: str, store: LogStore, rng: Random, makers: LifeMakers) -> None:
        super().__init__(sim, node_id, store, rng)
        self._make_replica = makers.replica
        self.disk = SimDiskThread(self, rng)
        self.owner = makers.owner(self)
        self._machine = makers.machine()
        self.applier = makers.applier(self)
        start_incarnation(_StartingStore(self), DIRECTORY, node_id, FILES_AHEAD * store.data_file_size)
        self.incarnation = store.hard_state.incarnation
        self.applier.recover_now()
        self.loop.entered(self._assemble)
        timeout_ms = sim.profile.request_timeout_ms
        self._read_points = ReadPoints(self.shell.read_index, _MAX_WAITING_READS, timeout_ms)

    def _assemble(self) -> None:
        """Assemble the parts of a NodeServer; only disk, network and threads are simulated."""
        rng, profile = self._rng, self.sim.profile
        self.identity = PeerIdentity(
            *("sim", "sim", self.node_id),
            () if self.store.identity.is_joined else profile.founders,
            self.incarnation,
            directory_of=lambda node_id: self.replica.core.rejoining.announced_directory(node_id),
            uid_of=lambda node_id: self.replica.core.announced_uid(node_id),
        )
        makers = PartFactories(
            shell=self._make_shell,
            disk=lambda shell: self.disk,
            allocator=lambda shell: SimAllocator(self, shell.on_space_prepared, rng),
            replica=lambda shell: self._make_replica(self, self.store),
            transport=partial(peer_transport.SimTransport, self),
            fetch=lambda parts: LogFetcher(self.store, parts.readable, None, self.suspect).fetch,
            repairer=lambda parts: repairer_of(self, parts, rng),
            scrubber=lambda parts: scrubber_of(self),
            images=lambda parts: images_of(parts, rng=rng, in_thread=_in_thread),
            readers=None,
            identity=self.identity,
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
            MemberBook({node_id: node_id for node_id in self.sim.profile.node_ids}, {}),
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
        """Start the replica. Called after the node has registered this process, because its disk may fail
        immediately."""
        self.post(self._begin)
        self._checkpoint()
        if self.owner is not None:
            self.owner.start()

    def _begin(self) -> None:
        self.parts.start()
        self.parts.run(self.sim.profile.tick_ms, self._tick)

    @property
    def is_disk_idle(self) -> bool:
        return self.disk.is_idle

    def _tick(self) -> None:
        now_ms, core, done = self.now_ms(), self.replica.core, self.shell.done
        fitness = core.may_lead, core.has_room
        is_early = next_tick_ms(self.replica, now_ms) > now_ms
        self.parts.tick()
        # Fitness is checked in every tick, and does not change the time of the next tick.
        if is_early and self.shell.done != done and fitness == (core.may_lead, core.has_room):
            raise Violation("ticks", f"{self.node_id} did work in a tick that a real node would have skipped")

    def _checkpoint(self) -> None:
        if self.is_stopping:
            return
        self.after(self.sim.profile.checkpoint_every_ms, self._store_checkpoint)

    def _store_checkpoint(self) -> None:
        self.shell.checkpoint()
        self._checkpoint()

    # -- requests of clients

    # -- the network calls these

    def serve(
        self,
        peer: str,
        claims: PeerClaims,
        message: Request,
        deadline_ms: int,
        answer: Callable[[Outcome], None],
    ) -> None:
        """Handle a call in a turn (one scheduled step) of the simulated process."""

        async def serve() -> None:
            answer(await peer_transport.answer(self, peer, claims, message))

        def give_up() -> None:
            if not task.done():
                self.post(task.cancel)

        task = self._spawn(serve())
        self.sim.clock.after(deadline_ms, give_up)

    def serve_push(self, stream: SimPushStream) -> None:
        """Handle a push stream in turns of the simulated process."""
        task = self._spawn(peer_transport.receive_pushes(self, stream))
        stream.on_follower_notices = task.cancel

    # -- the shell calls these

    def _on_role(self, notice: RoleNotice) -> None:
        if self.owner is not None:
            self.owner.role_changed(notice)

    def _on_fatal(self, error: DLedgerError) -> None:
        is_earlier = error.code in (Code.DIRECTORY_REPLACED, Code.MEMBER_REPLACED)
        if not (is_earlier and self.sim.directory_replaced(self.node_id)):
            self.loop.fail(Violation("fatal", f"{self.node_id} stops: {error}"))


#: Delay in ms until the thread starts a requested check.
_WAKE_DELAYS_MS = (0, 0, 1, 4)
FILES_AHEAD = 2
_MOST_FILES_AHEAD = 4


class SimAllocator(Allocator):
    """An allocator that works outside of all turns, where the machine may crash, and not while the process is
    paused."""

    def __init__(self, process: NodeLife, on_prepared: Callable[[], None], rng: Random) -> None:
        store, size = process.store, process.store.data_file_size
        super().__init__(
            store,
            FILES_AHEAD * size,
            on_fatal=self._fail,
            most_bytes=_MOST_FILES_AHEAD * size,
            position=lambda: store.tail.pos,
            on_prepared=on_prepared,
        )
        self._process = process
        self._rng = rng
        self._checks = 0  # checks started; a timer of an older one is void
        self._is_asked = False

    def _fail(self, error: DLedgerError) -> None:
        raise error

    def start(self) -> None:
        self._schedule_check(0)

    def request_check(self) -> None:
        if not self._is_asked:
            self._is_asked = True
            self._schedule_check(self._rng.choice(_WAKE_DELAYS_MS))

    def stop(self, timeout_s: float) -> bool:
        self._stopping = True
        return True

    def _schedule_check(self, wait_ms: int) -> None:
        number = self._checks
        self._process.sim.clock.after(wait_ms, lambda: self._begin(number))

    def _begin(self, number: int) -> None:
        process = self._process
        if number != self._checks or self._stopping or not process.alive:
            return
        if process.is_paused:
            self._schedule_check(process.sim.profile.tick_ms)
            return
        self._checks += 1
        self._is_asked = False
        process.on_disk(lambda: self.prepare(process.now_ms() / 1000))
        if self.is_full:
            process.sim.counts["found the disk full"] += 1
        self._schedule_check(int(CHECK_INTERVAL_S * 1000))


# Observation of a simulated node's repairs, with counters and trace lines.
#
# Repairer and scrubber are the real ones; only their disk, threads, network and randomness are simulated.

T = TypeVar("T")

_SCRUB_BYTES = 8 << 10
#: Members that can help become reachable again sooner than in a real cluster.
_LONGEST_PAUSE_S = 1.0


async def _in_thread(work: Callable[[], T], name: str) -> T:
    """Replaces dledger.infra.loops.threads on a loop in virtual time."""
    return await asyncio.get_running_loop().run_in_executor(None, work)


class ObservedDamages:
    """Implements dledger.node.members.repairer.RepairableStore: the store of a process."""

    def __init__(self, process: NodeLife) -> None:
        self._process = process
        self._store = process.store

    @property
    def damages(self) -> Sequence[Damage]:
        return self._store.damages

    def note(self, count: str, text: str) -> None:
        sim = self._process.sim
        sim.counts[count] += 1
        sim.trace.add(sim.clock.now_ms, self._process.node_id, text)

    def go_down(self) -> None:
        """Crash the machine inside a repair, if that is scheduled."""
        self._process.sim.go_down_in("repair", self._process.node_id)

    def note_damage(self, index: int) -> Damage | None:
        known = self._store.damages
        damage = self._store.note_damage(index)
        if damage is not None and damage not in known:
            self.note("damages found", f"finds {damage}")
        return damage

    def begin_repair(self, damage: Damage) -> RepairWork:
        return ObservedRepair(self, self._store.begin_repair(damage), damage)


class ObservedRepair:
    """Implements RepairWork by delegation to the store's."""

    def __init__(self, observed: ObservedDamages, work: RepairWork, damage: Damage) -> None:
        self._observed = observed
        self._work = work
        self._first_index = damage.first_index
        self.copy = work.copy
        self.index_some = work.index_some
        self.abandon = work.abandon

    @property
    def next_index(self) -> int:
        return self._work.next_index

    @property
    def is_fed(self) -> bool:
        return self._work.is_fed

    def feed(self, frames: Frames) -> None:
        self._counting_refusals(lambda: self._work.feed(frames))

    def finish(self) -> None:
        self._observed.go_down()
        self._counting_refusals(self._work.finish)
        self._observed.note("damages repaired", f"repaired {self._first_index}")

    def _counting_refusals(self, work: Callable[[], None]) -> None:
        try:
            work()
        except StorageError as error:
            if error.code is Code.DATA_DAMAGED:
                self._observed.note("repairs refused", f"no repair of {self._first_index}: {error}")
            raise


def repairer_of(process: NodeLife, parts: NodeParts, rng: Random) -> Repairer:
    return Repairer(
        ObservedDamages(process),
        parts.links,
        parts.disk.call,
        on_fatal=process.disk_failed,
        on_purged=parts.shell.purged_elsewhere,
        is_urgent=parts.is_urgent,
        bytes_per_second=0,
        longest_pause_s=_LONGEST_PAUSE_S,
        rng=rng,
        in_thread=_in_thread,
    )


def scrubber_of(process: NodeLife) -> Scrubber:
    every_ms = process.sim.profile.scrub_every_ms
    return Scrubber(
        process.store,
        None,
        process.suspect,
        image_damaged=process.shell.image_damaged,
        bytes_per_second=_SCRUB_BYTES * 1000 // every_ms if every_ms else 0,
        pause_s=every_ms / 1000,
        piece_bytes=_SCRUB_BYTES,
    )


# The disk thread of a simulated node: jobs run first in first out, each taking virtual time.
#
# The jobs run the real `DiskJobs`. A write goes through the page cache: it is written when the job starts and
# durable when it ends, so that a crash in between sees every possible state of a real one.


class ObservedStore:
    """Implements dledger.node.disk.disk_worker.JobStore: a process's store, whose changes are reported to the
    invariants before and after."""

    def __init__(self, process: NodeLife) -> None:
        self._process = process
        self._store = process.store
        self._node_id = process.node_id
        self._invariants = process.sim.invariants
        self._counts = process.sim.counts

    def append(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self._invariants.written(self._node_id, batch)
        # Keep copies, because the replica releases the bytes of its batches when it no longer caches them.
        self._store.append([replace(batch) for batch in batches])

    def sync(self) -> None:
        self._store.sync()
        self._counts["fsyncs"] += 1
        self._invariants.synced(self._node_id)

    def drop_cached(self, begin_pos: int, end_pos: int) -> None:
        self._store.drop_cached(begin_pos, end_pos)

    def truncate_after(self, index: int, tail: Tail | None = None) -> None:
        self._invariants.truncating(self._node_id, index)
        self._store.truncate_after(index, tail)
        self._invariants.truncated(self._node_id, index)

    def reset_to(self, base: Base) -> None:
        self._invariants.resetting(self._node_id, base)
        self._store.reset_to(base)
        self._invariants.reset(self._node_id)

    def purge_to(self, base: Base) -> None:
        self._invariants.purging(self._node_id, base)
        self._process.sim.go_down_in("purge", self._node_id)
        self._counting(lambda: self._store.purge_to(base))
        self._counts["purges"] += 1
        self._invariants.purged(self._node_id)

    def save_hard_state(self, state: HardState) -> None:
        self._invariants.hard_state_starts(self._node_id, state)
        self._store.save_hard_state(state)
        self._invariants.hard_state_saved(self._node_id, state)

    def save_checkpoint(self, committed_index: int, sessions: tuple[int, bytes] | None) -> None:
        self._counts["checkpoints"] += 1
        self._counting(lambda: self._store.save_checkpoint(committed_index, sessions))

    def _counting(self, work: Callable[[], None]) -> None:
        try:
            work()
        except StorageError as error:
            if error.code in HARMLESS:
                self._counts[f"disk jobs put off: {error.code.name}"] += 1
            raise


class SimDiskThread:
    """Runs the jobs of one process on its store, and reports back in turns of the process."""

    def __init__(self, process: NodeLife, rng: Random) -> None:
        self._process = process
        self._rng = rng
        store = ObservedStore(process)
        self._jobs = DiskJobs(store, sync=store.sync, deliver=self._deliver)
        self._queue: deque[Job] = deque()
        self._is_busy = False
        self._last_report_ms = 0
        self._sync_began_ms: int | None = None  # start of the current job's sync, on the simulation's clock

    @property
    def is_idle(self) -> bool:
        return not self._queue and not self._is_busy

    @property
    def checkpoint_waits(self) -> bool:
        return any(isinstance(job, CheckpointJob) for job in self._queue)

    @property
    def has_put_off(self) -> bool:
        return self._jobs.has_put_off

    @property
    def fsync_began_ms(self) -> int | None:
        began = self._sync_began_ms
        return None if began is None else self._process.at_ms(began)

    def submit_checkpoint(self, job: CheckpointJob) -> None:
        self.submit(job)

    def call(self, work: Callable[[], object]) -> Future[object]:
        """Run `work` in the same way as DiskWorker."""
        job = CallJob(work)
        self.submit(job)
        return job.outcome

    def submit(self, job: Job) -> None:
        self._queue.append(job)
        if not self._is_busy:
            # Never inside the submitting turn, because the machine may crash in the job.
            self._is_busy = True
            self._process.sim.clock.after(0, lambda: self._process.on_disk(self._start))

    def _start(self) -> None:
        if not self._queue:
            self._is_busy = False
            return
        self._is_busy = True
        self._sync_began_ms = self._process.sim.clock.now_ms
        job = self._queue.popleft()
        if not isinstance(job, WriteJob):
            other = job
            self._process.after_disk_time(lambda: self._finish(lambda: self._jobs.do(other)))
            return
        writes = [job]
        # Queued writes may share one fdatasync, like the group commit of a real disk thread.
        while self._queue and isinstance(following := self._queue[0], WriteJob):
            if self._rng.random() < self._process.sim.profile.own_sync:
                break
            self._queue.popleft()
            writes.append(following)
        self._jobs.append(writes)
        self._process.after_disk_time(lambda: self._finish(lambda: self._jobs.sync_and_report(writes)))

    def _finish(self, work: Callable[[], None]) -> None:
        self._sync_began_ms = None
        work()
        self._start()

    def _deliver(self, report: Report) -> None:
        self.later(lambda: self._process.shell.disk_reported(report))

    def later(self, action: Callable[[], None]) -> None:
        """Pass a completion to the event loop, in order; the loop may be busy for a moment."""
        now_ms = self._process.sim.clock.now_ms
        self._last_report_ms = max(self._last_report_ms, now_ms + self._rng.choice((0, 0, 0, 1)))
        self._process.after(self._last_report_ms - now_ms, action)
