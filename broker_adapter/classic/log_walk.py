"""Record by record through the files of a CommitLog, all bytes checked; and the search behind a bad one."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from broker_adapter.classic.record_check import (
    MAX_RECORD_BYTES,
    SECTOR,
    Head,
    check_record,
    claimed_size,
    is_blank,
    lacks_sector,
)
from broker_adapter.errors import Status, StoredDataDamaged
from broker_adapter.format.message import MIN_RECORD_SIZE, Version
from dledger.platform import Disk, read_around

_CHUNK = 1 << 20
_HEAD = 8  # size and magic
_MAGIC_AT = 4
_MAGICS = tuple(struct.pack(">I", version) for version in Version)


class FileWalk:
    """One file. After `heads`: `at` is where it stopped, `problem` why, None if the rest is a blank."""

    def __init__(
        self, disk: Disk, handle: int, begin: int, file_size: int, torn_from: int | None = None
    ) -> None:
        """`torn_from`: a loss of power may have left out sectors of records from this physical offset on."""
        self._torn_from = torn_from
        self._disk = disk
        self._handle = handle
        self._begin = begin
        self._file_size = file_size
        self._data = b""
        self._data_at = 0
        self.at = 0
        self.problem: StoredDataDamaged | None = None

    def heads(self) -> Iterator[Head]:
        """Of whole records, up to the blank or to what is none."""
        while True:
            left = self._file_size - self.at
            place = self._begin + self.at
            try:
                # Nearly always all of it is loaded; what is not, or is a blank, looks like damage first.
                head = check_record(self._data, self.at - self._data_at, place, left)
            except StoredDataDamaged:
                found = self._looked_at_again(place, left)
                if found is None:
                    return
                head = found
            if self._is_torn(head):
                self.problem = StoredDataDamaged(
                    Status.RECORD_FIELD, f"the record at {place} lacks a sector of its topic and properties"
                )
                return
            self.at += head.size
            yield head

    def _is_torn(self, head: Head) -> bool:
        if self._torn_from is None or head.physical_offset < self._torn_from:
            return False
        here = self._loaded(head.size + SECTOR)
        return lacks_sector(self._data, here, head.size, self.at)

    def _looked_at_again(self, place: int, left: int) -> Head | None:
        """None: there is a blank, or a problem."""
        try:
            here = self._loaded(_HEAD)
            if is_blank(self._data, here, left):
                return None
            here = self._loaded(claimed_size(self._data, here, left))
            return check_record(self._data, here, place, left)
        except StoredDataDamaged as error:
            self.problem = error
            return None

    def _loaded(self, size: int) -> int:
        """Where `at` is in the data, which has so many bytes from there on if the file has."""
        here = self.at - self._data_at
        if here + size > len(self._data):
            self._data = read_around(self._disk, self._handle, max(size, _CHUNK), self.at)
            self._data_at, here = self.at, 0
        return here


class Behind(NamedTuple):
    """Whole records behind the end of a log: how many, where the first is, how many of them are newer than
    the record before the end, and when the earliest of those was stored (ms). `dirty_bytes`: up to the last
    byte that is no zero."""

    records: int
    first_offset: int
    newer: int
    first_newer_ms: int
    dirty_bytes: int


def search_behind(disk: Disk, handle: int, begin: int, file_size: int, within: int, last_ms: int) -> Behind:
    """Look for records at every byte of a file that begins at `begin`, from its byte `within` on. `last_ms`:
    the timestamp of the record before the end of the log."""
    heads: list[Head] = []
    dirty, at = within, within
    for low, high in disk.data_ranges(handle):
        at, high = max(at, low), min(high, file_size)
        while at < high:
            data = read_around(disk, handle, min(_CHUNK, high - at), at).rstrip(b"\0")
            dirty = max(dirty, at + len(data)) if data else dirty
            found = _next_magic(data)
            if found < 0:
                at += _CHUNK - _HEAD  # a magic may lie across the border
                continue
            place = at + found - _MAGIC_AT
            head = _record_at(disk, handle, begin, file_size, place) if place >= within else None
            if head is None:
                at += found + 1
                continue
            heads.append(head)
            at = place + head.size
            dirty = max(dirty, at)
    newer = [head.store_timestamp for head in heads if head.store_timestamp > last_ms]
    first = heads[0].physical_offset if heads else -1
    return Behind(len(heads), first, len(newer), min(newer, default=0), dirty - within)


def _next_magic(data: bytes) -> int:
    places = [place for magic in _MAGICS if (place := data.find(magic)) >= 0]
    return min(places, default=-1)


def _record_at(disk: Disk, handle: int, begin: int, file_size: int, at: int) -> Head | None:
    left = file_size - at
    if left < MIN_RECORD_SIZE:
        return None
    try:
        size = claimed_size(read_around(disk, handle, _HEAD, at), 0, min(left, MAX_RECORD_BYTES))
        return check_record(read_around(disk, handle, size, at), 0, begin + at, left)
    except StoredDataDamaged:
        return None


def first_head(disk: Disk, handle: int, begin: int, file_size: int) -> Head | None:
    """Of a file's first record; None: it does not begin with one."""
    return _record_at(disk, handle, begin, file_size, 0)
