"""The layout of an IndexFile, which finds messages by key. It is a hash table whose items are chained in the
file.

    0                    40            header
    40                   4 * slots     for each slot the number of its newest item, 0 for none
    40 + 4 * slots       20 * items    items, by number; number 0 is never used

    header   0 beginTimestamp 8     8 endTimestamp 8      16 beginPhyOffset 8     24 endPhyOffset 8
             32 slots in use 4      36 next item number 4 (so 1 in an empty file)
    item     0 key hash 4           4 physical offset 8
             12 seconds since beginTimestamp 4             16 previous item 4

(big endian, signed; RocketMQ's IndexFile and IndexHeader). An item points to the previous item of its slot.
An item does not contain its key, so readers must compare the keys of the messages that they find.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import starmap
from typing import NamedTuple

from broker_adapter.errors import Status, StoredDataDamaged
from broker_adapter.wire.java_hash import java_hash

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
    """The number of slots and items in a file.

    The defaults are RocketMQ's and result in a size of 420,000,040 bytes.
    """

    slots: int = 5_000_000
    items: int = 20_000_000

    @property
    def file_size(self) -> int:
        return HEADER_SIZE + self.slots * SLOT_SIZE + self.items * ITEM_SIZE

    @property
    def capacity(self) -> int:
        """Return the maximum number of items: one less than `items`, because the number 0 is unused."""
        return self.items - 1

    def slot_of(self, key_hash: int) -> int:
        """Return the slot of a hash. Raises ValueError if the hash is negative (see `key_hash`)."""
        if key_hash < 0:
            raise ValueError(f"key hash {key_hash} is negative")
        return key_hash % self.slots

    def slot_position(self, slot: int) -> int:
        """Return the byte position of a slot in the file. Raises ValueError if the slot does not exist."""
        if not 0 <= slot < self.slots:
            raise ValueError(f"slot {slot} is out of range; the file has {self.slots}")
        return HEADER_SIZE + slot * SLOT_SIZE

    def item_position(self, number: int) -> int:
        """Return the byte position of an item in the file. Raises ValueError if the item does not exist."""
        if not FIRST_ITEM <= number < self.items:
            raise ValueError(f"item {number} is out of range; the file has {self.items}")
        return HEADER_SIZE + self.slots * SLOT_SIZE + number * ITEM_SIZE


class IndexHeader(NamedTuple):
    """Store timestamps (ms) and physical offsets of a file's first and last item, and counts.

    `next_item` is the number of the next item; RocketMQ calls it the index count.
    """

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    slots_in_use: int = 0
    next_item: int = FIRST_ITEM


class IndexItem(NamedTuple):
    """One key of one message.

    `previous`: number of the next older item in the same slot, or 0 if there is none.
    """

    key_hash: int
    physical_offset: int
    seconds: int
    previous: int


def encode_header(header: IndexHeader) -> bytes:
    """Return the 40 bytes of a header. Raises ValueError if a field is out of range."""
    return _packed(_HEADER, header)


def decode_header(data: Buffer, shape: IndexShape) -> IndexHeader:
    """Decode the header at the start of `data`.

    A next item of 0 in a file without items means 1: RocketMQ writes the count only with the first item, so a
    new file is all zeros.

    Raises StoredDataDamaged (INDEX_DAMAGED) if bytes are missing or the counts are impossible for a file of
    this shape.
    """
    if len(data) < HEADER_SIZE:
        raise _damaged(f"the header is too short: {len(data)} bytes")
    header = IndexHeader._make(_HEADER.unpack_from(data))
    if header.next_item == header.slots_in_use == 0:
        header = header._replace(next_item=FIRST_ITEM)
    if not FIRST_ITEM <= header.next_item <= shape.items:
        raise _damaged(f"next item {header.next_item} exceeds the {shape.items} items of the file")
    if header.slots_in_use < 0 or min(header.begin_offset, header.end_offset) < 0:
        raise _damaged(f"the header contains a negative number: {header}")
    return header


def encode_slot(newest: int) -> bytes:
    """Return the 4 bytes of a slot, which contain the number of its newest item.

    Raises ValueError if it is out of range.
    """
    return _packed(_SLOT, (newest,))


def decode_slot(data: Buffer, at: int = 0) -> int:
    """Return the number in the slot at byte `at` of `data` without validation. Use `link` to check it.

    Raises StoredDataDamaged (INDEX_DAMAGED) if bytes are missing.
    """
    _check_room(data, at, SLOT_SIZE)
    (newest,) = _SLOT.unpack_from(data, at)
    return int(newest)


def encode_item(item: IndexItem) -> bytes:
    """Return the 20 bytes of an item. Raises ValueError if a field is out of range."""
    return _packed(_ITEM, item)


def encode_items(items: Iterable[IndexItem | tuple[int, int, int, int]]) -> bytes:
    """Return the bytes of items with consecutive numbers. Raises ValueError if a field is out of range."""
    try:
        return b"".join(starmap(_ITEM.pack, items))
    except struct.error as error:
        raise ValueError(f"an item does not fit into {ITEM_SIZE} bytes: {error}") from None


def decode_item(data: Buffer, at: int = 0) -> IndexItem:
    """Decode the item at byte `at` without validation.

    Raises StoredDataDamaged (INDEX_DAMAGED) if bytes are missing.
    """
    _check_room(data, at, ITEM_SIZE)
    return IndexItem._make(_ITEM.unpack_from(data, at))


def decode_items(data: Buffer) -> list[IndexItem]:
    """Decode all items in `data` without validation.

    Raises StoredDataDamaged (INDEX_DAMAGED) unless `data` consists of whole items.
    """
    if len(data) % ITEM_SIZE:
        raise _damaged(f"{len(data)} bytes are not a multiple of the item size {ITEM_SIZE}")
    return list(map(IndexItem._make, _ITEM.iter_unpack(data)))


def link(number: int, below: int) -> int:
    """Return the number of the item to which a slot or item points, or 0 if the number is invalid.

    `below` is `next_item` for the number in a slot, and the item's own number for its `previous`. Chains lead
    only from newer to older items, so that following one ends even in a damaged file.
    """
    return number if FIRST_ITEM <= number < below else NO_ITEM


def index_key(topic: str, key: str) -> str:
    """Return the text that is hashed for a key of a message."""
    return f"{topic}#{key}"


def index_keys(topic: str, unique_key: str | None, keys: str | None) -> list[str]:
    """Return the texts under which a message is indexed: one for its unique key (UNIQ_KEY), then one for each
    of its KEYS.

    Blanks separate the KEYS. Empty keys are ignored; repeated keys are not.
    """
    found = [index_key(topic, unique_key)] if unique_key else []
    found += [index_key(topic, key) for key in (keys or "").split(_KEY_SEPARATOR) if key]
    return found


def key_hash(text: str) -> int:
    """Return the key hash of an item, which is the absolute value of Java's hash, from 0 to 2^31 - 1.

    -2^31, which has no absolute value in Java, is treated as 0.
    """
    value = abs(java_hash(text))
    return 0 if value > MAX_SECONDS else value


def seconds_since(begin_timestamp: int, store_timestamp: int) -> int:
    """Return the time of an item, in whole seconds after `begin_timestamp` of the file. Both arguments are
    in ms.

    The result is from 0 to 2^31 - 1. It is 0 if the file has no `begin_timestamp` yet, as for the first item,
    whose store timestamp becomes `begin_timestamp`.
    """
    if begin_timestamp <= 0:
        return 0
    return min(max(store_timestamp - begin_timestamp, 0) // 1000, MAX_SECONDS)


def may_be_stored_within(begin_timestamp: int, seconds: int, earliest: int, latest: int) -> bool:
    """Return True if an item's message may have been stored from `earliest` to `latest`, inclusive (ms).

    An item stores whole seconds, clamped to 0 and 2^31 - 1. The result is therefore true for all messages in
    the range, and for some others, which the caller must exclude. RocketMQ compares the rounded time and
    misses messages of the first second.
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
        raise _damaged(f"{size} bytes at position {at} exceed the {len(data)} available")


def _damaged(problem: str) -> StoredDataDamaged:
    return StoredDataDamaged(Status.INDEX_DAMAGED, problem)
