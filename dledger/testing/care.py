"""What looks after the log of a simulated node: it notes damage, has it repaired, and scrubs (rule 10).

As the repairer and the scrubber of a real node do it, in virtual time: reads fail or the scrub finds
something, the disk thread looks what is damaged there, another member is asked for the range, and the disk
thread puts it in place.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from dledger.errors import DLedgerError
from dledger.store.api import Damage, EntryDamaged, Frames, LogStore
from dledger.testing.disk_thread import CallJob

if TYPE_CHECKING:
    from dledger.testing.process import SimProcess

SCRUB_BYTES = 8 << 10
PAUSE_MS = 30


class Care:
    """Of one process. All methods in turns of it."""

    def __init__(self, process: SimProcess, rng: Random) -> None:
        self._process = process
        self._rng = rng
        self._suspects: set[int] = set()
        self._is_busy = False
        self._next_scrub_ms = 0
        self._scrub_at = 0

    def suspect(self, index: int) -> None:
        if not any(d.first_index <= index <= d.last_index for d in self._process.store.damages):
            self._suspects.add(index)

    def tick(self) -> None:
        process = self._process
        while process.replica.suspects:
            self.suspect(process.replica.suspects.pop())
        now_ms, every_ms = process.sim.clock.now_ms, process.sim.profile.scrub_every_ms
        if every_ms and now_ms >= self._next_scrub_ms:
            self._next_scrub_ms = now_ms + every_ms
            self._scrub()
        if self._is_busy:
            return
        if self._suspects:
            self._look(self._suspects.pop())
        elif process.store.damages:
            self._repair(self._rng.choice(process.store.damages))

    def _scrub(self) -> None:
        found = self._process.store.scrub(self._scrub_at, SCRUB_BYTES)
        self._scrub_at = found.next_index
        if found.damage is not None:
            self.suspect(found.damage.first_index)

    def _look(self, index: int) -> None:
        process = self._process

        def look() -> None:
            known = process.store.damages
            damage = process.store.note_damage(index)
            if damage is not None and damage not in known:
                process.sim.counts["damages found"] += 1
                process.sim.trace.add(process.sim.clock.now_ms, process.node_id, f"finds {damage}")

        self._on_disk(look)

    def _on_disk(self, work: object) -> None:
        assert callable(work)
        self._is_busy = True
        self._process.call_on_disk(CallJob(work, self._done))

    def _done(self) -> None:
        self._is_busy = False

    def _repair(self, damage: Damage) -> None:
        """Ask some other member; without an answer, another one after a while."""
        process, sim = self._process, self._process.sim
        peer = self._rng.choice([n for n in sim.profile.node_ids if n != process.node_id])
        self._is_busy = True
        answered = False

        def give_up() -> None:
            if not answered:
                self._done()

        def fetched(frames: Frames | None) -> None:
            nonlocal answered
            if answered or sim.network.is_cut(peer, process.node_id):
                return
            answered = True
            if frames is None:
                self._done()
            else:
                self._on_disk(lambda: self._put(frames))

        def asked() -> None:
            source = sim.nodes[peer].process
            if source is None or sim.network.is_cut(process.node_id, peer):
                return
            # A reader thread of the peer answers.
            source.post(lambda: answer(source))

        def answer(source: SimProcess) -> None:
            committed = source.replica.core.committed_index
            frames = fetch(source.store, damage, committed, source.care.suspect)
            process.after(sim.network.delay_ms(), lambda: fetched(frames))

        sim.clock.after(sim.network.delay_ms(), asked)
        process.after(PAUSE_MS + self._rng.randint(0, PAUSE_MS), give_up)

    def _put(self, frames: Frames) -> None:
        process = self._process
        process.store.repair(frames)
        process.sim.counts["damages repaired"] += 1
        process.sim.trace.add(process.sim.clock.now_ms, process.node_id, f"repaired {frames.first_index}")


def fetch(store: LogStore, damage: Damage, committed: int, suspect: object = None) -> Frames | None:
    """The range from another member's log, as far as that is committed; None if it has not all of it."""
    first, parts = damage.first_index, []
    try:
        while first <= damage.last_index:
            if committed < damage.last_index:
                return None
            frames = store.read(first, damage.last_index, 1 << 20, whole_batches=True)
            parts.append(frames.data)
            first = frames.last_index + 1
    except EntryDamaged as error:
        if callable(suspect):
            suspect(error.index)
        return None
    except (DLedgerError, AssertionError):
        return None  # purged here, not yet written, or another entry begins there
    return Frames(damage.first_index, first - 1, b"".join(parts))
