"""Where a store directory has what, and where records lie in the files of its CommitLog. Pure.

    commitlog/00000000000000000000   files of equal size, named by the physical offset of their first byte
    checkpoint                       `store_checkpoint`
    abort                            there while the broker runs: its recovery is the abnormal one
    lock                             held by the running broker
    consumequeue/, index/, config/   see `queue_files`, `broker_adapter.store`, `tables`

A record never crosses the border of a file: a blank record fills the rest. Facts: StorePathConfigHelper and
DefaultAppendMessageCallback of RocketMQ 5.5.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from broker_adapter.errors import IllegalMessage, Status, error_for
from broker_adapter.format.message import BLANK_MAGIC

#: RocketMQ's mappedFileSizeCommitLog.
DEFAULT_FILE_SIZE = 1 << 30
#: RocketMQ's files are mapped, and sizes of mapped files are Java's int.
MAX_FILE_SIZE = (1 << 31) - 1
#: A record without body, topic and properties, and a blank.
MIN_FILE_SIZE = 128
#: RocketMQ's END_FILE_MIN_BLANK_LENGTH: behind each record there is room for a blank's size and magic.
MIN_BLANK = 8
#: Longs of Java.
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
        """The file of the CommitLog with this first offset."""
        return self.commit_log / file_name(begin)


def file_name(begin: int) -> str:
    return f"{begin:020d}"


def begin_of(name: str) -> int | None:
    """The first offset of a file with this name; None: it is none of the CommitLog's."""
    return int(name) if _NAME.match(name) else None


def places_of(end: int, sizes: Iterable[int], file_size: int) -> list[int]:
    """Physical offsets of records of these sizes, the first of which comes at `end` if the file has room.

    IllegalMessage (BODY_TOO_LARGE) for a record that no file has room for."""
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


def blank_head(left: int) -> bytes:
    """What a blank of this size begins with; the rest of it may be anything, and is zeros."""
    return _SIZE_AND_MAGIC.pack(left, BLANK_MAGIC)[:left]


def check_file_size(file_size: int) -> int:
    if not MIN_FILE_SIZE <= file_size <= MAX_FILE_SIZE:
        text = f"files of {file_size} bytes: they have {MIN_FILE_SIZE} to {MAX_FILE_SIZE}"
        raise error_for(Status.STORE_UNREADABLE, text)
    return file_size
