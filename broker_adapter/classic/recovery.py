"""Opening a CommitLog: find its end, cut what is behind it, and never cut in silence what was durable.

As RocketMQ: after a clean stop (no file `abort`) the last three files are looked at; after any other, the
files from the one on whose first message is not newer than the checkpoint. The log ends before the first
bytes that are no record; behind what the checkpoint covers, also before a record that lacks a sector of its
topic and properties, of which no checksum tells. RocketMQ cuts there whatever follows. Here the log is not
opened (STORE_DAMAGED) if what is behind was durable: `judge_end` says when that is known.
`CommitLogOptions.cut_damage` opens it all the same.

What is cut is overwritten by zeros: else a later, shorter tail could be followed by records of an earlier
life.
Facts: recoverNormally, recoverAbnormally, MappedFileQueue of RocketMQ 5.5.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

from broker_adapter.classic.commit_log_files import CommitLogFiles, CommitLogOptions, Recovery
from broker_adapter.classic.layout import StorePaths, begin_of, check_file_size
from broker_adapter.classic.log_walk import Behind, FileWalk, first_head, search_behind
from broker_adapter.classic.log_zeros import dirty_end, zero
from broker_adapter.classic.store_checkpoint import StoreCheckpoint, load_checkpoint, save_checkpoint
from broker_adapter.errors import Status, error_for
from dledger import Code, StorageError
from dledger.platform import Disk, get_logger, write_all

_log = get_logger("commitlog")
#: RocketMQ looks at so many after a clean stop.
_NEWEST_FILES = 3


def open_commit_log(root: Path, disk: Disk, options: CommitLogOptions | None = None) -> CommitLogFiles:
    """The CommitLog of a store directory, which is made if it is not there. `recovery` of the result says
    what was found.

    StorageError (DIRECTORY_LOCKED) while another process has it. STORE_UNREADABLE: files that are no pieces
    of one log, or of another size. STORE_DAMAGED: durable records would be lost. LOG_FAILED: the disk."""
    options = CommitLogOptions() if options is None else options
    check_file_size(options.file_size)
    paths = StorePaths(root)
    try:
        _make_directories(disk, paths)
        lock = _lock(disk, paths)
    except OSError as error:
        raise error_for(Status.LOG_FAILED, f"{root}: {error}") from error
    try:
        log = _Opening(disk, paths, options).open(lock)
    except OSError as error:
        disk.close(lock)
        raise error_for(Status.LOG_FAILED, f"{root} cannot be opened: {error}") from error
    except BaseException:
        with suppress(Exception):
            disk.close(lock)
        raise
    _tell(root, log.recovery)
    return log


def judge_end(*, was_clean: bool, end: int, checkpoint: StoreCheckpoint, behind: Sequence[Behind]) -> str:
    """Why what is behind the end of the log was durable once, so that the end is damage and no torn tail; ""
    if nothing says so.

    Records that are not newer than the last one are of an earlier life: RocketMQ leaves them there."""
    durable = checkpoint.flushed_offset
    if durable is not None and end < durable:
        return f"it was durable up to {durable}"
    newer = [one for one in behind if one.newer]
    if not newer:
        return ""
    count = sum(one.newer for one in newer)
    if was_clean:
        return f"{count} records are behind that, the first at {newer[0].first_offset}, after a clean stop"
    if min(one.first_newer_ms for one in newer) <= checkpoint.physic_ms:
        text = f"{count} records are behind that, the first at {newer[0].first_offset}"
        return f"{text}, of a time up to which the checkpoint says that all is durable"
    return ""


class _Opening:
    """One call of `open_commit_log`."""

    def __init__(self, disk: Disk, paths: StorePaths, options: CommitLogOptions) -> None:
        self._disk = disk
        self._paths = paths
        self._options = options
        self._size = options.file_size
        self._was_clean = not disk.exists(paths.abort)
        self._checkpoint = load_checkpoint(disk, paths.checkpoint)
        self._sizeless: list[int] = []  # files that were made and never got their size, and all behind them
        self._begins = self._files()
        self._first = self._first_file()

    def open(self, lock: int) -> CommitLogFiles:
        scan = self._scan()
        behind = [self._behind(begin, scan) for begin in self._begins if begin + self._size > scan.end]
        damage = self._judge(scan, behind)
        self._mark_running()
        if damage:  # before the cut: else it would be damage again after a crash half-way
            self._checkpoint.flushed_offset = scan.end
            save_checkpoint(self._disk, self._paths.checkpoint, self._checkpoint)
        self._cut(scan.end)
        recovery = scan._replace(
            cut_bytes=sum(one.dirty_bytes for one in behind),
            cut_records=sum(one.records for one in behind),
            damage=damage,
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
        """First offsets, in their order. STORE_UNREADABLE if the files are not pieces of one log."""
        sizes: dict[int, int] = {}
        for name in self._disk.listdir(self._paths.commit_log):
            begin = begin_of(name)
            if begin is None:
                _log.warning("not a file of a CommitLog", path=str(self._paths.commit_log / name))
                continue
            sizes[begin] = self._size_of(begin)
        begins = sorted(sizes)
        for begin in begins:
            if sizes[begin] not in (0, self._size):
                text = f"{self._paths.file(begin)} has {sizes[begin]} bytes, and file_size is {self._size}"
                raise error_for(Status.STORE_UNREADABLE, text)
        for before, after in pairwise(begins):
            if before + self._size != after:
                text = f"{self._paths.file(before)} of {self._size} bytes, and the next is {after}"
                raise error_for(Status.STORE_UNREADABLE, text)
        whole = [begin for begin in begins if sizes[begin]]
        if begins and begins[0] % self._size:
            text = f"{self._paths.file(begins[0])} is not at a multiple of {self._size}"
            raise error_for(Status.STORE_UNREADABLE, text)
        first_sizeless = min((begin for begin in begins if not sizes[begin]), default=None)
        if first_sizeless is not None:
            # A loss of power while they were made. What is durable is never behind such a file.
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
        """Number of the file where the search for the end begins: what is before it is believed."""
        last = len(self._begins) - 1
        if last <= 0:
            return 0
        if self._was_clean:
            at = max(0, len(self._begins) - _NEWEST_FILES)
            while at and self._first_stamp(at) is None:  # prepared, and never written
                at -= 1
            return at
        durable = self._checkpoint.flushed_offset
        for at in range(last, 0, -1):
            stamp = self._first_stamp(at)
            # What is known to be durable is whole, whatever the clock has done.
            if durable is not None and self._begins[at] > durable:
                continue
            if stamp and stamp <= self._checkpoint.recovery_ms:
                return at
        return 0

    def _first_stamp(self, at: int) -> int | None:
        with self._opened(self._begins[at]) as handle:
            head = first_head(self._disk, handle, self._begins[at], self._size)
        return None if head is None else head.store_timestamp

    def _scan(self) -> Recovery:
        """As far as good records follow each other."""
        begin = end = self._begins[self._first] if self._begins else 0
        records, last_ms, last = 0, 0, -1
        # Without a bound it is RocketMQ's directory, and what RocketMQ believes is believed.
        torn_from = None if self._was_clean else self._checkpoint.flushed_offset
        reason = "the last file is full"
        for begin in self._begins[self._first :]:
            with self._opened(begin) as handle:
                walk = FileWalk(self._disk, handle, begin, self._size, torn_from)
                for head in walk.heads():
                    records += 1
                    last_ms, last = head.store_timestamp, head.physical_offset
            end = begin + walk.at
            if walk.problem is not None:
                reason = str(walk.problem)
                break
            end = begin + self._size
        first = self._begins[0] if self._begins else 0
        from_ = self._begins[self._first] if self._begins else 0
        return Recovery(self._was_clean, from_, first, end, records, last_ms, reason, last_record=last)

    def _behind(self, begin: int, scan: Recovery) -> Behind:
        with self._opened(begin) as handle:
            within = max(0, scan.end - begin)
            return search_behind(self._disk, handle, begin, self._size, within, scan.last_stamp_ms)

    def _judge(self, scan: Recovery, behind: Sequence[Behind]) -> str:
        """STORE_DAMAGED, unless what is damaged may be cut: then what it was."""
        damage = judge_end(
            was_clean=self._was_clean,
            end=scan.end,
            checkpoint=self._checkpoint,
            behind=behind,
        )
        if damage and not self._options.cut_damage:
            text = (
                f"{self._paths.root}: the CommitLog is damaged at {scan.end} ({scan.end_reason}), and"
                f" {damage}. Nothing was changed: take it from a slave or a backup, or cut what is behind"
            )
            raise error_for(Status.STORE_DAMAGED, text)
        return damage

    def _mark_running(self) -> None:
        """From now on only an abnormal recovery will do."""
        handle = self._disk.open(self._paths.abort, create=True)
        try:
            self._disk.truncate(handle, 0)
            write_all(self._disk, handle, [str(os.getpid()).encode()], 0)
            self._disk.fdatasync(handle)
        finally:
            self._disk.close(handle)
        self._disk.sync_directory(self._paths.root)

    def _cut(self, end: int) -> None:
        """Zeros behind the end, one file of them at most; and all that was looked at is durable."""
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
        """Whether the last file is the one that was prepared for what comes next, and nothing else."""
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
    """Durably, also those that are there: an earlier life may have died before it synced them."""
    for path in (*reversed(paths.root.parents), paths.root, paths.commit_log):
        is_new = not disk.exists(path)
        if is_new:
            with suppress(FileExistsError):
                disk.mkdir(path)
        if is_new or path in (paths.root, paths.commit_log):
            disk.sync_directory(path.parent)


def _lock(disk: Disk, paths: StorePaths) -> int:
    """Against another broker of ours, and then one of RocketMQ, which looks at the first byte only."""
    handle = disk.open(paths.lock, create=True)
    if not disk.lock(handle) or not disk.lock_first_byte(handle):
        disk.close(handle)
        raise StorageError(f"{paths.root} is used by another broker", code=Code.DIRECTORY_LOCKED)
    return handle


def _tell(root: Path, recovery: Recovery) -> None:
    if recovery.damage:
        _log.error(
            "durable records of the CommitLog were cut, as cut_damage allows",
            root=str(root),
            offset=recovery.end,
            reason=recovery.end_reason,
            damage=recovery.damage,
            records=recovery.cut_records,
            bytes=recovery.cut_bytes,
        )
    elif recovery.cut_records:
        _log.warning(
            "whole records behind a torn one were cut: they were never durable as far as is known",
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
        scanned_from=recovery.scanned_from,
        records=recovery.records,
        cut_bytes=recovery.cut_bytes,
    )
