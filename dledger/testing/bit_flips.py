"""Bits that flip on the disks of a simulated cluster: where they may, and which of them are still there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from dledger.store.format.batch import Batch
from dledger.testing.world import World


class Flip(NamedTuple):
    first_index: int  # of the batch
    at_end: bool  # it might become the last batch of its node, and then the end of the log is lost with it
    is_there: Callable[[], bool]


@dataclass(slots=True)
class BitFlips:
    """All flips of a run. Of every batch, only a minority of the nodes has a flip, or has lost its log, at
    the same time; different batches may have theirs on different nodes."""

    sim: World
    _live: dict[str, list[Flip]] = field(default_factory=dict)  # by node

    def on(self, node_id: str) -> bool:
        """Are there bytes on this node's disk that nobody has repaired or overwritten?"""
        found = [flip for flip in self._live.get(node_id, ()) if flip.is_there()]
        self._live[node_id] = found
        return bool(found)

    @property
    def nodes(self) -> set[str]:
        return {node_id for node_id in list(self._live) if self.on(node_id)}

    def put(self, node_id: str, batch: Batch, is_there: Callable[[], bool], *, at_end: bool = True) -> None:
        self._live.setdefault(node_id, []).append(Flip(batch.first_index, at_end, is_there))

    def flip(self, node_id: str, rng: Random) -> bool:
        """Some durable byte of this node. False, with nothing done, if that might be one copy too many."""
        sim = self.sim
        mirror = sim.invariants.mirrors[node_id]
        # What is not committed may have to give way to other entries, and then nobody has it to repair it by.
        last = min(mirror.durable_index, sim.invariants.committed.end_index)
        durable = [b for b in mirror.written.batches if b.last_index <= last]
        if not durable:
            return False
        batch = durable[-1] if rng.random() < 0.2 else rng.choice(durable)
        at_end = batch in durable[-2:]
        if len(self._impaired(node_id, batch, at_end=at_end)) > (sim.profile.nodes - 1) // 2:
            return False
        if not sim.invariants.committed.covers(batch):
            return False
        if any(flip.first_index == batch.first_index for flip in self._live.get(node_id, ())):
            return False  # with an entry and its index record both gone, nothing tells that it ever was there
        is_there = sim.nodes[node_id].host.flip(batch, rng, is_down=sim.nodes[node_id].process is None)
        if is_there is None:
            return False
        self.put(node_id, batch, is_there, at_end=at_end)
        sim.counts["bits flipped"] += 1
        if len(self.nodes) > (sim.profile.nodes - 1) // 2:
            sim.counts["bits flipped on a majority"] += 1
        where = f"a bit flips in {batch.first_index}..{batch.last_index}"
        sim.trace.add(sim.clock.now_ms, node_id, where)
        return True

    def _impaired(self, node_id: str, batch: Batch, *, at_end: bool) -> set[str]:
        """Nodes that may have no copy of the batch, or no vote, once it is damaged on this one too."""
        impaired = self.sim.invariants.lost_nodes | {node_id}
        for other in self.nodes:
            flips = self._live[other]
            if at_end or any(flip.at_end or flip.first_index == batch.first_index for flip in flips):
                impaired.add(other)
        return impaired

    def check_all_repaired(self) -> bool:
        """After everything is healed: read all that is stored. What is found is noted, and False."""
        good = True
        for process in self.sim.processes():
            at = 0
            while True:
                step = process.store.scrub(at, 1 << 20)
                if step.damage is not None:
                    process.suspect(step.damage.first_index)
                    good = False
                if step.next_index <= max(at, process.store.begin_index):
                    break
                at = step.next_index
            good = good and not process.store.damages
        return good
