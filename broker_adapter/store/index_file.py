"""One IndexFile (`broker_adapter.wire.index_layout`). One thread appends items; any thread may search.

An item is written to the file before readers can find it. The slots of the newest file are held in memory and
written when the file is full or closed; after a crash they are rebuilt from the items.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from zlib_ng.zlib_ng import crc32

from broker_adapter.store.consume_queue import CheckpointMismatch
from broker_adapter.store.open_files import OpenFiles
from broker_adapter.wire.index_layout import (
    HEADER_SIZE,
    ITEM_SIZE,
    MAX_SECONDS,
    NO_ITEM,
    SLOT_SIZE,
    IndexHeader,
    IndexItem,
    IndexShape,
    decode_item,
    decode_slot,
    encode_header,
    link,
    may_be_stored_within,
)
from broker_adapter.wire.key_hashes import Int64s

#: numpy layout of an item.
ITEMS = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
_CHUNK_ITEMS = 1 << 18

Slots = npt.NDArray[np.int32]


class IndexState(NamedTuple):
    """State of a file in a checkpoint.

    `head_crc`: CRC32 of header and slots, or None while they are in memory.
    """

    name: str
    header: IndexHeader
    items_crc: int
    head_crc: int | None


class Keys(NamedTuple):
    """Keys of messages in log order, as parallel arrays."""

    hashes: Int64s
    offsets: Int64s  # physical
    stamps: Int64s  # store timestamps, ms

    def split(self, count: int) -> tuple[Keys, Keys]:
        return Keys(*(each[:count] for each in self)), Keys(*(each[count:] for each in self))


class IndexFile:
    def __init__(self, path: Path, files: OpenFiles, shape: IndexShape) -> None:
        """Create an empty file object; call `create` or `restore` next."""
        self.path = path
        self._files = files
        self._shape = shape
        self._header = IndexHeader()
        self._items_crc = 0
        self._head_crc: int | None = None
        self._slots: Slots | None = np.zeros(shape.slots, dtype=np.int32)  # None: the slots are in the file
        self._lock = Lock()  # header and slots change together

    @property
    def header(self) -> IndexHeader:
        return self._header

    @property
    def room(self) -> int:
        """Number of items that can still be added."""
        return self._shape.items - self._header.next_item

    def create(self) -> None:
        self._files.create(self.path, self._shape.file_size)

    def add(self, keys: Keys) -> None:
        """Add an item for each key. There must be at most `room` keys."""
        count = len(keys.hashes)
        assert 0 < count <= self.room and self._slots is not None, (count, self.room)
        header = self._header
        first = header.next_item
        begin = header.begin_timestamp if first > 1 else int(keys.stamps[0])
        slots = keys.hashes % self._shape.slots
        previous, newest, opened = _chained(slots, self._slots, first)
        items = np.empty(count, dtype=ITEMS)
        items["hash"] = keys.hashes
        items["offset"] = keys.offsets
        items["seconds"] = _seconds(begin, keys.stamps)
        items["previous"] = previous
        data = items.tobytes()
        self._files.write(self.path, data, self._shape.item_position(first))
        self._items_crc = crc32(data, self._items_crc)
        with self._lock:
            self._slots[newest[0]] = newest[1]
            self._header = IndexHeader(
                begin,
                int(keys.stamps[-1]),
                header.begin_offset if first > 1 else int(keys.offsets[0]),
                int(keys.offsets[-1]),
                header.slots_in_use + opened,
                first + count,
            )

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield physical offsets of messages that may have this key and time, newest first.

        Call from any thread. Raises FileNotFoundError if the file was purged in the meantime.
        """
        slot = self._shape.slot_of(key_hash)
        with self._lock:
            header = self._header
            if self._slots is not None:
                newest = int(self._slots[slot])
            else:
                newest = decode_slot(self._files.read(self.path, SLOT_SIZE, self._shape.slot_position(slot)))
        number = link(newest, header.next_item)
        while number != NO_ITEM:
            item = self._item(number)
            if item.key_hash == key_hash and may_be_stored_within(
                header.begin_timestamp, item.seconds, begin_ms, end_ms
            ):
                yield item.physical_offset
            if item.seconds < MAX_SECONDS and header.begin_timestamp + item.seconds * 1000 + 999 < begin_ms:
                return  # all remaining items are older, because timestamps never decrease along the log
            number = link(item.previous, number)

    def write_header(self) -> None:
        self._files.write(self.path, encode_header(self._header), 0)

    def write_slots(self) -> None:
        """Write header and slots in the form that RocketMQ's tools expect."""
        assert self._slots is not None
        self.write_header()
        self._files.write(self.path, self._slots.astype(">i4").tobytes(), HEADER_SIZE)

    def seal(self) -> None:
        """Complete the file. No items can be added afterwards."""
        assert self._slots is not None
        self.write_slots()
        crc = crc32(encode_header(self._header))
        self._head_crc = crc32(self._slots.astype(">i4").tobytes(), crc)
        with self._lock:
            self._slots = None

    def state(self) -> IndexState:
        return IndexState(self.path.name, self._header, self._items_crc, self._head_crc)

    def restore(self, state: IndexState) -> None:
        """Restore a checkpoint and remove later items.

        Raises CheckpointMismatch if the file does not match.
        """
        self._header, self._items_crc, self._head_crc = state.header, state.items_crc, state.head_crc
        if not 1 <= self._header.next_item <= self._shape.items:
            raise CheckpointMismatch(
                f"{self.path}: invalid number of the next item: {self._header.next_item}"
            )
        size = self._files.size(self.path)
        if size != self._shape.file_size:
            raise CheckpointMismatch(f"{self.path} is {size} bytes long, expected {self._shape.file_size}")
        if self._head_crc is not None:
            self._slots = None
            head = self._files.read(self.path, HEADER_SIZE + self._shape.slots * SLOT_SIZE, 0)
            if crc32(head) != self._head_crc or head[:HEADER_SIZE] != encode_header(self._header):
                raise CheckpointMismatch(
                    f"{self.path}: header and slots do not match CRC {self._head_crc:#010x}"
                )
        if self._read_items() != self._items_crc:
            raise CheckpointMismatch(f"{self.path}: the items do not match CRC {self._items_crc:#010x}")
        if self._slots is not None and self.room:
            self._files.cut(self.path, self._shape.item_position(self._header.next_item))

    # -- internals ---------------------------------------------------------------------------------------

    def _item(self, number: int) -> IndexItem:
        return decode_item(self._files.read(self.path, ITEM_SIZE, self._shape.item_position(number)))

    def _read_items(self) -> int:
        """Return the checksum of all items. If the slots are in memory, rebuild them."""
        crc = 0
        for first in range(1, self._header.next_item, _CHUNK_ITEMS):
            count = min(_CHUNK_ITEMS, self._header.next_item - first)
            data = self._files.read(self.path, count * ITEM_SIZE, self._shape.item_position(first))
            if len(data) != count * ITEM_SIZE:
                raise CheckpointMismatch(f"{self.path} is too short")
            crc = crc32(data, crc)
            if self._slots is not None:
                slots = np.frombuffer(data, dtype=ITEMS)["hash"].astype(np.int64) % self._shape.slots
                # The last item of a slot wins.
                self._slots[slots] = np.arange(first, first + count, dtype=np.int32)
        return crc


def _chained(slots: Int64s, newest: Slots, first: int) -> tuple[Int64s, tuple[Int64s, Int64s], int]:
    """Link new items, numbered from `first`, into the chains of their slots.

    `newest` contains the current head of each slot. Returns the `previous` field of each item, the new heads
    as (slots, numbers), and the number of slots that were empty.
    """
    previous = newest[slots].astype(np.int64)
    order = np.argsort(slots, kind="stable")
    grouped = slots[order]
    follows = grouped[1:] == grouped[:-1]  # True if the previous item is in the same slot
    previous[order[1:][follows]] = first + order[:-1][follows]
    last = np.append(~follows, True)
    opened = int(np.count_nonzero(previous == NO_ITEM))
    return previous, (grouped[last], first + order[last]), opened


def _seconds(begin: int, stamps: Int64s) -> Int64s:
    """Compute `index_layout.seconds_since` for each stamp."""
    if begin <= 0:
        return np.zeros(len(stamps), dtype=np.int64)
    seconds: Int64s = np.clip((stamps - begin) // 1000, 0, MAX_SECONDS)
    return seconds
