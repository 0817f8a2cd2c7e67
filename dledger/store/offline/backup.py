"""Backs up a log's entries as plain files, and restores them into new node directories.

A backup is a directory with `entries`, the encoded entries in sequence without blanks, and a manifest, which
is written last, after the stored entries were verified. If the log does not start at entry 0, `images`
contains a state image, as in the directory of a node. Term and vote are not included, because a restore
creates a new cluster that starts with the same log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from dledger.core.membership_change import first_members
from dledger.core.values import NO_BASE, Base, HardState, Membership, MembershipAt, Tail
from dledger.errors import Code, ConfigError, StorageError
from dledger.infra.files.disk import Disk, OsDisk, write_all
from dledger.infra.files.platform import FULL
from dledger.store.api import Frames
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.batch import Batch, BatchFault, DamagedBatch, encode_batch, parse_batch
from dledger.store.format.internal import Configuration, encode_internal, membership_in
from dledger.store.format.layout import IMAGES, NodePaths
from dledger.store.identity import (
    Identity,
    first_incarnation,
    init_directory,
    load_identity,
    save_identity,
)
from dledger.store.image_files import ImageFiles, ImageManifest, ImageMark
from dledger.store.offline.manifest import damaged_manifest, load_manifest, prepare_target, save_manifest
from dledger.store.state_files import tail_of

ENTRIES = "entries"
_KIND = "log"
_CHUNK = 4 << 20


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """The description of a backup."""

    cluster_id: str
    group: str
    data_file_size: int
    base: Base
    tail: Tail
    image: ImageMark | None = None


class BackupImage(NamedTuple):
    """A state image with the chunks of its data, in order."""

    manifest: ImageManifest
    chunks: Iterable[bytes]


def write_backup(
    frames: Iterable[Frames],
    identity: Identity,
    target_dir: Path | str,
    *,
    base: Base = NO_BASE,
    image: BackupImage | None = None,
    disk: Disk | None = None,
) -> BackupManifest:
    """Store a log that starts after `base`, as whole batches in order, and verify the stored copy. Pass only
    committed entries. `image` is read first.

    Raises StorageError ALREADY_INITIALIZED if `target_dir` contains a backup, DATA_DAMAGED if the entries are
    not consecutive or were not stored as passed, DISK_FULL. Replaces the remains of an interrupted backup.
    """
    disk, target = disk or OsDisk(), Path(target_dir)
    with writing_backup(disk, target, [ENTRIES]):
        prepare_target(disk, target, [ENTRIES])
        if image is not None:
            _copy_image(image, ImageFiles(disk, target / IMAGES))
        tail = _write_entries(disk, target / ENTRIES, frames, tail_of(base), identity.data_file_size)
        manifest = BackupManifest(identity.cluster_id, identity.group, identity.data_file_size, base, tail)
        if image is not None:
            manifest = replace(manifest, image=image.manifest.mark)
        for _ in _stored_image(disk, target, manifest).chunks:
            pass
        for _ in _stored_batches(disk, target / ENTRIES, manifest):
            pass
        fields = asdict(manifest) | {"base": list(base), "tail": list(tail)}
        fields |= {"image": list(fields.pop("image"))} if manifest.image is not None else {}
        save_manifest(disk, target, _KIND, fields)
    return manifest


@contextmanager
def writing_backup(disk: Disk, target: Path, names: Iterable[str]) -> Iterator[None]:
    """Convert a failure of the disk. Release the space of the files `names` if it was full."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise StorageError(f"cannot write the backup {target}: {error}") from error
        for name in names:
            with suppress(OSError):
                disk.unlink(target / name)
        text = f"the backup {target} was not made: {error}; free space there, or choose another directory"
        raise StorageError(text, code=Code.BACKUP_DISK_FULL) from error


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
        disk.drop_cache(handle)  # the verification should read the disk
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
    """Read the manifest. Raises StorageError BACKUP_INCOMPLETE if there is none, STATE_DAMAGED if it is
    invalid."""
    fields = load_manifest(disk or OsDisk(), Path(backup_dir), _KIND)
    try:
        image = ImageMark(*fields["image"]) if fields.get("image") else None
        places = {"base": Base(*fields["base"]), "tail": Tail(*fields["tail"]), "image": image}
        return BackupManifest(**fields | places)
    except (TypeError, KeyError) as error:
        raise damaged_manifest(Path(backup_dir), error) from error


