"""Backups, and the directories of a new cluster made from one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from dledger.core.log_view import LogView
from dledger.core.membership_change import first_members
from dledger.core.values import NO_BASE, Recovery
from dledger.errors import Code, ConfigError, StorageError
from dledger.store import image_files
from dledger.store.api import Frames, LogStore
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.batch import encode_batch
from dledger.store.format.internal import Configuration, encode_internal
from dledger.store.identity import load_identity
from dledger.store.image_files import ImageMark
from dledger.store.offline import manifest as manifests
from dledger.store.offline.backup import BackupImage, read_manifest, restore_directory, write_backup
from dledger.store.offline.manifest import save_manifest
from dledger.testing.virtual.sim_disk import CrashPoint, SimDisk, SimulatedCrash
from tests.store.helpers import IDENTITY, SIZE, make_batches, new_sim_store, read_all

BACKUP, TARGET = Path("/backup"), Path("/new")
NEW = replace(IDENTITY, cluster_id="restored", node_id="m0")
RECOVERY = Recovery(2, 1 << 50)
STATE = bytes(range(250))


def frames_of(store: LogStore) -> Iterator[Frames]:
    index = store.begin_index
    while index <= store.end_index:
        frames = store.read(index, store.end_index, 400, whole_batches=True)
        yield frames
        index = frames.last_index + 1


@pytest.mark.parametrize("purged", [False, True])
def test_three_directories_from_one_backup_are_equal(purged: bool) -> None:
    disk, store = new_sim_store()
    store.append(make_batches(25, seed=3))
    store.sync()
    if purged:
        store.purge_to(store.borders()[1])
    manifest = write_backup(frames_of(store), IDENTITY, BACKUP, base=store.base, disk=disk)
    assert manifest == read_manifest(BACKUP, disk=disk) and manifest.tail == store.tail
    for node_id in ("m0", "m1", "m2"):
        target = Path(f"/{node_id}")
        identity = replace(NEW, node_id=node_id)
        restore_directory(BACKUP, target, identity, backup_disk=disk, disk=disk)
        restored = DiskLogStore.open(target, disk=disk)
        assert restored.identity == identity and restored.repairs == ()
        assert (restored.base, restored.tail) == (store.base, store.tail)
        assert read_all(restored) == read_all(store) and restored.term_runs == store.term_runs
        assert restored.committed_checkpoint == store.end_index
        state = restored.hard_state
        assert state.term >= store.tail.term and state.voted_for is None and not state.is_barred


def with_a_change_of_members() -> tuple[SimDisk, LogStore]:
    disk, store = new_sim_store()
    store.append(make_batches(25, seed=3))
    membership = replace(first_members({"n0": "old:1", "n9": "old:9"}), recovery=RECOVERY)
    head, tail = encode_internal(Configuration(membership)), store.tail
    store.append([encode_batch(tail, tail.term, [], data_file_size=SIZE, head=head)])
    write_backup(frames_of(store), IDENTITY, BACKUP, base=store.base, disk=disk)
    return disk, store


def test_a_restored_log_names_the_members_of_the_new_cluster_after_those_of_the_old_one() -> None:
    """A node that gets the log from them later would otherwise count the old ones."""
    disk, store = with_a_change_of_members()
    members = {"m1": "b:1", "m0": "a:1", "m2": "c:1"}
    tails = set()
    for node_id in members:
        target, identity = Path(f"/{node_id}"), replace(NEW, node_id=node_id)
        restore_directory(BACKUP, target, identity, members=members, backup_disk=disk, disk=disk)
        restored = DiskLogStore.open(target, disk=disk)
        first, known = restored.hard_state.memberships
        LogView(restored.base, restored.term_runs, restored.end_index, [first, known])  # a node can start
        new = first_members({"m0": "a:1", "m1": "b:1", "m2": "c:1"})
        assert known.membership == replace(new, recovery=RECOVERY), "its sessions have ids of their own"
        assert known.index == restored.end_index == store.end_index + 1
        assert restored.committed_checkpoint == restored.end_index
        tails.add(restored.tail)
    assert len(tails) == 1


@pytest.mark.parametrize("members", [None, {}, {"m1": "b:1"}])
def test_a_log_with_changed_members_is_restored_for_named_ones_only(members: dict[str, str] | None) -> None:
    disk, _ = with_a_change_of_members()
    with pytest.raises(ConfigError, match="--member"):
        restore_directory(BACKUP, TARGET, NEW, members=members, backup_disk=disk, disk=disk)
    assert not disk.exists(TARGET)


def test_rule_11_a_directory_that_is_restored_again_is_another_one() -> None:
    """The other nodes of the new cluster know a node by its first directory."""
    disk, store = new_sim_store()
    write_backup(frames_of(store), IDENTITY, BACKUP, base=store.base, disk=disk)
    incarnations = set()
    for target in (Path("/first"), Path("/second")):
        restore_directory(BACKUP, target, NEW, backup_disk=disk, disk=disk)
        incarnations.add(DiskLogStore.open(target, disk=disk).hard_state.incarnation)
    assert len(incarnations) == 2


def test_a_real_directory(tmp_path: Path) -> None:
    _, store = new_sim_store()
    store.append(make_batches(25, seed=3))
    write_backup(frames_of(store), IDENTITY, tmp_path / "backup")
    restore_directory(tmp_path / "backup", tmp_path / "new", NEW)
    with closing(DiskLogStore.open(tmp_path / "new")) as restored:
        assert read_all(restored) == read_all(store)


def test_an_empty_log_has_a_backup_too() -> None:
    disk, store = new_sim_store()
    write_backup(frames_of(store), IDENTITY, BACKUP, disk=disk)
    restore_directory(BACKUP, TARGET, NEW, backup_disk=disk, disk=disk)
    restored = DiskLogStore.open(TARGET, disk=disk)
    assert restored.end_index == -1 and restored.base == NO_BASE


def test_what_does_not_fit_is_refused() -> None:
    disk, store = new_sim_store()
    store.append(make_batches(25, seed=3))
    frames = list(frames_of(store))
    with pytest.raises(StorageError):
        write_backup(frames[1:], IDENTITY, BACKUP, disk=disk)
    with pytest.raises(StorageError, match="does not contain a complete backup"):
        read_manifest(BACKUP, disk=disk)
    write_backup(frames, IDENTITY, BACKUP, disk=disk)
    with pytest.raises(StorageError) as error:
        write_backup(frames, IDENTITY, BACKUP, disk=disk)
    assert error.value.code is Code.ALREADY_INITIALIZED
    for identity in (replace(NEW, data_file_size=2 * SIZE), replace(NEW, cluster_id="cluster")):
        with pytest.raises(StorageError) as error:
            restore_directory(BACKUP, TARGET, identity, backup_disk=disk, disk=disk)
        assert error.value.code is Code.FOREIGN_DIRECTORY
    assert not disk.exists(TARGET)


def test_a_flipped_byte_of_a_backup_is_found() -> None:
    disk, store = new_sim_store()
    store.append(make_batches(4, seed=3))
    write_backup(frames_of(store), IDENTITY, BACKUP, disk=disk)
    for name in ("entries", "manifest"):
        for offset in range(0, len(disk.content(BACKUP / name)), 7):
            twin = disk.copy()
            twin.flip(BACKUP / name, offset)
            with pytest.raises(StorageError):
                restore_directory(BACKUP, TARGET, NEW, backup_disk=twin, disk=twin)
            if twin.exists(TARGET):
                assert DiskLogStore.open(TARGET, disk=twin).hard_state.rejoining


def test_a_restore_that_was_cut_short_does_not_pass_for_a_node_that_has_it_all() -> None:
    source, store = new_sim_store()
    store.append(make_batches(8, seed=3))
    write_backup(frames_of(store), IDENTITY, BACKUP, disk=source)
    step, opened = 1, 0
    while True:
        disk = SimDisk()
        disk.schedule_crash(step, CrashPoint.AFTER)
        try:
            restore_directory(BACKUP, TARGET, NEW, backup_disk=source, disk=disk)
        except SimulatedCrash:
            twin = disk.copy()
        else:
            break
        step += 1
        if twin.exists(TARGET / "identity"):
            restored = DiskLogStore.open(TARGET, disk=twin)
            state = restored.hard_state
            assert state.rejoining or restored.tail == store.tail
            opened += 1
            # The only node of a group has nobody to rejoin with: no node starts until all is there.
            if restored.identity.cluster_id != NEW.cluster_id:
                with pytest.raises(StorageError) as caught:
                    load_identity(TARGET, disk=twin, cluster_id=NEW.cluster_id)
                assert caught.value.code is Code.FOREIGN_DIRECTORY
            else:
                assert restored.tail == store.tail and not state.rejoining
    assert opened > 20


def test_a_full_disk_leaves_no_backup_and_takes_no_space() -> None:
    _, store = new_sim_store()
    store.append(make_batches(25, seed=3))
    frames = list(frames_of(store))
    size = sum(len(part.data) for part in frames)
    for capacity in (0, size // 2, size, size + 10):
        disk = SimDisk(capacity=capacity)
        with pytest.raises(StorageError, match="free space there") as caught:
            write_backup(frames, IDENTITY, BACKUP, disk=disk)
        assert caught.value.code is Code.BACKUP_DISK_FULL and not disk.exists(BACKUP / "entries")
        with pytest.raises(StorageError) as incomplete:
            restore_directory(BACKUP, TARGET, NEW, backup_disk=disk, disk=disk)
        assert incomplete.value.code is Code.BACKUP_INCOMPLETE and not disk.exists(TARGET)


class ForgetfulDisk(SimDisk):
    """Stores other bytes than it was given, of one file of a backup."""

    def __init__(self, suffix: str) -> None:
        super().__init__()
        self._suffix = suffix

    def fdatasync(self, handle: int) -> None:
        super().fdatasync(handle)
        for path in self.files():
            if path.name.endswith(self._suffix) and len(self.content(path)) > 70:
                self.flip(path, 70)


@pytest.mark.parametrize("suffix", ["entries", ".arriving"])
def test_a_backup_is_read_again_before_it_counts(suffix: str, small_chunks: None) -> None:
    store = with_an_image()
    disk = ForgetfulDisk(suffix)
    with pytest.raises(StorageError) as caught:
        write_backup(frames_of(store), IDENTITY, BACKUP, base=store.base, image=image_of(store), disk=disk)
    assert caught.value.code is Code.DATA_DAMAGED
    with pytest.raises(StorageError):
        read_manifest(BACKUP, disk=disk)


# -- state images


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_files, "CHUNK_BYTES", 100)


def with_an_image() -> DiskLogStore:
    """A log that was purged, with an image of several chunks of the entries before."""
    _, store = new_sim_store()
    store.append(make_batches(25, seed=3))
    store.sync()
    store.purge_to(store.borders()[1])
    entry = store.entry(store.base.index + 1)
    writer = store.images.writer(ImageMark(entry.index, entry.term, entry.pos), b"sessions")
    writer.write(STATE)
    writer.finish()
    return store


def image_of(store: DiskLogStore, chunks: int = 9) -> BackupImage:
    newest = store.images.newest
    assert newest is not None
    return BackupImage(newest, store.images.chunks(newest, range(min(chunks, len(newest.crcs)))))


def backup_with_an_image() -> tuple[SimDisk, DiskLogStore]:
    disk, store = SimDisk(), with_an_image()
    write_backup(frames_of(store), IDENTITY, BACKUP, base=store.base, image=image_of(store), disk=disk)
    return disk, store


def check_restored(disk: SimDisk, store: DiskLogStore) -> None:
    restore_directory(BACKUP, TARGET, NEW, backup_disk=disk, disk=disk)
    with closing(DiskLogStore.open(TARGET, disk=disk)) as restored:
        assert restored.images.newest == store.images.newest and restored.base == store.base
        stored = restored.images.stored()
        assert stored is not None and stored.sessions == b"sessions"
        assert b"".join(restored.images.state(stored.manifest)) == STATE


def test_a_state_image_is_restored_with_the_log_behind_it(small_chunks: None) -> None:
    check_restored(*backup_with_an_image())


@pytest.mark.parametrize("fault", ["damaged", "lost", "another"])
def test_a_backup_without_its_image_creates_nothing(fault: str, small_chunks: None) -> None:
    disk, _ = backup_with_an_image()
    manifest = next(path for path in disk.files() if path.name.endswith(".manifest"))
    data = manifest.with_suffix(".data")
    if fault == "damaged":
        disk.flip(data, 150)
    elif fault == "lost":
        disk.lose(manifest)
    else:
        mark = ImageMark(2, 1, 100)
        files = image_files.ImageFiles(disk, data.parent)
        files.discard(mark)
        files.writer(mark, b"").finish()
    with pytest.raises(StorageError) as caught:
        restore_directory(BACKUP, TARGET, NEW, backup_disk=disk, disk=disk)
    assert caught.value.code is Code.DATA_DAMAGED and not disk.exists(TARGET)


def test_a_backup_continues_after_one_that_broke_off_in_its_image(small_chunks: None) -> None:
    disk, store = SimDisk(), with_an_image()
    image = image_of(store)

    def broken() -> Iterator[bytes]:
        yield next(iter(image.chunks))
        raise StorageError("the connection broke")

    with pytest.raises(StorageError, match="the connection broke"):
        write_backup([], IDENTITY, BACKUP, image=image._replace(chunks=broken()), disk=disk)
    write_backup(frames_of(store), IDENTITY, BACKUP, base=store.base, image=image_of(store), disk=disk)
    check_restored(disk, store)


# -- manifests


def test_entries_of_another_log_do_not_pass_for_those_of_a_backup() -> None:
    disk, other = SimDisk(), Path("/other")
    for path, seed in ((BACKUP, 3), (other, 4)):
        _, store = new_sim_store()
        store.append([encode_batch(store.tail, 1, [bytes([seed])], data_file_size=SIZE)])
        write_backup(frames_of(store), IDENTITY, path, disk=disk)
    disk.set_content(BACKUP / "entries", disk.content(other / "entries"))
    with pytest.raises(StorageError) as caught:
        restore_directory(BACKUP, TARGET, NEW, backup_disk=disk, disk=disk)
    assert caught.value.code is Code.DATA_DAMAGED and not disk.exists(TARGET)


def test_a_manifest_of_a_later_version_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    disk.mkdir(BACKUP)
    monkeypatch.setattr(manifests, "_VERSION", 2)
    save_manifest(disk, BACKUP, "log", {})
    monkeypatch.undo()
    with pytest.raises(StorageError, match="the version is unknown"):
        read_manifest(BACKUP, disk=disk)


def test_a_backup_of_another_kind_is_named() -> None:
    disk = SimDisk()
    disk.mkdir(BACKUP)
    save_manifest(disk, BACKUP, "classic", {"begin": 0})
    with pytest.raises(StorageError, match="dledger broker restore") as caught:
        read_manifest(BACKUP, disk=disk)
    assert caught.value.code is Code.FOREIGN_DIRECTORY
