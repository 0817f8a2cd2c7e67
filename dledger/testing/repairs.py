"""What the repairer of a simulated node does to its store, counted and noted in the trace.

Repairer and scrubber are those of a real node; only their disk, threads, network and chance are simulated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, TypeVar

from dledger.errors import Code, StorageError
from dledger.node.members.repairer import Repairer, Scrubber
from dledger.store.api import Damage, Frames, RepairWork
from dledger.testing.world import Life

if TYPE_CHECKING:
    from dledger.node.parts import NodeParts

T = TypeVar("T")

_SCRUB_BYTES = 8 << 10
#: Members that can help are back sooner than those of a real cluster.
_LONGEST_PAUSE_S = 1.0


async def _in_thread(work: Callable[[], T], name: str) -> T:
    """As dledger.node.loop.threads has it, on a loop in virtual time."""
    return await asyncio.get_running_loop().run_in_executor(None, work)


class ObservedDamages:
    """Implements dledger.node.members.repairer.RepairableStore: the store of a process."""

    def __init__(self, process: Life) -> None:
        self._process = process
        self._store = process.store

    @property
    def damages(self) -> Sequence[Damage]:
        return self._store.damages

    def note(self, count: str, text: str) -> None:
        sim = self._process.sim
        sim.counts[count] += 1
        sim.trace.add(sim.clock.now_ms, self._process.node_id, text)

    def note_damage(self, index: int) -> Damage | None:
        known = self._store.damages
        damage = self._store.note_damage(index)
        if damage is not None and damage not in known:
            self.note("damages found", f"finds {damage}")
        return damage

    def begin_repair(self, damage: Damage) -> RepairWork:
        return ObservedRepair(self, self._store.begin_repair(damage), damage)


class ObservedRepair:
    """Implements RepairWork: one of the store."""

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
        self._counting_refusals(self._work.finish)
        self._observed.note("damages repaired", f"repaired {self._first_index}")

    def _counting_refusals(self, work: Callable[[], None]) -> None:
        try:
            work()
        except StorageError as error:
            if error.code is Code.DATA_DAMAGED:
                self._observed.note("repairs refused", f"no repair of {self._first_index}: {error}")
            raise


def repairer_of(process: Life, parts: NodeParts, rng: Random) -> Repairer:
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


def scrubber_of(process: Life) -> Scrubber:
    every_ms = process.sim.profile.scrub_every_ms
    return Scrubber(
        process.store,
        None,
        process.suspect,
        bytes_per_second=_SCRUB_BYTES * 1000 // every_ms if every_ms else 0,
        pause_s=every_ms / 1000,
        piece_bytes=_SCRUB_BYTES,
    )
