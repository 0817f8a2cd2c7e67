"""Layout of a store directory, and of records in the files of its CommitLog. Pure functions.

    commitlog/00000000000000000000   files of equal size, named by the physical offset of their first byte
    checkpoint                       `store_checkpoint`
    abort                            exists while the broker runs; requires abnormal recovery
    lock                             held by the running broker
    consumequeue/, index/, config/   see `queue_files`, `broker_adapter.store`, `tables`

A record never crosses files: a blank record fills the rest. Source: StorePathConfigHelper and
DefaultAppendMessageCallback of RocketMQ 5.5.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from broker_adapter.errors import IllegalMessage, Status, error_for
from broker_adapter.wire.message import BLANK_MAGIC

#: RocketMQ's mappedFileSizeCommitLog.
DEFAULT_FILE_SIZE = 1 << 30
# RocketMQ maps files, and sizes of mapped files are Java ints.
MAX_FILE_SIZE = (1 << 31) - 1
# Space for an empty record and a blank.
MIN_FILE_SIZE = 128
# RocketMQ's END_FILE_MIN_BLANK_LENGTH: space after each record for a blank's size and magic.
MIN_BLANK = 8
# Maximum of Java's long.
MAX_OFFSET = (1 << 63) - 1

_NAME = re.compile(r"[0-9]{20}\Z")
_SIZE_AND_MAGIC = struct.Struct(">II")


class StorePaths(NamedTuple):
    root: Path

    @property
    def commit_log(self) -> Path:
        return self.root / "commitlog"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def abort(self) -> Path:
        return self.root / "abort"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    def file(self, begin: int) -> Path:
        """Return the path of the CommitLog file that starts at this offset."""
        return self.commit_log / file_name(begin)


def file_name(begin: int) -> str:
    return f"{begin:020d}"


def begin_of(name: str) -> int | None:
    """Parse the first offset from a file name. Return None if it is not the name of a CommitLog file."""
    return int(name) if _NAME.match(name) else None


def places_of(end: int, sizes: Iterable[int], file_size: int) -> list[int]:
    """Return physical offsets for records of these sizes. The first record is placed at `end` if it fits into
    that file.

    Raises IllegalMessage (BODY_TOO_LARGE) if a record is larger than a file.
    """
    places = []
    at = end
    for size in sizes:
        if size + MIN_BLANK > file_size:
            text = f"a record of {size} bytes does not fit into files of {file_size}"
            raise IllegalMessage(Status.BODY_TOO_LARGE, text)
        left = file_size - at % file_size
        if size + MIN_BLANK > left:
            at += left
        places.append(at)
        at += size
    return places


def places_of_append(end: int, sizes: Sequence[int], file_size: int) -> list[int]:
    """Return the physical offsets of the records of one append, within a single file if possible.

    A single file requires only one write. A recovery that starts at the beginning of a file then also finds
    the head of the append. Raises the errors of `places_of`.
    """
    size, left = sum(sizes), file_size - end % file_size
    if left < size + MIN_BLANK <= file_size:
        end += left
    return places_of(end, sizes, file_size)


def blank_head(left: int) -> bytes:
    """Return the first bytes of a blank of `left` bytes. The other bytes have no meaning."""
    return _SIZE_AND_MAGIC.pack(left, BLANK_MAGIC)[:left]


def check_file_size(file_size: int) -> int:
    if not MIN_FILE_SIZE <= file_size <= MAX_FILE_SIZE:
        text = f"a file size of {file_size} bytes is not {MIN_FILE_SIZE} to {MAX_FILE_SIZE}"
        raise error_for(Status.STORE_UNREADABLE, text)
    return file_size
