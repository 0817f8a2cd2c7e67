"""Reads bodies by position: groups many spans into few reads and cuts the results. Pure functions."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from dledger.core.values import ENTRY_HEADER_SIZE
from dledger.errors import Code, InvalidRequest, ReadFailed
from dledger.store.format.batch import MAGIC_NORMAL

# The header fields that can be verified without the preceding entry: all but index, term and channel.
_unpack = struct.Struct(">ii16xq4xIIi").unpack_from

#: The position of an entry, and the size of its body.
Span = tuple[int, int]

MAX_READ_BYTES = 1 << 20  # limit of one read, unless a single body is larger
MAX_GAP_BYTES = 8 << 10  # reading over a gap of this size costs less than a second read


class SpanRun(NamedTuple):
    """Spans fetched by one read: their numbers in the request, ordered by position."""

    pos: int
    size: int
    numbers: Sequence[int]


def span_runs(spans: Sequence[Span], begin_pos: int, end_pos: int, file_size: int) -> list[SpanRun]:
    """Group spans into reads, each within one file. Raises ReadFailed unless all lie between the two
    positions."""
    runs: list[SpanRun] = []
    start = end = border = -1
    numbers: list[int] = []
    for number in sorted(range(len(spans)), key=spans.__getitem__):
        pos, size = spans[number]
        span_end = pos + ENTRY_HEADER_SIZE + size
        if pos < begin_pos or span_end > end_pos or size < 0:
            raise _out_of_range(pos, size, begin_pos, end_pos)
        if pos >= border or pos - end > MAX_GAP_BYTES or span_end - start > MAX_READ_BYTES:
            if numbers:
                runs.append(SpanRun(start, end - start, numbers))
            start, end, numbers = pos, span_end, []
            border = pos - pos % file_size + file_size
        numbers.append(number)
        if span_end > end:
            end = span_end
    if numbers:
        runs.append(SpanRun(start, end - start, numbers))
    return runs


def cut_bodies(data: bytes, run: SpanRun, spans: Sequence[Span], bodies: list[bytes]) -> list[int]:
    """Store the bodies of a run in `bodies`, each at its number. Returns the numbers of the bodies that are
    truncated or do not verify."""
    start, length = run.pos, len(data)
    failed = []
    for number in run.numbers:
        pos, size = spans[number]
        at = pos - start
        body_at = at + ENTRY_HEADER_SIZE
        body_end = body_at + size
        if body_end <= length:
            magic, entry_size, pos_, chain_crc, body_crc, body_size = _unpack(data, at)
            body = data[body_at:body_end]
            if (
                body_crc == crc32(body)
                and pos_ == pos
                and body_size == size
                and entry_size == size + ENTRY_HEADER_SIZE
                and magic == MAGIC_NORMAL
                and chain_crc
            ):
                bodies[number] = body
                continue
        failed.append(number)
    return failed


def check_pos(pos: int, begin_pos: int, end_pos: int) -> None:
    """Raise ReadFailed or InvalidRequest if no entry can start at `pos`."""
    if not max(begin_pos, 0) <= pos < end_pos:
        raise _out_of_range(pos, 0, begin_pos, end_pos)


def no_entry_at(pos: int, size: int = -1) -> InvalidRequest:
    """Return the error for a position at which no user entry of the requested size starts."""
    what = "no user entry" if size < 0 else f"no user entry of {size} bytes"
    return InvalidRequest(f"{what} starts at position {pos}")


def _out_of_range(pos: int, size: int, begin_pos: int, end_pos: int) -> ReadFailed | InvalidRequest:
    if pos < 0 or size < 0:
        return InvalidRequest(f"a body of {size} bytes at position {pos}")
    if pos < begin_pos:
        return ReadFailed(
            f"position {pos} was purged: the log starts at {begin_pos}", code=Code.INDEX_LESS_THAN_LOCAL_BEGIN
        )
    return ReadFailed(f"{size} bytes at position {pos}: the readable log ends at {end_pos}")
