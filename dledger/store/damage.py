"""Damaged ranges of a log: where one begins, where the log is certain again, and their list.

Rule 10 of docs/guarantees.md.

Only certain things bound a range: the end of a good batch before it (`before`), and the end of its last batch
(`after`), whose chain_crc a good batch that follows has proved, or the checkpoint or the running store knew.
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
from dledger.store.api import Damage
from dledger.store.disk import Disk, read_file, replace_file
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
    """A damage, and what its replacement has to follow and to end as."""

    damage: Damage
    before: Tail
    after: Tail

    def covers(self, index: int) -> bool:
        return self.damage.first_index <= index <= self.damage.last_index


def make_damage(data: FileSequence, before: Tail, after: Tail, pos: int, reason: str) -> KnownDamage:
    """All between two certain ends is damaged; the first fault is at `pos`."""
    file, offset = str(data.path_of(pos)), pos % data.file_size
    return KnownDamage(Damage(before.index + 1, after.index, file, offset, reason), before, after)


def merge(damages: Sequence[KnownDamage]) -> tuple[KnownDamage, ...]:
    """In order, those that overlap made one."""
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
    """What is left of them in a log from `base` to `end`, which cut none but at its own borders."""
    clipped = []
    for known in damages:
        damage, before, after = known
        if damage.last_index <= base.index or damage.first_index > end.index:
            continue
        if before.index < base.index:
            before = tail_of(base)
            damage = damage._replace(first_index=base.index + 1)
        if after.index > end.index:
            after = end
            damage = damage._replace(last_index=end.index)
        clipped.append(KnownDamage(damage, before, after))
    return tuple(clipped)


def write_damages(disk: Disk, path: Path, damages: Sequence[KnownDamage]) -> None:
    """Durable on return."""
    values: dict[str, str | int] = {"count": len(damages)}
    for number, (damage, before, after) in enumerate(damages):
        numbers = (damage.first_index, *before, after.term, after.pos, after.chain_crc, damage.offset)
        values[f"damage.{number}"] = ",".join(map(str, (damage.last_index, *numbers)))
        values[f"file.{number}"] = _one_line(damage.file)
        values[f"reason.{number}"] = _one_line(damage.reason)
    replace_file(disk, path, format_properties(values))


def _one_line(text: str) -> str:
    """What people read may have anything in it; a line of properties may not."""
    return " ".join(text.replace("\\", "/").split())


def read_damages(disk: Disk, path: Path) -> tuple[KnownDamage, ...]:
    """Empty if the list is missing or broken: reads and the scrub then find them again."""
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
    """Whether the range can be read after all: it was repaired, and only the list not yet written."""
    scanner = LogScanner(data, known.before)
    for batch in scanner.batches():
        if batch.last_index >= known.after.index:
            return batch.tail == known.after
    return False


@dataclass(slots=True)
class Resumption:
    """Where a log is certain again after a damage."""

    after: Tail  # the end of the last batch of the damage
    terms: list[tuple[int, int]] = field(default_factory=list)  # (index, term), as far as they are known


def resume(
    data: FileSequence,
    index: FileSequence,
    tail: Tail,
    anchors: Sequence[Tail] = (),
    *,
    end: Tail | None = None,
) -> Resumption | None:
    """Find where the log goes on after a damage that begins at `tail`. None if it does not: the end is lost.

    Goes from entry to entry, by headers and by index records, until a batch has ended for certain and the
    next one is good. A header is certain only with its chain from a predecessor; so a damage whose last
    header is lost takes the batch behind it along. `anchors`: ends of batches that are certain anyhow; `end`:
    the end of the log, if that is.
    """
    found = Resumption(tail)
    known = {anchor.index: anchor for anchor in anchors if anchor.index > tail.index}
    at, pos = tail.index + 1, tail.pos
    previous: int | None = tail.chain_crc
    while end is None or at <= end.index:
        term = found.terms[-1][1] if found.terms else tail.term
        header, record = _look(data, index, at, pos)
        valid = header is not None and previous is not None and chain_of(header, previous) == header.chain_crc
        if not valid and previous is not None:
            healed = _heal(
                data, at, record.pos if record is not None else pos, previous, header or record, term
            )
            header, valid = healed or header, healed is not None
        certain = known.get(at)
        if header is not None:
            found.terms.append((at, header.term))
            pos, previous = header.pos + header.size, header.chain_crc
            if valid and header.channel == 0:
                certain = Tail(at, header.term, pos, header.chain_crc)
        elif record is not None:
            found.terms.append((at, record.term))
            pos, previous = record.pos + record.size, None
        elif certain is None:
            jump = _jump(data, at, pos, term)
            if jump is None:
                break
            at, pos, previous = jump.index, jump.pos, None
            continue
        if certain is not None:
            if not found.terms or found.terms[-1][0] != at:
                found.terms.append((at, certain.term))
            pos, previous = certain.pos, certain.chain_crc
            if next(LogScanner(data, certain).batches(), None) is not None:
                found.after = certain
                return found
        at += 1
    if end is None:
        return None
    found.after = end
    return found


def _heal(
    data: FileSequence, at: int, pos: int, previous: int, hint: Header | IndexRecord | None, term: int
) -> Header | None:
    """The header that entry `at` had, if the one behind it proves that: it continues its chain.

    That settles where its batch ends, even if it was the last: no other header has the same chain_crc. Its
    size is known from where the next entry begins; the few values that the other fields may have are tried.
    """
    if hint is not None:
        pos = hint.pos
        following = look_at(data, at + 1, pos + hint.size)
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


def look_at(data: FileSequence, at: int, pos: int) -> Header | None:
    """The header of entry `at`, which begins at `pos` or at the next border."""
    border = data.start_of(pos) + data.file_size
    return header_at(data, at, pos) or header_at(data, at, border)


def _look(
    data: FileSequence, index: FileSequence, at: int, pos: int
) -> tuple[Header | None, IndexRecord | None]:
    """The header of entry `at`, which begins at `pos` or at the next border, and its index record."""
    border = data.start_of(pos) + data.file_size
    record = record_of(index, at)
    if record is not None and record.pos not in (pos, border):
        record = None
    if record is not None:
        return header_at(data, at, record.pos), record
    return look_at(data, at, pos), None


def record_of(index: FileSequence, at: int) -> IndexRecord | None:
    """The index record of an entry, None if there is none that is plausible."""
    stored = index.read(at * INDEX_RECORD_SIZE, INDEX_RECORD_SIZE)
    if len(stored) < INDEX_RECORD_SIZE:
        return None
    record = unpack_record(stored)
    return record if record.is_plausible(at) else None


def header_at(data: FileSequence, at: int, pos: int) -> Header | None:
    """The header of entry `at` at this position, None if what is there contradicts itself."""
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
    """The next entry that agrees with itself, when neither header nor index say where to go on.

    Of the entries before it nothing is known, and so not their terms, unless both sides have the same.
    """
    found = find_entry(data, pos + 1, at)
    if found is None:
        return None
    header = unpack_header(data.read(found, ENTRY_HEADER_SIZE))
    return header if header.term == term else None


def good_end_before(data: FileSequence, index: FileSequence, base: Base, at: int) -> Tail:
    """The nearest certain end of a batch before entry `at`: its header chains from its predecessor's."""
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


