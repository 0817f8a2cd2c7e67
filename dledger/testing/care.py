"""What looks after the log of a simulated node: it notes damage, has it repaired, and scrubs (rule 10).

As the repairer and the scrubber of a real node do it, in virtual time: reads fail or the scrub finds
something, the disk thread looks what is damaged there, another member is asked for the range, and the disk
thread puts it in place.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from dledger.errors import Code, ReadFailed, StorageError
from dledger.node.fetching import read_for_repair
from dledger.store.api import Damage, EntryDamaged, Frames

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
        self._brought = Frames(-1, -1, b"")  # what other members have given of the damage that is repaired

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

    def _on_disk(self, work: Callable[[], None]) -> None:
        self._is_busy = True
        disk = self._process.disk
        disk.call(work).add_done_callback(lambda _outcome: disk.later(self._done))

    def _done(self) -> None:
        self._is_busy = False

    def _repair(self, damage: Damage) -> None:
        """Ask some other member for what is still missing; then the same or another one, after a while."""
        process, sim = self._process, self._process.sim
        peer = self._rng.choice([n for n in sim.profile.node_ids if n != process.node_id])
        if self._brought.first_index != damage.first_index or self._rng.random() < 0.3:
            # Another damage; or a member whose log goes on differently may have begun this one.
            self._brought = Frames(damage.first_index, damage.first_index - 1, b"")
        first = self._brought.last_index + 1
        self._is_busy = True
        answered = False

        def give_up() -> None:
            if not answered:
                self._done()

        def fetched(frames: Frames | None, purged: bool) -> None:
            nonlocal answered
            if answered or sim.network.is_cut(peer, process.node_id):
                return
            answered = True
            if purged:
                process.shell.purged_elsewhere(damage.last_index)
            if frames is None:
                self._done()
                return
            brought = self._brought
            self._brought = Frames(brought.first_index, frames.last_index, bytes(brought.data) + frames.data)
            self._on_disk(self._put)

        def asked() -> None:
            source = sim.nodes[peer].process
            if source is None or sim.network.is_cut(process.node_id, peer):
                return
            # A reader thread of the peer answers.
            source.post(lambda: answer(source))

        def answer(source: SimProcess) -> None:
            frames = source.care.give(first, damage.last_index)
            purged = source.store.begin_index > first
            process.after(sim.network.delay_ms(), lambda: fetched(frames, purged))

        sim.clock.after(sim.network.delay_ms(), asked)
        process.after(PAUSE_MS + self._rng.randint(0, PAUSE_MS), give_up)

    def give(self, first_index: int, last_index: int) -> Frames | None:
        """Entries for another member's repair, as far as this one has them."""
        store, parts, at = self._process.store, [], first_index
        try:
            while at <= last_index:
                frames = read_for_repair(store, at, last_index, 1 << 20)
                parts.append(frames.data)
                at = frames.last_index + 1
        except EntryDamaged as error:
            self.suspect(error.index)
        except ReadFailed:
            pass  # purged here, not yet written, or another entry begins there
        return Frames(first_index, at - 1, b"".join(parts)) if parts else None

    def _put(self) -> None:
        process, brought = self._process, self._brought
        sim = process.sim
        try:
            process.store.repair(brought)
        except StorageError as error:
            if error.code is not Code.DATA_DAMAGED:
                raise
            sim.counts["repairs refused"] += 1
            sim.trace.add(sim.clock.now_ms, process.node_id, f"no repair of {brought.first_index}: {error}")
            return
        sim.counts["damages repaired"] += 1
        sim.trace.add(sim.clock.now_ms, process.node_id, f"repaired {brought.first_index}")
