"""Backs up the store directory of a classic broker, which may run, and restores it.

A backup is a directory with the CommitLog up to a verified record, RocketMQ's tables, the last file of each
ConsumeQueue, a checkpoint and a manifest, which is written last. A broker that starts on the restored
directory derives the rest from the log. The ConsumeQueue files preserve the next offsets of queues whose
messages retention has removed.

The broker appends to the files meanwhile, so the order of the steps matters:

1. Open the files of the CommitLog. Retention may remove their names from then on.
2. Copy the checkpoint and the tables, which describe an earlier state than the end of the copied log. The
   base file contains the tables and is replaced atomically; the tables themselves are not.
3. Copy the CommitLog. All records acknowledged before step 1 are complete; the last one may be in flight.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from broker_adapter.errors import Status, StoredDataDamaged, error_for
from broker_adapter.log.classic.append_heads import AppendTracker
from broker_adapter.log.classic.commit_log import LogFile, log_files
from broker_adapter.log.classic.layout import StorePaths, file_name
from broker_adapter.log.classic.log_zeros import dirty_end
from broker_adapter.log.classic.recovery import FileWalk
from broker_adapter.log.classic.store_checkpoint import StoreCheckpoint, load_checkpoint, save_checkpoint
from broker_adapter.server.table_base import read_base, tables_on_disk, write_base
from broker_adapter.store.consume_queues import DIRECTORY as QUEUES
from dledger import Code, StorageError
from dledger.infra.files.disk import Disk, OsDisk, list_directory, make_directories, replace_file, write_all
from dledger.store.offline.backup import writing_backup
from dledger.store.offline.manifest import MANIFEST, damaged_manifest, load_manifest, save_manifest

_KIND = "classic"
_LOG, _CONFIG, _CHECKPOINT = "commitlog", "config", "checkpoint"
# In the directory of a backup until it is complete.
_UNFINISHED = "unfinished"
_CHUNK = 4 << 20
# How often, and at which intervals in seconds, a record that is incomplete is read again.
_TRIES, _PAUSE_S = 20, 0.05


class StoredFile(NamedTuple):
    """A file of a backup. Its bytes from `length` to `size` are zeros; `crc` is the CRC32 of the others."""

    name: str
    size: int
    length: int
    crc: int


class ClassicBackup(NamedTuple):
    """Contents of a backup: `records` of the CommitLog from offset `begin` to offset `end`."""

    begin: int
    end: int
    records: int
    files: Sequence[StoredFile]


def back_up(store: Path, target: Path, *, disk: Disk | None = None) -> ClassicBackup:
    """Copy a store directory into a new backup, and verify the copy.

    Raises StorageError (ALREADY_INITIALIZED, BACKUP_DISK_FULL), STORE_UNREADABLE if `store` has no CommitLog,
    STORE_DAMAGED if it has damaged records, and STORE_UNSUPPORTED while tables of RocketMQ are being merged.
    The remains of an interrupted backup are replaced.
    """
    disk = disk or OsDisk()
    if not (store / _LOG).is_dir():
        text = f"{store} has no commitlog. A broker with a replicated log is backed up with `dledger backup`"
        raise error_for(Status.STORE_UNREADABLE, text)
    with _writing(disk, target, lambda: _remove_remains(target)):
        _claim(disk, target)
        with ExitStack() as opened:
            files = log_files(store / _LOG)
            handles = [_opened(opened, disk, file.path) for file in files]
            checkpoint = load_checkpoint(disk, StorePaths(store).checkpoint)
            _copy_tables(disk, store / _CONFIG, target / _CONFIG)
            _copy_queues(disk, store / QUEUES, target / QUEUES)
            make_directories(disk, target / _LOG)
            log = _LogCopy(disk, files, handles, target / _LOG)
            end, records = log.copy(checkpoint)
        checkpoint.flushed_offset = end
        save_checkpoint(disk, target / _CHECKPOINT, checkpoint)
        paths = [path for path in sorted(target.rglob("*")) if path.is_file() and path.name != _UNFINISHED]
        stored = [_described(disk, target, path) for path in paths]
        for directory in (*(path for path in target.rglob("*") if path.is_dir()), target):
            disk.sync_directory(directory)
        backup = ClassicBackup(files[0].begin, end, records, stored)
        save_manifest(disk, target, _KIND, backup._asdict() | {"files": [list(file) for file in stored]})
        disk.unlink(target / _UNFINISHED)
    return backup


def restore(backup_dir: Path, target: Path, *, disk: Disk | None = None) -> ClassicBackup:
    """Create a store directory from a backup, and verify all files. `target` must be absent or empty.

    Raises StorageError (ALREADY_INITIALIZED, BACKUP_INCOMPLETE, BACKUP_DISK_FULL, DATA_DAMAGED,
    STATE_DAMAGED).
    The directory appears under its name when it is complete and durable.
    """
    disk = disk or OsDisk()
    backup = _read_manifest(disk, backup_dir)
    staging = target.with_name(f".{target.name}.restoring")
    for path in (target, staging):
        if disk.exists(path) and (path == staging or disk.listdir(path)):
            hint = "; it remains from an interrupted restore: remove it" if path == staging else ""
            raise StorageError(f"{path} is not empty{hint}", code=Code.ALREADY_INITIALIZED)
    with _writing(disk, target, lambda: shutil.rmtree(staging, ignore_errors=True)):
        make_directories(disk, staging)
        for file in backup.files:
            _restore_file(disk, backup_dir, staging, file)
        # The end of the log is not that of a clean stop.
        replace_file(disk, StorePaths(staging).abort, b"")
        for directory in (*(path for path in staging.rglob("*") if path.is_dir()), staging):
            disk.sync_directory(directory)
        disk.rename(staging, target)
        disk.sync_directory(target.parent)
    return backup


@contextmanager
def _writing(disk: Disk, target: Path, undo: Callable[[], None]) -> Iterator[None]:
    """Convert a failure of the disk. Remove what was written after any error, but not after a signal."""
    try:
        with writing_backup(disk, target, ()):
            yield
    except Exception as error:
        if not (isinstance(error, StorageError) and error.code is Code.ALREADY_INITIALIZED):
            undo()
        raise


def _claim(disk: Disk, target: Path) -> None:
    """Create the directory of a backup, or remove an interrupted backup. Other files are never removed."""
    make_directories(disk, target)
    names = disk.listdir(target)
    if MANIFEST in names or (names and _UNFINISHED not in names):
        raise StorageError(f"{target} is not empty", code=Code.ALREADY_INITIALIZED)
    _remove_remains(target)
    disk.close(disk.open(target / _UNFINISHED, create=True))


def _remove_remains(target: Path) -> None:
    for name in (_LOG, _CONFIG, QUEUES):
        shutil.rmtree(target / name, ignore_errors=True)
    # Last: the mark, without which nothing is removed.
    for name in (_CHECKPOINT, f"{_CHECKPOINT}.tmp", f"{MANIFEST}.tmp", _UNFINISHED):
        (target / name).unlink(missing_ok=True)


# -- tables and queues ---------------------------------------------------------------------------------------


def _copy_tables(disk: Disk, source: Path, target: Path) -> None:
    make_directories(disk, target)
    base = read_base(disk, source)
    if base is None:  # a directory that RocketMQ wrote
        contents: Mapping[str, bytes] = tables_on_disk(disk, source)
    elif base.merges or not base.is_image:
        text = f"{source}: tables of another broker are being merged: make the backup later, or at the master"
        raise error_for(Status.STORE_UNSUPPORTED, text)
    else:
        write_base(disk, target, base._replace(before=None))
        contents = base.written.contents
    for name, content in contents.items():
        replace_file(disk, target / name, content)


def _copy_queues(disk: Disk, source: Path, target: Path) -> None:
    """Copy the last file of each queue, from which a rebuild takes the next offset of an empty queue."""
    for topic in list_directory(disk, source):
        for queue in list_directory(disk, source / topic):
            names = sorted(list_directory(disk, source / topic / queue))
            with suppress(FileNotFoundError), ExitStack() as opened:  # the topic was deleted meanwhile
                for name in reversed(names):
                    handle = _opened(opened, disk, source / topic / queue / name)
                    if dirty_end(disk, handle, 0, disk.size(handle)):
                        make_directories(disk, target / topic / queue)
                        _copy(disk, handle, target / topic / queue / name, 0, disk.size(handle))
                        break


# -- the CommitLog -------------------------------------------------------------------------------------------


class _LogCopy:
    """Copies a CommitLog whose end moves."""

    def __init__(self, disk: Disk, files: Sequence[LogFile], handles: Sequence[int], target: Path) -> None:
        self._disk = disk
        self._files = files
        self._handles = handles
        self._target = target
        self._records = 0

    def copy(self, checkpoint: StoreCheckpoint) -> tuple[int, int]:
        """Copy the log up to a valid record. Return its end and the number of records.

        Raises STORE_DAMAGED.
        """
        durable = checkpoint.flushed_offset
        end, tries = self._files[0].begin, 0
        self._copy_from(end)
        end, problem = self._walk_from(end, durable)
        while self._is_dirty(end):
            # Either the broker was writing this record, or it is damaged.
            self._copy_from(end)
            before = end
            end, problem = self._walk_from(end, durable)
            if end > before:
                break
            tries += 1
            if tries == _TRIES:
                raise _damaged(self._target, end, problem)
            time.sleep(_PAUSE_S)
        if durable is not None and end < durable:
            raise _damaged(self._target, end, f"{problem}; it was durable up to {durable}")
        self._cut(end)
        return end, self._records

    def _copy_from(self, offset: int) -> None:
        for file, handle in zip(self._files, self._handles, strict=True):
            if file.begin + file.size > offset:
                begin = max(0, offset - file.begin)
                _copy(self._disk, handle, self._target / file_name(file.begin), begin, file.size)

    def _walk_from(self, offset: int, durable: int | None) -> tuple[int, str]:
        """Return the end of the valid records, and the reason."""
        appends = AppendTracker()
        for file in self._files:
            if file.begin + file.size <= offset:
                continue
            with ExitStack() as opened:
                handle = _opened(opened, self._disk, self._target / file_name(file.begin))
                walk = FileWalk(self._disk, handle, file.begin, file.size, durable, appends)
                walk.at = max(0, offset - file.begin)
                for _ in walk.heads():
                    self._records += 1
            if walk.problem is not None:
                return file.begin + walk.at, str(walk.problem)
        return self._files[-1].begin + self._files[-1].size, "the last file is full"

    def _is_dirty(self, end: int) -> bool:
        """Return True if bytes other than zeros follow."""
        for file in self._files:
            begin = max(0, end - file.begin)
            if begin < file.size:
                with ExitStack() as opened:
                    handle = _opened(opened, self._disk, self._target / file_name(file.begin))
                    if dirty_end(self._disk, handle, begin, file.size) > begin:
                        return True
        return False

    def _cut(self, end: int) -> None:
        """Remove all bytes after the end, and make the rest durable."""
        for file in self._files:
            path = self._target / file_name(file.begin)
            if file.begin >= end and file is not self._files[0]:
                self._disk.unlink(path)
                continue
            with ExitStack() as opened:
                handle = _opened(opened, self._disk, path, write=True)
                self._disk.truncate(handle, min(file.size, end - file.begin))
                self._disk.truncate(handle, file.size)
                self._disk.fdatasync(handle)


def _damaged(path: Path, end: int, problem: str) -> StoredDataDamaged:
    text = f"the CommitLog is damaged at {end} ({problem}); no backup was made in {path.parent}"
    return StoredDataDamaged(Status.STORE_DAMAGED, text)


# -- files ---------------------------------------------------------------------------------------------------


def _opened(stack: ExitStack, disk: Disk, path: Path, *, write: bool = False) -> int:
    handle = disk.open(path, write=write)
    stack.callback(disk.close, handle)
    return handle


def _copy(disk: Disk, source: int, path: Path, begin: int, size: int) -> None:
    """Replace the bytes of a file from `begin` to `size`. Zeros take no space."""
    handle = disk.open(path, create=True)
    try:
        disk.truncate(handle, begin)
        for low, high in disk.data_ranges(source):
            for at in range(max(low, begin), min(high, size), _CHUNK):
                data = disk.pread(source, min(_CHUNK, high - at, size - at), at).rstrip(b"\0")
                if data:
                    write_all(disk, handle, [data], at)
        disk.truncate(handle, size)
        disk.fdatasync(handle)
        disk.drop_cache(handle)  # the verification should read the disk
    finally:
        disk.close(handle)


def _described(disk: Disk, root: Path, path: Path) -> StoredFile:
    with ExitStack() as opened:
        handle = _opened(opened, disk, path)
        size = disk.size(handle)
        length = dirty_end(disk, handle, 0, size)
        crc = 0
        for at in range(0, length, _CHUNK):
            crc = crc32(disk.pread(handle, min(_CHUNK, length - at), at), crc)
        return StoredFile(path.relative_to(root).as_posix(), size, length, crc)


def _restore_file(disk: Disk, backup_dir: Path, target: Path, file: StoredFile) -> None:
    path = target / file.name
    make_directories(disk, path.parent)
    try:
        with ExitStack() as opened:
            _copy(disk, _opened(opened, disk, backup_dir / file.name), path, 0, file.size)
    except FileNotFoundError as error:
        raise StorageError(f"{error.filename} is missing in the backup", code=Code.DATA_DAMAGED) from error
    if _described(disk, target, path) != file:
        raise StorageError(f"{backup_dir / file.name} is damaged", code=Code.DATA_DAMAGED)


def _read_manifest(disk: Disk, backup_dir: Path) -> ClassicBackup:
    fields = load_manifest(disk, backup_dir, _KIND)
    try:
        files = [
            StoredFile(str(name), int(size), int(length), int(crc))
            for name, size, length, crc in fields.pop("files")
        ]
        if any(".." in PurePosixPath(file.name).parts or file.name.startswith("/") for file in files):
            raise ValueError("a file is outside the backup")
        return ClassicBackup(files=files, **{name: int(fields[name]) for name in ("begin", "end", "records")})
    except (ValueError, TypeError, KeyError) as error:
        raise damaged_manifest(backup_dir, error) from error
