"""Whatever can go wrong, at random times: it breaks things, and repairs each after a while."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from dledger.core.values import Role
from dledger.store.disk import CrashKind
from dledger.testing.simulator import Simulation
from dledger.testing.virtual.sim_disk import CrashPoint
from dledger.testing.world import Life


class Nemesis:
    """Picks a fault of the profile every now and then. After `stop`, nothing new is broken."""

    def __init__(self, sim: Simulation, rng: Random) -> None:
        self.sim = sim
        self.rng = rng
        self.is_stopped = False
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
            "lose_disk": self._lose_disk,
            "clock_jump": self._clock_jump,
            "full_disk": self._full_disk,
            "failing_disk": self._failing_disk,
            "flip_bits": self._flip_bits,
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
        """Mostly about an election time-out, sometimes much longer."""
        timing = self.sim.profile.timing
        longest = timing.election_max_ms * (8 if self.rng.random() < 0.2 else 2)
        return self.rng.randint(1, longest)

    def _victim(self) -> Life | None:
        """Some running process, the leader more often than others."""
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
        """One link, or all links of a node, in one direction."""
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

    def _full_disk(self) -> None:
        """Nearly full: sooner or later there is no room but the reserve, until somebody cleans up."""
        host = self.sim.nodes[self._node()].host
        host.make_room()
        host.fill(self.rng.randint(0, 3))
        self.sim.clock.after(2 * self._duration_ms(), host.make_room)

    def _failing_disk(self) -> None:
        """EIO: the process stops, and the next one believes nothing but the disk."""
        operation = self.rng.choice(("fdatasync", "fdatasync", "pwritev", "sync_directory"))
        if not self.sim.fail_disk(self._node(), operation, self.rng.randint(1, 8), self._duration_ms()):
            self._crash(CrashKind.PROCESS)

    def _flip_bits(self) -> None:
        """Bytes that were durable go bad: one, or several on the same disk."""
        node_id = self._node()
        for _ in range(self.rng.choice((1, 1, 3))):
            self.sim.bit_flips.flip(node_id, self.rng)

    # -- clocks

    def _clock_jump(self) -> None:
        """An operator, or a broken time server, sets the clock of a machine: by minutes, or by years."""
        if self.sim.invariants.housekeeping.first_stamp_ms is None:
            return  # whoever stamps first has nothing else to go by
        furthest_ms = self.rng.choice((60_000, 3_600_000, 10 * 365 * 86_400_000))
        node = self.sim.nodes[self._node()]
        node.wall_offset_ms = self.rng.randint(-furthest_ms, furthest_ms)
