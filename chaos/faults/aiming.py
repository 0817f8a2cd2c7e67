"""From a step of a scenario to a fault on chosen nodes and links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from chaos.cluster.cluster import ChaosCluster, Leadership
from chaos.faults.disk_faults import BitFlip, ClockJump, FailingDisk, FullDisk, HeldUpDisk, PowerLoss
from chaos.faults.faults import Fault, Kill, Network, Stop, Terminate
from chaos.faults.take_over import TakeOver
from chaos.network.impairment import Impairment
from chaos.network.topology import Pair, bridge, halves, isolate, outward, ring
from chaos.plans.scenario import FaultStep
from dledger.cli.local.local_cluster import ClusterError


class Aimed(NamedTuple):
    """`leader`: who led in that moment, and so was or was not among the targets."""

    fault: Fault
    leader: Leadership | None


async def aim(cluster: ChaosCluster, step: FaultStep, rng: Random, hurt: Sequence[str]) -> Aimed:
    """The fault of a step, ready to begin. `hurt`: nodes that another fault has in its hands, which are not
    chosen. ClusterError if nobody leads who could be hit, or no node is left."""
    free = [node for node in cluster.node_ids if node not in hurt]
    wants_leader = step.target in ("leader", "follower")
    leader = await cluster.wait_leadership() if wants_leader else await cluster.leadership()
    targets = _targets(cluster, step, rng, free, leader)
    if step.kind in _PAIRS:
        return Aimed(_network_fault(cluster, step, targets, rng), leader)
    if step.kind in ("wipe", "bit_flip"):
        await cluster.see_what_is_whole()
    if step.kind == "wipe" and not cluster.copies.may_lose(targets[0]):
        raise ClusterError(f"{targets[0]} may hold the last good majority of something: not wiped")
    return Aimed(_node_fault(cluster, step, targets, rng), leader)


def _targets(
    cluster: ChaosCluster, step: FaultStep, rng: Random, free: list[str], leader: Leadership | None
) -> list[str]:
    if step.target == "leader":
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
        raise ClusterError(f"nobody is left to be hit by {step.kind} of {step.target}")
    return sorted(chosen)


def _node_fault(cluster: ChaosCluster, step: FaultStep, targets: list[str], rng: Random) -> Fault:
    match step.kind:
        case "stop":
            return Stop(cluster, targets)
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
    return Network(cluster, step.kind, targets, pairs, _impairment(step))


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
    """The targets are in the minority, as far as they fit in."""
    room = (len(nodes) - 1) // 2
    minority = list(targets)[:room]
    minority += rng.sample(_others(nodes, minority), room - len(minority))
    return halves(nodes, minority)


def _of_targets(nodes: Sequence[str], targets: Sequence[str], rng: Random) -> frozenset[Pair]:
    return isolate(nodes, targets)


#: Which links a kind of fault is about: from nodes and targets.
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
