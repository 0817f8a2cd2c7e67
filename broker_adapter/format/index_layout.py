"""The layout of an IndexFile, which finds messages by key: a hash table whose items are chained in the file.

    0                    40            header
    40                   4 * slots     for each slot the number of its newest item, 0 for none
    40 + 4 * slots       20 * items    items, by number; number 0 is never used

    header   0 begin timestamp 8    8 end timestamp 8    16 begin offset 8    24 end offset 8
             32 slots in use 4      36 next item number 4 (so 1 in an empty file)
    item     0 key hash 4           4 physical offset 8
             12 seconds since the begin timestamp 4         16 previous item 4

(big endian, signed; RocketMQ's IndexFile and IndexHeader). An item points to the one before it in the same
slot. Keys of the same hash are not told apart: whoever finds a message looks at its keys again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import starmap
from typing import NamedTuple

from broker_adapter.errors import Status, StoredDataDamaged
from broker_adapter.format.java_hash import java_hash

HEADER_SIZE = 40
SLOT_SIZE = 4
ITEM_SIZE = 20
NO_ITEM = 0
FIRST_ITEM = 1

MAX_SECONDS = 0x7FFFFFFF
_KEY_SEPARATOR = " "

_HEADER = struct.Struct(">qqqqii")
_SLOT = struct.Struct(">i")
_ITEM = struct.Struct(">iqii")

Buffer = bytes | bytearray | memoryview


class IndexShape(NamedTuple):
    """How many slots and items a file has room for; the defaults are RocketMQ's, 420,000,040 bytes."""

    slots: int = 5_000_000
    items: int = 20_000_000

    @property
    def file_size(self) -> int:
        return HEADER_SIZE + self.slots * SLOT_SIZE + self.items * ITEM_SIZE

    @property
    def capacity(self) -> int:
        """How many items can be stored: one less than there is room for, since number 0 is not used."""
        return self.items - 1

    def slot_of(self, key_hash: int) -> int:
        """The slot of a hash, which is not negative (`key_hash`). ValueError if it is."""
        if key_hash < 0:
            raise ValueError(f"key hash {key_hash} is negative")
        return key_hash % self.slots

    def slot_position(self, slot: int) -> int:
        """The byte of the file at which a slot is. ValueError if there is no such slot."""
        if not 0 <= slot < self.slots:
            raise ValueError(f"slot {slot} of {self.slots}")
        return HEADER_SIZE + slot * SLOT_SIZE

    def item_position(self, number: int) -> int:
        """The byte of the file at which an item is. ValueError if no item has this number."""
        if not FIRST_ITEM <= number < self.items:
            raise ValueError(f"item {number} of {self.items}")
        return HEADER_SIZE + self.slots * SLOT_SIZE + number * ITEM_SIZE


class IndexHeader(NamedTuple):
    """What a file holds: store timestamps (ms) and physical offsets of its first and last item, and counts.

    `next_item` is the number that the next item gets; RocketMQ calls it the index count.
    """

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    slots_in_use: int = 0
    next_item: int = FIRST_ITEM


class IndexItem(NamedTuple):
    """One key of one message. `previous` is the next older item of the same slot, 0 for none."""

    key_hash: int
    physical_offset: int
    seconds: int
    previous: int


def encode_header(header: IndexHeader) -> bytes:
    """The 40 bytes of a header. ValueError if a field does not fit."""
    return _packed(_HEADER, header)


def decode_header(data: Buffer, shape: IndexShape) -> IndexHeader:
    """The header that `data` begins with.

    A next item of 0 in a file without items means 1: RocketMQ writes the count with the first item only, and
    a file that was just made is all zeros.

    StoredDataDamaged (INDEX_DAMAGED) if bytes are missing or the counts cannot be those of a file of this
    shape.
    """
    if len(data) < HEADER_SIZE:
        raise _damaged(f"a header of {len(data)} bytes")
    header = IndexHeader._make(_HEADER.unpack_from(data))
    if header.next_item == header.slots_in_use == 0:
        header = header._replace(next_item=FIRST_ITEM)
    if not FIRST_ITEM <= header.next_item <= shape.items:
        raise _damaged(f"next item {header.next_item} in a file of {shape.items}")
    if header.slots_in_use < 0 or min(header.begin_offset, header.end_offset) < 0:
        raise _damaged(f"a number is negative: {header}")
    return header


def encode_slot(newest: int) -> bytes:
    """The 4 bytes of a slot: the number of its newest item. ValueError if it does not fit."""
    return _packed(_SLOT, (newest,))


