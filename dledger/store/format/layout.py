"""Names of the files in a node's directory, and the layout of the index."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from dledger.core.values import ENTRY_HEADER_SIZE
from dledger.store.format.batch import MAGIC_INTERNAL, MAGIC_NORMAL
from dledger.store.format.columns import RECORD_SIZE, lay_out

DATA = "data"
INDEX = "index"
HARD_STATE = "currterm"
CHECKPOINT = "checkpoint"
SESSIONS = "sessions"
BASE = "base"
DAMAGE = "damage"
REPAIR = "repair.tmp"
RESERVE = "reserve"
IMAGES = "images"
IDENTITY = "identity"
LOCK = "lock"
FSYNC_FAILED_MARKER = "fsync-failed"
NOTICE = "DO-NOT-OPEN-WITH-ORIGINAL-DLEDGER.txt"

NOTICE_TEXT = """\
This directory belongs to a node of a replicated log that fills fields which the original (Java) DLedger
leaves empty: chain_crc, body_crc and channel of the entries, and further keys in currterm and checkpoint.

Read-only tools of the original can read these files. NEVER start an original DLedger server on it: it would
truncate entries that it does not recognize, and forget the vote. A node refuses to start on a directory that
the original has written to.
"""

DEFAULT_DATA_FILE_SIZE = 1 << 30
MIN_DATA_FILE_SIZE = 1 << 10

INDEX_RECORD_SIZE = RECORD_SIZE
_INDEX_RECORD = struct.Struct(">iqiqq")


class IndexRecord(NamedTuple):
    """One record of the index stream, at offset index * 32."""

    magic: int
    pos: int
    size: int
    index: int  # type: ignore[assignment]  # hides tuple.index
    term: int

    def pack(self) -> bytes:
        return _INDEX_RECORD.pack(*self)

    def is_plausible(self, index: int) -> bool:
        """Return True if this may be the record written for entry `index` after it became durable."""
        return (
            self.index == index
            and self.magic in (MAGIC_NORMAL, MAGIC_INTERNAL)
            and self.size >= ENTRY_HEADER_SIZE
            and self.pos >= 0
            and self.term >= 0
        )


def unpack_record(data: bytes, offset: int = 0) -> IndexRecord:
    """Unpack the record at `offset` without verification."""
    return IndexRecord._make(_INDEX_RECORD.unpack_from(data, offset))


def index_records(data: bytes | memoryview) -> bytes:
    """Build the index records of the entries in `data`: five fields of each header, reordered."""
    columns = lay_out(data, 0, len(data) // ENTRY_HEADER_SIZE)
    if columns is not None and columns.offset(len(columns)) == len(data):
        return columns.index_records()
    run = data if isinstance(data, bytes) else bytes(data)
    parts: list[bytes] = []
    add = parts.append
    size_of = int.from_bytes
    at, end = 0, len(run)
    while at < end:
        size = run[at + 4 : at + 8]
        add(run[at : at + 4] + run[at + 24 : at + 32] + size + run[at + 8 : at + 24])
        at += size_of(size)
    return b"".join(parts)


def index_file_size(data_file_size: int) -> int:
    """Return the size of an index file: DLedger's 5 * 2^20 records per 1 GiB of data, in proportion."""
    return max(8, data_file_size // 1024 * 5) * INDEX_RECORD_SIZE


def file_name(start: int) -> str:
    """Return the name of the data or index file that starts at this offset of its stream."""
    return f"{start:020d}"


def start_of(name: str) -> int | None:
    """Parse the start offset from a data or index file name. Returns None for other names."""
    return int(name) if len(name) == 20 and name.isdigit() and name.isascii() else None


class NodePaths(NamedTuple):
    """The paths in a node's directory."""

    root: Path

    @property
    def data(self) -> Path:
        return self.root / DATA

    @property
    def index_files(self) -> Path:
        return self.root / INDEX

    @property
    def hard_state(self) -> Path:
        return self.root / HARD_STATE

    @property
    def checkpoint(self) -> Path:
        return self.root / CHECKPOINT

    @property
    def sessions(self) -> Path:
        return self.root / SESSIONS

    @property
    def identity(self) -> Path:
        return self.root / IDENTITY

    @property
    def lock(self) -> Path:
        return self.root / LOCK

    @property
    def marker(self) -> Path:
        return self.root / FSYNC_FAILED_MARKER

    @property
    def notice(self) -> Path:
        return self.root / NOTICE

    @property
    def base(self) -> Path:
        return self.root / BASE

    @property
    def damage(self) -> Path:
        return self.root / DAMAGE

    @property
    def repair(self) -> Path:
        """File for the index records of a repair in progress, which only the repair uses."""
        return self.root / REPAIR

    @property
    def reserve(self) -> Path:
        return self.root / RESERVE

    @property
    def images(self) -> Path:
        return self.root / IMAGES
