"""The run of one seed: faults and clients, then healing, then the final checks."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol, TextIO

from dledger.core.values import Role
from dledger.infra.files.disk import CrashKind
from dledger.replica.replica import Replica
from dledger.testing.clients import PlainClient, SessionClient, SimReader
from dledger.testing.durable import MakeMachine
from dledger.testing.member_changes import MemberChanges
from dledger.testing.profile import (
    Profile,
    draw_profile,
    with_changing_members,
    with_member_series,
    with_purged_damage,
)
from dledger.testing.simulator import Simulation
from dledger.testing.virtual.sim_disk import CrashPoint
from dledger.testing.virtual.violation import Violation
from dledger.testing.world import NodeLife, StateMachine

TRACE_LINES = 60
#: Time limits after healing, in election timeouts, client timeouts and syncs; the longest applies.
_ELECTIONS = 40
_REQUESTS = 5
_SYNCS = 160


@dataclass
class RunResult:
    """Result of a run. `failure`: description of the violation, if any."""

    seed: int
    profile: Profile
    virtual_ms: int = 0
    steps: int = 0
    heal_ms: int = 0  # from the end of the faults until all logs were equal
    counts: Counter[str] = field(default_factory=Counter)
    failure: str | None = None
    rule: str | None = None  # of the violation


@dataclass(frozen=True)
class RunOptions:
    """Overrides for the choices of a seed."""

    nodes: int | None = None
    on_disk: bool | None = None
    profile: Profile | None = None
    members: str = ""  # "some": they change in some seeds; otherwise a key of MEMBER_SERIES
    replica_type: type[Replica] = Replica
    state_machine: Callable[[], StateMachine] | None = None
    durable_machine: MakeMachine | None = None


_DEFAULTS = RunOptions()


def run_seed(seed: int, options: RunOptions = _DEFAULTS, *, sink: TextIO | None = None) -> RunResult:
    """Run one seed and return its result. Findings are returned in `failure` and never raised."""
    profile = options.profile
    if profile is None:
        profile = draw_profile(Random(f"profile {seed}"), options.nodes, options.on_disk)
        profile = with_purged_damage(Random(f"damage: {seed}"), profile, options.on_disk)
        if options.members == "some":
            profile = with_changing_members(Random(f"members: {seed}"), profile)
        elif options.members:
            profile = with_member_series(Random(f"members: {seed}"), profile, options.members)
    simulation = Simulation(
        profile,
        seed=seed,
        sink=sink,
        replica_type=options.replica_type,
        state_machine=options.state_machine,
        durable_machine=options.durable_machine,
    )
    result = RunResult(seed, profile)
    try:
        _drive(simulation, result)
    except Exception as error:  # any exception of a replica is a finding of this seed
        result.rule = error.rule if isinstance(error, Violation) else type(error).__name__
        result.failure = _report(simulation, options, error)
    simulation.close()
    result.virtual_ms = simulation.clock.now_ms
    result.steps = simulation.clock.steps
    result.counts = simulation.counts
    result.counts["batches indeterminate"] = simulation.oracle.indeterminate
    result.counts["batches acknowledged"] = len(simulation.oracle.acknowledged)
    return result


def settle_ms(profile: Profile) -> int:
    """Return the time limit after healing for a leader, for progress of every client, and for equal logs."""
    return max(
        _ELECTIONS * profile.timing.election_max_ms,
        _REQUESTS * profile.request_timeout_ms,
        _SYNCS * profile.fsync_max_ms,
    )


def _catch_up_ms(sim: Simulation) -> int:
    """Return a time limit for the shortest log to become as long as the longest one, if each push has one
    entry. A single voter waits for nobody, so its learners may be far behind."""
    ends = [process.replica.core.log.end_index for process in sim.processes()]
    profile = sim.profile
    return (max(ends) - min(ends)) * (profile.fsync_max_ms + profile.delay_max_ms)


def _drive(sim: Simulation, result: RunResult) -> None:
    profile = sim.profile
    writers: list[PlainClient | SessionClient] = [
        PlainClient(sim, f"p{i}", sim.seeds.random_for(f"plain {i}")) for i in range(profile.plain_clients)
    ]
    sessions = [
        SessionClient(sim, f"s{i}", sim.seeds.random_for(f"session {i}"))
        for i in range(profile.session_clients)
    ]
    writers += sessions
    readers = [SimReader(sim, f"r{i}", sim.seeds.random_for(f"reader {i}")) for i in range(profile.readers)]
    nemesis = SimNemesis(sim, sim.seeds.random_for("nemesis"))
    sim.start()
    for starting in (*writers, *readers):
        starting.start()
    nemesis.start()
    sim.run_for(profile.fault_phase_ms)
    nemesis.is_stopped = True
    sim.trace.add(sim.clock.now_ms, "--", "healing")
    clients: list[_ProgressingClient] = [*writers, *readers, *([sim.owned] if profile.owned else [])]
    limit_ms = settle_ms(profile)
    if profile.minority_gone:
        sim.remove_minority(sim.seeds.random_for("gone"))
        sim.heal()
        _await_progress(sim, clients, limit_ms)
        sim.gone.clear()
    healed_ms = sim.clock.now_ms
    sim.heal()
    _await_progress(sim, clients, limit_ms)
    for client in clients:
        client.is_stopped = True
    sim.run_until(
        lambda: sim.is_settled() and all(s.is_settled for s in sessions),
        limit_ms=limit_ms + _catch_up_ms(sim),
    )
    if sim.counts["bits flipped"]:
        _repair_all(sim, limit_ms)
    result.heal_ms = sim.clock.now_ms - healed_ms
    check_end(sim)


class _ProgressingClient(Protocol):
    completed: int
    is_stopped: bool


def _await_progress(sim: Simulation, clients: Sequence[_ProgressingClient], limit_ms: int) -> None:
    """Wait until each client has completed something, within a time limit."""
    before = [client.completed for client in clients]
    sim.run_until(
        lambda: all(client.completed > n for client, n in zip(clients, before, strict=True)),
        limit_ms=limit_ms,
    )


def _repair_all(sim: Simulation, limit_ms: int) -> None:
    """Read everything that is stored and repair all damage, within a time limit."""
    begin_ms = sim.clock.now_ms
    while not sim.bit_flips.check_all_repaired():
        if sim.clock.now_ms - begin_ms > limit_ms:
            damages = {p.node_id: p.store.damages for p in sim.processes()}
            raise Violation(
                "damage", f"the damage was not repaired within {limit_ms} ms: {damages}; {sim.summary()}"
            )
        sim.run_for(100)
        sim.run_until(sim.is_settled, limit_ms=limit_ms)


def check_end(sim: Simulation) -> None:
    """Check that all logs are equal and contain every acknowledged entry at its position."""
    leader = sim.leader()
    assert leader is not None
    members = sim.process(leader).replica.core.membership.nodes
    mirrors = [mirror for mirror in sim.invariants.mirrors.values() if mirror.node_id in members]
    logs = [mirror.view for mirror in mirrors]
    reference = sim.invariants.committed
    for mirror in mirrors:
        begin = mirror.view.base.index
        if begin >= 0:
            sim.invariants.housekeeping.check_base(mirror.node_id, mirror.view.base)
        ends = [(b.last_index, b.term, b.chain_crc) for b in mirror.view.batches]
        expected = reference.ending_in(begin, reference.end_index)
        if ends != [(b.last_index, b.term, b.chain_crc) for b in expected]:
            raise Violation(
                "all logs equal",
                f"the log of {mirror.node_id} ends at {mirror.view.end_index}: {sim.summary()}",
            )
    assert all(log.end_index == reference.end_index for log in logs)
    sim.cluster_time.check_end()
    sim.oracle.check_final()
    processes = [p for p in sim.processes() if p.node_id in members]
    tables = {p.node_id: p.replica.admission.sessions.encode_committed() for p in processes}
    if len(set(tables.values())) > 1:
        raise Violation("sessions", f"the session tables differ although the logs are equal: {sim.summary()}")
    digests = [p.machine.digest() for p in processes if p.machine is not None]
    if any(digest != digests[0] for digest in digests):
        raise Violation("state machines equal", f"the digests differ although the logs are equal: {digests}")


def _report(sim: Simulation, options: RunOptions, error: Exception) -> str:
    command = f"python -m dledger.testing --seeds 1 --first {sim.seed}"
    if options.nodes is not None:
        command += f" --nodes {options.nodes}"
    if options.members:
        command += f" --members {options.members}"
    return "\n".join(
        [
            f"seed {sim.seed} failed at {sim.clock.now_ms} ms: {type(error).__name__}: {error}",
            *(() if isinstance(error, Violation) else traceback.format_exception(error)[-8:]),
            f"profile: {sim.profile}",
            f"nodes: {sim.summary()}",
            f"last {TRACE_LINES} events:",
            *sim.trace.tail(TRACE_LINES),
            f"seed {sim.seed}: {error}",
            f"rerun with: {command} --trace trace.txt",
        ]
    )


class SimNemesis:
    """Injects random faults of the profile at random times, until `is_stopped` is set."""

    def __init__(self, sim: Simulation, rng: Random) -> None:
        self.sim = sim
        self.rng = rng
        self.is_stopped = False
        self._members = MemberChanges(sim, rng)
        self._wrong_clock = rng.choice(sim.profile.node_ids) if rng.random() < 0.5 else None
        self._faults: dict[str, Callable[[], None]] = {
            "crash_process": lambda: self._crash(CrashKind.PROCESS),
            "crash_power": lambda: self._crash(CrashKind.POWER),
            "crash_all": self._crash_all,
            "crash_in_disk_operation": self._crash_in_disk_operation,
            "pause": self._pause,
            "isolate": self._isolate,
            "one_way": self._one_way,
            "split": self._split,
            "break_stream": self._break_stream,
            "break_all_streams": self._break_all_streams,
            "slow_disk": self._slow_disk,
            "stuck_disk": self._stuck_disk,
            "transfer": self._transfer,
            "graceful_stop": self._graceful_stop,
            "lossy_minute": self._lossy_minute,
            "change_members": self._members.ask,
            "lose_member": self._lose_member,
            "lose_disk": self._lose_disk,
            "return_disk": self._return_disk,
            "clock_jump": self._clock_jump,
            "full_disk": self._full_disk,
            "failing_disk": self._failing_disk,
            "flip_bits": self._flip_bits,
            "crash_in_purge": lambda: self._crash_in_job("purge"),
            "crash_in_repair": lambda: self._crash_in_job("repair"),
            "full_slow_disk": self._full_slow_disk,
        }

    def start(self) -> None:
        if self.sim.profile.faults:
            self._wait()

    def _wait(self) -> None:
        mean_ms = self.sim.profile.fault_every_ms
        self.sim.clock.after(max(1, int(self.rng.expovariate(1 / mean_ms))), self._strike)

    def _strike(self) -> None:
        if self.is_stopped:
            return
        name = self.rng.choice(self.sim.profile.faults)
        self.sim.counts[f"faults: {name}"] += 1
        self._note(name)
        self._faults[name]()
        self._wait()

    def _note(self, text: str) -> None:
        self.sim.trace.add(self.sim.clock.now_ms, "--", "nemesis:", text)

    def _duration_ms(self) -> int:
        """Draw a duration, mostly about an election timeout, sometimes much longer."""
        timing = self.sim.profile.timing
        longest = timing.election_max_ms * (8 if self.rng.random() < 0.2 else 2)
        return self.rng.randint(1, longest)

    def _victim(self) -> NodeLife | None:
        """Choose a running process, the leader more often than others."""
        running = self.sim.processes()
        leader = self.sim.leader()
        if leader is not None and self.rng.random() < 0.4:
            return self.sim.process(leader)
        return self.rng.choice(running) if running else None

    def _node(self) -> str:
        leader = self.sim.leader()
        if leader is not None and self.rng.random() < 0.4:
            return leader
        return self.rng.choice(self.sim.profile.node_ids)

    # -- nodes

    def _crash(self, kind: CrashKind) -> None:
        victim = self._victim()
        if victim is not None:
            self._crash_node(victim.node_id, kind)

    def _crash_node(self, node_id: str, kind: CrashKind) -> None:
        self.sim.crash(node_id, kind)
        self.sim.clock.after(self._duration_ms(), lambda: self.sim.boot_if_down(node_id))

    def _crash_all(self) -> None:
        kind = self.rng.choice((CrashKind.PROCESS, CrashKind.POWER))
        for process in self.sim.processes():
            self._crash_node(process.node_id, kind)

    def _crash_in_disk_operation(self) -> None:
        node = self.sim.nodes[self._node()]
        point = self.rng.choice(tuple(CrashPoint))
        node.crash_kind = self.rng.choice((CrashKind.PROCESS, CrashKind.POWER))
        node.restart_after_ms = self._duration_ms()
        if not node.host.crash_within(self.rng.randint(1, 40), point):
            self._crash(node.crash_kind)

    def _crash_in_job(self, name: str) -> None:
        """Crash the machine inside the next purge or repair of a node."""
        node = self.sim.nodes[self._node()]
        node.crash_kind = self.rng.choice((CrashKind.PROCESS, CrashKind.POWER))
        node.restart_after_ms = self._duration_ms()
        node.crash_in = name

    def _pause(self) -> None:
        victim = self._victim()
        if victim is not None and not victim.is_paused:
            self.sim.pause(victim.node_id)
            node_id = victim.node_id
            self.sim.clock.after(self._duration_ms(), lambda: self.sim.resume(node_id))

    def _graceful_stop(self) -> None:
        victim = self._victim()
        if victim is None or victim.is_paused:
            return
        node_id, down_ms = victim.node_id, self._duration_ms()
        self.sim.stop(node_id, lambda: self.sim.clock.after(down_ms, lambda: self.sim.boot_if_down(node_id)))

    def _transfer(self) -> None:
        leader = self.sim.leader()
        if leader is None:
            return
        process = self.sim.process(leader)
        to = None if self.rng.random() < 0.3 else self.rng.choice(self.sim.profile.node_ids)

        def ended(outcome: object) -> None:
            if outcome is None:
                self.sim.counts["transfers done"] += 1

        if process.replica.core.role is Role.LEADER:
            process.post(lambda: process.transfer(to, ended))

    # -- links

    def _cut_for_a_while(self, links: list[tuple[str, str]]) -> None:
        network = self.sim.network
        for source, target in links:
            network.cut(source, target)

        def heal() -> None:
            for source, target in links:
                network.heal(source, target)

        self.sim.clock.after(self._duration_ms(), heal)

    def _isolate(self) -> None:
        node, ids = self._node(), self.sim.profile.node_ids
        self._cut_for_a_while([(node, o) for o in ids] + [(o, node) for o in ids])

    def _one_way(self) -> None:
        """Cut one link, or all links of a node, in one direction."""
        node, ids = self._node(), self.sim.profile.node_ids
        kind = self.rng.randrange(3)
        if kind == 0:
            self._cut_for_a_while([(node, self.rng.choice(ids))])
        elif kind == 1:
            self._cut_for_a_while([(node, other) for other in ids])
        else:
            self._cut_for_a_while([(other, node) for other in ids])

    def _split(self) -> None:
        ids = list(self.sim.profile.node_ids)
        self.rng.shuffle(ids)
        group = ids[: self.rng.randint(1, len(ids) // 2)]
        rest = [n for n in ids if n not in group]
        self._cut_for_a_while([(a, b) for a in group for b in rest] + [(b, a) for a in group for b in rest])

    def _break_stream(self) -> None:
        streams = self.sim.network.streams
        if streams:
            late = self.rng.randint(0, self.sim.profile.keepalive_ms)
            soon = self.rng.randint(0, 5)
            leader_ms, follower_ms = self.rng.choice(((soon, soon), (soon, late), (late, soon)))
            self.rng.choice(streams).break_off(leader_ms, follower_ms)

    def _break_all_streams(self) -> None:
        for stream in list(self.sim.network.streams):
            stream.break_off(self.rng.randint(0, 20), self.rng.randint(0, 20))

    def _lossy_minute(self) -> None:
        network, profile = self.sim.network, self.sim.profile
        network.loss = self.rng.choice((0.1, 0.3, 0.6))
        network.spike = self.rng.choice((0.0, 0.1, 0.3))

        def end() -> None:
            if not self.is_stopped:
                network.loss, network.spike = profile.loss, profile.spike

        self.sim.clock.after(self._duration_ms(), end)

    # -- disks

    def _slow_disk(self) -> None:
        node = self.sim.nodes[self._node()]
        self._set_factor(node.node_id, self.rng.choice((5, 20)))
        self.sim.clock.after(self._duration_ms(), lambda: self._set_factor(node.node_id, 1))

    def _set_factor(self, node_id: str, factor: int) -> None:
        node = self.sim.nodes[node_id]
        node.disk_factor = factor
        if node.process is not None:
            node.process.disk_factor = factor

    def _stuck_disk(self) -> None:
        victim = self._victim()
        if victim is not None:
            victim.disk_stuck_until_ms = self.sim.clock.now_ms + self._duration_ms()

    def _lose_disk(self) -> None:
        node_id = self._node()
        if self.sim.lose_disk(node_id):
            self.sim.clock.after(self._duration_ms(), lambda: self.sim.boot_if_down(node_id))

    def _lose_member(self) -> None:
        """Lose the disk of a learner or of a voter, while the members change."""
        leader = self.sim.leader()
        learners = () if leader is None else self.sim.process(leader).replica.core.membership.learners
        node_id = self.rng.choice(learners) if learners and self.rng.random() < 0.5 else self._node()
        if self._members.lose_disk(node_id):
            self.sim.clock.after(self._duration_ms(), lambda: self.sim.boot_if_down(node_id))

    def _return_disk(self) -> None:
        """Bring back a lost disk for some time, once its node has rejoined with another one."""
        sim = self.sim
        rejoined = [n for n in sim.nodes if n not in sim.invariants.lost_nodes and sim.has_lost_disk(n)]
        if not rejoined:
            return
        node_id = self.rng.choice(rejoined)
        sim.return_disk(node_id)
        duration_ms = self._duration_ms()
        sim.clock.after(duration_ms, lambda: sim.boot_if_down(node_id))

        def restore() -> None:
            sim.restore_newest_disk(node_id)
            sim.boot_if_down(node_id)

        sim.clock.after(3 * duration_ms, restore)

    def _full_disk(self) -> None:
        """Fill a disk for some time, up to a few files, so that soon only the reserve remains."""
        host = self.sim.nodes[self._node()].host
        host.make_room()
        host.fill(self.rng.randint(0, 3))
        self.sim.clock.after(2 * self._duration_ms(), host.make_room)

    def _full_slow_disk(self) -> None:
        """Fill a disk that is also stuck: accepted data waits in memory and must fit on the disk later."""
        node = self.sim.nodes[self._node()]
        duration_ms = self._duration_ms()
        node.host.make_room()
        node.host.fill(self.rng.randint(0, 3))
        self.sim.clock.after(2 * duration_ms, node.host.make_room)
        if node.process is not None:
            node.process.disk_stuck_until_ms = self.sim.clock.now_ms + duration_ms

    def _failing_disk(self) -> None:
        """Make a disk operation fail with EIO. The process stops, and the next one trusts only the disk."""
        operation = self.rng.choice(("fdatasync", "fdatasync", "pwritev", "sync_directory"))
        if not self.sim.fail_disk(self._node(), operation, self.rng.randint(1, 8), self._duration_ms()):
            self._crash(CrashKind.PROCESS)

    def _flip_bits(self) -> None:
        """Flip one or several durable bits on a disk."""
        node_id = self._node()
        for _ in range(self.rng.choice((1, 1, 3))):
            self.sim.bit_flips.flip(node_id, self.rng)

    # -- clocks

    def _clock_jump(self) -> None:
        """Set the clock of a machine to a time that is wrong by minutes, a day or years, as an operator or a
        broken time server might.

        Half of the runs always choose the same machine. In these, cluster time must not be affected.
        """
        furthest_ms = self.rng.choice((60_000, 3_600_000, 86_400_000, 10 * 365 * 86_400_000))
        node_id = self._wrong_clock or self._node()
        self.sim.nodes[node_id].wall_offset_ms = self.rng.randint(-furthest_ms, furthest_ms)
