"""The CommitLog of a broker of RocketMQ: mapped files of equal size, named by offset, full of records.

    commitlog/00000000000000000000    records (`broker_adapter.format.message`), then a blank: size 4, magic
    commitlog/00000000001073741824    0xCBD43194; the next record begins the next file

A record's position is its physical offset, and the record has it as a field. Facts: recoverNormally,
recoverAbnormally and checkMessageAndReturnSize of RocketMQ 5.5's CommitLog.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from broker_adapter.errors import BrokerError, Status, StoredDataDamaged, error_for
from broker_adapter.format.message import BLANK_MAGIC, Message, decode, record_size_at

#: RocketMQ's maxMessageSize is a setting; nobody sets more.
MAX_BODY_BYTES = 64 << 20
#: A clean stop leaves so many files to look at.
_NEWEST_FILES = 3
_NAME = re.compile(r"[0-9]{20}\Z")
_SIZE_AND_MAGIC = struct.Struct(">II")
_SYS_FLAG = struct.Struct(">i")
_TIMESTAMP = struct.Struct(">q")
_SYS_FLAG_AT, _STORE_TIMESTAMP_AT, _BORN_HOST_V6, _V6_MORE = 36, 56, 16, 12
_CHUNK = 1 << 20


class LogFile(NamedTuple):
    path: Path
    begin: int  # physical offset of its first byte
    size: int


class StoredMessage(NamedTuple):
    """A record of the CommitLog, and what it says."""

    record: bytes
    message: Message


def log_files(directory: Path) -> list[LogFile]:
    """By offset. STORE_UNREADABLE if they are not pieces of equal size of one stream."""
    found = [
        LogFile(path, int(path.name), path.stat().st_size)
        for path in sorted(directory.glob("*"))
        if _NAME.match(path.name)
    ]
    if found and not found[-1].size:
        found.pop()  # made, and never extended: RocketMQ removes it
    if not found:
        raise _unreadable(f"{directory} has no files of a CommitLog")
    for before, after in pairwise(found):
        if before.size != found[0].size or before.begin + before.size != after.begin:
            text = f"{before.path.name} has {before.size} bytes, and the next file is {after.path.name}"
            raise _unreadable(f"{directory}: {text}")
    if found[-1].size != found[0].size:
        text = f"{found[-1].path.name} has {found[-1].size} bytes, the others {found[0].size}"
        raise _unreadable(f"{directory}: {text}")
    return found


def recovery_begin(files: Sequence[LogFile], *, is_clean: bool, checkpoint_ms: int) -> int:
    """Where RocketMQ begins to look for the end of the log: what is before it is believed to be whole.

    `is_clean`: the broker was stopped in an orderly way. `checkpoint_ms`: up to when all is on disk."""
    if is_clean:
        return files[max(0, len(files) - _NEWEST_FILES)].begin
    for file in reversed(files):
        stamp = _first_timestamp(file)
        if stamp and stamp <= checkpoint_ms:
            return file.begin
    return files[0].begin


class LogScan:
    """Goes through all records. When it is through, `end` is where the log ends, `reason` why it ends there,
    and `dirty_bytes` how much of that file's rest is no zeros: RocketMQ cuts that, too."""

    def __init__(self, files: Sequence[LogFile], recovery_begin: int) -> None:
        self._files = files
        self._recovery_begin = recovery_begin
        self.end = files[0].begin
        self.reason = ""
        self.dirty_bytes = 0

    def messages(self) -> Iterator[StoredMessage]:
        """In the order of the log. STORE_DAMAGED for a record before `recovery_begin` that is none: behind it
        that is the end."""
        for file in self._files:
            with (
                file.path.open("rb") as opened,
                mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data,
            ):
                self.end, at = file.begin, 0
                while not _is_blank(data, at):
                    try:
                        found = _message_at(data, at, file.begin)
                    except StoredDataDamaged as error:
                        self._end_at(file, data, at, error)
                        return
                    at += len(found.record)
                    self.end = file.begin + at
                    yield found
                self.end = file.begin + file.size
        self.reason = "the last file is full"

    def _end_at(self, file: LogFile, data: mmap.mmap, at: int, error: StoredDataDamaged) -> None:
        place = file.begin + at
        if place < self._recovery_begin:
            raise StoredDataDamaged(
                Status.STORE_DAMAGED,
                f"{file.path}: no record at offset {place}, and the log does not end there: {error}",
            )
        self.end, self.reason = place, str(error)
        rest = data[at : file.size]
        self.dirty_bytes = len(rest.rstrip(b"\0"))


def _is_blank(data: mmap.mmap, at: int) -> bool:
    """Whether the next record is in the next file."""
    left = len(data) - at
    return left < _SIZE_AND_MAGIC.size or _SIZE_AND_MAGIC.unpack_from(data, at)[1] == BLANK_MAGIC


def _message_at(data: mmap.mmap, at: int, begin: int) -> StoredMessage:
    """StoredDataDamaged if there is no whole record, or one of another place."""
    head = data[at : at + _SIZE_AND_MAGIC.size]
    size, _ = _SIZE_AND_MAGIC.unpack(head)
    record = data[at : at + min(size, len(data) - at)] if 0 < size <= len(data) - at else head
    record_size_at(record, 0, max_body_bytes=MAX_BODY_BYTES)
    message = decode(record, max_body_bytes=MAX_BODY_BYTES)
    if message.physical_offset != begin + at:
        text = f"a record of offset {message.physical_offset} at {begin + at}"
        raise StoredDataDamaged(Status.RECORD_FIELD, text)
    return StoredMessage(record, message)


def _first_timestamp(file: LogFile) -> int:
    """When the first record of a file was stored; 0: there is none."""
    with file.path.open("rb") as opened:
        head = opened.read(_STORE_TIMESTAMP_AT + _V6_MORE + _TIMESTAMP.size)
    try:
        _, magic = _SIZE_AND_MAGIC.unpack_from(head)
        (sys_flag,) = _SYS_FLAG.unpack_from(head, _SYS_FLAG_AT)
        more = _V6_MORE if sys_flag & _BORN_HOST_V6 else 0
        (stamp,) = _TIMESTAMP.unpack_from(head, _STORE_TIMESTAMP_AT + more)
    except struct.error:
        return 0
    return stamp if magic != BLANK_MAGIC and magic else 0


def _unreadable(problem: str) -> BrokerError:
    return error_for(Status.STORE_UNREADABLE, problem)
