"""The files of a CommitLog, written: records in their places, blanks behind them, and what is durable of it.

Nothing here waits for anybody: whoever uses it calls `flush` and lets producers wait; `recovery` opens what
an earlier process has left. Format: `layout`, `broker_adapter.format.message`.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Lock
from typing import NamedTuple

from broker_adapter.classic.layout import (
    DEFAULT_FILE_SIZE,
    MAX_OFFSET,
    MIN_BLANK,
    StorePaths,
    blank_head,
    check_file_size,
    places_of,
)
from broker_adapter.classic.log_retention import OldFile
from broker_adapter.classic.log_zeros import zero
from broker_adapter.classic.record_check import HEAD_SIZE, MAX_HEAD_SIZE, is_blank, store_timestamp
from broker_adapter.classic.store_checkpoint import StoreCheckpoint, save_checkpoint
from broker_adapter.errors import BrokerError, Status, error_for
from dledger.platform import Disk, HandleCache, get_logger, write_all

_log = get_logger("commitlog")
_MOST_OPEN = 64
_FULL = (errno.ENOSPC, errno.EDQUOT)
_SIZE_AND_MAGIC = struct.Struct(">II")
_PHYSICAL_OFFSET = struct.Struct(">q")
_PHYSICAL_OFFSET_AT = 28


class CommitLogOptions(NamedTuple):
    """`file_size`: of every file, as in the directory that is opened. `reserve_bytes`: of the disk, which new
    files leave free. `cut_damage`: go on without what is damaged, and all behind it, although it was durable
    once."""

    file_size: int = DEFAULT_FILE_SIZE
    reserve_bytes: int = 0
    cut_damage: bool = False


class Recovery(NamedTuple):
    """What was found when a log was opened. `scanned_from`: the first offset that was looked at. `records`:
    good ones from there on. `end_reason`: why the log ends where it does. `cut_bytes`: behind it, up to the
    last that was no zero. `cut_records`: whole records among them. `damage`: that durable bytes were cut, as
    `cut_damage` allows. `last_record`: where the last good one begins; -1: none was seen."""

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


class CommitLogFiles:
    """The files of a CommitLog. Blocking calls. One thread appends, truncates and closes; `flush`, `prepare`,
    `purge_below` and `save_checkpoint` may come from one more thread each; properties and `read` from any.

    Errors are numbered: LOG_FAILED once the disk has failed, and from then on for everything but reads.
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
        """`begins`: first offsets of the files, one after the other; behind `recovery.end` they have zeros,
        and before that they are durable. `release`: called when all is closed."""
        self.file_size = check_file_size(options.file_size)
        #: Of the first byte that is there.
        self.begin_offset = recovery.begin
        #: Behind the last byte that was written: readers see up to here.
        self.end_offset = recovery.end
        #: What is before this is durable.
        self.flushed_offset = recovery.end
        #: `physic_ms` is kept here; `logics_ms` and `index_ms` by whoever derives files from the log.
        self.checkpoint = checkpoint
        self.recovery = recovery
        #: Why `make_room` refuses all; "" if it does not. Whoever watches the disk sets it.
        self.refusal = ""
        self.is_closed = False
        self._paths = paths
        self._disk = disk
        self._reserve_bytes = options.reserve_bytes
        self._handles: HandleCache[int] = HandleCache(
            lambda begin: disk.open(paths.file(begin)), disk.close, _MOST_OPEN
        )
        self._begins = list(begins)
        self._names_lock = Lock()  # held while files come or go
        self._flush_lock = Lock()
        self._has_new_names = False
        self._last_stamp_ms = recovery.last_stamp_ms
        self._last_record = recovery.last_record
        self._first_stamps: dict[int, int] = {}
        self._failure: BrokerError | None = None
        self._release = release

    # -- what is there

    @property
    def last_file_offset(self) -> int:
        """Where the last file begins: a fresh slave begins there."""
        return self.end_offset - self.end_offset % self.file_size

    @property
    def last_stamp_ms(self) -> int:
        """Store timestamp of the newest record; 0: unknown."""
        return self._last_stamp_ms

    @property
    def last_record_offset(self) -> int:
        """Where the newest record begins; -1: unknown."""
        return self._last_record

    @property
    def unflushed_bytes(self) -> int:
        return max(0, self.end_offset - self.flushed_offset)

    @property
    def failure(self) -> BrokerError | None:
        """LOG_FAILED, since nothing is written any more."""
        return self._failure

    def old_files(self) -> list[OldFile]:
        """All but the one that is written, the oldest first. What cannot be read counts as new."""
        last = self.last_file_offset
        begins = [begin for begin in self._begins if begin < last]
        newest = [self._first_stamp_or_newest(begin) for begin in begins[1:]]
        if begins:
            is_written = last < self.end_offset
            newest.append(self._first_stamp_or_newest(last) if is_written else self._last_stamp_ms)
        return [OldFile(begin, stamp) for begin, stamp in zip(begins, newest, strict=True)]

    def disk_bytes(self) -> tuple[int, int]:
        """(used, usable) of the file system. LOG_FAILED."""
        with self._failing("statfs"):
            root = self._paths.root
            return self._disk.used_bytes(root), self._disk.free_bytes(root)

    def read(self, offset: int, most: int) -> bytes:
        """Up to `most` bytes from `offset` on: of one file, and not beyond `end_offset`, where there is
        nothing (b""). OFFSET_BELOW_MINIMUM, OFFSET_ABOVE_MAXIMUM, STORE_DAMAGED."""
        end = self.end_offset
        if offset > end:
            raise error_for(Status.OFFSET_ABOVE_MAXIMUM, f"the CommitLog ends at {end}, not at {offset}")
        if offset < self.begin_offset:
            raise self._below(offset)
        within = offset % self.file_size
        size = min(most, end - offset, self.file_size - within)
        if size <= 0:
            return b""
        try:
            with self._handles.using(offset - within) as handle:
                data = self._disk.pread(handle, size, within)
        except FileNotFoundError:
            if offset < self.begin_offset:  # purged meanwhile
                raise self._below(offset) from None
            raise error_for(Status.STORE_DAMAGED, f"{self._paths.file(offset - within)} is gone") from None
        except OSError as error:
            text = f"{self._paths.file(offset - within)} cannot be read at {within}: {error}"
            raise error_for(Status.STORE_DAMAGED, text) from error
        if len(data) != size:
            text = f"{self._paths.file(offset - within)} has {within + len(data)} bytes only"
            raise error_for(Status.STORE_DAMAGED, text)
        return data

    # -- appending

    def place(self, sizes: Sequence[int]) -> list[int]:
        """Physical offsets that records of these sizes get next. Nothing changes. BODY_TOO_LARGE for one that
        no file has room for."""
        return places_of(self.end_offset, sizes, self.file_size)

    def append(self, records: Sequence[bytes | bytearray]) -> None:
        """Write records in the places that `place` gave, and blanks where a file ends.

        DISK_FULL: nothing was written. LOG_FAILED: nobody knows, and no further append is accepted.
        ValueError for a record that does not name its place: an error of the program."""
        self._check_usable()
        if not records:
            return
        places = self.place([len(record) for record in records])
        for record, place in zip(records, places, strict=True):
            self._check_place(record, place)
            self._check_size(record)
        end = places[-1] + len(records[-1])
        self._need_files(end)
        with self._writing(self.end_offset, end):
            for begin, offset, buffers in self._pieces(records, places):
                self._write(begin, offset, buffers)
        self._ends_at(end, store_timestamp(records[-1]), places[-1])

    def make_room(self, sizes: Sequence[int]) -> None:
        """For records of these sizes: an `append` of them does not fail for want of it. DISK_FULL (also with
        a `refusal`), LOG_FAILED."""
        self._check_usable()
        if self.refusal:
            raise error_for(Status.DISK_FULL, self.refusal)
        self._need_files(self.place(sizes)[-1] + sizes[-1])

    def append_bytes(self, offset: int, data: bytes) -> None:
        """A slave's: whole records that its master has there, at `end_offset` exactly, and whole blanks. An
        empty log accepts any first offset of a file and begins there.

        LOG_OFFSET for another place, DISK_FULL: nothing was written. LOG_FAILED as in `append`. ValueError
        for half a record or blank: an error of the program."""
        self._check_usable()
        is_fresh = not self._begins or self.begin_offset == self.end_offset
        is_here = offset == self.end_offset
        if not is_here and not (is_fresh and offset >= 0 and not offset % self.file_size):
            text = f"bytes for offset {offset}: the CommitLog ends at {self.end_offset}"
            raise error_for(Status.LOG_OFFSET, text)
        if not data:
            return
        if offset + len(data) > MAX_OFFSET - self.file_size:
            raise error_for(Status.LOG_OFFSET, f"bytes for offset {offset}: no log is as long")
        stamp, last = self._newest_record(offset, data)
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
        self._ends_at(end, stamp, last)

    # -- what is durable

    def flush(self) -> int:
        """fdatasync of what was written, and of the directory if files are new. Returns what is durable then:
        `flushed_offset`. LOG_FAILED, and nothing is written any more."""
        with self._flush_lock:
            self._check_usable()
            stamp = self._last_stamp_ms  # before the end: see `_ends_at`
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
                raise self._fail("a file of the CommitLog is gone", error) from error
            except OSError as error:
                raise self._fail("fdatasync of the CommitLog", error) from error
            self.flushed_offset = max(begin, end)
            self.checkpoint.physic_ms = max(stamp, self.checkpoint.physic_ms)
            return self.flushed_offset

    def save_checkpoint(self) -> None:
        """Timestamps and what is durable, for the next recovery. LOG_FAILED."""
        with self._flush_lock:
            self._check_usable()
            self._save_checkpoint()

    def prepare(self) -> bool:
        """Make the file behind the one that is written, so that no append has to. False: the disk is full.
        LOG_FAILED."""
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

    # -- the ends

    def truncate(self, offset: int) -> None:
        """Let the log end here: what is behind is zeros, durably. LOG_OFFSET if it is not between the log's
        ends, LOG_FAILED."""
        self._check_usable()
        if not self.begin_offset <= offset <= self.end_offset:
            text = f"the CommitLog has {self.begin_offset} to {self.end_offset}: it cannot end at {offset}"
            raise error_for(Status.LOG_OFFSET, text)
        with self._flush_lock, self._failing("truncate of the CommitLog"):
            self.flushed_offset = min(self.flushed_offset, offset)
            self._save_checkpoint()  # before: a checkpoint that tells more would make this look like damage
            with self._names_lock:
                self._cut(offset)
            self.end_offset = offset
        self._last_stamp_ms, self._last_record = 0, -1

    def purge_below(self, offset: int) -> None:
        """Remove whole files below `offset`, but not the one that is written. LOG_FAILED."""
        self._check_usable()
        offset = min(offset, self.last_file_offset, self.flushed_offset)
        with self._names_lock, self._failing("removal of old files"):
            # The last file stays: without any, nobody would know where the log ends.
            needless = [begin for begin in self._begins[:-1] if begin + self.file_size <= offset]
            if not needless:
                return
            self.begin_offset = max(self.begin_offset, needless[-1] + self.file_size)
            for begin in needless:  # in their order: after a crash the log has no hole
                self._handles.forget(begin)
                self._disk.unlink(self._paths.file(begin))
                self._begins.remove(begin)
                self._first_stamps.pop(begin, None)
            self._disk.sync_directory(self._paths.commit_log)

    def close(self, *, keep_abort: bool = False) -> None:
        """Durable, and `abort` is gone: the next recovery is a normal one. After a failure it stays.
        LOG_FAILED if this fails. `keep_abort`: unless the ConsumeQueues have all of the log, durably.
        RocketMQ's normal recovery leaves out the first message that they lack; its abnormal one makes them
        anew."""
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

    # -- inside -----------------------------------------------------------------------------------------

    def _ends_at(self, end: int, stamp_ms: int, last_record: int) -> None:
        """The end first: other threads that take the stamp before the end have none of later records."""
        self.end_offset = end
        self._last_stamp_ms, self._last_record = stamp_ms, last_record

    def _first_stamp_or_newest(self, begin: int) -> int:
        try:
            return self._first_stamp(begin)
        except BrokerError as error:
            if error.status is not Status.STORE_DAMAGED:
                raise
            _log.error("a file of the CommitLog cannot be read: files before it stay", reason=error.message)
            return self._last_stamp_ms

    def _first_stamp(self, begin: int) -> int:
        """When the first record of a file was stored."""
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
        """A page that was not written may count as clean afterwards: nobody knows what is on disk."""
        self._failure = error_for(Status.LOG_FAILED, f"{what}: {error}")
        _log.error("the CommitLog has failed: nothing is written any more", error=self._failure.message)
        return self._failure

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._fail(what, error) from error

    @contextmanager
    def _writing(self, begin: int, end: int) -> Iterator[None]:
        """DISK_FULL if the file system has no room although the files are there; nothing is left then."""
        try:
            yield
        except OSError as error:
            if error.errno not in _FULL:
                raise self._fail("a write to the CommitLog", error) from error
            with self._failing("removal of an append that the disk has no room for"), self._names_lock:
                self._zero(begin, end)
            raise error_for(Status.DISK_FULL, f"no room for {end - begin} bytes: {error}") from error

    def _check_place(self, data: bytes | bytearray, place: int, at: int = 0) -> None:
        """`at`: where in `data` it begins."""
        if len(data) - at < HEAD_SIZE:
            raise ValueError(f"{len(data) - at} bytes are no record")
        (offset,) = _PHYSICAL_OFFSET.unpack_from(data, at + _PHYSICAL_OFFSET_AT)
        if offset != place:
            raise ValueError(f"a record for offset {offset} at {place}")

    def _check_size(self, record: bytes | bytearray) -> None:
        size, _ = _SIZE_AND_MAGIC.unpack_from(record)
        if size != len(record):
            raise ValueError(f"a record of {size} bytes has {len(record)}")

    def _pieces(
        self, records: Sequence[bytes | bytearray], places: Sequence[int]
    ) -> Iterator[tuple[int, int, list[bytes | bytearray]]]:
        """(first offset of the file, where in it, what), one write for each file."""
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

    def _write(self, begin: int, within: int, buffers: Sequence[bytes | bytearray]) -> None:
        with self._handles.using(begin) as handle:
            write_all(self._disk, handle, buffers, within)

    def _need_files(self, end: int) -> None:
        """Files up to `end`. DISK_FULL, LOG_FAILED."""
        if self._begins and self._begins[-1] + self.file_size >= end:
            return  # without the lock: somebody may be preparing a file, which takes its time
        with self._names_lock:
            if not self._begins:
                self._create(self.begin_offset)
            while self._begins[-1] + self.file_size < end:
                self._create(self._begins[-1] + self.file_size)

    def _create(self, begin: int) -> None:
        """A file with room for all that it can hold."""
        path = self._paths.file(begin)
        free = self._disk.free_bytes(self._paths.root)
        if free < self.file_size + self._reserve_bytes:
            text = f"no room for another file of {self.file_size} bytes: {free} are free"
            raise error_for(Status.DISK_FULL, f"{text}, of which {self._reserve_bytes} stay free")
        try:
            handle = self._disk.open(path, create=True)
            try:
                # Its size at once: RocketMQ does not start with files of other sizes.
                self._disk.truncate(handle, self.file_size)
                self._disk.allocate(handle, 0, self.file_size)
            finally:
                self._disk.close(handle)
        except OSError as error:
            if error.errno not in _FULL:
                raise self._fail(f"creation of {path}", error) from error
            with self._failing(f"removal of {path}"), suppress(FileNotFoundError):
                self._disk.unlink(path)
            raise error_for(Status.DISK_FULL, f"no room for another file: {error}") from error
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
        """An empty log, whose files are all zeros, begins elsewhere."""
        with self._flush_lock, self._failing("a new beginning of the CommitLog"), self._names_lock:
            for begin in reversed(self._begins):
                self._remove(begin)
            self._disk.sync_directory(self._paths.commit_log)
            self.begin_offset = self.end_offset = self.flushed_offset = offset

    def _cut(self, offset: int) -> None:
        """Zeros behind `offset`, and no files that begin there or later, durably."""
        for begin in [begin for begin in reversed(self._begins[1:]) if begin >= offset]:
            self._remove(begin)  # the last one first: after a crash the log has no hole
        self._disk.sync_directory(self._paths.commit_log)
        if self._begins and offset < self._begins[-1] + self.file_size:
            self._zero(offset, self._begins[-1] + self.file_size)
            with self._handles.using(self._begins[-1]) as handle:
                self._disk.fdatasync(handle)

    def _remove(self, begin: int) -> None:
        self._first_stamps.pop(begin, None)
        self._handles.forget(begin)
        self._disk.unlink(self._paths.file(begin))
        self._begins.remove(begin)

    def _zero(self, begin: int, end: int) -> None:
        """Zeros from `begin` to `end`: behind the log's end there is nothing else."""
        for first in range(begin - begin % self.file_size, end, self.file_size):
            with self._handles.using(first) as handle:
                zero(self._disk, handle, max(0, begin - first), min(self.file_size, end - first))

    def _save_checkpoint(self) -> None:
        self.checkpoint.flushed_offset = self.flushed_offset
        with self._failing("the checkpoint"):
            save_checkpoint(self._disk, self._paths.checkpoint, self.checkpoint)

    def _newest_record(self, offset: int, data: bytes) -> tuple[int, int]:
        """Stamp and offset of the last record in what a master shipped; of the log's last if there is none.
        ValueError."""
        at, end, last = 0, len(data), -1
        left = self.file_size - offset % self.file_size
        while at < end:
            rest = end - at
            if rest < min(left, MIN_BLANK):
                raise ValueError(f"{rest} bytes at {offset + at} are neither a record nor a blank")
            if is_blank(data, at, left):
                size = left
            else:
                self._check_place(data, offset + at, at)
                size, _ = _SIZE_AND_MAGIC.unpack_from(data, at)
                last = at
            if size > rest:
                raise ValueError(f"{rest} of {size} bytes at {offset + at}")
            at += size
            left = left - size or self.file_size
        if last < 0:
            return self._last_stamp_ms, self._last_record
        return store_timestamp(data[last : last + MAX_HEAD_SIZE]), offset + last

    def _below(self, offset: int) -> BrokerError:
        text = f"the CommitLog begins at {self.begin_offset}, not at {offset}"
        return error_for(Status.OFFSET_BELOW_MINIMUM, text)
