"""Locates damaged ranges of a log and the points after which the log is verified again, and stores the list
of ranges.

See rule 10 of docs/guarantees.md.

A range is bounded by verified ends: the end of the good batch before it (`before`), and the end of its last
batch (`after`). The chain_crc of `after` is proved by the following good batch, or known from the checkpoint
or the running store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from dledger.core.values import ENTRY_HEADER_SIZE, Base, Tail
from dledger.errors import StorageError
from dledger.infra.files.disk import Disk, read_file, replace_file
from dledger.store.api import Damage
from dledger.store.files import FileSequence
from dledger.store.format.batch import (
    BLANK_SIZE,
    MAGIC_INTERNAL,
    MAGIC_NORMAL,
    Batch,
    Header,
    chain_of,
    unpack_header,
)
from dledger.store.format.layout import INDEX_RECORD_SIZE, IndexRecord, unpack_record
from dledger.store.format.properties import format_properties, is_intact, parse_properties
from dledger.store.scan import LogScanner, find_entry
from dledger.store.state_files import NOT_AS_WRITTEN, tail_of


class KnownDamage(NamedTuple):
    """A damaged range with the log ends that its replacement must start from and arrive at."""

    damage: Damage
    before: Tail
    after: Tail

    def covers(self, index: int) -> bool:
        return self.damage.first_index <= index <= self.damage.last_index


def make_damage(data: FileSequence, before: Tail, after: Tail, pos: int, reason: str) -> KnownDamage:
    """Return the damage between two verified ends. The first fault is at `pos`."""
    file, offset = str(data.path_of(pos)), pos % data.file_size
    return KnownDamage(Damage(before.index + 1, after.index, file, offset, reason), before, after)


def merge(damages: Sequence[KnownDamage]) -> tuple[KnownDamage, ...]:
    """Sort the damages and join those that overlap."""
    merged: list[KnownDamage] = []
    for known in sorted(damages, key=lambda k: k.damage.first_index):
        last = merged[-1] if merged else None
        if last is None or known.damage.first_index > last.damage.last_index:
            merged.append(known)
        elif known.after.index > last.after.index:
            damage = last.damage._replace(last_index=known.after.index)
            merged[-1] = KnownDamage(damage, last.before, known.after)
    return tuple(merged)


def clip(damages: Sequence[KnownDamage], base: Base, end: Tail) -> tuple[KnownDamage, ...]:
    """Return the parts of `damages` that lie in a log from `base` to `end`."""
    clipped = []
    for damage, before, after in clip_to_base(damages, base):
        if damage.first_index > end.index:
            continue
        if after.index > end.index:
            after = end
            damage = damage._replace(last_index=end.index)
        clipped.append(KnownDamage(damage, before, after))
    return tuple(clipped)


def clip_to_base(damages: Sequence[KnownDamage], base: Base) -> tuple[KnownDamage, ...]:
    """Return the parts of `damages` after `base`.

    A damage that starts immediately after `base` also changes. The entry before it ends in a file that the
    purge removes, so a repair must start at the position of the base, where the next file starts.
    """
    clipped = []
    for damage, before, after in damages:
        if damage.last_index <= base.index:
            continue
        if before.index <= base.index:
            before = tail_of(base)
            damage = damage._replace(first_index=base.index + 1)
        clipped.append(KnownDamage(damage, before, after))
    return tuple(clipped)


def write_damages(disk: Disk, path: Path, damages: Sequence[KnownDamage]) -> None:
    """Store the list of damages durably."""
    values: dict[str, str | int] = {"count": len(damages)}
    for number, (damage, before, after) in enumerate(damages):
        numbers = (damage.first_index, *before, after.term, after.pos, after.chain_crc, damage.offset)
        values[f"damage.{number}"] = ",".join(map(str, (damage.last_index, *numbers)))
        values[f"file.{number}"] = _one_line(damage.file)
        values[f"reason.{number}"] = _one_line(damage.reason)
    replace_file(disk, path, format_properties(values))


def _one_line(text: str) -> str:
    """Return `text` as a valid value of a properties line, which may not contain line breaks."""
    return " ".join(text.replace("\\", "/").split())


def read_damages(disk: Disk, path: Path) -> tuple[KnownDamage, ...]:
    """Return the stored list. Returns an empty list if it is missing or invalid; then reads and the scrub
    find the damages again."""
    try:
        content = read_file(disk, path)
    except FileNotFoundError:
        return ()
    if not is_intact(content):
        return ()
    values = parse_properties(content)
    try:
        return tuple(_listed(values, number) for number in range(int(values["count"])))
    except NOT_AS_WRITTEN:
        return ()


def _listed(values: Mapping[str, str], number: int) -> KnownDamage:
    last, first, *rest = map(int, values[f"damage.{number}"].split(","))
    before, after, offset = Tail(*rest[:4]), Tail(last, *rest[4:7]), rest[7]
    damage = Damage(first, last, values[f"file.{number}"], offset, values[f"reason.{number}"])
    return KnownDamage(damage, before, after)


def is_gone(data: FileSequence, known: KnownDamage) -> bool:
    """Return True if the range is readable, because it was repaired and a crash prevented the update of the
    list."""
    scanner = LogScanner(data, known.before)
    for batch in scanner.batches():
        if batch.last_index >= known.after.index:
            return batch.tail == known.after
    return False


@dataclass(slots=True)
class Resumption:
    """The point where a log is verified again after a damage."""

    after: Tail  # the end of the last batch of the damage
    terms: list[tuple[int, int]] = field(default_factory=list)  # (index, term), where known


def resume(
    data: FileSequence,
    index: FileSequence,
    tail: Tail,
    anchors: Sequence[Tail] = (),
    *,
    end: Tail | None = None,
) -> Resumption | None:
    """Find where the log continues after a damage that starts at `tail`. Returns None if the end of the log
    is lost.

    Proceeds from entry to entry, by headers and index records, until the end of a batch is verified and the
    next batch is good. A header is only verified by the chain from its predecessor, so a damage that destroys
    its last header includes the following batch. `anchors`: ends of batches that are known from other
    sources; `end`: the end of the log, if it is known.
    """
    resumption = Resumption(tail)
    known = {anchor.index: anchor for anchor in anchors if anchor.index > tail.index}
    at, pos = tail.index + 1, tail.pos
    previous: int | None = tail.chain_crc
    while end is None or at <= end.index:
        term = resumption.terms[-1][1] if resumption.terms else tail.term
        header, record = _find_header_and_record(data, index, at, pos)
        valid = header is not None and previous is not None and chain_of(header, previous) == header.chain_crc
        if not valid and previous is not None:
            healed = _heal(
                data, at, record.pos if record is not None else pos, previous, header or record, term
            )
            header, valid = healed or header, healed is not None
        certain = known.get(at)
        if header is not None:
            resumption.terms.append((at, header.term))
            pos, previous = header.pos + header.size, header.chain_crc
            if valid and header.channel == 0:
                certain = Tail(at, header.term, pos, header.chain_crc)
        elif record is not None:
            resumption.terms.append((at, record.term))
            pos, previous = record.pos + record.size, None
        elif certain is None:
            jump = _jump(data, at, pos, term)
            if jump is None:
                break
            at, pos, previous = jump.index, jump.pos, None
            continue
        if certain is not None:
            if not resumption.terms or resumption.terms[-1][0] != at:
                resumption.terms.append((at, certain.term))
            pos, previous = certain.pos, certain.chain_crc
            if next(LogScanner(data, certain).batches(), None) is not None:
                resumption.after = certain
                return resumption
        at += 1
    if end is None:
        return None
    resumption.after = end
    return resumption


def _heal(
    data: FileSequence, at: int, pos: int, previous: int, hint: Header | IndexRecord | None, term: int
) -> Header | None:
    """Reconstruct the header of entry `at` if its chain_crc is proved by the following entry.

    The proof also determines where the batch ends, because no other header has the same chain_crc. The size
    follows from the start of the next entry. For the other fields, the few possible values are tried.
    """
    if hint is not None:
        pos = hint.pos
        following = find_header(data, at + 1, pos + hint.size)
        sizes = hint.size
    else:
        next_pos = find_entry(data, pos + 1, at)
        following = header_at(data, at + 1, next_pos) if next_pos is not None else None
        sizes = (next_pos or 0) - pos
    body_size = sizes - ENTRY_HEADER_SIZE
    if following is None or body_size < 0 or data.start_of(pos) != data.start_of(pos + sizes):
        return None
    body_crc = crc32(data.read(pos + ENTRY_HEADER_SIZE, body_size))
    terms = {term, following.term} | ({hint.term} if hint is not None else set())
    for magic, maybe_term, channel in product(
        (MAGIC_NORMAL, MAGIC_INTERNAL), sorted(terms), (following.channel + 1, 0)
    ):
        header = Header(magic, sizes, at, maybe_term, pos, channel, 0, body_crc, body_size)
        chain = chain_of(header, previous)
        if chain_of(following, chain) == following.chain_crc:
            return header._replace(chain_crc=chain)
    return None


def find_header(data: FileSequence, at: int, pos: int) -> Header | None:
    """Return the header of entry `at`, which starts at `pos` or at the next border."""
    border = data.start_of(pos) + data.file_size
    return header_at(data, at, pos) or header_at(data, at, border)


def _find_header_and_record(
    data: FileSequence, index: FileSequence, at: int, pos: int
) -> tuple[Header | None, IndexRecord | None]:
    """Return the header of entry `at`, which starts at `pos` or at the next border, and its index record."""
    border = data.start_of(pos) + data.file_size
    record = record_of(index, at)
    if record is not None and record.pos not in (pos, border):
        record = None
    if record is not None:
        return header_at(data, at, record.pos), record
    return find_header(data, at, pos), None


def record_of(index: FileSequence, at: int) -> IndexRecord | None:
    """Return the index record of an entry, or None if there is no plausible record."""
    stored = index.read(at * INDEX_RECORD_SIZE, INDEX_RECORD_SIZE)
    if len(stored) < INDEX_RECORD_SIZE:
        return None
    record = unpack_record(stored)
    return record if record.is_plausible(at) else None


def header_at(data: FileSequence, at: int, pos: int) -> Header | None:
    """Return the header of entry `at` at this position, or None if the bytes there are inconsistent."""
    begin = data.read(pos, ENTRY_HEADER_SIZE)
    if len(begin) < ENTRY_HEADER_SIZE:
        return None
    header = unpack_header(begin)
    room = data.file_size - pos % data.file_size - BLANK_SIZE
    good = (
        header.index == at
        and header.pos == pos
        and header.magic in (MAGIC_NORMAL, MAGIC_INTERNAL)
        and header.size == header.body_size + ENTRY_HEADER_SIZE
        and ENTRY_HEADER_SIZE <= header.size <= room
        and header.channel >= 0
        and header.term >= 0
    )
    return header if good else None


def _jump(data: FileSequence, at: int, pos: int, term: int) -> Header | None:
    """Find the next consistent entry when neither header nor index record locates it.

    The terms of the skipped entries are unknown unless both neighbors have the same term.
    """
    entry_pos = find_entry(data, pos + 1, at)
    if entry_pos is None:
        return None
    header = unpack_header(data.read(entry_pos, ENTRY_HEADER_SIZE))
    return header if header.term == term else None


def good_end_before(data: FileSequence, index: FileSequence, base: Base, at: int) -> Tail:
    """Return the nearest verified end of a batch before entry `at`: its header chains from its
    predecessor's."""
    at -= 1
    while at > base.index:
        header = _indexed_header(data, index, at)
        if header is not None and header.channel == 0:
            before = _indexed_header(data, index, at - 1) if at - 1 > base.index else None
            previous = base.chain_crc if at - 1 == base.index else before.chain_crc if before else None
            if previous is not None and chain_of(header, previous) == header.chain_crc:
                return Tail(at, header.term, header.pos + header.size, header.chain_crc)
        at -= 1
    return tail_of(base)


