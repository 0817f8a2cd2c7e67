"""Batches of entries as bytes: encoding, verification and decoding. Pure, and the hot path of the store.

An entry has DLedger's format: a 48-byte big-endian header, then the body::

  magic i4 | size i4 | index i8 | term i8 | pos i8 | channel i4 | chain_crc u4 | body_crc u4 | body_size i4

`channel`, unused by DLedger, is the number of entries of the same batch that follow. `chain_crc` covers the
header and, through the previous entry's chain_crc, all preceding entries: two logs that agree in one
chain_crc agree in all entries up to it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from dledger.core.values import ENTRY_HEADER_SIZE, Tail
from dledger.errors import Code, InvalidRequest, StorageError
from dledger.store.format.columns import RECORD_SIZE, is_long, lay_out, may_be_many

BLANK_SIZE = 8  # minimum space at the end of each data file, for the closing blank

MAGIC_NORMAL = 1
MAGIC_INTERNAL = 2  # DLedger's NOOP
MAGIC_BLANK = -1

# The header as it is stored.
_HEADER = struct.Struct(">iiqqqiIIi")
# The same 48 bytes in checksum order: bytes 0-35 and 40-47, then the previous chain_crc in place of the
# entry's own. One pack and one crc32 replace three crc32 calls over slices.
_CHAINED = struct.Struct(">iiqqqiIiI")
_CHAIN_CRC = struct.Struct(">I")
_BLANK = struct.Struct(">ii")

#: Types accepted as the body of an entry. The bytes are copied immediately.
Body = bytes | bytearray | memoryview

_unpack_header = _HEADER.unpack_from
#: magic, size, index, term and pos of the header at an offset, for walks along verified entries.
unpack_begin = struct.Struct(">iiqqq").unpack_from
_pack_chained = _CHAINED.pack
_pack_crc = _CHAIN_CRC.pack


@dataclass(slots=True)
class Batch:
    """Entries that are written, replicated, acknowledged and truncated together. Treat as immutable."""

    first_index: int
    last_index: int
    term: int
    pos: int  # position of its first byte in the data stream
    end_pos: int  # position after its last byte
    chain_crc: int  # of the last entry
    data: bytes | memoryview  # exactly the encoded entries
    head: bytes | None  # body of the first entry if that is INTERNAL (b"" is the no-op), else None
    records: bytes = field(default=b"", compare=False, repr=False)  # its index records, if already computed

    @property
    def size(self) -> int:
        return self.end_pos - self.pos

    @property
    def count(self) -> int:
        return self.last_index - self.first_index + 1

    @property
    def tail(self) -> Tail:
        """The end of a log whose last batch is this one."""
        return Tail(self.last_index, self.term, self.end_pos, self.chain_crc)


class BatchFault(Enum):
    """A fault found where a batch was expected."""

    BAD = "bad"  # bytes that are no valid next batch
    INCOMPLETE = "incomplete"  # the bytes end within a possible batch
    BLANK = "blank"  # the blank that ends a data file
    EMPTY = "empty"  # zeros: never written


class DamagedBatch(StorageError):
    """Raised if there is no valid batch where one was expected. Contains the index, the position and the
    reason."""

    default_code = Code.DATA_DAMAGED

    def __init__(self, what: str, *, index: int, pos: int, fault: BatchFault = BatchFault.BAD) -> None:
        self.what = what
        self.index = index
        self.pos = pos
        self.fault = fault
        super().__init__(f"entry {index} at position {pos}: {what}")


class DecodedEntry(NamedTuple):
    """One entry without its checksums."""

    index: int  # type: ignore[assignment] # hides tuple.index
    term: int
    pos: int
    magic: int
    body: bytes


class Header(NamedTuple):
    """The header of an entry as it is stored."""

    magic: int
    size: int
    index: int  # type: ignore[assignment]  # hides tuple.index
    term: int
    pos: int
    channel: int
    chain_crc: int
    body_crc: int
    body_size: int


def unpack_header(data: bytes | memoryview, offset: int = 0) -> Header:
    """Unpack the 48 bytes at `offset` without verification. Raises DamagedBatch if there are fewer."""
    try:
        return Header._make(_unpack_header(data, offset))
    except struct.error:
        raise _cut(-1) from None


def place(end_pos: int, size: int, data_file_size: int) -> int:
    """Return where a batch of `size` bytes starts in a log that ends at `end_pos`: at `end_pos` or at the
    next file border."""
    room = data_file_size - end_pos % data_file_size
    return end_pos if size <= room - BLANK_SIZE else end_pos + room


def max_batch_size(data_file_size: int) -> int:
    """Return the size of the largest batch that fits into a data file, in bytes including headers."""
    return data_file_size - BLANK_SIZE


def encode_blank(rest: int) -> bytes:
    """Return the header of the blank that fills the last `rest` bytes of a data file. Zeros follow it."""
    assert rest >= BLANK_SIZE, f"no room for a blank in {rest} bytes"
    return _BLANK.pack(MAGIC_BLANK, rest)


def chain_of(header: Header, previous: int) -> int:
    """Compute the chain_crc of an entry with these fields after an entry with chain_crc `previous`."""
    return (
        crc32(
            _pack_chained(
                header.magic,
                header.size,
                header.index,
                header.term,
                header.pos,
                header.channel,
                header.body_crc,
                header.body_size,
                previous,
            )
        )
        or 1
    )


def encode_batch(
    tail: Tail,
    term: int,
    bodies: Sequence[Body],
    *,
    data_file_size: int,
    head: bytes | None = None,
    sums: Sequence[int] | None = None,
) -> Batch:
    """Encode the batch that follows `tail`: an INTERNAL entry `head` if given, then one entry per body.
    `sums`: the CRC32 of each body, if already computed.

    Raises InvalidRequest BATCH_TOO_LARGE if the batch does not fit into one data file.
    """
    assert bodies or head is not None, "a batch has at least one entry"
    assert term >= tail.term, f"term {term} after {tail.term}: terms never fall"
    count = len(bodies) + (head is not None)
    size = sum(map(len, bodies)) + len(head or b"") + ENTRY_HEADER_SIZE * count
    if size > max_batch_size(data_file_size):
        raise InvalidRequest(
            f"the batch is {size} bytes long; the limit is {max_batch_size(data_file_size)}",
            code=Code.BATCH_TOO_LARGE,
        )
    index = first_index = tail.index + 1
    pos = first_pos = place(tail.pos, size, data_file_size)
    channel = count - 1
    chain = tail.chain_crc
    parts: list[Body] = []
    add = parts.append
    magic = MAGIC_NORMAL
    if sums is None:
        sums = [crc32(body) for body in bodies]
    if head is not None:
        bodies = [head, *bodies]
        sums = [crc32(head), *sums]
        magic = MAGIC_INTERNAL
    for body, body_crc in zip(bodies, sums, strict=True):
        length = len(body)
        entry_size = length + ENTRY_HEADER_SIZE
        summed = _pack_chained(magic, entry_size, index, term, pos, channel, body_crc, length, chain)
        chain = crc32(summed) or 1
        add(summed[:36])
        add(_pack_crc(chain))
        add(summed[36:44])
        add(body)
        magic = MAGIC_NORMAL
        index += 1
        pos += entry_size
        channel -= 1
    assert pos == first_pos + size and channel == -1
    return Batch(first_index, index - 1, term, first_pos, pos, chain, b"".join(parts), head)


def parse_batches(data: bytes | memoryview, tail: Tail, *, data_file_size: int) -> list[Batch]:
    """Verify consecutive whole batches that follow `tail`. `data` excludes the blanks between data files.

    Checks index, position, term, sizes, both checksums and completeness. Raises DamagedBatch, which names the
    first fault.
    """
    batches: list[Batch] = []
    offset, end = 0, len(data)
    while offset < end:
        first = _first_header(data, offset, tail, data_file_size)
        if offset == 0 or first.pos != tail.pos:  # entries of a data file have no gaps between them
            together = _parse_together(data, offset, tail, first, data_file_size)
            if together:
                batches += together
                tail, offset = batches[-1].tail, offset + sum(batch.size for batch in together)
                continue
        if not isinstance(data, bytes) and not is_long(data, offset):
            # entries checked one by one are sliced into small pieces, which is faster for bytes
            data = bytes(data)
        at, chain = _parse_entries(data, offset, tail, first)
        batches.append(_batch(data, offset, at, tail, first, chain, data_file_size))
        tail, offset = batches[-1].tail, at
    return batches


def _parse_together(
    data: bytes | memoryview, offset: int, tail: Tail, first: Header, data_file_size: int
) -> list[Batch]:
    """Verify batches starting at `offset` in columns. Returns the good ones, or none if there are too few
    entries for columns."""
    columns = lay_out(data, offset, len(data) // ENTRY_HEADER_SIZE) if may_be_many(data, offset) else None
    if columns is None:
        return []
    sound = columns.sound(first.index, first.pos, _pack_crc(tail.chain_crc), len(columns))
    lasts = columns.batches(sound)
    records = columns.index_records() if lasts else b""
    batches: list[Batch] = []
    number = 0
    for last in lasts:
        first = _first_header(data, offset, tail, data_file_size)
        at, chain = columns.offset(last + 1), int.from_bytes(columns.chain_crc(last))
        own = records[number * RECORD_SIZE : (last + 1) * RECORD_SIZE]
        batches.append(_batch(data, offset, at, tail, first, chain, data_file_size, own))
        tail, offset, number = batches[-1].tail, at, last + 1
    return batches


def parse_batch(data: bytes | memoryview, offset: int, tail: Tail, *, data_file_size: int) -> Batch:
    """Verify the batch that starts at `offset` of `data` and follows `tail`. Raises DamagedBatch."""
    first = _first_header(data, offset, tail, data_file_size)
    at, chain = _parse_entries(data, offset, tail, first)
    return _batch(data, offset, at, tail, first, chain, data_file_size)


def _batch(
    data: bytes | memoryview,
    offset: int,
    at: int,
    tail: Tail,
    first: Header,
    chain: int,
    data_file_size: int,
    records: bytes = b"",
) -> Batch:
    """Return the batch of the verified entries from `offset` to `at`. Raises DamagedBatch if its position is
    invalid."""
    first_pos = first.pos
    index, end_pos = first.index + first.channel, at - offset + first_pos
    if place(tail.pos, at - offset, data_file_size) != first_pos:
        raise DamagedBatch(
            "the batch would have fit into the previous file", index=first.index, pos=first_pos
        )
    if end_pos > first_pos - first_pos % data_file_size + max_batch_size(data_file_size):
        raise DamagedBatch("the batch crosses a file border", index=first.index, pos=first_pos)
    head = (
        bytes(data[offset + ENTRY_HEADER_SIZE : offset + first.size])
        if first.magic == MAGIC_INTERNAL
        else None
    )
    whole = data if offset == 0 and at == len(data) else memoryview(data)[offset:at]
    return Batch(first.index, index, first.term, first_pos, end_pos, chain, whole, head, records)


def _parse_entries(data: bytes | memoryview, offset: int, tail: Tail, first: Header) -> tuple[int, int]:
    """Verify the entries of the batch that starts with `first` at `offset`. Returns its end and last
    chain_crc."""
    index, term, remaining, shift = first.index, first.term, first.channel, first.pos - offset
    at, end = offset, len(data)
    chain, previous = tail.chain_crc, _pack_crc(tail.chain_crc)
    columns = lay_out(data, offset, remaining + 1)
    if columns is not None:
        sound = columns.sound(index, first.pos, previous, columns.one_batch(term, remaining))
        if sound > remaining:
            return columns.offset(sound), int.from_bytes(columns.chain_crc(remaining))
        if sound:
            at, previous = columns.offset(sound), columns.chain_crc(sound - 1)
            index, remaining = index + sound, remaining - sound
    if not isinstance(data, bytes):
        data = bytes(data)
    while True:
        if at + ENTRY_HEADER_SIZE > end:
            raise DamagedBatch("cut in a header", index=index, pos=at + shift, fault=BatchFault.INCOMPLETE)
        magic, size, index_, term_, pos_, channel, chain, body_crc, body_size = _unpack_header(data, at)
        body_at = at + ENTRY_HEADER_SIZE
        body_end = body_at + body_size
        if (
            index_ != index
            or term_ != term
            or pos_ != at + shift
            or channel != remaining
            or size != body_size + ENTRY_HEADER_SIZE
            or body_size < 0
            or (magic != MAGIC_NORMAL and (magic != MAGIC_INTERNAL or at != offset))
            or body_end > end
            or crc32(data[body_at:body_end]) != body_crc
            or (crc32(data[at : at + 36] + data[at + 40 : at + 48] + previous) or 1) != chain
        ):
            expected = Header(MAGIC_NORMAL, 0, index, term, at + shift, remaining, 0, 0, 0)
            _check_slowly(data, at, expected, previous, is_first=at == offset)
        at = body_end
        if remaining == 0:
            return at, chain
        remaining -= 1
        index += 1
        previous = data[body_at - 12 : body_at - 8]


def _first_header(data: bytes | memoryview, offset: int, tail: Tail, data_file_size: int) -> Header:
    """Return the header at `offset` if it can be the first of a batch after `tail`."""
    index = tail.index + 1
    border = tail.pos - tail.pos % data_file_size + data_file_size
    begin = bytes(data[offset : offset + ENTRY_HEADER_SIZE])
    if len(begin) == ENTRY_HEADER_SIZE:  # the common case, which is nearly always valid
        first = unpack_header(begin)
        if (
            first.magic > 0
            and first.index == index
            and (first.pos == tail.pos or first.pos == border)
            and first.term >= tail.term
            and first.term >= 0
            and first.channel >= 0
        ):
            return first
    if begin.startswith(b"\xff\xff\xff\xff"):
        raise DamagedBatch("a blank", index=index, pos=tail.pos, fault=BatchFault.BLANK)
    if not begin.strip(b"\0"):
        raise DamagedBatch("nothing was written here", index=index, pos=tail.pos, fault=BatchFault.EMPTY)
    if len(begin) < ENTRY_HEADER_SIZE:
        raise DamagedBatch("cut in a header", index=index, pos=tail.pos, fault=BatchFault.INCOMPLETE)
    if first.index != index:
        raise DamagedBatch(f"the header says index {first.index}", index=index, pos=tail.pos)
    if first.pos not in (tail.pos, border):
        raise DamagedBatch(f"the header says position {first.pos}", index=index, pos=tail.pos)
    if first.term < max(tail.term, 0):
        raise DamagedBatch(f"term {first.term} after {tail.term}", index=index, pos=first.pos)
    raise DamagedBatch(f"channel {first.channel}", index=index, pos=first.pos)


def _check_slowly(data: bytes, at: int, expected: Header, previous: bytes, *, is_first: bool) -> None:
    """Raise DamagedBatch with the reason for which an entry failed the fast check. Accepts entries of
    original DLedger."""
    header = unpack_header(data, at)
    index, pos = expected.index, expected.pos
    wrong = [
        f"{name} is {getattr(header, name)}, not {getattr(expected, name)}"
        for name in ("index", "term", "pos", "channel")
        if getattr(header, name) != getattr(expected, name)
    ]
    if header.size != header.body_size + ENTRY_HEADER_SIZE or header.body_size < 0:
        wrong.append(f"size {header.size} with a body of {header.body_size}")
    if header.magic != MAGIC_NORMAL and not (header.magic == MAGIC_INTERNAL and is_first):
        wrong.append(f"magic {header.magic}")
    if wrong:
        raise DamagedBatch(", ".join(wrong), index=index, pos=pos)
    end = at + header.size
    if end > len(data):
        raise DamagedBatch("cut in a body", index=index, pos=pos, fault=BatchFault.INCOMPLETE)
    if _is_originals(header, int.from_bytes(previous)):
        return
    if crc32(data[at + ENTRY_HEADER_SIZE : end]) != header.body_crc:
        raise DamagedBatch("body_crc does not match the body", index=index, pos=pos)
    raise DamagedBatch("chain_crc does not match the header and the entry before", index=index, pos=pos)


class VerifiedRun(NamedTuple):
    """The extent of a verified run of entries, and of the whole batches in it."""

    last_index: int
    size: int
    whole_last_index: int  # one before the first entry if no batch ends in the run
    whole_size: int


def verify_run(
    data: bytes,
    first_index: int,
    first_pos: int,
    previous_chain: int,
    last_index: int,
    *,
    whole_batches: bool = False,
) -> VerifiedRun:
    """Verify entries from anywhere in a log, up to `last_index` or the last complete one in `data`. With
    `whole_batches`, the entries of a batch that is cut at the end may be skipped, if there are others.

    Checks index, position, sizes, body_crc, and the chain from the predecessor. Raises DamagedBatch.
    """
    end, index, at = len(data), first_index, 0
    whole_index, whole_size = first_index - 1, 0
    previous = _pack_crc(previous_chain)
    columns = lay_out(data, 0, last_index - first_index + 1)
    if columns is not None:
        count = columns.last_of_batch() + 1 if whole_batches else 0
        sound = columns.sound(index, first_pos, previous, count or len(columns))
        if sound:
            index, at, previous = first_index + sound, columns.offset(sound), columns.chain_crc(sound - 1)
            whole = columns.last_of_batch(sound) + 1
            whole_index, whole_size = whole_index + whole, columns.offset(whole) if whole else 0
            if sound == count:
                return VerifiedRun(index - 1, at, whole_index, whole_size)
    while index <= last_index and at + ENTRY_HEADER_SIZE <= end:
        magic, size, index_, _, pos, channel, chain, body_crc, body_size = _unpack_header(data, at)
        if magic == MAGIC_BLANK:
            break
        body_at = at + ENTRY_HEADER_SIZE
        body_end = body_at + body_size
        if index_ != index or pos != first_pos + at or size != body_size + ENTRY_HEADER_SIZE or body_size < 0:
            text = f"the header says index {index_}, position {pos}, size {size}, body size {body_size}"
            raise DamagedBatch(text, index=index, pos=first_pos + at)
        if body_end > end:
            break
        if (
            crc32(data[body_at:body_end]) != body_crc
            or (crc32(data[at : at + 36] + data[at + 40 : at + 48] + previous) or 1) != chain
            or (magic != MAGIC_NORMAL and magic != MAGIC_INTERNAL)
        ):
            fault = _entry_fault(
                unpack_header(data, at), data[body_at:body_end], index, int.from_bytes(previous)
            )
            if fault is not None:
                raise DamagedBatch(fault, index=index, pos=first_pos + at)
        previous = data[body_at - 12 : body_at - 8]
        at = body_end
        if channel == 0:
            whole_index, whole_size = index, at
        index += 1
    return VerifiedRun(index - 1, at, whole_index, whole_size)


def _is_originals(header: Header, previous_chain: int) -> bool:
    """Return True if original DLedger wrote the entry and left both checksums 0. Only a prefix of the log has
    such entries.

    It must have a body. Otherwise the first no-op of one of this project's logs could match if its header is
    torn.
    """
    return header.body_size > 0 and not (
        header.chain_crc or header.body_crc or header.channel or previous_chain
    )


def decode_entries(data: bytes | memoryview) -> list[DecodedEntry]:
    """Decode the entries of whole batches that are already verified. This is cheap, because it follows the
    sizes in the headers and computes no checksums. Raises DamagedBatch if a size is inconsistent."""
    run = data if isinstance(data, bytes) else bytes(data)
    entries: list[DecodedEntry] = []
    at, end = 0, len(run)
    while at < end:
        if at + ENTRY_HEADER_SIZE > end:
            raise _cut(entries[-1].index + 1 if entries else -1)
        magic, size, index, term, pos, _, _, _, _ = _unpack_header(run, at)
        if not ENTRY_HEADER_SIZE <= size <= end - at:
            raise DamagedBatch(f"a size of {size} bytes", index=index, pos=pos)
        entries.append(DecodedEntry(index, term, pos, magic, run[at + ENTRY_HEADER_SIZE : at + size]))
        at += size
    return entries


def _cut(index: int) -> DamagedBatch:
    return DamagedBatch("cut in a header", index=index, pos=-1, fault=BatchFault.INCOMPLETE)


def verify_entries(data: bytes | memoryview, previous_chain: int | None = None) -> list[DecodedEntry]:
    """Verify and decode entries from anywhere in a log. Raises DamagedBatch.

    Checks sizes, consecutive indexes, body_crc, and the chain from entry to entry. The chain of the first
    entry is checked only if `previous_chain`, the chain_crc of its predecessor, is given.
    """
    run = data if isinstance(data, bytes) else bytes(data)
    entries: list[DecodedEntry] = []
    at, end = 0, len(run)
    chain, index = previous_chain, -1
    while at < end:
        if at + ENTRY_HEADER_SIZE > end:
            raise _cut(index + 1)
        header = unpack_header(run, at)
        if index == -1:
            index = header.index
        body = run[at + ENTRY_HEADER_SIZE : at + header.size]
        fault = _entry_fault(header, body, index, chain)
        if fault is not None:
            raise DamagedBatch(fault, index=index, pos=header.pos)
        entries.append(DecodedEntry(index, header.term, header.pos, header.magic, body))
        chain = header.chain_crc
        index += 1
        at += header.size
    return entries


def _entry_fault(header: Header, body: bytes, index: int, previous_chain: int | None) -> str | None:
    if header.size != header.body_size + ENTRY_HEADER_SIZE or header.body_size < 0:
        return f"size {header.size} with a body of {header.body_size}"
    if header.index != index:
        return f"the header says index {header.index}"
    if header.magic not in (MAGIC_NORMAL, MAGIC_INTERNAL):
        return f"magic {header.magic}"
    if len(body) != header.body_size:
        return "cut in a body"
    if _is_originals(header, previous_chain or 0):
        return None
    if crc32(body) != header.body_crc:
        return "body_crc does not match the body"
    if previous_chain is not None and chain_of(header, previous_chain) != header.chain_crc:
        return "chain_crc does not match the header and the entry before"
    return None
