"""A whole cluster in one thread and in virtual time, from one seed.

Replicas, core and store are the real ones; network, disks, clocks and clients are simulated::

 simulation = Simulation(Profile(nodes=3), seed=7)
 simulation.start()
 simulation.run_until(lambda: simulation.leader() is not None, limit_ms=5_000)
 simulation.crash("n0", CrashKind.POWER)

Every step is checked against `Invariants`, which raise `Violation` if a guarantee is violated. `run.run_seed`
drives a complete random run with faults, clients, healing and the final checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TextIO

from dledger.core.membership_change import first_members, unknown_members
from dledger.core.values import CoreConfig, HardState, Role
from dledger.errors import Code, DLedgerError, StorageError
from dledger.infra.files.disk import CrashKind
from dledger.node.machine.state_machine import AppliedEntry
from dledger.replica.admission import AppendLimits
from dledger.replica.parts import ReplicaConfig
from dledger.replica.replica import Replica
from dledger.replica.shell import AppendOutcome
from dledger.store.api import LogStore
from dledger.store.format.batch import MAGIC_NORMAL, Batch, decode_entries, encode_batch, max_batch_size
from dledger.store.identity import Identity, first_uid, joined, member_list
from dledger.testing.bit_flips import BitFlips
from dledger.testing.checks.oracle import ClientAppend
from dledger.testing.clients import submit
from dledger.testing.durable import (
    CheckedFeeder,
    MachineFiles,
    MakeMachine,
    ReferenceState,
    SimApplier,
    StateJudge,
)
from dledger.testing.network import SimPushStream
from dledger.testing.owners import NumberingOwner
from dledger.testing.process import LifeMakers, SimProcess
from dledger.testing.profile import Profile
from dledger.testing.stores import DiskHost, MemoryHost, StoreHost, batch_ends
from dledger.testing.virtual.event_loop import VirtualLoop
from dledger.testing.virtual.sim_disk import CrashPoint, SimulatedCrash
from dledger.testing.virtual.violation import Violation
from dledger.testing.world import (
    NodeFiles,
    NodeLife,
    NodeOwner,
    RemovedDisk,
    SimNode,
    SimWorld,
    StateMachine,
)

#: First incarnation of nodes that may lose their disks, so that the incarnation after a loss is lower as
#: often as higher.
FIRST_INCARNATION = 1 << 29
_DISK_STOP_MS = 500  # time that a graceful stop waits for the disk
MAX_LIVES = 1000  # limit that stops a node which dies in every start


@dataclass(slots=True)
class Attempt:
    """An append made by a test. `answer` is set once the node has responded."""

    append: ClientAppend
    answer: AppendOutcome | DLedgerError | None = None

    @property
    def is_acknowledged(self) -> bool:
        return isinstance(self.answer, AppendOutcome)


class Simulation(SimWorld):
    """A simulated cluster that a test drives by hand; see the docstring of the module."""

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
        self.gone: set[str] = set()  # stopped nodes that healing does not restart
        self.bit_flips = BitFlips(self)
        self._judge = self.new_judge()
        self._makers = LifeMakers(self.new_owner, self.new_state_machine, self.new_applier, self.new_replica)
        self.preloaded: dict[bytes, ClientAppend] = {}
        self._dead: list[NodeLife] = []  # kept, so that garbage collection does not end them during a run

    def _new_node(self, node_id: str) -> SimNode:
        founders = member_list(self.profile.founders)
        size = self.profile.data_file_size
        identity = Identity(
            "sim", "sim", node_id, data_file_size=size, members=founders if node_id in founders else None
        )
        if node_id not in self.profile.founders:
            identity = joined(identity)
        loses = {"lose_disk", "lose_member", "change_members"} & {*self.profile.faults}
        first = FIRST_INCARNATION if loses else 0
        host: StoreHost = (DiskHost if self.profile.on_disk else MemoryHost)(identity, first)
        mirror = self.invariants.mirrors[node_id]
        mirror.hard_state = mirror.hard_state_wanted = HardState(incarnation=first, uid=first_uid(identity))
        return SimNode(node_id, host, self.seeds.random_for(node_id), self.new_files())

    def preload(self, node_id: str, terms: Sequence[int], hard_state: HardState) -> None:
        """Give a node a durable log, with one entry for each of `terms`, and a term and vote. Call before
        `start`.

        Entries with the same index and term must be equal on all nodes, so all earlier terms must match,
        too.
        """
        store, batches = self.nodes[node_id].host.open(), []
        tail = store.tail
        for index, term in enumerate(terms):
            body = b"preloaded %d of term %d" % (index, term)
            batches.append(encode_batch(tail, term, [body], data_file_size=self.profile.data_file_size))
            tail = batches[-1].tail
            append = self.preloaded.setdefault(body, ClientAppend([body], None))
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
        """Run until the condition holds, which is evaluated after every event. Returns the elapsed virtual
        milliseconds. Raises Violation at the limit."""
        begin_ms = self.clock.now_ms
        while not condition():
            if self.clock.now_ms - begin_ms > limit_ms or not self.clock.step():
                raise Violation(
                    "liveness", f"the goal was not reached within {limit_ms} ms: {self.summary()}"
                )
        return self.clock.now_ms - begin_ms

    def close(self) -> None:
        """Stop all activity, including activity during later garbage collection. Repeatable."""
        self.trace.close()
        for process in self.processes():
            process.die()
        for loop in self.loops():
            loop.close()

    # -- observation

    def loops(self) -> list[VirtualLoop]:
        """Return the event loops of all processes, past and present."""
        return [process.loop for process in (*self._dead, *self.processes())]

    def leader(self) -> str | None:
        """Return the leader of the highest term, if there is one. It may not know yet that it was deposed."""
        leaders = [p for p in self.processes() if p.replica.core.role is Role.LEADER]
        return max(leaders, key=lambda p: p.replica.core.term).node_id if leaders else None

    def is_settled(self) -> bool:
        """Return True if all members, except for permanently removed ones, follow one leader, and their logs
        are equal, committed, durable and rebuilt, with their images."""
        leader = self.leader()
        if leader is None:
            return False
        membership = self.process(leader).replica.core.membership
        processes = [p for p in self.processes() if p.node_id in membership.nodes]
        if membership.is_joint or len(processes) < len(set(membership.nodes) - self.gone):
            return False
        cores = [p.replica.core for p in processes]
        first = cores[0]
        return (
            all(
                core.leader_id == leader
                and core.term == first.term
                and core.log.end_index == first.log.end_index
                and core.committed_index == core.log.end_index == core.log.durable_index
                and not core.hard_state.is_barred
                for core in cores
            )
            and all(p.replica.rebuilding.is_done for p in processes)
            and not any(p.replica.admission.state.needs_image for p in processes)
            and all(p.applier.applied_index == first.committed_index for p in processes)
        )

    def summary(self) -> str:
        """Describe every node on one line, for messages."""
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
            rng = self.seeds.random_for(f"{node_id}.{node.lives}")
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
        """Kill the process, or cut the power of its machine."""
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
        """Replace a machine with one that has an empty disk. Returns False, without a change, if so many
        nodes have lost their logs that the guarantees would no longer apply.

        `incarnation`: the incarnation of the new node, which may be lower or higher than the old one, as
        after `dledger server --rejoin`.
        """
        lost = (self.invariants.lost_nodes | self.bit_flips.nodes) - {node_id}
        if len(lost) + 1 > (self.profile.nodes - 1) // 2 or self.nodes[node_id].later is not None:
            return False
        self.wipe_disk(node_id, incarnation)
        return True

    def wipe_disk(self, node_id: str, incarnation: int | None = None, uid: int | None = None) -> None:
        """Replace a machine with one that has an empty disk, whatever other nodes have lost. `uid`: as which
        member it rejoins; None: the members have not changed."""
        node = self.nodes[node_id]
        self.crash(node_id, CrashKind.POWER)
        self.counts["disks lost"] += 1
        self.trace.add(self.clock.now_ms, node_id, "its disk is lost")
        if incarnation is None:
            incarnation = node.rng.randint(1 << 20, 2 * FIRST_INCARNATION)
        mirror = self.invariants.mirrors[node_id]
        node.earlier = RemovedDisk(node.host.disk, replace(mirror, lost=list(mirror.lost)))
        self.invariants.wiped(node_id, node.host.replace_disk(incarnation, uid))

    def replace_machine(self, node_id: str) -> None:
        """Replace a machine that is no member any more, so that it can be added again."""
        node = self.nodes[node_id]
        self.crash(node_id, CrashKind.POWER)
        self.counts["machines replaced"] += 1
        self.trace.add(self.clock.now_ms, node_id, "its machine is replaced")
        mirror = self.invariants.mirrors[node_id]
        node.earlier = RemovedDisk(node.host.disk, replace(mirror, lost=list(mirror.lost)))
        state = node.host.replace_machine(node.rng.randint(1 << 20, 2 * FIRST_INCARNATION))
        self.invariants.replaced(node_id, state)
        self.boot_if_down(node_id)

    def has_lost_disk(self, node_id: str) -> bool:
        """Return True if the node has lost a disk that can return. One without all its log would rejoin."""
        node = self.nodes[node_id]
        lost = node.earlier
        return lost is not None and node.later is None and not lost.mirror.hard_state.rejoining

    def return_disk(self, node_id: str) -> None:
        """Bring back the disk that a node lost last: a volume that was not mounted for a while."""
        node = self.nodes[node_id]
        assert node.earlier is not None and node.later is None
        self.counts["lost disks returned"] += 1
        node.later = self._insert_disk(node, node.earlier)

    def restore_newest_disk(self, node_id: str) -> None:
        """Undo `return_disk`. The node stops, unless this was done already."""
        node = self.nodes[node_id]
        if node.later is not None:
            node.earlier, node.later = self._insert_disk(node, node.later), None

    def _insert_disk(self, node: SimNode, inserted: RemovedDisk) -> RemovedDisk:
        """Exchange the disk of a node, which stops it. Returns the disk taken out."""
        self.crash(node.node_id, CrashKind.POWER)
        removed = RemovedDisk(node.host.disk, self.invariants.exchanged(node.node_id, inserted.mirror))
        node.host.disk = inserted.disk
        return removed

    def directory_replaced(self, node_id: str) -> bool:
        """Stop a node that uses an earlier disk. Returns False if it uses its newest one."""
        if self.nodes[node_id].later is None:
            return False
        self.counts["earlier disks refused"] += 1
        self.clock.after(0, lambda: self.crash(node_id, CrashKind.PROCESS))
        return True

    def remove_minority(self, rng: Random) -> None:
        """Permanently remove as many nodes as the guarantees permit, in addition to nodes that lost their
        logs."""
        impaired = self.invariants.lost_nodes | self.bit_flips.nodes
        limit = (self.profile.nodes - 1) // 2 - len(impaired)
        whole = [node_id for node_id in self.nodes if node_id not in impaired]
        self.gone = set(rng.sample(whole, max(0, limit)))
        for node_id in self.gone:
            self.crash(node_id, rng.choice((CrashKind.PROCESS, CrashKind.POWER)))
            self.counts["nodes gone for good"] += 1

    def _tear(
        self, stream: SimPushStream, dead: NodeLife, kind: CrashKind, *, own_ms: int | None = None
    ) -> None:
        """Break a stream of a dead process. The kernel of a killed process resets it immediately, if the link
        works; a machine without power does not. `own_ms`: time after which the process itself notices, if it
        still runs."""
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

    def _kill(self, process: NodeLife) -> None:
        process.die()
        self._dead.append(process)
        self.nodes[process.node_id].process = None
        self._waiting = [w for w in self._waiting if w.process is not process]

    def pause(self, node_id: str) -> None:
        """Pause a process (SIGSTOP)."""
        process = self.process(node_id)
        if process.is_paused:
            return
        self.counts["pauses"] += 1
        self.trace.add(self.clock.now_ms, node_id, "paused")
        process.is_paused = True

        def give_up() -> None:
            # A suspended process does not respond to keep-alive pings. Its own end notices when it resumes.
            if process.alive and process.is_paused:
                for stream in self.network.streams_of(node_id):
                    stream.break_off(0, 0)

        self.clock.after(self.profile.keepalive_ms, give_up)

    def resume(self, node_id: str) -> None:
        """Resume a process (SIGCONT)."""
        process = self.nodes[node_id].process
        if process is not None and process.is_paused:
            self.trace.add(self.clock.now_ms, node_id, "resumed")
            process.resume()

    def stop(self, node_id: str, done: Callable[[], None] | None = None) -> None:
        """Stop a node gracefully: transfer leadership, if it leads, then close the store."""

        def close(_: object = None) -> None:
            # Outside the turn in which the transfer was answered.
            self.clock.after(0, finish)

        def finish() -> None:
            for stream in self.network.streams_of(node_id) if process.alive else ():
                self._tear(stream, process, CrashKind.PROCESS, own_ms=0)
            process.post(lambda: process.stop_parts(lambda: self.clock.after(0, lambda: released(0))))

        def released(waited_ms: int) -> None:
            """Wait until the disk is idle, but not longer than `_DISK_STOP_MS`."""
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

    def guarded_disk(self, process: NodeLife, action: Callable[[], None]) -> None:
        """Run a disk operation; the machine may crash inside it, or the disk may fail."""
        try:
            action()
        except SimulatedCrash:
            self._crashed_within(self.nodes[process.node_id])
        except StorageError as error:
            self._disk_failed(self.nodes[process.node_id], error)

    def fail_disk(self, node_id: str, operation: str, calls: int, restart_after_ms: int) -> bool:
        """Make a disk call fail, so that the process stops and restarts. Returns False if the host does not
        support it."""
        node = self.nodes[node_id]
        node.restart_after_ms = restart_after_ms
        node.disk_fails = node.host.fail_within(operation, calls)
        return node.disk_fails

    def go_down_in(self, job: str, node_id: str) -> None:
        """Called when a job starts on a node's disk; crashes the machine inside the job if a fault requested
        it."""
        node = self.nodes[node_id]
        if node.crash_in == job:
            node.crash_in = ""
            if node.host.crash_within(node.rng.randint(1, 16), node.rng.choice(tuple(CrashPoint))):
                self.counts[f"crashes: inside a {job}"] += 1

    def _disk_failed(self, node: SimNode, error: StorageError) -> None:
        """Stop the process, because the page cache cannot be trusted after a failure (rule 9)."""
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
        """Cut a node off from all others, in both directions."""
        for other in self.nodes:
            self.network.cut(node_id, other)
            self.network.cut(other, node_id)

    def split(self, group: set[str]) -> None:
        """Cut all links between a group of nodes and the others."""
        for source in self.nodes:
            for target in self.nodes:
                if (source in group) != (target in group):
                    self.network.cut(source, target)

    def heal(self) -> None:
        """Repair network, disks and processes of all nodes, except for permanently removed ones."""
        self.network.heal_all()
        for node in self.nodes.values():
            if node.node_id in self.gone:
                continue
            node.disk_factor = 1
            node.host.make_room()
            node.host.repair()
            node.crash_in = ""
            self.restore_newest_disk(node.node_id)
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
        again: ClientAppend | None = None,
        open_session: bool = False,
    ) -> Attempt:
        """Append a batch on a node now. Bodies must be unique in a run; `again` repeats an earlier batch."""
        append = again or ClientAppend(bodies, session, opens_session=open_session)
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

    def new_replica(self, process: NodeLife, store: LogStore) -> Replica:
        """Create the replica of a process that has its shell."""
        profile = self.profile
        core = CoreConfig(
            process.node_id,
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
            # small, because elections are frequent and each may advance time by this amount
            owner_stamp_every_ms=20,
        )
        if store.identity.is_joined:
            members = unknown_members({node: node for node in profile.node_ids}, process.node_id)
        else:
            members = first_members({node: node for node in profile.founders})
        config = ReplicaConfig(core, members, limits, profile.retention, cache_bytes=profile.cache_bytes)
        rng = self.seeds.random_for(f"{process.node_id} core")
        return self._replica_type(
            config, store, process.shell, random_ms=rng.randint, wall_ms=process.wall_ms
        )

    def new_state_machine(self) -> StateMachine | None:
        return self._state_machine() if self._state_machine is not None else None

    # -- hooks for simulations of programs

    def new_files(self) -> NodeFiles:
        """Create the files of a machine for its durable state machines."""
        return MachineFiles()

    def new_judge(self) -> StateJudge | None:
        """Create the judge of durable state machines, if there are any."""
        if self._durable_machine is None:
            return None
        return ReferenceState(
            self._durable_machine(MachineFiles(), lambda: -1, self.seeds.random_for("truth"))
        )

    def new_owner(self, process: NodeLife) -> NodeOwner | None:
        """Create the program that owns the node, for one process of the node."""
        owned = self.profile.owned
        return NumberingOwner(process, self.seeds.random_for(f"{process.node_id} owner")) if owned else None

    def new_applier(self, process: NodeLife) -> SimApplier:
        rng = self.seeds.random_for(f"{process.node_id} state")
        return SimApplier(process, self.new_feeder(process, rng), rng)

    def new_feeder(self, process: NodeLife, rng: Random) -> CheckedFeeder | None:
        """Create the feeder of a durable state machine, if the simulation has any."""
        if self._durable_machine is None or self._judge is None:
            return None
        files, store = self.nodes[process.node_id].files, process.store
        assert isinstance(files, MachineFiles)
        machine = self._durable_machine(files, lambda: store.durable_index, rng)
        return CheckedFeeder(process, machine, self._judge, rng)

    # -- callbacks of the invariants

    def _entry_committed(self, batch: Batch) -> None:
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
