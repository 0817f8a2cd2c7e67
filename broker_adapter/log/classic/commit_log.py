"""Read the CommitLog of a RocketMQ broker: memory-mapped files of equal size, named by their first offset.

    commitlog/00000000000000000000    records (`broker_adapter.wire.message`), then a blank: size 4, magic
    commitlog/00000000001073741824    0xCBD43194; the next record is in the next file

The position of a record is its physical offset, which the record stores as a field. Source: recoverNormally,
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
from broker_adapter.log.classic.append_heads import AppendTracker
from broker_adapter.wire.message import BLANK_MAGIC, MessageRecord, decode, record_size_at

# RocketMQ's maxMessageSize is a setting; this exceeds any practical value.
MAX_BODY_BYTES = 64 << 20
# Number of files to scan after a clean stop.
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
    """A record of the CommitLog and its decoded message."""

    record: bytes
    message: MessageRecord


def log_files(directory: Path) -> list[LogFile]:
    """List the files of a CommitLog by offset.

    Raises STORE_UNREADABLE unless they have equal sizes and follow each other without gaps.
    """
    found = [
        LogFile(path, int(path.name), path.stat().st_size)
        for path in sorted(directory.glob("*"))
        if _NAME.match(path.name)
    ]
    if found and not found[-1].size:
        found.pop()  # created but not extended: RocketMQ removes it
    if not found:
        raise _unreadable(f"{directory} contains no CommitLog files")
    for before, after in pairwise(found):
        if before.size != found[0].size or before.begin + before.size != after.begin:
            text = f"{before.path.name} has {before.size} bytes, and the next file is {after.path.name}"
            raise _unreadable(f"{directory}: {text}")
    if found[-1].size != found[0].size:
        text = f"{found[-1].path.name} has {found[-1].size} bytes, the others {found[0].size}"
        raise _unreadable(f"{directory}: {text}")
    return found


def recovery_begin(files: Sequence[LogFile], *, is_clean: bool, checkpoint_ms: int) -> int:
    """Return the offset at which RocketMQ starts scanning for the end of the log. It trusts earlier records.

    `is_clean`: the broker was stopped cleanly. `checkpoint_ms`: records stored up to this time are on disk.
    """
    if is_clean:
        return files[max(0, len(files) - _NEWEST_FILES)].begin
    for file in reversed(files):
        stamp = _first_timestamp(file)
        if stamp and stamp <= checkpoint_ms:
            return file.begin
    return files[0].begin


class LogScan:
    """Scans all records of a log.

    After the scan, `end` is the end of the log and `reason` says why the log ends there. `dirty_bytes` is the
    number of bytes after the end up to the file's last non-zero byte, which RocketMQ removes too.
    """

    def __init__(self, files: Sequence[LogFile], recovery_begin: int) -> None:
        self._files = files
        self._recovery_begin = recovery_begin
        self.end = files[0].begin
        self.reason = ""
        self.dirty_bytes = 0

    def messages(self) -> Iterator[StoredMessage]:
        """Yield messages in log order, except messages of an incomplete append at the end.

        Raises STORE_DAMAGED for an invalid record before `recovery_begin`. The first invalid record at or
        after `recovery_begin` marks the end of the log.
        """
        appends, held = AppendTracker(), list[StoredMessage]()
        for found in self._records():
            offset = found.message.physical_offset
            appends.add(found.record, 0, len(found.record), offset)
            if appends.begin in (-1, offset):
                yield from held
                held.clear()
            if appends.begin < 0:
                yield found
            else:
                held.append(found)
        if self.end % self._files[0].size == 0:  # a blank follows, so the append is complete
            yield from held
        elif held:
            self.dirty_bytes += self.end - appends.begin
            self.end, self.reason = appends.begin, "the rest of the last append is missing"

    def _records(self) -> Iterator[StoredMessage]:
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
                f"{file.path}: invalid record at offset {place} before the recovery range: {error}",
            )
        self.end, self.reason = place, str(error)
        rest = data[at : file.size]
        self.dirty_bytes = len(rest.rstrip(b"\0"))


def _is_blank(data: mmap.mmap, at: int) -> bool:
    """True if the next record is in the next file."""
    left = len(data) - at
    return left < _SIZE_AND_MAGIC.size or _SIZE_AND_MAGIC.unpack_from(data, at)[1] == BLANK_MAGIC


def _message_at(data: mmap.mmap, at: int, begin: int) -> StoredMessage:
    """Decode a record. Raises StoredDataDamaged if the record is incomplete or states another offset."""
    head = data[at : at + _SIZE_AND_MAGIC.size]
    size, _ = _SIZE_AND_MAGIC.unpack(head)
    record = data[at : at + min(size, len(data) - at)] if 0 < size <= len(data) - at else head
    record_size_at(record, 0, max_body_bytes=MAX_BODY_BYTES)
    message = decode(record, max_body_bytes=MAX_BODY_BYTES)
    if message.physical_offset != begin + at:
        text = f"record of offset {message.physical_offset} at {begin + at}"
        raise StoredDataDamaged(Status.RECORD_FIELD, text)
    return StoredMessage(record, message)


def _first_timestamp(file: LogFile) -> int:
    """Return the store timestamp of a file's first record, or 0 if the file has none."""
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
