"""A whole cluster in one thread and in virtual time, from one seed.

The replicas are the real ones, with real core and store; network, disks, clocks and clients are simulated::

    simulation = Simulation(Profile(nodes=3), seed=7)
    simulation.start()
    simulation.run_until(lambda: simulation.leader() is not None, limit_ms=5_000)
    simulation.crash("n0", CrashKind.POWER)

Every step is checked against `Invariants`; a broken promise raises `Violation`. `run.run_seed` drives a whole
random run with faults, clients, healing and the checks at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TextIO

from dledger.core.values import CoreConfig, HardState, Membership, Role
from dledger.errors import Code, DLedgerError, StorageError
from dledger.node.machine.state_machine import AppliedEntry
from dledger.replica.admission import AppendLimits
from dledger.replica.parts import ReplicaConfig
from dledger.replica.replica import Replica
from dledger.replica.shell import AppendOutcome
from dledger.store.api import LogStore
from dledger.store.disk import CrashKind
from dledger.store.format.batch import MAGIC_NORMAL, Batch, decode_entries, encode_batch, max_batch_size
from dledger.store.identity import Identity
from dledger.testing.bit_flips import BitFlips
from dledger.testing.checks.oracle import Append
from dledger.testing.clients import submit
from dledger.testing.durable import (
    CheckedFeeder,
    Judge,
    MachineFiles,
    MakeMachine,
    SimApplier,
    Truth,
)
from dledger.testing.network import PushStream
from dledger.testing.owners import Owner
from dledger.testing.process import LifeMakers, SimProcess
from dledger.testing.profile import Profile
from dledger.testing.stores import DiskHost, MemoryHost, StoreHost, batch_ends
from dledger.testing.virtual.event_loop import VirtualLoop
from dledger.testing.virtual.sim_disk import SimulatedCrash
from dledger.testing.virtual.violation import Violation
from dledger.testing.world import Life, NodeFiles, NodeOwner, SimNode, StateMachine, World

#: Of nodes that may lose their disks: the next one is as often lower as higher.
FIRST_INCARNATION = 1 << 29
_DISK_STOP_MS = 500  # what a stop waits for the disk
MAX_LIVES = 1000  # a node that dies in every start would otherwise be restarted for ever


@dataclass(slots=True)
class Attempt:
    """An append that a test made by hand; `answer` is there once the node has given it."""

    append: Append
    answer: AppendOutcome | DLedgerError | None = None

    @property
    def is_acknowledged(self) -> bool:
        return isinstance(self.answer, AppendOutcome)


class Simulation(World):
    """See the module."""

    def __init__(
        self,
        profile: Profile,
        *,
        seed: int = 0,
        sink: TextIO | None = None,
        replica_type: type[Replica] = Replica,
        state_machine: Callable[[], StateMachine] | None = None,
        durable_machine: MakeMachine | None = None,
    ) -> None:
        self._replica_type = replica_type
        self._state_machine = state_machine
        self._durable_machine = durable_machine
        super().__init__(profile, seed=seed, sink=sink)
        self.gone: set[str] = set()  # nodes that are down, and are not started by what heals
        self.bit_flips = BitFlips(self)
        self._judge = self.new_judge()
        self._makers = LifeMakers(self.new_owner, self.new_state_machine, self.new_applier, self.new_replica)
        self.preloaded: dict[bytes, Append] = {}
        self._dead: list[Life] = []  # kept, so that nothing of them ends in the middle of a run

    def _new_node(self, node_id: str) -> SimNode:
        identity = Identity("sim", "sim", node_id, data_file_size=self.profile.data_file_size)
        first = FIRST_INCARNATION if "lose_disk" in self.profile.faults else 0
        host: StoreHost = (DiskHost if self.profile.on_disk else MemoryHost)(identity, first)
        mirror = self.invariants.mirrors[node_id]
        mirror.hard_state = mirror.hard_state_wanted = HardState(incarnation=first)
        return SimNode(node_id, host, self.seeds.take(node_id), self.new_files())

    def preload(self, node_id: str, terms: Sequence[int], hard_state: HardState) -> None:
        """Before `start`: give a node a durable log, one entry for each of `terms`, and a term and vote.

        Entries of one index and term are the same on all nodes, so their terms before have to be, too.
        """
        store, batches = self.nodes[node_id].host.open(), []
        tail = store.tail
        for index, term in enumerate(terms):
            body = b"preloaded %d of term %d" % (index, term)
            batches.append(encode_batch(tail, term, [body], data_file_size=self.profile.data_file_size))
            tail = batches[-1].tail
            append = self.preloaded.setdefault(body, Append([body], None))
            self.oracle.begin(append)
        self.invariants.preloaded(node_id, batches, hard_state)
        store.append(batches)
        store.save_hard_state(hard_state)
        store.close()
        self.nodes[node_id].host.crash(CrashKind.PROCESS, self.nodes[node_id].rng)

    # -- time

    def start(self) -> None:
        for node_id in self.nodes:
            self.boot(node_id)

    def run_for(self, duration_ms: int) -> None:
        self.clock.run_until(self.clock.now_ms + duration_ms)

    def run_until(self, condition: Callable[[], bool], *, limit_ms: int) -> int:
        """Run until the condition holds, looked at after every event. Returns how long it took, in virtual
        milliseconds; a Violation if it takes longer than the limit."""
        begin_ms = self.clock.now_ms
        while not condition():
            if self.clock.now_ms - begin_ms > limit_ms or not self.clock.step():
                raise Violation("liveness", f"not within {limit_ms} ms: {self.summary()}")
        return self.clock.now_ms - begin_ms

    def close(self) -> None:
        """Nothing happens any more, also when this is no longer referred to. Repeatable."""
        self.trace.close()
        for process in self.processes():
            process.die()
        for loop in self.loops():
            loop.close()

    # -- what can be seen

    def loops(self) -> list[VirtualLoop]:
        """Of all processes that there have been."""
        return [process.loop for process in (*self._dead, *self.processes())]

    def leader(self) -> str | None:
        """The node that leads the highest term, if one does. It may not know yet that it was deposed."""
        leaders = [p for p in self.processes() if p.replica.core.role is Role.LEADER]
        return max(leaders, key=lambda p: p.replica.core.term).node_id if leaders else None

    def is_settled(self) -> bool:
        """One leader that all follow, all logs equal, committed and durable to their end, and all rebuilt;
        on all nodes that are not gone."""
        processes = self.processes()
        if len(processes) < self.profile.nodes - len(self.gone):
            return False
        leader = self.leader()
        cores = [p.replica.core for p in processes]
        first = cores[0]
        return (
            leader is not None
            and all(
                core.leader_id == leader
                and core.term == first.term
                and core.log.end_index == first.log.end_index
                and core.committed_index == core.log.end_index == core.log.durable_index
                and not core.hard_state.is_barred
                for core in cores
            )
            and all(p.replica.rebuilding.is_done for p in processes)
            and all(p.applier.applied_index == first.committed_index for p in processes)
        )

    def summary(self) -> str:
        """One line on every node, for messages."""
        parts = []
        for node in self.nodes.values():
            if node.process is None:
                parts.append(f"{node.node_id} down")
                continue
            core = node.process.replica.core
            paused = " paused" if node.process.is_paused else ""
            parts.append(
                f"{node.node_id} {core.role.value} t{core.term} leader={core.leader_id}"
                f" end={core.log.end_index}@{core.log.end_term} durable={core.log.durable_index}"
                f" committed={core.committed_index}{paused}"
            )
        return "; ".join(parts)

    # -- machines and processes

    def boot(self, node_id: str) -> None:
        """Start the process of a node: recovery, a new incarnation, a new replica."""
        node = self.nodes[node_id]
        assert node.process is None, f"{node_id} is up"
        node.lives += 1
        if node.lives > MAX_LIVES:
            raise Violation("liveness", f"{node_id} was restarted {MAX_LIVES} times")
        try:
            flipped = self.bit_flips.on(node_id)
            store = node.host.open()
            written = self.invariants.mirrors[node_id].written
            ends = batch_ends(store, written, is_damaged=flipped)
            self.invariants.recovered(node_id, ends, store.hard_state, store.base, is_damaged=flipped)
            rng = self.seeds.take(f"{node_id}.{node.lives}")
            process = SimProcess(self, node_id, store, rng, self._makers)
        except SimulatedCrash:
            self._crashed_within(node)
            return
        except StorageError as error:
            self._disk_failed(node, error)
            return
        process.disk_factor = node.disk_factor
        node.process = process
        self.trace.add(self.clock.now_ms, node_id, f"up, incarnation {process.incarnation}")
        process.start()

    def crash(self, node_id: str, kind: CrashKind) -> None:
        """SIGKILL the process, or take the power from its machine."""
        node = self.nodes[node_id]
        process = node.process
        if process is None:
            return
        self.counts[f"crashes: {kind.value}"] += 1
        self.trace.add(self.clock.now_ms, node_id, f"crash: {kind.value}")
        self._kill(process)
        for stream in self.network.streams_of(node_id):
            self._tear(stream, process, kind)
        self._crash_machine(node, kind)

    def _crash_machine(self, node: SimNode, kind: CrashKind) -> None:
        node.host.crash(kind, node.rng)
        if self._judge is not None:
            node.files.crash(kind, node.rng)

    def lose_disk(self, node_id: str, incarnation: int | None = None) -> bool:
        """A machine breaks down for good; a new one, with an empty disk, is to take its place. False, with
        nothing done, if so many have lost their logs that the promises would not cover it. `incarnation`:
        with which the new one begins; as with `dledger init --rejoin` any, lower than the old one or higher.
        """
        lost = (self.invariants.lost_nodes | self.bit_flips.nodes) - {node_id}
        if len(lost) + 1 > (self.profile.nodes - 1) // 2:
            return False
        node = self.nodes[node_id]
        self.crash(node_id, CrashKind.POWER)
        self.counts["disks lost"] += 1
        self.trace.add(self.clock.now_ms, node_id, "its disk is lost")
        if incarnation is None:
            incarnation = node.rng.randint(1 << 20, 2 * FIRST_INCARNATION)
        self.invariants.wiped(node_id, node.host.replace_disk(incarnation))
        return True

    def remove_minority(self, rng: Random) -> None:
        """Nodes go for good, as many as the promises cover beside those that have lost their logs."""
        impaired = self.invariants.lost_nodes | self.bit_flips.nodes
        most = (self.profile.nodes - 1) // 2 - len(impaired)
        whole = [node_id for node_id in self.nodes if node_id not in impaired]
        self.gone = set(rng.sample(whole, max(0, most)))
        for node_id in self.gone:
            self.crash(node_id, rng.choice((CrashKind.PROCESS, CrashKind.POWER)))
            self.counts["nodes gone for good"] += 1

    def _tear(self, stream: PushStream, dead: Life, kind: CrashKind, *, own_ms: int | None = None) -> None:
        """A killed process's kernel says so at once, if it is heard; a machine without power says nothing.
        `own_ms`: when the process itself notices, if it lives yet."""
        rng, network = self.network.rng, self.network
        ends = (stream.leader.node_id, stream.follower.node_id)
        is_heard = not network.is_cut(*ends) and not network.is_cut(*reversed(ends))
        keepalive_ms = self.profile.keepalive_ms
        quick = kind is CrashKind.PROCESS and is_heard
        delay_ms = rng.randint(0, 5) if quick else rng.randint(keepalive_ms // 2, keepalive_ms)
        if stream.leader is dead:
            stream.break_off(own_ms, delay_ms)
        else:
            stream.break_off(delay_ms, own_ms)

    def _kill(self, process: Life) -> None:
        process.die()
        self._dead.append(process)
        self.nodes[process.node_id].process = None
        self._waiting = [w for w in self._waiting if w.process is not process]

    def pause(self, node_id: str) -> None:
        """SIGSTOP."""
        process = self.process(node_id)
        if process.is_paused:
            return
        self.counts["pauses"] += 1
        self.trace.add(self.clock.now_ms, node_id, "paused")
        process.is_paused = True

        def give_up() -> None:
            # Nobody answers the keep-alive of a stopped process... but its own side learns when it goes on.
            if process.alive and process.is_paused:
                for stream in self.network.streams_of(node_id):
                    stream.break_off(0, 0)

        self.clock.after(self.profile.keepalive_ms, give_up)

    def resume(self, node_id: str) -> None:
        """SIGCONT."""
        process = self.nodes[node_id].process
        if process is not None and process.is_paused:
            self.trace.add(self.clock.now_ms, node_id, "resumed")
            process.resume()

    def stop(self, node_id: str, done: Callable[[], None] | None = None) -> None:
        """A graceful stop: hand leadership over if there is any, then close the store."""

        def close(_: object = None) -> None:
            # Outside of the turn in which the transfer was answered.
            self.clock.after(0, finish)

        def finish() -> None:
            for stream in self.network.streams_of(node_id) if process.alive else ():
                self._tear(stream, process, CrashKind.PROCESS, own_ms=0)
            process.post(lambda: process.stop_parts(lambda: self.clock.after(0, lambda: released(0))))

        def released(waited_ms: int) -> None:
            """What was given to the disk is done first, but nobody waits for one that hangs."""
            if not process.alive:
                return
            if process.is_disk_idle:
                end()
            elif waited_ms < _DISK_STOP_MS:
                self.clock.after(1, lambda: released(waited_ms + 1))
            else:
                self.counts["stops without the disk"] += 1
                self.crash(node_id, CrashKind.PROCESS)
                ended()

        def end() -> None:
            self.counts["graceful stops"] += 1
            self.trace.add(self.clock.now_ms, node_id, "stopped")
            self._kill(process)
            try:
                process.store.close()
            except SimulatedCrash:
                self._crashed_within(self.nodes[node_id])
                return
            except StorageError as error:
                self._disk_failed(self.nodes[node_id], error)
                return
            self.nodes[node_id].host.crash(CrashKind.PROCESS, self.nodes[node_id].rng)
            ended()

        def ended() -> None:
            if done is not None:
                done()

        process = self.process(node_id)
        if process.replica.core.role is Role.LEADER:
            process.post(lambda: process.transfer(None, close))
        else:
            close()

    def guarded_disk(self, process: Life, action: Callable[[], None]) -> None:
        """Run something on a disk; the machine may go down inside it, or the disk may fail."""
        try:
            action()
        except SimulatedCrash:
            self._crashed_within(self.nodes[process.node_id])
        except StorageError as error:
            self._disk_failed(self.nodes[process.node_id], error)

    def fail_disk(self, node_id: str, operation: str, calls: int, restart_after_ms: int) -> bool:
        """Let a disk call fail: the process has to stop, and is started again. False if it cannot be done."""
        node = self.nodes[node_id]
        node.restart_after_ms = restart_after_ms
        node.disk_fails = node.host.fail_within(operation, calls)
        return node.disk_fails

    def _disk_failed(self, node: SimNode, error: StorageError) -> None:
        """Rule 9: whatever the page cache says now, it is not to be believed. Fail-stop."""
        if not node.disk_fails or error.code not in (Code.FSYNC_FAILED, Code.DISK_ERROR):
            raise error
        node.disk_fails = False
        node.host.repair()
        self.counts[f"stopped by {error.code.name}"] += 1
        self.trace.add(self.clock.now_ms, node.node_id, f"stops: {error}")
        self._down(node, CrashKind.PROCESS)

    def _crashed_within(self, node: SimNode) -> None:
        self.counts["crashes: inside a disk operation"] += 1
        self.trace.add(
            self.clock.now_ms, node.node_id, f"down inside a disk operation: {node.crash_kind.value}"
        )
        self._down(node, node.crash_kind)

    def _down(self, node: SimNode, kind: CrashKind) -> None:
        if node.process is None:
            self._crash_machine(node, kind)
        else:
            self.crash(node.node_id, kind)
        if node.restart_after_ms is not None:
            self.clock.after(node.restart_after_ms, lambda: self.boot_if_down(node.node_id))

    def boot_if_down(self, node_id: str) -> None:
        if self.nodes[node_id].process is None and node_id not in self.gone:
            self.boot(node_id)

    # -- links

    def isolate(self, node_id: str) -> None:
        """Cut a node off from all others, both ways."""
        for other in self.nodes:
            self.network.cut(node_id, other)
            self.network.cut(other, node_id)

    def split(self, group: set[str]) -> None:
        """Cut all links between a group of nodes and the others."""
        for one in self.nodes:
            for other in self.nodes:
                if (one in group) != (other in group):
                    self.network.cut(one, other)

    def heal(self) -> None:
        """Everything works from now on: network, disks, processes, but of those nodes that are gone."""
        self.network.heal_all()
        for node in self.nodes.values():
            if node.node_id in self.gone:
                continue
            node.disk_factor = 1
            node.host.make_room()
            node.host.repair()
            if node.process is None:
                self.boot(node.node_id)
            if node.process is not None:
                node.process.disk_factor = 1
                node.process.disk_stuck_until_ms = 0
                self.resume(node.node_id)

    # -- requests by hand

    def append(
        self,
        node_id: str,
        *bodies: bytes,
        session: tuple[int, int] | None = None,
        again: Append | None = None,
        open_session: bool = False,
    ) -> Attempt:
        """Append a batch on a node now. Bodies are unique in a run; `again` repeats an earlier batch."""
        append = again or Append(bodies, session, opens_session=open_session)
        attempt = Attempt(append)
        self.oracle.tried_again(append)
        self.oracle.begin(append)

        def reply(answer: object) -> None:
            assert isinstance(answer, AppendOutcome | DLedgerError)
            attempt.answer = answer

        process = self.process(node_id)
        process.post(lambda: submit(self, process, append, reply))
        return attempt

    # -- the processes call these

    def new_replica(self, process: Life, store: LogStore) -> Replica:
        """For a process that has its shell."""
        profile = self.profile
        core = CoreConfig(
            process.node_id,
            Membership(profile.node_ids),
            profile.timing,
            preferred_leaders=profile.preferred_leaders,
            max_inflight_bytes=profile.max_inflight_bytes,
            max_push_bytes=profile.max_push_bytes,
            max_transfer_lag=profile.max_transfer_lag,
        )
        limits = AppendLimits(
            max_body_bytes=1000,
            max_batch_bytes=min(2000, max_batch_size(profile.data_file_size)),
            group_bytes=profile.group_bytes,
            max_sessions=profile.max_sessions,
            stamp_every_ms=profile.stamp_every_ms,
            owner_stamp_every_ms=20,  # as there are many elections, and each may move time on by so much
        )
        config = ReplicaConfig(core, limits, profile.retention, cache_bytes=profile.cache_bytes)
        rng = self.seeds.take(f"{process.node_id} core")
        return self._replica_type(
            config, store, process.shell, random_ms=rng.randint, wall_ms=process.wall_ms
        )

    def new_state_machine(self) -> StateMachine | None:
        return self._state_machine() if self._state_machine is not None else None

    # -- what a simulation of a program has of its own

    def new_files(self) -> NodeFiles:
        """Of one machine, for the durable state machines on it."""
        return MachineFiles()

    def new_judge(self) -> Judge | None:
        """Of durable state machines, if there are any."""
        if self._durable_machine is None:
            return None
        return Truth(self._durable_machine(MachineFiles(), lambda: -1, self.seeds.take("truth")))

    def new_owner(self, process: Life) -> NodeOwner | None:
        """The program that owns the node, for one life of it."""
        owned = self.profile.owned
        return Owner(process, self.seeds.take(f"{process.node_id} owner")) if owned else None

    def new_applier(self, process: Life) -> SimApplier:
        rng = self.seeds.take(f"{process.node_id} state")
        return SimApplier(process, self.new_feeder(process, rng), rng)

    def new_feeder(self, process: Life, rng: Random) -> CheckedFeeder | None:
        """Of a durable state machine, if the simulation has any."""
        if self._durable_machine is None or self._judge is None:
            return None
        files, store = self.nodes[process.node_id].files, process.store
        assert isinstance(files, MachineFiles)
        machine = self._durable_machine(files, lambda: store.durable_index, rng)
        return CheckedFeeder(process, machine, self._judge, rng)

    # -- the processes call these, too

    def _entry_committed(self, batch: Batch) -> None:
        fastest = (1 + self.profile.skew) * 1.001
        self.invariants.housekeeping.check_time(int(self.clock.now_ms * fastest) + 1000)
        self.counts["entries committed"] += batch.count
        self.oracle.committed(batch)
        if self.profile.owned:
            self.owned.committed(batch, self.invariants.housekeeping.last_stamp_ms)
        if self._state_machine is not None:
            for entry in decode_entries(batch.data):
                self._bodies.append(entry.body if entry.magic == MAGIC_NORMAL else None)
        if self._judge is not None:
            for entry in decode_entries(batch.data):
                applied = AppliedEntry(entry.index, entry.term, entry.body, entry.pos)
                self._judge.committed(entry.index, applied if entry.magic == MAGIC_NORMAL else None)
