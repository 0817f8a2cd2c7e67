"""Runs the faults of a plan and records the outcome of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from chaos.cluster.cluster import ChaosCluster, ObservedLeadership
from chaos.faults.disk_faults import BitFlip, ClockJump, FailingDisk, FullDisk, HeldUpDisk, PowerLoss
from chaos.faults.faults import Effect, Fault, Kill, NetworkFault, PauseProcesses, Terminate
from chaos.faults.member_changes import (
    AddNodes,
    LoseMajority,
    PromoteMirror,
    RemoveNodes,
    ReplaceNodes,
)
from chaos.faults.take_over import TakeOver
from chaos.network.impairment import Impairment
from chaos.network.topology import Pair, bridge, halves, isolate, outward, ring
from chaos.plans.scenario import FOUNDING, TAKING, FaultStep, Occurrence
from chaos.trace.schema import Ev
from chaos.trace.writer import TraceWriter
from dledger.cli.local.local_cluster import ClusterError
from dledger.errors import DLedgerError


@dataclass(slots=True)
class FaultRun:
    """One fault that was started. Times are monotonic ns; `ended` is 0 while it is in force. `old_term`: term
    of the leader at the start; `new_term`: term of its successor, -1 if the leader was not replaced."""

    occurrence: Occurrence
    began: int
    targets: Sequence[str] = ()
    ended: int = 0
    old_term: int = -1
    new_term: int = -1
    failures: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        step = self.occurrence.step
        return f"{step.kind} {step.target} ({','.join(self.targets) or 'none'})"


class Nemesis:
    """Runs faults. `on_change`: called when a fault has started or ended."""

    def __init__(
        self,
        cluster: ChaosCluster,
        writer: TraceWriter,
        rng: Random,
        on_change: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._cluster = cluster
        self._writer = writer
        cluster.record = lambda fields: writer.write(Ev.META, fields)
        self._rng = rng
        self._on_change = on_change
        self._hurt: set[str] = set()
        #: Per step: on a slow machine, a repetition waits for the end of the previous one and then for the
        #: planned interval, because a node that has just recovered has nothing to lose.
        self._step_locks: dict[FaultStep, asyncio.Lock] = {}
        self._ready_at: dict[FaultStep, float] = {}
        self._has_ended: dict[FaultStep, asyncio.Event] = {}
        self.done: list[FaultRun] = []

    @property
    def in_force(self) -> list[str]:
        return [done.name for done in self.done if not done.ended]

    async def run(self, plan: Sequence[Occurrence]) -> None:
        """Run all faults, each at its planned time; they may overlap."""
        began = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            for occurrence in plan:
                group.create_task(self._run_fault(occurrence, began + occurrence.at))

    async def _run_fault(self, occurrence: Occurrence, when: float) -> None:
        loop, step = asyncio.get_running_loop(), occurrence.step
        await asyncio.sleep(max(0.0, when - loop.time()))
        if occurrence.after is not None:
            await self._has_ended.setdefault(occurrence.after, asyncio.Event()).wait()
        async with self._step_locks.setdefault(step, asyncio.Lock()):
            await asyncio.sleep(max(0.0, self._ready_at.get(step, 0.0) - loop.time()))
            await self._begin(occurrence)
            self._ready_at[step] = loop.time() + step.every - step.lasts
        self._has_ended.setdefault(step, asyncio.Event()).set()

    async def _begin(self, occurrence: Occurrence) -> None:
        done = FaultRun(occurrence, self._writer.now())
        self.done.append(done)
        step = occurrence.step
        try:
            aimed = await aim(self._cluster, step, self._rng, sorted(self._hurt))
        except DLedgerError as error:
            self._note_begin(done, Effect(False, {"error": error.message}))
            self._note_end(done, Effect(False))
            return
        taken = set(aimed.fault.targets) if step.kind in TAKING else set()
        self._hurt |= taken
        try:
            await self._carry_out(done, aimed, step)
        finally:
            self._hurt -= taken

    async def _carry_out(self, done: FaultRun, aimed: AimedFault, step: FaultStep) -> None:
        loop = asyncio.get_running_loop()
        done.targets = aimed.fault.targets
        done.old_term = aimed.leader.term if aimed.leader else -1
        done.began = self._writer.now()
        over = loop.time() + step.lasts
        effect = await aimed.fault.begin()
        facts = dict(effect.facts)
        if aimed.leader is not None:
            facts |= {"leader": aimed.leader.node_id, "term": aimed.leader.term}
        self._note_begin(done, Effect(effect.happened, facts))
        if effect.trace_fields:
            self._writer.write(Ev.META, effect.trace_fields, at=effect.trace_time_ns)
        if step.unseats_leader and step.target == "leader":
            await self._await_successor(done, over)
        await asyncio.sleep(max(0.0, over - loop.time()))
        try:
            ended = await aimed.fault.end()
        except DLedgerError as error:
            ended = Effect(False, {"error": error.message})
        if step.unseats_leader and done.new_term < 0:
            await self._await_successor(done, loop.time() + 10)
        self._note_end(done, ended)

    async def _await_successor(self, done: FaultRun, until: float) -> None:
        seconds = until - asyncio.get_running_loop().time()
        try:
            after = await self._cluster.wait_leadership(max(0.1, seconds), after_term=done.old_term)
        except DLedgerError:
            return
        done.new_term = after.term

    def _note_begin(self, done: FaultRun, effect: Effect) -> None:
        step = done.occurrence.step
        if not effect.happened:
            done.failures.append(f"did not start: {_facts(effect)}")
        self._writer.write(
            Ev.FAULT,
            {
                "e": "begin",
                "fault": done.occurrence.number,
                "f": step.kind,
                "targets": ",".join(done.targets),
                "aim": step.target,
                "params": step.model_dump_json(exclude_defaults=True),
                "effective": effect.happened,
                "evidence": _facts(effect),
            },
            at=done.began,
        )
        self._writer.flush()
        self._on_change(f"{done.name} started" if effect.happened else f"{done.name} DID NOT START")

    def _note_end(self, done: FaultRun, effect: Effect) -> None:
        done.ended = self._writer.now()
        if not effect.happened:
            done.failures.append(f"had no effect: {_facts(effect)}")
        self._writer.write(
            Ev.FAULT,
            {
                "e": "end",
                "fault": done.occurrence.number,
                "f": done.occurrence.step.kind,
                "targets": ",".join(done.targets),
                "effective": effect.happened,
                "evidence": _facts(effect),
            },
        )
        self._writer.flush()
        self._on_change(f"{done.name} ended" if effect.happened else f"{done.name} HAD NO EFFECT")


def _facts(effect: Effect) -> str:
    return " ".join(f"{key}={value}" for key, value in effect.facts.items())


class AimedFault(NamedTuple):
    """A fault with its targets. `leader`: the leader when the targets were selected; it may be among them."""

    fault: Fault
    leader: ObservedLeadership | None


async def aim(cluster: ChaosCluster, step: FaultStep, rng: Random, hurt: Sequence[str]) -> AimedFault:
    """Create the fault of a step. `hurt`: nodes that are targets of another fault and must not be chosen.

    Raises ClusterError if there is no leader or no node to choose.
    """
    free = [node for node in cluster.node_ids if node not in hurt]
    wants_leader = step.target in ("leader", "follower") or step.kind in FOUNDING
    leader = await cluster.wait_leadership() if wants_leader else await cluster.leadership()
    if step.kind == "add":
        return AimedFault(AddNodes(cluster, step.count), leader)
    targets = _targets(cluster, step, rng, free, leader)
    if step.kind in _PAIRS:
        return AimedFault(_network_fault(cluster, step, targets, rng), leader)
    if step.kind in ("wipe", "replace", "bit_flip"):
        await cluster.update_recovered_copies()
    if step.kind in ("wipe", "replace") and not cluster.copies.may_lose(targets[0]):
        raise ClusterError(f"{targets[0]} must not lose its log: a majority may need its copy of the log")
    return AimedFault(_node_fault(cluster, step, targets, rng), leader)


def _targets(
    cluster: ChaosCluster, step: FaultStep, rng: Random, free: list[str], leader: ObservedLeadership | None
) -> list[str]:
    if step.kind == "lose_majority":
        assert leader is not None
        # The leader is lost: only then can the survivor lack what it acknowledged.
        chosen = rng.sample([node for node in free if node != leader.node_id], cluster.majority - 1)
        chosen.append(leader.node_id)
    elif step.target == "leader":
        assert leader is not None
        chosen = [leader.node_id] if leader.node_id in free else []
    elif step.target == "follower":
        assert leader is not None
        others = [node for node in free if node != leader.node_id]
        chosen = [rng.choice(others)] if others else []
    elif step.target == "random":
        chosen = [rng.choice(free)] if free else []
    else:
        count = {"minority": len(cluster.node_ids) - cluster.majority, "majority": cluster.majority}
        chosen = rng.sample(free, min(len(free), count.get(step.target, len(free))))
    if not chosen:
        raise ClusterError(f"no node is available for the fault {step.kind} with target {step.target}")
    return sorted(chosen)


def _node_fault(cluster: ChaosCluster, step: FaultStep, targets: list[str], rng: Random) -> Fault:
    match step.kind:
        case "stop":
            return PauseProcesses(cluster, targets)
        case "replace":
            return ReplaceNodes(cluster, targets)
        case "remove":
            return RemoveNodes(cluster, targets)
        case "lose_majority":
            return LoseMajority(cluster, targets)
        case "promote_mirror":
            return PromoteMirror(cluster, targets, kills=rng.random() < 0.5)
        case "take_over":
            return TakeOver(cluster, targets)
        case "term":
            return Terminate(cluster, targets)
        case "slow_disk":
            return HeldUpDisk(cluster, targets, slow_ms=step.slow_ms)
        case "stuck_disk":
            return HeldUpDisk(cluster, targets)
        case "full_disk":
            return FullDisk(cluster, targets)
        case "write_error" | "sync_error":
            return FailingDisk(cluster, step.kind, targets)
        case "power_loss":
            return PowerLoss(cluster, targets, rng)
        case "bit_flip":
            return BitFlip(cluster, targets, step.entries, rng)
        case "clock_jump":
            return ClockJump(cluster, targets, round(step.jump_s * 1000))
        case _:
            return Kill(cluster, targets, wipe=step.kind == "wipe")


def _network_fault(cluster: ChaosCluster, step: FaultStep, targets: list[str], rng: Random) -> Fault:
    pairs = _PAIRS[step.kind](cluster.node_ids, targets, rng)
    return NetworkFault(cluster, step.kind, targets, pairs, _impairment(step))


def _impairment(step: FaultStep) -> Impairment:
    match step.kind:
        case "delay":
            return Impairment(delay_ms=step.delay_ms, jitter_ms=step.jitter_ms)
        case "loss":
            return Impairment(reset_chance=step.reset_chance)
        case "reset":
            return Impairment(reset=True)
        case "throttle":
            return Impairment(bytes_per_second=step.bytes_per_second)
        case "hang":
            return Impairment(hang=True)
        case _:
            return Impairment(cut=True)


def _others(nodes: Sequence[str], targets: Sequence[str]) -> list[str]:
    return [node for node in nodes if node not in targets]


def _one_link(nodes: Sequence[str], targets: Sequence[str], rng: Random) -> Pair:
    return targets[0], rng.choice([node for node in nodes if node != targets[0]])


def _cut(nodes: Sequence[str], targets: Sequence[str], rng: Random) -> frozenset[Pair]:
    a, b = _one_link(nodes, targets, rng)
    return frozenset({(a, b), (b, a)})


def _halves(nodes: Sequence[str], targets: Sequence[str], rng: Random) -> frozenset[Pair]:
    """Put as many targets as possible in the minority."""
    room = (len(nodes) - 1) // 2
    minority = list(targets)[:room]
    minority += rng.sample(_others(nodes, minority), room - len(minority))
    return halves(nodes, minority)


def _of_targets(nodes: Sequence[str], targets: Sequence[str], rng: Random) -> frozenset[Pair]:
    return isolate(nodes, targets)


#: Links that each kind of fault affects, computed from nodes and targets.
_PAIRS: dict[str, Callable[[Sequence[str], Sequence[str], Random], frozenset[Pair]]] = {
    "isolate": _of_targets,
    "isolate_out": lambda nodes, targets, rng: outward(targets, _others(nodes, targets)),
    "isolate_in": lambda nodes, targets, rng: outward(_others(nodes, targets), targets),
    "cut": _cut,
    "cut_one_way": lambda nodes, targets, rng: frozenset({_one_link(nodes, targets, rng)}),
    "halves": _halves,
    "bridge": lambda nodes, targets, rng: bridge(nodes, targets[0]),
    "ring": lambda nodes, targets, rng: ring(nodes),
    "delay": _of_targets,
    "loss": _of_targets,
    "reset": _of_targets,
    "throttle": _of_targets,
    "hang": _of_targets,
}