def _indexed_header(data: FileSequence, index: FileSequence, at: int) -> Header | None:
    record = record_of(index, at)
    header = header_at(data, at, record.pos) if record is not None else None
    return header if header is not None and header.size == (record and record.size) else None


class DamageLocation(NamedTuple):
    """The fault at an entry: either a damage, or merely missing index records of good batches."""

    damage: KnownDamage | None
    batches: list[Batch]


def locate(data: FileSequence, index: FileSequence, base: Base, end: Tail, at: int) -> DamageLocation:
    """Find the fault at entry `at` of a log whose bounds `base` and `end` are verified."""
    before = good_end_before(data, index, base, at)
    scanner = LogScanner(data, before)
    batches = []
    for batch in scanner.batches():
        batches.append(batch)
        if batch.last_index >= at:
            return DamageLocation(None, batches)
    before = scanner.tail
    fault = scanner.fault
    resumption = resume(data, index, before, end=end)
    if resumption is None or resumption.after.index <= before.index:
        raise StorageError(f"the log changed during the search for damage at entry {at}")
    pos = fault.pos if fault is not None else before.pos
    reason = fault.what if fault is not None else "nothing is there"
    return DamageLocation(make_damage(data, before, resumption.after, pos, reason), batches)


def last_known(
    data: FileSequence, index: FileSequence, tail: Tail, anchors: Sequence[Tail]
) -> tuple[int, int]:
    """Return (term, index) of the last entry that the log after `tail` is known to have contained."""
    ends = [(tail.index, tail.term), *((anchor.index, anchor.term) for anchor in anchors)]
    record = _last_record(index)
    if record is not None:
        ends.append((record.index, record.term))
    # Entries may have lost their index records in a power failure. Such an entry counts only if the chain of
    # the next one proves it: a floor that no log ever reached would bar the node forever.
    pos = find_entry(data, tail.pos, max(ends)[0])
    while pos is not None:
        header = header_at(data, unpack_header(data.read(pos, ENTRY_HEADER_SIZE)).index, pos)
        following = find_header(data, header.index + 1, pos + header.size) if header is not None else None
        chain = header.chain_crc if header is not None else 0
        if following is not None and chain_of(following, chain) == following.chain_crc:
            ends.append((following.index, following.term))
        pos = find_entry(data, pos + ENTRY_HEADER_SIZE, max(ends)[0])
    last = max(ends)
    return last[1], last[0]


def _last_record(index: FileSequence) -> IndexRecord | None:
    for start in reversed(index.starts):
        content = index.read(start, index.file_size).rstrip(b"\0")
        number = start // INDEX_RECORD_SIZE + len(content) // INDEX_RECORD_SIZE
        while number * INDEX_RECORD_SIZE >= start:
            record = record_of(index, number)
            if record is not None:
                return record
            number -= 1
    return None
