"""Bits that flip on the disks of a simulated cluster: where they may, and which of them are still there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from dledger.core.sessions import MAX_SESSIONS
from dledger.node.log_state import rebuild
from dledger.store.api import EntryDamaged, LogStore
from dledger.testing.care import fetch
from dledger.testing.violation import Violation

if TYPE_CHECKING:
    from dledger.testing.simulator import SimNode, Simulation


@dataclass(slots=True)
class Flips:
    """All flips of a run. Only a minority of the nodes has any, or has lost its log, at the same time."""

    sim: Simulation
    #: By node: where, and whether it is still there.
    _live: dict[str, list[tuple[int, Callable[[], bool]]]] = field(default_factory=dict)

    def on(self, node_id: str) -> bool:
        """Are there bytes on this node's disk that nobody has repaired or overwritten?"""
        found = [(at, is_there) for at, is_there in self._live.get(node_id, ()) if is_there()]
        self._live[node_id] = found
        return bool(found)

    @property
    def nodes(self) -> set[str]:
        return {node_id for node_id in list(self._live) if self.on(node_id)}

    def flip(self, node_id: str, rng: Random) -> bool:
        """Some durable byte of this node. False, with nothing done, if that might be one copy too many."""
        sim = self.sim
        impaired = self.nodes | sim.invariants.lost_nodes | {node_id}
        mirror = sim.invariants.mirrors[node_id]
        # What is not committed may have to give way to other entries, and then nobody has it to repair it by.
        last = min(mirror.durable_index, sim.invariants.committed.end_index)
        durable = [b for b in mirror.written.batches if b.last_index <= last]
        if len(impaired) > (sim.profile.nodes - 1) // 2 or not durable:
            return False
        batch = durable[-1] if rng.random() < 0.2 else rng.choice(durable)
        if not sim.invariants.committed.covers(batch):
            return False
        if any(at == batch.first_index for at, _ in self._live.get(node_id, ())):
            return False  # with an entry and its index record both gone, nothing tells that it ever was there
        is_there = sim.nodes[node_id].host.flip(batch, rng, is_down=sim.nodes[node_id].process is None)
        if is_there is None:
            return False
        self._live.setdefault(node_id, []).append((batch.first_index, is_there))
        sim.counts["bits flipped"] += 1
        where = f"a bit flips in {batch.first_index}..{batch.last_index}"
        sim.trace.add(sim.clock.now_ms, node_id, where)
        return True

    def repair_before_start(self, node: SimNode, store: LogStore) -> int | None:
        """What a start has to read is repaired first, as the real node does. What others have purged nobody
        can repair: the index of the last such entry, -1 if there is none. None: not now."""
        begin_behind = -1
        for _ in range(100):
            try:
                rebuild(store, MAX_SESSIONS, 0, begin_behind)
                return begin_behind
            except EntryDamaged as error:
                if not self.on(node.node_id):
                    raise
                damage = store.note_damage(error.index)
            if damage is None:
                continue  # only an index record, which is there again
            self.sim.counts["damages found at a start"] += 1
            peers = [
                p
                for p in self.sim.processes()
                if not self.sim.network.is_cut(p.node_id, node.node_id) and not p.is_paused
            ]
            found = (fetch(p.store, damage, p.replica.core.committed_index) for p in peers)
            frames = next((frames for frames in found if frames is not None), None)
            if frames is not None:
                store.repair(frames)
            elif any(p.store.base.index >= damage.first_index for p in peers):
                self.sim.counts["starts behind damage that others have purged"] += 1
                begin_behind = damage.last_index
            else:
                return None
        raise Violation("damage", f"{node.node_id} cannot start: {store.damages}")

    def check_all_repaired(self) -> bool:
        """After everything is healed: read all that is stored. What is found is noted, and False."""
        good = True
        for process in self.sim.processes():
            at = 0
            while True:
                step = process.store.scrub(at, 1 << 20)
                if step.damage is not None:
                    process.care.suspect(step.damage.first_index)
                    good = False
                if step.next_index <= max(at, process.store.begin_index):
                    break
                at = step.next_index
            good = good and not process.store.damages
        return good
