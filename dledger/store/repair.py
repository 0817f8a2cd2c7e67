"""Putting a peer's entries in the place of damaged ones, and looking for damage in the background."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from dledger.core.values import Tail
from dledger.errors import Code, ReadFailed, StorageError
from dledger.store.api import Damage, EntryDamaged, Frames, ScrubStep
from dledger.store.batch import Batch, encode_blank, parse_batch
from dledger.store.damage import KnownDamage, header_at, locate
from dledger.store.disk import Buffer
from dledger.store.files import FileSequence
from dledger.store.layout import INDEX_RECORD_SIZE, index_records
from dledger.store.reading import LogReader


@dataclass(slots=True)
class RepairPlan:
    """What is to be written: bytes at positions, for each data file by its start, and the index records."""

    files: dict[int, list[tuple[int, Buffer]]] = field(default_factory=dict)
    records: bytes = b""


def plan_repair(data: FileSequence, known: KnownDamage, frames: Frames, end: Tail) -> RepairPlan:
    """StorageError DATA_DAMAGED unless the frames fit between what is good before and after the damage."""
    batches = _replacement(data.file_size, known, frames)
    plan = RepairPlan()

    def put(pos: int, content: Buffer) -> None:
        plan.files.setdefault(data.start_of(pos), []).append((pos, content))

    def roll(from_pos: int, to_pos: int) -> None:
        if from_pos != to_pos and from_pos % data.file_size:
            put(from_pos, encode_blank(to_pos - from_pos))

    roll(known.before.pos, batches[0].pos)
    for batch, following in pairwise(batches):
        roll(batch.end_pos, following.pos)
    for batch in batches:
        put(batch.pos, batch.data)
    after = known.after
    if after.index < end.index and header_at(data, after.index + 1, after.pos) is None:
        roll(after.pos, data.start_of(after.pos) + data.file_size)
    plan.records = b"".join(index_records(batch.data) for batch in batches)
    return plan


def _replacement(data_file_size: int, known: KnownDamage, frames: Frames) -> list[Batch]:
    """The batches that replace the damage, verified at both ends. What the frames have beyond is left out."""
    batches: list[Batch] = []
    tail, offset = known.before, 0
    while tail.index < known.after.index:
        batch = parse_batch(frames.data, offset, tail, data_file_size=data_file_size)
        batches.append(batch)
        tail = batch.tail
        offset += batch.size
    if tail != known.after:
        raise StorageError(
            f"entries {frames.first_index}..{tail.index} do not fit: they end as {tail}, but what follows "
            f"the damage proves {known.after}",
            code=Code.DATA_DAMAGED,
        )
    return batches


def scrub_step(
    reader: LogReader,
    data: FileSequence,
    index: FileSequence,
    tail: Callable[[], Tail],
    from_index: int,
    max_bytes: int,
) -> ScrubStep:
    """See LogStore."""
    begin, end_index = reader.begin_index, reader.indexed_end
    first = max(from_index, begin)
    while (known := reader.damage_of(first)) is not None:
        first = known.after.index + 1
    if first > end_index:
        return ScrubStep(begin, 0, None)
    try:
        frames = reader.read(first, end_index, max_bytes, whole_batches=False)
        reader.guarded(lambda: _check_records(index, frames))
    except ReadFailed:  # purged or truncated meanwhile
        return ScrubStep(first, 0, None)
    except EntryDamaged as error:
        at = max(first, min(error.index, end_index))
        found = reader.guarded(lambda: locate(data, index, reader.base, tail(), at))
        if found.damage is not None:
            damage = found.damage.damage
            return ScrubStep(max(first, damage.last_index) + 1, max_bytes, damage)
        # The entries are good: it is one of their index records, which `note_damage` writes again.
        last, pos = found.batches[-1].last_index, at * INDEX_RECORD_SIZE
        file, offset = str(index.path_of(pos)), pos % index.file_size
        return ScrubStep(max(first, last) + 1, max_bytes, Damage(at, last, file, offset, str(error)))
    next_index = frames.last_index + 1
    return ScrubStep(next_index if next_index <= end_index else begin, len(frames.data), None)


def _check_records(index: FileSequence, frames: Frames) -> None:
    """That each of the entries has the index record that it must have."""
    records = index_records(frames.data)
    for at in range(0, len(records), INDEX_RECORD_SIZE):
        number = frames.first_index + at // INDEX_RECORD_SIZE
        if index.read(number * INDEX_RECORD_SIZE, INDEX_RECORD_SIZE) != records[at : at + INDEX_RECORD_SIZE]:
            where = index.where(number * INDEX_RECORD_SIZE)
            raise EntryDamaged(f"entry {number}, {where}: not the index record of the entry", number)
