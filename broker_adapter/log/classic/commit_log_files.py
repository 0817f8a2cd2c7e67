"""Write the files of a CommitLog: append records, fill file ends with blanks, make data durable.

This module does not wait for replication or group commit; its callers do. `recovery` opens existing files.
The format is documented in `layout` and `broker_adapter.wire.message`.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Lock
from typing import NamedTuple

from broker_adapter.errors import BrokerError, Status, error_for
from broker_adapter.log.classic.append_heads import AppendTracker
from broker_adapter.log.classic.layout import (
    DEFAULT_FILE_SIZE,
    MAX_OFFSET,
    StorePaths,
    blank_head,
    check_file_size,
    places_of_append,
)
from broker_adapter.log.classic.log_retention import OldFile
from broker_adapter.log.classic.log_zeros import zero
from broker_adapter.log.classic.record_check import MAX_HEAD_SIZE, store_timestamp
from broker_adapter.log.classic.shipped_units import ShippedState, UnitRun, check_place, find_units
from broker_adapter.log.classic.store_checkpoint import StoreCheckpoint, save_checkpoint
from dledger.infra.files.disk import Disk, write_all
from dledger.infra.files.handle_cache import HandleCache
from dledger.infra.logs import get_logger

_log = get_logger("commitlog")
_MAX_OPEN_FILES = 64
_FULL = (errno.ENOSPC, errno.EDQUOT)
_SIZE_AND_MAGIC = struct.Struct(">II")


class CommitLogOptions(NamedTuple):
    """Options of a CommitLog.

    `file_size` must match existing files. `reserve_bytes`: space on the disk to leave free. `cut_damage`:
    permit recovery to remove damaged bytes and everything after them, even though these bytes were durable.
    """

    file_size: int = DEFAULT_FILE_SIZE
    reserve_bytes: int = 0
    cut_damage: bool = False


class Recovery(NamedTuple):
    """Result of opening a log.

    `scanned_from`: first scanned offset. `records`: number of valid records starting at that offset.
    `end_reason`: why the log ends at `end`. `cut_bytes`: bytes after the end, up to the last non-zero byte.
    `cut_records`: number of complete records among them. `damage`: description of the durable bytes that were
    cut with `cut_damage`. `last_record`: offset of the last valid record, or -1 if the scan found none.
    `incomplete_bytes`: size of an incomplete last append that was cut.
    """

    was_clean: bool
    scanned_from: int
    begin: int
    end: int
    records: int
    last_stamp_ms: int
    end_reason: str
    cut_bytes: int = 0
    cut_records: int = 0
    damage: str = ""
    last_record: int = -1
    incomplete_bytes: int = 0


class CommitLogFiles:
    """Files of a CommitLog. All calls block.

    One thread appends, truncates and closes. `flush`, `prepare`, `purge_below` and `save_checkpoint` may each
    run on one other thread; properties and `read` on any thread.

    Methods raise BrokerError. After a disk error, methods that write raise LOG_FAILED.
    """

    def __init__(
        self,
        paths: StorePaths,
        disk: Disk,
        options: CommitLogOptions,
        begins: Sequence[int],
        recovery: Recovery,
        checkpoint: StoreCheckpoint,
        release: Callable[[], None],
    ) -> None:
        """Open the files with these start offsets. Called by recovery.

        Bytes before `recovery.end` are durable; bytes after it are zeros. `release` is called after all files
        are closed.
        """
        self.file_size = check_file_size(options.file_size)
        # Offset of the first byte.
        self.begin_offset = recovery.begin
        # Offset after the last written byte, and the limit for readers.
        self.end_offset = recovery.end
        # End of the last complete append: `end_offset`, unless a slave has received only part of an append.
        self.complete_end_offset = recovery.end
        # Everything before this offset is durable.
        self.flushed_offset = recovery.end
        # The owner of the derived files maintains its `logics_ms` and `index_ms`.
        self.checkpoint = checkpoint
        self.recovery = recovery
        # Reason why `make_room` refuses all appends, or "". Set by LogUpkeep.
        self.refusal = ""
        self.is_closed = False
        self._paths = paths
        self._disk = disk
        self._reserve_bytes = options.reserve_bytes
        self._handles: HandleCache[int] = HandleCache(
            lambda begin: disk.open(paths.file(begin)), disk.close, _MAX_OPEN_FILES
        )
        self._begins = list(begins)
        self._names_lock = Lock()  # held while files are added or removed
        self._flush_lock = Lock()
        self._has_new_names = False
        self._last_stamp_ms = recovery.last_stamp_ms
        self._last_record = recovery.last_record
        self._appends = AppendTracker()
        # Timestamp and offset of the last record before the incomplete append.
        self._before_append = (recovery.last_stamp_ms, recovery.last_record)
        self._first_stamps: dict[int, int] = {}
        self._modified: dict[int, int] = {}  # modification times of complete files
        self._failure: BrokerError | None = None
        self._release = release

    # -- properties and reads

    @property
    def last_file_offset(self) -> int:
        """Offset at which the last file starts. A new slave starts there."""
        return self.end_offset - self.end_offset % self.file_size

    @property
    def last_stamp_ms(self) -> int:
        """Store timestamp of the newest record; 0 if unknown."""
        return self._last_stamp_ms

    @property
    def last_record_offset(self) -> int:
        """Offset of the newest record; -1 if unknown."""
        return self._last_record

    @property
    def failure(self) -> BrokerError | None:
        """The error LOG_FAILED if a write has failed, else None. After a failure nothing is written."""
        return self._failure

    def old_files(self) -> list[OldFile]:
        """Return all files except the current one, oldest first. Unreadable files are treated as new."""
        last = self.last_file_offset
        begins = [begin for begin in self._begins if begin < last]
        newest = [self._first_stamp_or_newest(begin) for begin in begins[1:]]
        if begins:
            is_written = last < self.end_offset
            newest.append(self._first_stamp_or_newest(last) if is_written else self._last_stamp_ms)
        return [self._old_file(begin, stamp) for begin, stamp in zip(begins, newest, strict=True)]

    def _old_file(self, begin: int, newest_ms: int) -> OldFile:
        try:
            if begin not in self._modified:
                self._modified[begin] = self._disk.modified_ms(self._paths.file(begin))
        except OSError as error:
            _log.error("cannot read the modification time of a CommitLog file; keeping it", reason=str(error))
            return OldFile(begin, self._last_stamp_ms)
        return OldFile(begin, newest_ms, self._modified[begin])

    def disk_bytes(self) -> tuple[int, int]:
        """Return the used and the usable bytes of the file system. Raises LOG_FAILED."""
        with self._failing("statfs"):
            root = self._paths.root
            return self._disk.used_bytes(root), self._disk.free_bytes(root)

    def read(self, offset: int, limit: int) -> bytes:
        """Read at most `limit` bytes starting at `offset`, within one file. Returns b"" at `end_offset`.

        Raises OFFSET_BELOW_MINIMUM, OFFSET_ABOVE_MAXIMUM or STORE_DAMAGED.
        """
        end = self.end_offset
        if offset > end:
            raise error_for(
                Status.OFFSET_ABOVE_MAXIMUM, f"offset {offset} is beyond the end of the CommitLog at {end}"
            )
        if offset < self.begin_offset:
            raise self._below(offset)
        within = offset % self.file_size
        size = min(limit, end - offset, self.file_size - within)
        if size <= 0:
            return b""
        try:
            with self._handles.using(offset - within) as handle:
                data = self._disk.pread(handle, size, within)
        except FileNotFoundError:
            if offset < self.begin_offset:  # purged meanwhile
                raise self._below(offset) from None
            raise error_for(Status.STORE_DAMAGED, f"{self._paths.file(offset - within)} is missing") from None
        except OSError as error:
            text = f"{self._paths.file(offset - within)} cannot be read at {within}: {error}"
            raise error_for(Status.STORE_DAMAGED, text) from error
        if len(data) != size:
            text = f"{self._paths.file(offset - within)} has only {within + len(data)} bytes"
            raise error_for(Status.STORE_DAMAGED, text)
        return data

    # -- appending

    def place(self, sizes: Sequence[int]) -> list[int]:
        """Return the physical offsets for an append of records of these sizes, without appending them.

        Raises BODY_TOO_LARGE if a record is larger than a file.
        """
        return places_of_append(self.end_offset, sizes, self.file_size)

    def append(self, records: Sequence[bytes | bytearray]) -> None:
        """Write records at the offsets that `place` returned, and blanks at the ends of files.

        Raises DISK_FULL if nothing was written. Raises LOG_FAILED if the outcome is unknown; further appends
        are then refused. Raises ValueError if a record states a wrong offset, which is a program error.
        """
        self._check_usable()
        if not records:
            return
        places = self.place([len(record) for record in records])
        for record, place in zip(records, places, strict=True):
            check_place(record, place)
            self._check_size(record)
        end = places[-1] + len(records[-1])
        self._need_files(end)
        with self._writing(self.end_offset, end):
            for begin, offset, buffers in self._pieces(records, places):
                self._write(begin, offset, buffers)
        self._appends.close()
        self._ends_at(end, store_timestamp(records[-1]), places[-1])

    def make_room(self, sizes: Sequence[int]) -> None:
        """Allocate files for records of these sizes, so that appending them cannot run out of space.

        Raises DISK_FULL, also if `refusal` is set, or LOG_FAILED.
        """
        self._check_usable()
        if self.refusal:
            raise error_for(Status.DISK_FULL, self.refusal)
        self._need_files(self.place(sizes)[-1] + sizes[-1])

    def append_bytes(
        self, offset: int, data: bytes | memoryview, units: Sequence[UnitRun] | None = None
    ) -> None:
        """On a slave, write whole records and blanks from the master at `end_offset`.

        `units`: the units of `data` if the caller has checked them; otherwise they are checked here. An empty
        log accepts the first offset of any file and starts there. Raises LOG_OFFSET for any other offset, or
        DISK_FULL; in both cases, nothing was written. Raises LOG_FAILED as `append` does. Raises ValueError
        if a record or blank is incomplete, which is a program error.
        """
        self._check_usable()
        is_fresh = not self._begins or self.begin_offset == self.end_offset
        is_here = offset == self.end_offset
        if not is_here and not (is_fresh and offset >= 0 and not offset % self.file_size):
            text = f"bytes for offset {offset}: the CommitLog ends at {self.end_offset}"
            raise error_for(Status.LOG_OFFSET, text)
        if not data:
            return
        if offset + len(data) > MAX_OFFSET - self.file_size:
            raise error_for(Status.LOG_OFFSET, f"data at offset {offset} would exceed the log size limit")
        if units is None:
            units = list(find_units(offset, bytes(data), self.file_size))
        newest = (self._last_stamp_ms, self._last_record)
        found = ShippedState(newest, self._appends, self._before_append).after(offset, data, units)
        if not is_here:
            self._begin_at(offset)
        end = offset + len(data)
        self._need_files(end)
        with self._writing(offset, end):
            at = offset
            while at < end:
                within = at % self.file_size
                piece = data[at - offset : min(end, at - within + self.file_size) - offset]
                self._write(at - within, within, [piece])
                at += len(piece)
        self._appends, self._before_append = found.appends, found.before_append
        self._ends_at(end, *found.newest)

    # -- durability

    def flush(self) -> int:
        """Run fdatasync on new data, and sync the directory if there are new files. Return `flushed_offset`.

        Raises LOG_FAILED; nothing is written afterwards.
        """
        with self._flush_lock:
            self._check_usable()
            stamp = self._last_stamp_ms  # read before the end; see `_ends_at`
            end = self.end_offset
            begin = self.flushed_offset
            if begin == end and not self._has_new_names:
                return end
            try:
                for first in range(begin - begin % self.file_size, end, self.file_size):
                    with self._handles.using(first) as handle:
                        self._disk.fdatasync(handle)
                self._sync_names()
            except FileNotFoundError as error:
                raise self._fail("a file of the CommitLog is missing", error) from error
            except OSError as error:
                raise self._fail("fdatasync of the CommitLog", error) from error
            self.flushed_offset = max(begin, end)
            self.checkpoint.physic_ms = max(stamp, self.checkpoint.physic_ms)
            return self.flushed_offset

    def save_checkpoint(self) -> None:
        """Write the checkpoint with timestamps and durable end for the next recovery. Raises LOG_FAILED."""
        with self._flush_lock:
            self._check_usable()
            self._save_checkpoint()

    def prepare(self) -> bool:
        """Create the next file in advance. Return False if the disk is full. Raises LOG_FAILED."""
        with self._names_lock:
            if self._failure is not None or self.is_closed or not self._begins:
                return True
            if self._begins[-1] > self.last_file_offset:
                return True
            try:
                self._create(self._begins[-1] + self.file_size)
            except BrokerError as error:
                if error.status is Status.DISK_FULL:
                    return False
                raise
        self._sync_names()
        return True

    # -- truncation and close

    def truncate(self, offset: int) -> None:
        """Truncate the log durably at `offset`; the bytes after it become zeros.

        Raises LOG_OFFSET if the offset is outside the log, or LOG_FAILED.
        """
        self._truncate(offset, (0, -1))

    def _truncate(self, offset: int, newest: tuple[int, int]) -> None:
        """Truncate the log. `newest`: timestamp and offset of the last remaining record."""
        self._check_usable()
        if not self.begin_offset <= offset <= self.end_offset:
            text = (
                f"cannot truncate at {offset}: the CommitLog spans {self.begin_offset} to {self.end_offset}"
            )
            raise error_for(Status.LOG_OFFSET, text)
        with self._flush_lock, self._failing("truncate of the CommitLog"):
            if newest[1] >= 0:  # otherwise later records of the same millisecond would count as durable
                self.checkpoint.physic_ms = min(self.checkpoint.physic_ms, newest[0])
            self.flushed_offset = min(self.flushed_offset, offset)
            self._save_checkpoint()  # first: a checkpoint beyond the end would look like damage
            with self._names_lock:
                self._cut(offset)
            self.end_offset = offset
            self.complete_end_offset = offset
            self._appends.close()
            self._last_stamp_ms, self._last_record = newest

    def cut_incomplete(self) -> int:
        """Durably remove the received part of an incomplete append. Return its size in bytes.

        Raises LOG_FAILED.
        """
        begin = self._appends.begin
        if begin < 0:
            return 0
        size = self.end_offset - begin
        self._truncate(begin, self._before_append)
        _log.warning("removed an incomplete append from the CommitLog", offset=begin, bytes=size)
        return size

    def purge_below(self, offset: int) -> None:
        """Remove whole files below `offset`, except the current one. Raises LOG_FAILED."""
        self._check_usable()
        offset = min(offset, self.last_file_offset, self.flushed_offset)
        with self._names_lock, self._failing("removal of old files"):
            # Keep the last file, because it shows where the log ends.
            needless = [begin for begin in self._begins[:-1] if begin + self.file_size <= offset]
            if not needless:
                return
            self.begin_offset = max(self.begin_offset, needless[-1] + self.file_size)
            for begin in needless:  # in order, so that a crash leaves no hole in the log
                self._handles.forget(begin)
                self._disk.unlink(self._paths.file(begin))
                self._begins.remove(begin)
                self._first_stamps.pop(begin, None)
                self._modified.pop(begin, None)
            self._disk.sync_directory(self._paths.commit_log)

    def close(self, *, keep_abort: bool = False) -> None:
        """Flush, close, and remove the file `abort`, so that the next recovery is a normal one.

        After a failure, or with `keep_abort`, the file remains. Pass `keep_abort` unless the ConsumeQueues
        durably cover the whole log. RocketMQ's normal recovery would skip the first message that they lack,
        whereas its abnormal recovery rebuilds them. Raises LOG_FAILED.
        """
        if self.is_closed:
            return
        try:
            if self._failure is None:
                self.flush()
                with self._flush_lock, self._failing("close of the CommitLog"):
                    self._save_checkpoint()
                    if not keep_abort:
                        with suppress(FileNotFoundError):
                            self._disk.unlink(self._paths.abort)
                    self._disk.sync_directory(self._paths.root)
        finally:
            with self._names_lock:
                self.is_closed = True
                self._handles.close()
            self._release()

    # -- internals ---------------------------------------------------------------------------------------

    def _ends_at(self, end: int, stamp_ms: int, last_record: int) -> None:
        """Set the end, then the timestamp, so that a thread which reads them in reverse order never gets the
        timestamp of a record after the end.
        """
        self.end_offset = end
        self.complete_end_offset = end if self._appends.begin < 0 else self._appends.begin
        self._last_stamp_ms, self._last_record = stamp_ms, last_record

    def _first_stamp_or_newest(self, begin: int) -> int:
        try:
            return self._first_stamp(begin)
        except BrokerError as error:
            if error.status is not Status.STORE_DAMAGED:
                raise
            _log.error("cannot read a CommitLog file; keeping the files before it", reason=error.message)
            return self._last_stamp_ms

    def _first_stamp(self, begin: int) -> int:
        """Return the store timestamp of a file's first record."""
        stamp = self._first_stamps.get(begin)
        if stamp is None:
            stamp = self._first_stamps[begin] = store_timestamp(self.read(begin, MAX_HEAD_SIZE))
        return stamp

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self.is_closed:
            raise error_for(Status.SHUTTING_DOWN, "the CommitLog is closed")

    def _fail(self, what: str, error: OSError) -> BrokerError:
        """Fail permanently. After a write error the kernel may consider a lost page clean, so the contents of
        the disk are unknown.
        """
        self._failure = error_for(Status.LOG_FAILED, f"{what}: {error}")
        _log.error("the CommitLog has failed: writing has stopped", error=self._failure.message)
        return self._failure

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._fail(what, error) from error

    @contextmanager
    def _writing(self, begin: int, end: int) -> Iterator[None]:
        """Remove the partial append and raise DISK_FULL, if preallocated files have no space."""
        try:
            yield
        except OSError as error:
            if error.errno not in _FULL:
                raise self._fail("a write to the CommitLog", error) from error
            with self._failing("removal of an append that did not fit on the disk"), self._names_lock:
                self._zero(begin, end)
            raise error_for(Status.DISK_FULL, f"no space for {end - begin} bytes: {error}") from error

    def _check_size(self, record: bytes | bytearray) -> None:
        size, _ = _SIZE_AND_MAGIC.unpack_from(record)
        if size != len(record):
            raise ValueError(f"the record is {len(record)} bytes long, but its size field says {size}")

    def _pieces(
        self, records: Sequence[bytes | bytearray], places: Sequence[int]
    ) -> Iterator[tuple[int, int, list[bytes | bytearray]]]:
        """Yield one write per file: the file's first offset, the position in the file, and the buffers."""
        at = self.end_offset
        begin, within, buffers = at - at % self.file_size, at % self.file_size, list[bytes | bytearray]()
        for record, place in zip(records, places, strict=True):
            if place != at:
                buffers.append(blank_head(place - at))
            if place - place % self.file_size != begin:
                if buffers:
                    yield begin, within, buffers
                begin, within, buffers = place, 0, []
            buffers.append(record)
            at = place + len(record)
        yield begin, within, buffers

    def _write(self, begin: int, within: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        with self._handles.using(begin) as handle:
            write_all(self._disk, handle, buffers, within)

    def _need_files(self, end: int) -> None:
        """Create files up to `end`. Raises DISK_FULL or LOG_FAILED."""
        if self._begins and self._begins[-1] + self.file_size >= end:
            return  # before taking the lock, which a slow `prepare` may hold
        with self._names_lock:
            if not self._begins:
                self._create(self.begin_offset)
            while self._begins[-1] + self.file_size < end:
                self._create(self._begins[-1] + self.file_size)

    def _create(self, begin: int) -> None:
        """Create a file and allocate its space."""
        path = self._paths.file(begin)
        free = self._disk.free_bytes(self._paths.root)
        if free < self.file_size + self._reserve_bytes:
            text = f"no room for another file of {self.file_size} bytes: {free} are free"
            raise error_for(Status.DISK_FULL, f"{text}, of which {self._reserve_bytes} are reserved")
        try:
            handle = self._disk.open(path, create=True)
            try:
                # Set the size first: RocketMQ does not start with files of other sizes.
                self._disk.truncate(handle, self.file_size)
                self._disk.allocate(handle, 0, self.file_size)
            finally:
                self._disk.close(handle)
        except OSError as error:
            if error.errno not in _FULL:
                raise self._fail(f"creation of {path}", error) from error
            with self._failing(f"removal of {path}"), suppress(FileNotFoundError):
                self._disk.unlink(path)
            raise error_for(Status.DISK_FULL, f"no space for another file: {error}") from error
        self._begins.append(begin)
        self._has_new_names = True

    def _sync_names(self) -> None:
        if not self._has_new_names:
            return
        with self._names_lock, self._failing("the directory of the CommitLog"):
            if self._has_new_names:
                self._disk.sync_directory(self._paths.commit_log)
                self._has_new_names = False

    def _begin_at(self, offset: int) -> None:
        """Move the start of an empty log; its files hold only zeros."""
        with self._flush_lock, self._failing("a new start of the CommitLog"), self._names_lock:
            for begin in reversed(self._begins):
                self._remove(begin)
            self._disk.sync_directory(self._paths.commit_log)
            self.begin_offset = self.end_offset = self.flushed_offset = offset

    def _cut(self, offset: int) -> None:
        """Durably overwrite the bytes starting at `offset` with zeros, and remove later files."""
        for begin in [begin for begin in reversed(self._begins[1:]) if begin >= offset]:
            self._remove(begin)  # last first, so that a crash leaves no hole in the log
        self._disk.sync_directory(self._paths.commit_log)
        if self._begins and offset < self._begins[-1] + self.file_size:
            self._zero(offset, self._begins[-1] + self.file_size)
            with self._handles.using(self._begins[-1]) as handle:
                self._disk.fdatasync(handle)

    def _remove(self, begin: int) -> None:
        self._first_stamps.pop(begin, None)
        self._modified.pop(begin, None)
        self._handles.forget(begin)
        self._disk.unlink(self._paths.file(begin))
        self._begins.remove(begin)

    def _zero(self, begin: int, end: int) -> None:
        """Overwrite a range after the log's end with zeros."""
        for first in range(begin - begin % self.file_size, end, self.file_size):
            with self._handles.using(first) as handle:
                zero(self._disk, handle, max(0, begin - first), min(self.file_size, end - first))

    def _save_checkpoint(self) -> None:
        self.checkpoint.flushed_offset = self.flushed_offset
        with self._failing("the checkpoint"):
            save_checkpoint(self._disk, self._paths.checkpoint, self.checkpoint)

    def _below(self, offset: int) -> BrokerError:
        text = f"the CommitLog starts at {self.begin_offset}, after offset {offset}"
        return error_for(Status.OFFSET_BELOW_MINIMUM, text)