def restore_directory(
    backup_dir: Path | str,
    target_dir: Path | str,
    identity: Identity,
    *,
    members: Mapping[str, str] | None = None,
    backup_disk: Disk | None = None,
    disk: Disk | None = None,
) -> BackupManifest:
    """Initialize an empty or absent directory with the log of a backup, all of it committed.

    Restore all nodes of the new cluster from the same backup, each with its own node_id, and with a
    cluster_id that differs from the old one: the two clusters must never communicate. Raises StorageError
    FOREIGN_DIRECTORY if the data_file_size, on which positions depend, differs, or if the cluster_id is the
    same.

    `members`: addresses of all nodes of the new cluster by node id, the same for all nodes. They are needed
    if the backup has a change of the members: an entry after it then names them, so that no node counts
    those of the old cluster. Raises ConfigError CONFIG_INVALID if they are missing.
    """
    backup_disk, backup = backup_disk or OsDisk(), Path(backup_dir)
    manifest = read_manifest(backup, disk=backup_disk)
    if identity.data_file_size != manifest.data_file_size:
        raise StorageError(
            f"{backup} has data files of {manifest.data_file_size} bytes, expected {identity.data_file_size}",
            code=Code.FOREIGN_DIRECTORY,
        )
    if identity.cluster_id == manifest.cluster_id:
        raise StorageError(
            f"{backup} is from the cluster {manifest.cluster_id!r}: choose another cluster_id for the "
            "new cluster",
            code=Code.FOREIGN_DIRECTORY,
        )
    for _ in _stored_image(backup_disk, backup, manifest).chunks:
        pass
    founded = _new_members(_stored_batches(backup_disk, backup / ENTRIES, manifest), identity, members)
    # An interrupted restore must not be taken for a node with the complete log. Until the end, the directory
    # belongs to no cluster: no node starts with it, not even the only one of its group.
    unfinished = replace(identity, cluster_id=f"unfinished restore of {identity.cluster_id}")
    init_directory(target_dir, unfinished, disk=disk, incarnation=first_incarnation(), rejoining=True)
    store = DiskLogStore.open(target_dir, disk=disk)
    try:
        if manifest.base != NO_BASE:
            store.reset_to(manifest.base)
        for batches in _stored_batches(backup_disk, backup / ENTRIES, manifest):
            store.append(batches)
        store.sync()
        if manifest.image is not None:
            _copy_image(_stored_image(backup_disk, backup, manifest), store.images)
        if founded is not None:
            _found(store, founded)
        store.save_checkpoint(store.end_index, None)
        term, incarnation = max(manifest.tail.term, 0), store.hard_state.incarnation
        memberships = store.hard_state.memberships
        store.save_hard_state(HardState(term, None, incarnation, memberships=memberships))
    finally:
        store.close()
    _finish(disk or OsDisk(), Path(target_dir), identity.cluster_id)
    return manifest


def _stored_image(disk: Disk, backup: Path, manifest: BackupManifest) -> BackupImage:
    """Return the state image of a backup; without one, an empty image. Raises StorageError, also when the
    chunks are read."""
    if manifest.image is None:
        return BackupImage(ImageManifest(ImageMark(-1, -1, -1), 0, 0, ()), ())
    files = ImageFiles(disk, backup / IMAGES)
    try:
        files.find()
    except OSError as error:
        raise StorageError(f"cannot read {backup / IMAGES}: {error}") from error
    newest = files.newest
    if newest is None or newest.mark != manifest.image:
        text = f"{backup / IMAGES} does not contain the image {manifest.image.index}"
        raise StorageError(text, code=Code.DATA_DAMAGED)
    return BackupImage(newest, files.chunks(newest, range(len(newest.crcs))))


def _copy_image(image: BackupImage, files: ImageFiles) -> None:
    receiver = files.receiver(image.manifest)
    try:
        for number, chunk in enumerate(image.chunks):
            if number == receiver.next_chunk:  # an interrupted backup may have stored others
                receiver.write(chunk)
    except BaseException:
        receiver.pause()
        raise
    receiver.finish()


def _finish(disk: Disk, target: Path, cluster_id: str) -> None:
    identity = load_identity(target, disk=disk)  # the store may have changed its format version
    try:
        save_identity(disk, NodePaths(target), replace(identity, cluster_id=cluster_id))
    except OSError as error:
        raise StorageError(f"cannot restore {target}: {error}") from error


def _new_members(
    stored: Iterable[Sequence[Batch]], identity: Identity, members: Mapping[str, str] | None
) -> Membership | None:
    """Return the configuration that must follow the entries of the backup; None if it has none."""
    former: Membership | None = None
    for batches in stored:
        for batch in batches:
            former = (membership_in(batch.head) if batch.head else None) or former
    if former is None:
        return None
    if not members or identity.node_id not in members:
        raise ConfigError(
            "the members of the old cluster have changed: name all nodes of the new one, this one included, "
            "with --member ID=HOST:PORT",
            code=Code.CONFIG_INVALID,
        )
    return replace(first_members(dict(sorted(members.items()))), recovery=former.recovery)


def _found(store: DiskLogStore, membership: Membership) -> None:
    """Append the configuration of the new cluster, the same bytes on all nodes, after recording it (rule 15).
    It also counts for all of the log before, whose configurations are not recorded."""
    head, tail = encode_internal(Configuration(membership)), store.tail
    places = (MembershipAt(-1, -1, membership), MembershipAt(tail.index + 1, tail.term, membership))
    store.save_hard_state(replace(store.hard_state, memberships=places))
    store.append([encode_batch(tail, tail.term, [], data_file_size=store.data_file_size, head=head)])
    store.sync()


def _stored_batches(disk: Disk, path: Path, manifest: BackupManifest) -> Iterator[list[Batch]]:
    """Iterate over the verified batches of a backup, several at a time."""
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
                if fault.fault is not BatchFault.INCOMPLETE or not chunk:
                    raise
            if not chunk and not batches:
                raise StorageError(f"{path} is truncated after entry {tail.index}", code=Code.DATA_DAMAGED)
            rest = rest[used:]
            yield batches
        if tail != manifest.tail:
            text = f"{path} ends at {tail}, expected {manifest.tail}"
            raise StorageError(text, code=Code.DATA_DAMAGED)
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error}") from error
    finally:
        disk.close(handle)