def decode_slot(data: Buffer, at: int = 0) -> int:
    """The number in the slot at byte `at` of `data`, as it is; `link` says whether it leads anywhere.

    StoredDataDamaged (INDEX_DAMAGED) if bytes are missing.
    """
    _check_room(data, at, SLOT_SIZE)
    (newest,) = _SLOT.unpack_from(data, at)
    return int(newest)


def encode_item(item: IndexItem) -> bytes:
    """The 20 bytes of an item. ValueError if a field does not fit."""
    return _packed(_ITEM, item)


def encode_items(items: Iterable[IndexItem | tuple[int, int, int, int]]) -> bytes:
    """The bytes of items with numbers that follow each other. ValueError if a field does not fit."""
    try:
        return b"".join(starmap(_ITEM.pack, items))
    except struct.error as error:
        raise ValueError(f"an item does not fit into {ITEM_SIZE} bytes: {error}") from None


def decode_item(data: Buffer, at: int = 0) -> IndexItem:
    """The item at byte `at` of `data`, as it is. StoredDataDamaged (INDEX_DAMAGED) if bytes are missing."""
    _check_room(data, at, ITEM_SIZE)
    return IndexItem._make(_ITEM.unpack_from(data, at))


def decode_items(data: Buffer) -> list[IndexItem]:
    """All items in `data`, as they are. StoredDataDamaged (INDEX_DAMAGED) unless they are whole items."""
    if len(data) % ITEM_SIZE:
        raise _damaged(f"{len(data)} bytes are not a whole number of items of {ITEM_SIZE}")
    return list(map(IndexItem._make, _ITEM.iter_unpack(data)))


def link(number: int, below: int) -> int:
    """The item that a slot or an item leads to; 0 if its number is none that can have been stored.

    `below` is `next_item` for the number in a slot and the item's own number for its `previous`: chains lead
    from newer to older items only, so following one ends, whatever is in the file.
    """
    return number if FIRST_ITEM <= number < below else NO_ITEM


def index_key(topic: str, key: str) -> str:
    """The text that is hashed for a key of a message."""
    return f"{topic}#{key}"


def index_keys(topic: str, unique_key: str | None, keys: str | None) -> list[str]:
    """The texts under which a message is found: that of its unique key (UNIQ_KEY), then those of its KEYS.

    KEYS are separated by blanks; empty ones do not count, repeated ones do.
    """
    found = [index_key(topic, unique_key)] if unique_key else []
    found += [index_key(topic, key) for key in (keys or "").split(_KEY_SEPARATOR) if key]
    return found


def key_hash(text: str) -> int:
    """What an item says of its key: the absolute value of its hash in Java, within 0 and 2^31 - 1.

    The one hash without an absolute value in Java, -2^31, counts as 0.
    """
    value = abs(java_hash(text))
    return 0 if value > MAX_SECONDS else value


def seconds_since(begin_timestamp: int, store_timestamp: int) -> int:
    """The time in an item: whole seconds from the file's begin timestamp to the store timestamp (both ms).

    Within 0 and 2^31 - 1. 0 as long as the file has no begin timestamp, that is for its first item, whose
    store timestamp becomes the begin.
    """
    if begin_timestamp <= 0:
        return 0
    return min(max(store_timestamp - begin_timestamp, 0) // 1000, MAX_SECONDS)


def may_be_stored_within(begin_timestamp: int, seconds: int, earliest: int, latest: int) -> bool:
    """Whether an item's message can have been stored from `earliest` to `latest`, both included (all ms).

    The item knows whole seconds only, and 0 and 2^31 - 1 stand for all that is beyond them. So messages
    outside are taken, too, and to be looked at again; none inside is missed. RocketMQ compares the rounded
    time, and misses those of the first second.
    """
    first = begin_timestamp + seconds * 1000
    return (seconds <= 0 or first <= latest) and (seconds >= MAX_SECONDS or first + 999 >= earliest)


def _packed(layout: struct.Struct, fields: Iterable[int]) -> bytes:
    values = tuple(fields)
    try:
        return layout.pack(*values)
    except struct.error as error:
        raise ValueError(f"{values} does not fit into {layout.size} bytes: {error}") from None


def _check_room(data: Buffer, at: int, size: int) -> None:
    if not 0 <= at <= len(data) - size:
        raise _damaged(f"{size} bytes at {at} of {len(data)}")


def _damaged(problem: str) -> StoredDataDamaged:
    return StoredDataDamaged(Status.INDEX_DAMAGED, problem)