class Location(NamedTuple):
    """What is wrong around an entry: a damage, or only index records of batches that are good."""

    damage: KnownDamage | None
    batches: list[Batch]


def locate(data: FileSequence, index: FileSequence, base: Base, end: Tail, at: int) -> Location:
    """What is wrong with entry `at` of a log that goes from `base` to `end` for certain."""
    before = good_end_before(data, index, base, at)
    scanner = LogScanner(data, before)
    batches = []
    for batch in scanner.batches():
        batches.append(batch)
        if batch.last_index >= at:
            return Location(None, batches)
    before = scanner.tail
    fault = scanner.fault
    found = resume(data, index, before, end=end)
    if found is None or found.after.index <= before.index:
        raise StorageError(f"entry {at}: the log has changed meanwhile")
    pos = fault.pos if fault is not None else before.pos
    reason = fault.what if fault is not None else "nothing is there"
    return Location(make_damage(data, before, found.after, pos, reason), batches)


def last_known(
    data: FileSequence, index: FileSequence, tail: Tail, anchors: Sequence[Tail]
) -> tuple[int, int]:
    """(term, index) of the last entry that the log after `tail` is known to have had."""
    ends = [(tail.index, tail.term), *((anchor.index, anchor.term) for anchor in anchors)]
    record = _last_record(index)
    if record is not None:
        ends.append((record.index, record.term))
    # Entries may have lost their records with the power. Of such a one only what the next one's chain proves
    # is believed: a floor that no log ever had would bar the node for ever.
    pos = find_entry(data, tail.pos, max(ends)[0])
    while pos is not None:
        header = header_at(data, unpack_header(data.read(pos, ENTRY_HEADER_SIZE)).index, pos)
        following = look_at(data, header.index + 1, pos + header.size) if header is not None else None
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
