"""A log store in memory, which replaces the disk store in fast simulations. It distinguishes written from
durable data.

Term and vote, checkpoint and sessions are durable as soon as they are saved, as on disk.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

from dledger.core.values import ENTRY_HEADER_SIZE, NO_BASE, Base, HardState, Tail, TermRun
from dledger.errors import Code, StorageError
from dledger.infra.files.disk import CrashKind
from dledger.store.api import (
    BatchHead,
    Damage,
    EntryDamaged,
    EntryHeader,
    Frames,
    ReservedEnd,
    ScrubStep,
    check_range,
)
from dledger.store.bodies import Span, check_pos, no_entry_at, span_runs
from dledger.store.format.batch import (
    BLANK_SIZE,
    MAGIC_NORMAL,
    Batch,
    parse_batch,
    place,
    unpack_header,
)
from dledger.store.identity import Identity
from dledger.store.image_files import ImageFiles
from dledger.testing.virtual.sim_disk import SimDisk

_IMAGES = Path("/images")


class MemoryRepair:
    """A `RepairWork` that buffers its data until `finish`."""

    def __init__(self, store: MemoryLogStore, damage: Damage) -> None:
        self._store = store
        self._damage = damage
        self._data = b""
        self.next_index = damage.first_index

    @property
    def is_fed(self) -> bool:
        return self.next_index > self._damage.last_index

    def feed(self, frames: Frames) -> None:
        self._data += frames.data
        self.next_index = frames.last_index + 1

    def copy(self, max_bytes: int) -> bool:
        return False

    def index_some(self, max_bytes: int) -> bool:
        return False

    def finish(self) -> None:
        self._store.repair(Frames(self._damage.first_index, self.next_index - 1, self._data))

    def abandon(self) -> None:
        self._data = b""


class MemoryLogStore:
    """A `LogStore` without a disk. `crash` returns the store that the node opens after a restart."""

    def __init__(self, identity: Identity, *, capacity: int = 1 << 40, disk_reserve_bytes: int = 0) -> None:
        self.identity = identity
        self.data_file_size = identity.data_file_size
        self.capacity = capacity  # bytes of the log; larger appends are refused with DISK_FULL
        self.disk_reserve_bytes = disk_reserve_bytes
        self.on_synced: Callable[[], None] = lambda: None
        self._prepared_end = 0  # position up to which `prepare` has reserved space
        self._corrupt: set[int] = set()  # first indexes of unreadable batches
        self._damages: list[Damage] = []
        self._batches: list[Batch] = []
        self._ends: list[int] = []  # last index of each batch, for bisect
        self._base = NO_BASE
        self._durable_index = -1
        self._hard_state = HardState()
        self._committed = -1
        self._sessions: tuple[int, bytes] | None = None
        self._generation = 0
        self._closed = False
        self._image_disk = SimDisk()
        self.images = ImageFiles(self._image_disk, _IMAGES)

    # -- properties

    @property
    def base(self) -> Base:
        return self._base

    @property
    def begin_index(self) -> int:
        return self._base.index + 1

    @property
    def end_index(self) -> int:
        return self._ends[-1] if self._ends else self._base.index

    @property
    def tail(self) -> Tail:
        base = self._base
        return (
            self._batches[-1].tail if self._batches else Tail(base.index, base.term, base.pos, base.chain_crc)
        )

    @property
    def durable_index(self) -> int:
        return self._durable_index

    @property
    def hard_state(self) -> HardState:
        return self._hard_state

    @property
    def term_runs(self) -> list[TermRun]:
        runs: list[TermRun] = []
        for batch in self._batches:
            if not runs or runs[-1].term != batch.term:
                runs.append(TermRun(batch.term, batch.first_index))
        return runs

    @property
    def committed_checkpoint(self) -> int:
        return self._committed

    @property
    def generation(self) -> int:
        return self._generation

    def could_take(self, end_pos: int, end_index: int) -> bool:
        size = self.data_file_size
        more = -(-max(0, end_pos - max(self.tail.pos, self._prepared_end)) // size)
        return self.free_bytes() - more * size >= self.disk_reserve_bytes // 8

    def free_bytes(self) -> int:
        used = max(self.tail.pos, self._prepared_end) - self._base.pos
        return max(0, self.capacity - used)

    @property
    def damages(self) -> tuple[Damage, ...]:
        return tuple(self._damages)

    def has_room_after(self, tail: Tail) -> bool:
        free = self.capacity - (max(tail.pos, self._prepared_end) - self._base.pos)
        return free - self.data_file_size >= self.disk_reserve_bytes

    @property
    def reserved_end(self) -> ReservedEnd:
        pos = max(self.tail.pos, self._prepared_end - BLANK_SIZE)
        return ReservedEnd(pos, self.end_index + (pos - self.tail.pos) // ENTRY_HEADER_SIZE)

    @property
    def likely_bytes(self) -> int:
        return self.reserved_bytes

    @property
    def reserved_bytes(self) -> int:
        tail, size = self.tail, self.data_file_size
        border = tail.pos - tail.pos % size + size
        if self._prepared_end < border:
            return 0
        files = (self._prepared_end - border) // size
        return max(0, border - tail.pos - BLANK_SIZE) + files * (size - BLANK_SIZE)

    def prepare(self, ahead_bytes: int) -> bool:
        size = self.data_file_size
        while self.reserved_bytes < ahead_bytes:
            if self.free_bytes() - size < self.disk_reserve_bytes:
                return False
            end = max(self._prepared_end, self.tail.pos)
            self._prepared_end = end - end % size + size
        return True

    # -- writing

    def append(self, batches: Sequence[Batch]) -> None:
        assert not self._closed
        tail = self.tail
        for batch in batches:
            assert batch.first_index == tail.index + 1, f"batch {batch.first_index} after {tail}"
            assert batch.term >= tail.term, f"batch of term {batch.term} after {tail}"
            assert batch.pos == place(tail.pos, batch.size, self.data_file_size), f"{batch.pos} after {tail}"
            assert batch.size == len(batch.data)
            tail = batch.tail
        if tail.pos - self._base.pos > self.capacity and tail.pos > self._prepared_end:
            raise StorageError(
                f"the log would grow to {tail.pos} bytes, beyond its capacity", code=Code.DISK_FULL
            )
        self._batches.extend(batches)
        self._ends.extend(batch.last_index for batch in batches)

    def sync(self) -> int:
        assert not self._closed
        self._durable_index = self.end_index
        return self._durable_index

    def drop_cached(self, begin_pos: int, end_pos: int) -> None:
        pass  # there is no page cache

    def truncate_after(self, index: int, tail: Tail | None = None) -> None:
        assert self._base.index <= index <= self.end_index, f"truncate after {index}, end {self.end_index}"
        if index == self.end_index:
            return
        keep = bisect_left(self._ends, index) + 1 if index > self._base.index else 0
        assert keep == 0 or self._ends[keep - 1] == index, f"entry {index} does not end a batch"
        del self._batches[keep:], self._ends[keep:]
        self._prepared_end = 0
        self._forget_damages()
        self._generation += 1
        self._durable_index = min(self._durable_index, index)
        self._committed = min(self._committed, self._durable_index)

    def written_ms(self, base: Base) -> int:
        return 0

    def borders(self) -> list[Base]:
        borders = []
        tail = self._base_tail()
        for batch in self._batches:
            if batch.pos % self.data_file_size == 0 and tail.index > self._base.index:
                borders.append(Base(tail.index, tail.term, batch.pos, tail.chain_crc))
            tail = batch.tail
        return borders

    def purge_to(self, base: Base) -> None:
        if base.index <= self._base.index:
            return
        assert base in self.borders(), f"{base} is not a file boundary"
        keep = bisect_left(self._ends, base.index) + 1
        del self._batches[:keep], self._ends[:keep]
        self._base = base
        self._durable_index = max(self._durable_index, base.index)
        self._committed = max(self._committed, base.index)
        self._forget_damages()

    def reset_to(self, base: Base) -> None:
        assert base.pos % self.data_file_size == 0, f"{base} does not end at the start of a data file"
        self._batches.clear()
        self._ends.clear()
        self._base = base
        self._prepared_end = 0
        self._sessions = None
        self._forget_damages()
        self._generation += 1
        self._durable_index = self._committed = base.index

    # -- damage

    def corrupt(self, index: int) -> None:
        """Make the batch of this entry unreadable until it is repaired. For tests."""
        self._corrupt.add(self._batches[bisect_left(self._ends, index)].first_index)

    def is_corrupt(self, first_index: int) -> bool:
        return first_index in self._corrupt

    def note_damage(self, index: int) -> Damage | None:
        if self.end_index < self.begin_index:
            return None
        batch = self._batches[bisect_left(self._ends, max(self.begin_index, min(index, self.end_index)))]
        if batch.first_index not in self._corrupt:
            return None
        damage = Damage(batch.first_index, batch.last_index, "memory", batch.pos, "corrupt")
        if damage not in self._damages:
            self._damages = sorted([*self._damages, damage])
        return damage

    def repair(self, frames: Frames) -> None:
        damage = next((d for d in self._damages if d.first_index == frames.first_index), None)
        if damage is None:
            raise StorageError(f"no damage starts at entry {frames.first_index}", code=Code.DATA_DAMAGED)
        at = bisect_left(self._ends, damage.first_index)
        before = self._batches[at - 1].tail if at else self._base_tail()
        batch = parse_batch(frames.data, 0, before, data_file_size=self.data_file_size)
        if batch.tail != self._batches[at].tail:
            raise StorageError(
                f"the frames that start at entry {frames.first_index} do not match the log",
                code=Code.DATA_DAMAGED,
            )
        self._batches[at] = batch
        self._corrupt.discard(damage.first_index)
        self._damages.remove(damage)

    def begin_repair(self, damage: Damage) -> MemoryRepair:
        if damage not in self._damages:
            raise StorageError(f"{damage} was repaired or removed in the meantime", code=Code.DATA_DAMAGED)
        return MemoryRepair(self, damage)

    def scrub(self, from_index: int, max_bytes: int) -> ScrubStep:
        size = 0
        known = {damage.first_index for damage in self._damages}
        for batch in self._batches[bisect_left(self._ends, max(from_index, self.begin_index)) :]:
            if batch.first_index in self._corrupt - known:
                reason = "corrupt"
                damage = Damage(batch.first_index, batch.last_index, "memory", batch.pos, reason)
                return ScrubStep(batch.last_index + 1, size + batch.size, damage)
            size += batch.size
            if size >= max_bytes and batch.last_index < self.end_index:
                return ScrubStep(batch.last_index + 1, size, None)
        return ScrubStep(self.begin_index, size, None)

    def _forget_damages(self) -> None:
        """Drop the damages of batches that no longer exist."""
        existing = {batch.first_index for batch in self._batches}
        self._corrupt &= existing
        self._damages = [damage for damage in self._damages if damage.first_index in existing]

    def _base_tail(self) -> Tail:
        return Tail(self._base.index, self._base.term, self._base.pos, self._base.chain_crc)

    def save_hard_state(self, state: HardState) -> None:
        assert state.term >= self._hard_state.term, f"{state} after {self._hard_state}"
        assert state.incarnation >= self._hard_state.incarnation, f"{state} after {self._hard_state}"
        self._hard_state = state

    def save_checkpoint(self, committed_index: int, sessions: tuple[int, bytes] | None) -> None:
        assert sessions is None or sessions[0] <= committed_index, "a session table that may be undone"
        self._committed = max(self._committed, min(committed_index, self._durable_index))
        self._sessions = sessions or self._sessions

    def load_sessions(self) -> tuple[int, bytes] | None:
        sessions = self._sessions
        return sessions if sessions is not None and sessions[0] <= self.end_index else None

    def close(self) -> None:
        if not self._closed:
            self.sync()
            self._closed = True

    def crash(self, kind: CrashKind, rng: Random) -> MemoryLogStore:
        """Return the store that the node opens after a crash; this one must not be used afterwards.

        PROCESS keeps everything written. POWER keeps everything durable, and a random prefix of the batches
        after it. Everything kept is durable, because recovery syncs it.
        """
        self._closed = True
        after = MemoryLogStore(
            self.identity, capacity=self.capacity, disk_reserve_bytes=self.disk_reserve_bytes
        )
        durable = bisect_right(self._ends, self._durable_index)
        count = len(self._batches) if kind is CrashKind.PROCESS else rng.randint(durable, len(self._batches))
        after._batches = self._batches[:count]
        after._ends = self._ends[:count]
        after._base = self._base
        after._durable_index = after.end_index
        after._hard_state = self._hard_state
        after._committed = self._committed
        after._sessions = self._sessions
        after._corrupt = set(self._corrupt)
        after._damages = list(self._damages)
        after._forget_damages()
        self._image_disk.crash(kind, rng)
        after._image_disk = self._image_disk
        after.images = ImageFiles(self._image_disk, _IMAGES)
        after.images.open()
        return after

    # -- reading

    def entry(self, index: int) -> EntryHeader:
        check_range(index, self.begin_index, self.end_index)
        batch, offset = self._locate(index)
        self._check_damage(batch, index)
        h = unpack_header(batch.data, offset)
        return EntryHeader(index, h.term, h.pos, h.size, h.channel, h.chain_crc, h.magic)

    def tail_at(self, index: int) -> Tail:
        base = self._base
        if index == base.index:
            return Tail(base.index, base.term, base.pos, base.chain_crc)
        if any(damage.last_index == index for damage in self._damages):
            return self._batches[bisect_left(self._ends, index)].tail
        return self.entry(index).tail

    def read(self, first_index: int, last_index: int, max_bytes: int, *, whole_batches: bool) -> Frames:
        assert last_index >= first_index, f"read of {first_index}..{last_index}"
        check_range(first_index, self.begin_index, self.end_index)
        at = bisect_left(self._ends, first_index)
        batch, offset = self._locate(first_index)
        self._check_damage(batch, first_index)
        assert offset == 0 or not whole_batches, f"entry {first_index} does not start a batch"
        parts, size, end_pos = [bytes(batch.data)[offset:]], batch.size - offset, batch.end_pos
        for batch in self._batches[at + 1 :]:
            # As in the disk store, a read does not cross a file boundary.
            if batch.first_index > last_index or size >= max_bytes or batch.pos != end_pos:
                break
            if batch.first_index in self._corrupt:
                break
            parts.append(bytes(batch.data))
            size, end_pos = size + batch.size, batch.end_pos
        return _cut(b"".join(parts), first_index, last_index, max_bytes, whole_batches)

    def read_bodies(self, spans: Sequence[Span], end_pos: int) -> list[bytes]:
        end_pos = min(end_pos, self.tail.pos)
        runs = span_runs(spans, self._base.pos, end_pos, self.data_file_size)
        bodies: list[bytes] = [b""] * len(spans)
        for number in (number for run in runs for number in run.numbers):
            pos, size = spans[number]
            batch, offset, _ = self._at_pos(pos)
            header = unpack_header(batch.data, offset)
            if header.magic != MAGIC_NORMAL or header.body_size != size:
                raise no_entry_at(pos, size)
            bodies[number] = bytes(batch.data)[offset + ENTRY_HEADER_SIZE : offset + header.size]
        return bodies

    def index_at_pos(self, pos: int) -> int:
        check_pos(pos, self._base.pos, self.tail.pos)
        return self._at_pos(pos)[2]

    def iter_heads(self, from_index: int) -> Iterator[BatchHead]:
        for batch in self._batches[bisect_left(self._ends, from_index) :]:
            self._check_damage(batch, batch.first_index)
            if batch.head is not None and batch.first_index >= from_index:
                yield BatchHead(batch.first_index, batch.last_index, batch.term, batch.pos, batch.head)

    def _check_damage(self, batch: Batch, index: int) -> None:
        if batch.first_index in self._corrupt:
            raise EntryDamaged(f"entry {index} is damaged", index)

    def _locate(self, index: int) -> tuple[Batch, int]:
        """Return the batch of an entry and the entry's offset in its data."""
        batch = self._batches[bisect_left(self._ends, index)]
        offset = 0
        for _ in range(index - batch.first_index):
            offset += unpack_header(batch.data, offset).size
        return batch, offset

    def _at_pos(self, pos: int) -> tuple[Batch, int, int]:
        """Return the batch of the entry at a position, the entry's offset in its data, and its index."""
        batch = self._batches[bisect_right(self._batches, pos, key=lambda batch: batch.pos) - 1]
        self._check_damage(batch, batch.first_index)
        offset = 0
        for index in range(batch.first_index, batch.last_index + 1):
            if batch.pos + offset == pos:
                return batch, offset, index
            offset += unpack_header(batch.data, offset).size
        raise no_entry_at(pos)


def _cut(data: bytes, first_index: int, last_index: int, max_bytes: int, whole_batches: bool) -> Frames:
    """Return the longest run of entries, or of whole batches, within the limits. It contains at least one."""
    end, length, at = first_index - 1, 0, 0
    while at < len(data):
        header = unpack_header(data, at)
        at += header.size
        if end >= first_index and at > max_bytes:
            break
        if not whole_batches and header.index > last_index:
            break
        if header.channel == 0 or not whole_batches:
            end, length = header.index, at
    assert end >= first_index
    return Frames(first_index, end, data[:length])
