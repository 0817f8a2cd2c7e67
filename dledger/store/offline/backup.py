"""A backup of a log's entries as plain files, and new node directories made from it.

A backup is a directory with `entries`, the encoded entries one after the other as they travel, without
blanks, and `manifest`, which is written last: without it there is no backup. Nothing of term and vote is in
it: what is restored is a new cluster that begins with the same log.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zlib_ng.zlib_ng import crc32

from dledger.core.values import NO_BASE, Base, HardState, Tail
from dledger.errors import Code, StorageError
from dledger.store.api import Frames
from dledger.store.disk import Disk, OsDisk, read_file, replace_file, write_all
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.batch import Batch, DamagedBatch, Fault, parse_batch
from dledger.store.identity import Identity, init_directory
from dledger.store.state_files import tail_of

ENTRIES = "entries"
MANIFEST = "manifest"
_VERSION = 1
_CHUNK = 4 << 20


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """What a backup holds."""

    cluster_id: str
    group: str
    data_file_size: int
    base: Base
    tail: Tail


def write_backup(
    frames: Iterable[Frames],
    identity: Identity,
    target_dir: Path | str,
    *,
    base: Base = NO_BASE,
    disk: Disk | None = None,
) -> BackupManifest:
    """Store a log from `base` on: whole batches, verified, in order. Only committed ones make a good backup.

    StorageError ALREADY_INITIALIZED if there is a backup in `target_dir`, DATA_DAMAGED if the entries do not
    follow each other. What a backup that was cut short has left there is replaced.
    """
    disk, target = disk or OsDisk(), Path(target_dir)
    try:
        if not disk.exists(target):
            disk.mkdir(target)
        if disk.exists(target / MANIFEST):
            raise StorageError(f"there is a backup in {target} already", code=Code.ALREADY_INITIALIZED)
        for name in (ENTRIES, f"{MANIFEST}.tmp"):  # of a backup that was cut short; or a link to another file
            if name in disk.listdir(target):
                disk.unlink(target / name)
        tail = _write_entries(disk, target / ENTRIES, frames, tail_of(base), identity.data_file_size)
        manifest = BackupManifest(identity.cluster_id, identity.group, identity.data_file_size, base, tail)
        replace_file(disk, target / MANIFEST, _encode(manifest))
        disk.sync_directory(target.parent)
    except OSError as error:
        raise StorageError(f"cannot write the backup {target}: {error}") from error
    return manifest


def _write_entries(disk: Disk, path: Path, frames: Iterable[Frames], tail: Tail, file_size: int) -> Tail:
    handle = disk.open(path, create=True)
    try:
        disk.truncate(handle, 0)
        at = 0
        for part in frames:
            for batch in _batches(part.data, tail, file_size):
                tail = batch.tail
            at += write_all(disk, handle, [part.data], at)
        disk.fdatasync(handle)
    finally:
        disk.close(handle)
    return tail


def _batches(data: bytes | memoryview, tail: Tail, file_size: int) -> Iterator[Batch]:
    offset = 0
    while offset < len(data):
        batch = parse_batch(data, offset, tail, data_file_size=file_size)
        yield batch
        tail = batch.tail
        offset += batch.size


def read_manifest(backup_dir: Path | str, *, disk: Disk | None = None) -> BackupManifest:
    """What a backup holds. StorageError NOT_INITIALIZED if there is none, STATE_DAMAGED if it is broken."""
    path = Path(backup_dir) / MANIFEST
    try:
        fields = json.loads(read_file(disk or OsDisk(), path))
        crc = fields.pop("crc")
        if crc != _crc(fields) or fields.pop("version") != _VERSION:
            raise ValueError("its crc or its version is wrong")
        return BackupManifest(**fields | {"base": Base(*fields["base"]), "tail": Tail(*fields["tail"])})
    except (FileNotFoundError, NotADirectoryError):
        raise StorageError(f"{backup_dir} is no backup", code=Code.NOT_INITIALIZED) from None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StorageError(f"{path} is damaged: {error}", code=Code.STATE_DAMAGED) from error


def restore_directory(
    backup_dir: Path | str,
    target_dir: Path | str,
    identity: Identity,
    *,
    backup_disk: Disk | None = None,
    disk: Disk | None = None,
) -> BackupManifest:
    """Make an empty or absent directory that of a node which has the log of a backup, all of it committed.

    The nodes of the new cluster are restored from the same backup, each with its own node_id, and a
    cluster_id that is not the old one's: the two must never talk to each other. StorageError
    FOREIGN_DIRECTORY if the data_file_size, on which positions depend, or the cluster_id does not allow it.
    """
    backup_disk, backup = backup_disk or OsDisk(), Path(backup_dir)
    manifest = read_manifest(backup, disk=backup_disk)
    if identity.data_file_size != manifest.data_file_size:
        raise StorageError(
            f"{backup} has data files of {manifest.data_file_size} bytes, not {identity.data_file_size}",
            code=Code.FOREIGN_DIRECTORY,
        )
    if identity.cluster_id == manifest.cluster_id:
        raise StorageError(
            f"{backup} is of cluster {manifest.cluster_id!r}: what is restored needs another cluster_id",
            code=Code.FOREIGN_DIRECTORY,
        )
    # If this does not come to its end, what is there does not pass for a node that has it all.
    init_directory(target_dir, identity, disk=disk, rejoining=True)
    store = DiskLogStore.open(target_dir, disk=disk)
    try:
        if manifest.base != NO_BASE:
            store.reset_to(manifest.base)
        for batches in _stored_batches(backup_disk, backup / ENTRIES, manifest):
            store.append(batches)
        store.sync()
        if store.tail != manifest.tail:
            raise StorageError(f"{backup} ends as {store.tail}, not {manifest.tail}", code=Code.DATA_DAMAGED)
        store.save_checkpoint(manifest.tail.index, None)
        store.save_hard_state(HardState(max(manifest.tail.term, 0)))
    finally:
        store.close()
    return manifest


def _stored_batches(disk: Disk, path: Path, manifest: BackupManifest) -> Iterator[list[Batch]]:
    """The batches of a backup, verified, some at a time."""
    tail = tail_of(manifest.base)
    try:
        handle = disk.open(path, write=False)
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error}") from error
    try:
        at, rest = 0, b""
        while tail.index < manifest.tail.index:
            chunk = disk.pread(handle, _CHUNK, at)
            at += len(chunk)
            batches: list[Batch] = []
            rest += chunk
            used = 0
            try:
                for batch in _batches(rest, tail, manifest.data_file_size):
                    batches.append(batch)
                    tail = batch.tail
                    used += batch.size
            except DamagedBatch as fault:
                if fault.fault is not Fault.INCOMPLETE or not chunk:
                    raise
            if not chunk and not batches:
                raise StorageError(f"{path} ends after entry {tail.index}", code=Code.DATA_DAMAGED)
            rest = rest[used:]
            yield batches
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error}") from error
    finally:
        disk.close(handle)


def _encode(manifest: BackupManifest) -> bytes:
    fields: dict[str, Any] = asdict(manifest) | {"version": _VERSION}
    fields |= {"base": list(manifest.base), "tail": list(manifest.tail)}
    fields["crc"] = _crc(fields)
    return (json.dumps(fields, indent=2) + "\n").encode()


def _crc(fields: dict[str, Any]) -> int:
    return crc32(json.dumps(fields, sort_keys=True).encode())
