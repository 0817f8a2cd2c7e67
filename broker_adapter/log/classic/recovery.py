"""Recover a CommitLog: find its end and cut the rest. Durable records are never cut silently.

The search follows RocketMQ. After a clean stop (no file `abort`) it scans the last three files. Otherwise it
scans from the last file whose first message is not newer than the checkpoint. The log ends before the first
invalid record. Beyond the checkpoint it also ends before a record that lacks a sector of its topic and
properties, which no checksum covers. RocketMQ always cuts the log there. This recovery fails with
STORE_DAMAGED if the rest was durable (see `judge_end`), unless `CommitLogOptions.cut_damage` allows the cut.

An incomplete append at the end (see `append_heads`) is cut, too. It was never acknowledged, even if its first
records were durable on a slave.

Cut bytes are overwritten with zeros, so that old records cannot follow a later, shorter tail. Source:
recoverNormally, recoverAbnormally, MappedFileQueue of RocketMQ 5.5.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from broker_adapter.errors import Status, StoredDataDamaged, error_for
from broker_adapter.log.classic.append_heads import AppendTracker
from broker_adapter.log.classic.commit_log_files import CommitLogFiles, CommitLogOptions, Recovery
from broker_adapter.log.classic.layout import StorePaths, begin_of, check_file_size
from broker_adapter.log.classic.log_zeros import dirty_end, zero
from broker_adapter.log.classic.record_check import (
    MAX_RECORD_BYTES,
    SECTOR,
    RecordHead,
    check_record,
    claimed_size,
    is_blank,
    lacks_sector,
)
from broker_adapter.log.classic.store_checkpoint import StoreCheckpoint, load_checkpoint, save_checkpoint
from broker_adapter.wire.message import MIN_RECORD_SIZE, Version
from dledger import Code, StorageError
from dledger.infra.files.disk import Disk, read_around, write_all
from dledger.infra.logs import get_logger

_log = get_logger("commitlog")
# Number of files that RocketMQ scans after a clean stop.
_NEWEST_FILES = 3


def open_commit_log(root: Path, disk: Disk, options: CommitLogOptions | None = None) -> CommitLogFiles:
    """Open the CommitLog of a store directory, or create it. The result's `recovery` describes the outcome.

    Raises StorageError (DIRECTORY_LOCKED) while another process uses the directory, STORE_UNREADABLE if files
    have another size or do not form one log, STORE_DAMAGED if durable records would be lost, and LOG_FAILED
    after a disk error.
    """
    options = CommitLogOptions() if options is None else options
    check_file_size(options.file_size)
    paths = StorePaths(root)
    try:
        _make_directories(disk, paths)
        lock = _lock(disk, paths)
    except OSError as error:
        raise error_for(Status.LOG_FAILED, f"{root}: {error}") from error
    try:
        log = _LogOpener(disk, paths, options).open(lock)
    except OSError as error:
        disk.close(lock)
        raise error_for(Status.LOG_FAILED, f"cannot open {root}: {error}") from error
    except BaseException:
        with suppress(Exception):
            disk.close(lock)
        raise
    _log_recovery(root, log.recovery)
    return log


def judge_end(
    *, was_clean: bool, end: int, checkpoint: StoreCheckpoint, behind: Sequence[RecordsAfterEnd]
) -> str:
    """Return the evidence that bytes after the end of the log were durable, or "" if the tail is torn.

    If there is evidence, the end of the log is damage. Records that are not newer than the last one are no
    evidence: they remain from an earlier run, because RocketMQ does not remove them.
    """
    durable = checkpoint.flushed_offset
    if durable is not None and end < durable:
        return f"it was durable up to {durable}"
    newer = [records for records in behind if records.newer]
    if not newer:
        return ""
    count = sum(records.newer for records in newer)
    if was_clean:
        return f"{count} records follow, the first at {newer[0].first_offset}, after a clean stop"
    if min(records.first_newer_ms for records in newer) <= checkpoint.physic_ms:
        text = f"{count} records follow, the first at {newer[0].first_offset}"
        return f"{text}, which were durable according to the checkpoint"
    return ""


class _LogOpener:
    """State of one `open_commit_log` call."""

    def __init__(self, disk: Disk, paths: StorePaths, options: CommitLogOptions) -> None:
        self._disk = disk
        self._paths = paths
        self._options = options
        self._size = options.file_size
        self._was_clean = not disk.exists(paths.abort)
        self._checkpoint = load_checkpoint(disk, paths.checkpoint)
        self._sizeless: list[int] = []  # the first file of size 0, and all later files
        self._begins = self._files()
        self._first = self._first_file()

    def open(self, lock: int) -> CommitLogFiles:
        scan, kept = self._scan()
        behind = [self._behind(begin, scan) for begin in self._begins if begin + self._size > scan.end]
        damage = self._judge(scan, behind)
        self._mark_running()
        incomplete = scan.end - kept.end
        if incomplete:  # otherwise later records of the same millisecond would count as durable
            self._checkpoint.physic_ms = min(self._checkpoint.physic_ms, kept.last_stamp_ms)
        if damage or incomplete:  # first: after a crash the cut would look like damage
            self._checkpoint.flushed_offset = kept.end
            save_checkpoint(self._disk, self._paths.checkpoint, self._checkpoint)
        self._cut(kept.end)
        recovery = kept._replace(
            cut_bytes=incomplete + sum(after.dirty_bytes for after in behind),
            cut_records=scan.records - kept.records + sum(after.records for after in behind),
            damage=damage,
            incomplete_bytes=incomplete,
        )
        log = CommitLogFiles(
            self._paths,
            self._disk,
            self._options,
            self._begins,
            recovery,
            self._checkpoint,
            lambda: self._disk.close(lock),
        )
        log.save_checkpoint()
        return log

    def _files(self) -> list[int]:
        """Return the first offsets in order. Raises STORE_UNREADABLE if the files do not form one log."""
        sizes: dict[int, int] = {}
        for name in self._disk.listdir(self._paths.commit_log):
            begin = begin_of(name)
            if begin is None:
                _log.warning(
                    "ignoring a file that is not part of the CommitLog",
                    path=str(self._paths.commit_log / name),
                )
                continue
            sizes[begin] = self._size_of(begin)
        begins = sorted(sizes)
        for begin in begins:
            if sizes[begin] not in (0, self._size):
                text = f"{self._paths.file(begin)} has {sizes[begin]} bytes, and file_size is {self._size}"
                raise error_for(Status.STORE_UNREADABLE, text)
        for before, after in pairwise(begins):
            if before + self._size != after:
                text = (
                    f"{self._paths.file(before)} has {self._size} bytes, but the next file starts at {after}"
                )
                raise error_for(Status.STORE_UNREADABLE, text)
        whole = [begin for begin in begins if sizes[begin]]
        if begins and begins[0] % self._size:
            text = f"{self._paths.file(begins[0])} does not start at a multiple of {self._size}"
            raise error_for(Status.STORE_UNREADABLE, text)
        first_sizeless = min((begin for begin in begins if not sizes[begin]), default=None)
        if first_sizeless is not None:
            # Power failed during the creation of this file. No later file has durable data.
            self._sizeless = [begin for begin in begins if begin >= first_sizeless]
            whole = [begin for begin in whole if begin < first_sizeless]
        return whole

    def _size_of(self, begin: int) -> int:
        handle = self._disk.open(self._paths.file(begin), write=False)
        try:
            return self._disk.size(handle)
        finally:
            self._disk.close(handle)

    def _first_file(self) -> int:
        """Return the index of the first file to scan. Earlier files are trusted."""
        last = len(self._begins) - 1
        if last <= 0:
            return 0
        if self._was_clean:
            at = max(0, len(self._begins) - _NEWEST_FILES)
            while at and self._first_stamp(at) is None:  # created in advance, never written
                at -= 1
            return at
        durable = self._checkpoint.flushed_offset
        for at in range(last, 0, -1):
            stamp = self._first_stamp(at)
            # Records up to the durable end are complete, even if the clock was changed.
            if durable is not None and self._begins[at] > durable:
                continue
            if stamp and stamp <= self._checkpoint.recovery_ms:
                return at
        return 0

    def _first_stamp(self, at: int) -> int | None:
        with self._opened(self._begins[at]) as handle:
            head = first_head(self._disk, handle, self._begins[at], self._size)
        return None if head is None else head.store_timestamp

    def _scan(self) -> tuple[Recovery, Recovery]:
        """Scan valid records. Return two results: with and without an incomplete append at the end."""
        appends, before = AppendTracker(), (0, 0, -1)
        begin = end = self._begins[self._first] if self._begins else 0
        records, last_ms, last = 0, 0, -1
        # If the checkpoint has no durable end, RocketMQ wrote the directory; apply only RocketMQ's checks.
        torn_from = None if self._was_clean else self._checkpoint.flushed_offset
        reason = "the last file is full"
        for begin in self._begins[self._first :]:
            with self._opened(begin) as handle:
                walk = FileWalk(self._disk, handle, begin, self._size, torn_from, appends)
                for head in walk.heads():
                    if appends.begin == head.physical_offset:
                        before = records, last_ms, last
                    records += 1
                    last_ms, last = head.store_timestamp, head.physical_offset
            end = begin + walk.at
            if walk.problem is not None:
                reason = str(walk.problem)
                break
            end = begin + self._size
        first = self._begins[0] if self._begins else 0
        from_ = self._begins[self._first] if self._begins else 0
        scan = Recovery(self._was_clean, from_, first, end, records, last_ms, reason, last_record=last)
        if appends.begin < 0:
            return scan, scan
        records, last_ms, last = before
        return scan, scan._replace(
            end=appends.begin, records=records, last_stamp_ms=last_ms, last_record=last
        )

    def _behind(self, begin: int, scan: Recovery) -> RecordsAfterEnd:
        with self._opened(begin) as handle:
            within = max(0, scan.end - begin)
            return search_behind(self._disk, handle, begin, self._size, within, scan.last_stamp_ms)

    def _judge(self, scan: Recovery, behind: Sequence[RecordsAfterEnd]) -> str:
        """Return a description of damage that may be cut, or "" if there is none.

        Raises STORE_DAMAGED if the damage may not be cut.
        """
        damage = judge_end(
            was_clean=self._was_clean,
            end=scan.end,
            checkpoint=self._checkpoint,
            behind=behind,
        )
        if damage and not self._options.cut_damage:
            text = (
                f"{self._paths.root}: the CommitLog is damaged at {scan.end} ({scan.end_reason}), and"
                f" {damage}. Nothing was changed: restore from a slave or a backup, or set cut_damage"
            )
            raise error_for(Status.STORE_DAMAGED, text)
        return damage

    def _mark_running(self) -> None:
        """Create the file `abort`, which makes the next start run abnormal recovery unless the log is closed
        first.
        """
        handle = self._disk.open(self._paths.abort, create=True)
        try:
            self._disk.truncate(handle, 0)
            write_all(self._disk, handle, [str(os.getpid()).encode()], 0)
            self._disk.fdatasync(handle)
        finally:
            self._disk.close(handle)
        self._disk.sync_directory(self._paths.root)

    def _cut(self, end: int) -> None:
        """Overwrite everything after the end with zeros, keep at most one spare file, and sync all
        scanned data.
        """
        for begin in reversed(self._sizeless):
            self._disk.unlink(self._paths.file(begin))
        while len(self._begins) > 1 and self._begins[-1] >= end and not self._is_spare(end):
            self._disk.unlink(self._paths.file(self._begins.pop()))
        for begin in self._begins[self._first :]:
            with self._opened(begin, write=True) as handle:
                zero(self._disk, handle, max(0, end - begin), self._size)
                self._disk.fdatasync(handle)
        self._disk.sync_directory(self._paths.commit_log)

    def _is_spare(self, end: int) -> bool:
        """True if the last file was created in advance and is unused."""
        begin = self._begins[-1]
        if begin > end + self._size:
            return False
        with self._opened(begin) as handle:
            return dirty_end(self._disk, handle, 0, self._size) == 0

    @contextmanager
    def _opened(self, begin: int, *, write: bool = False) -> Iterator[int]:
        handle = self._disk.open(self._paths.file(begin), write=write)
        try:
            yield handle
        finally:
            self._disk.close(handle)


def _make_directories(disk: Disk, paths: StorePaths) -> None:
    """Create directories durably.

    Existing directories are also synced, because an earlier process may have died before its sync.
    """
    for path in (*reversed(paths.root.parents), paths.root, paths.commit_log):
        is_new = not disk.exists(path)
        if is_new:
            with suppress(FileExistsError):
                disk.mkdir(path)
        if is_new or path in (paths.root, paths.commit_log):
            disk.sync_directory(path.parent)


def _lock(disk: Disk, paths: StorePaths) -> int:
    """Lock the directory against brokers of this project and against RocketMQ, which locks only the first
    byte of the file.
    """
    handle = disk.open(paths.lock, create=True)
    if not disk.lock(handle) or not disk.lock_first_byte(handle):
        disk.close(handle)
        raise StorageError(f"{paths.root} is in use by another broker", code=Code.DIRECTORY_LOCKED)
    return handle


def _log_recovery(root: Path, recovery: Recovery) -> None:
    if recovery.damage:
        _log.error(
            "cut durable records of the CommitLog, as cut_damage allows",
            root=str(root),
            offset=recovery.end,
            reason=recovery.end_reason,
            damage=recovery.damage,
            records=recovery.cut_records,
            bytes=recovery.cut_bytes,
        )
    elif recovery.cut_records:
        _log.warning(
            "cut an incomplete append, which was never acknowledged"
            if recovery.incomplete_bytes
            else "cut whole records after a torn one, which were not known to be durable",
            root=str(root),
            offset=recovery.end,
            reason=recovery.end_reason,
            records=recovery.cut_records,
            bytes=recovery.cut_bytes,
        )
    _log.info(
        "CommitLog open",
        root=str(root),
        was_clean=recovery.was_clean,
        begin=recovery.begin,
        end=recovery.end,
        incomplete_bytes=recovery.incomplete_bytes,
        scanned_from=recovery.scanned_from,
        records=recovery.records,
        cut_bytes=recovery.cut_bytes,
    )


_CHUNK = 1 << 20
_HEAD = 8  # size and magic
_MAGIC_AT = 4
_MAGICS = tuple(struct.pack(">I", version) for version in Version)


class FileWalk:
    """Reads the records of a file in order.

    Afterwards `at` is the position after the last valid record. `problem` is the error at that position, or
    None if a blank follows.
    """

    def __init__(
        self,
        disk: Disk,
        handle: int,
        begin: int,
        file_size: int,
        torn_from: int | None = None,
        appends: AppendTracker | None = None,
    ) -> None:
        """Create a walk through one file, given its start offset.

        `torn_from`: physical offset from which records may lack sectors after a power failure. `appends`
        receives each record before `heads` yields it.
        """
        self._torn_from = torn_from
        self._appends = AppendTracker() if appends is None else appends
        self._disk = disk
        self._handle = handle
        self._begin = begin
        self._file_size = file_size
        self._data = b""
        self._data_at = 0
        self.at = 0
        self.problem: StoredDataDamaged | None = None

    def heads(self) -> Iterator[RecordHead]:
        """Yield heads of valid records, up to a blank or an invalid record."""
        while True:
            left = self._file_size - self.at
            place = self._begin + self.at
            try:
                # A record that is not loaded, or a blank, fails this check and is checked again.
                head = check_record(self._data, self.at - self._data_at, place, left)
            except StoredDataDamaged:
                found = self._recheck(place, left)
                if found is None:
                    return
                head = found
            if self._is_torn(head):
                self.problem = StoredDataDamaged(
                    Status.RECORD_FIELD, f"the record at {place} lacks a sector of its topic and properties"
                )
                return
            self._appends.add(self._data, self.at - self._data_at, head.size, place)
            self.at += head.size
            yield head

    def _is_torn(self, head: RecordHead) -> bool:
        if self._torn_from is None or head.physical_offset < self._torn_from:
            return False
        here = self._load(head.size + SECTOR)
        return lacks_sector(self._data, here, head.size, self.at)

    def _recheck(self, place: int, left: int) -> RecordHead | None:
        """Load more data and check again. Return None for a blank, or after setting `problem`."""
        try:
            here = self._load(_HEAD)
            if is_blank(self._data, here, left):
                self._appends.close()
                return None
            here = self._load(claimed_size(self._data, here, left))
            return check_record(self._data, here, place, left)
        except StoredDataDamaged as error:
            self.problem = error
            return None

    def _load(self, size: int) -> int:
        """Load at least `size` bytes starting at `at`, if the file has them.

        Return the index of `at` in the data.
        """
        here = self.at - self._data_at
        if here + size > len(self._data):
            self._data = read_around(self._disk, self._handle, max(size, _CHUNK), self.at)
            self._data_at, here = self.at, 0
        return here


class RecordsAfterEnd(NamedTuple):
    """The valid records that one file contains after the end of a log.

    `newer`: number of records that are newer than the last record of the log. `first_newer_ms`: earliest of
    their store timestamps. `dirty_bytes`: size up to the last non-zero byte.
    """

    records: int
    first_offset: int
    newer: int
    first_newer_ms: int
    dirty_bytes: int


def search_behind(
    disk: Disk, handle: int, begin: int, file_size: int, within: int, last_ms: int
) -> RecordsAfterEnd:
    """Search a file for records at every byte position from `within` onward.

    `begin`: start offset of the file. `last_ms`: timestamp of the last record of the log.
    """
    heads: list[RecordHead] = []
    dirty, at = within, within
    for low, high in disk.data_ranges(handle):
        at, high = max(at, low), min(high, file_size)
        while at < high:
            data = read_around(disk, handle, min(_CHUNK, high - at), at).rstrip(b"\0")
            dirty = max(dirty, at + len(data)) if data else dirty
            found = _next_magic(data)
            if found < 0:
                at += _CHUNK - _HEAD  # a magic may cross the chunk boundary
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
    return RecordsAfterEnd(len(heads), first, len(newer), min(newer, default=0), dirty - within)


def _next_magic(data: bytes) -> int:
    places = [place for magic in _MAGICS if (place := data.find(magic)) >= 0]
    return min(places, default=-1)


def _record_at(disk: Disk, handle: int, begin: int, file_size: int, at: int) -> RecordHead | None:
    left = file_size - at
    if left < MIN_RECORD_SIZE:
        return None
    try:
        size = claimed_size(read_around(disk, handle, _HEAD, at), 0, min(left, MAX_RECORD_BYTES))
        return check_record(read_around(disk, handle, size, at), 0, begin + at, left)
    except StoredDataDamaged:
        return None


def first_head(disk: Disk, handle: int, begin: int, file_size: int) -> RecordHead | None:
    """Return the head of a file's first record, or None if the file does not start with a record."""
    return _record_at(disk, handle, begin, file_size, 0)
