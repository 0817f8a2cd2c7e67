"""Bit flips on the disks of a simulated cluster. Tracks where flips are allowed, and which ones are not
repaired yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from dledger.store.format.batch import Batch
from dledger.testing.world import SimWorld


class Flip(NamedTuple):
    first_index: int  # of the batch
    at_end: bool  # the batch may become the last one of its node, so that the end of the log is lost with it
    is_there: Callable[[], bool]


@dataclass(slots=True)
class BitFlips:
    """All flips of a run.

    At any time, only a minority of the nodes has a flip in a given batch, or has lost its log. Different
    batches may be damaged on different nodes.
    """

    sim: SimWorld
    _live: dict[str, list[Flip]] = field(default_factory=dict)  # by node

    def on(self, node_id: str) -> bool:
        """Return True if this node's disk has flipped bytes that were not repaired or overwritten."""
        remaining = [flip for flip in self._live.get(node_id, ()) if flip.is_there()]
        self._live[node_id] = remaining
        return bool(remaining)

    @property
    def nodes(self) -> set[str]:
        return {node_id for node_id in list(self._live) if self.on(node_id)}

    def put(self, node_id: str, batch: Batch, is_there: Callable[[], bool], *, at_end: bool = True) -> None:
        self._live.setdefault(node_id, []).append(Flip(batch.first_index, at_end, is_there))

    def flip(self, node_id: str, rng: Random) -> bool:
        """Flip a durable bit of this node. Returns False, without a change, if that could damage too many
        copies."""
        sim = self.sim
        mirror = sim.invariants.mirrors[node_id]
        # Uncommitted entries may be replaced by others, after which no node could repair them.
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
            # If an entry and its index record are both damaged, nothing proves that the entry existed.
            return False
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
        """Return the nodes without a copy of the batch, or without a vote, if it is damaged on this node
        too."""
        impaired = self.sim.invariants.lost_nodes | {node_id}
        for other in self.nodes:
            flips = self._live[other]
            if at_end or any(flip.at_end or flip.first_index == batch.first_index for flip in flips):
                impaired.add(other)
        return impaired

    def check_all_repaired(self) -> bool:
        """After the healing, read everything that is stored. If an entry is damaged, reports the damage to
        its node and returns False."""
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
