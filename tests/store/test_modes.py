"""What is stored is for its owner only, and nothing is written through a link that somebody has put there."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.trace.files import BufferedFile, MappedFile
from dledger.cli.local.local_cluster import LocalCluster
from dledger.errors import StorageError
from dledger.infra.files.disk import OsDisk, make_directories, readable_by_others, replace_file
from dledger.store.disk_store import DiskLogStore
from dledger.store.identity import init_directory
from dledger.store.offline.backup import read_manifest, restore_directory, write_backup
from tests.store.helpers import IDENTITY, make_batches, new_sim_store
from tests.store.test_backup import frames_of

NEW = replace(IDENTITY, cluster_id="restored", node_id="m0")


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def exposed(root: Path) -> list[str]:
    """Of all below, and itself: what others than the owner may do anything with."""
    return [str(path) for path in (root, *root.rglob("*")) if stat.S_IMODE(path.stat().st_mode) & 0o077]


def test_a_store_is_for_its_owner_only(tmp_path: Path) -> None:
    root = tmp_path / "node"
    init_directory(root, IDENTITY)
    with closing(DiskLogStore.open(root)) as store:
        store.append(make_batches(25, seed=3))
        store.sync()
        store.save_checkpoint(3, None)
    assert exposed(root) == []


def test_backups_and_what_is_restored_from_them_are_for_their_owner_only(tmp_path: Path) -> None:
    _, store = new_sim_store()
    store.append(make_batches(25, seed=3))
    write_backup(frames_of(store), IDENTITY, tmp_path / "backup")
    restore_directory(tmp_path / "backup", tmp_path / "new", NEW)
    assert exposed(tmp_path / "backup") == exposed(tmp_path / "new") == []


def test_derived_files_and_traces_are_for_their_owner_only(tmp_path: Path) -> None:
    make_directories(OsDisk(), tmp_path / "derived" / "queue")
    replace_file(OsDisk(), tmp_path / "derived" / "queue" / "a", b"x")
    BufferedFile(tmp_path / "derived" / "lines").close()
    MappedFile(tmp_path / "derived" / "mapped").close()
    assert exposed(tmp_path / "derived") == []


@pytest.mark.parametrize("name", ["entries", "manifest.tmp"])
@pytest.mark.parametrize("kind", ["symbolic", "hard"])
def test_a_backup_does_not_write_through_a_planted_link(tmp_path: Path, name: str, kind: str) -> None:
    _, store = new_sim_store()
    store.append(make_batches(25, seed=3))
    target, victim = tmp_path / "backup", tmp_path / "victim"
    target.mkdir()
    victim.write_text("precious")
    if kind == "symbolic":
        (target / name).symlink_to(victim)
    else:
        (target / name).hardlink_to(victim)
    manifest = write_backup(frames_of(store), IDENTITY, target)
    assert victim.read_text() == "precious"
    assert read_manifest(target) == manifest
    assert not (target / "entries").is_symlink()


def test_a_backup_that_was_cut_short_is_replaced(tmp_path: Path) -> None:
    _, store = new_sim_store()
    store.append(make_batches(25, seed=3))
    target = tmp_path / "backup"
    target.mkdir()
    (target / "entries").write_bytes(bytes(1 << 20))
    write_backup(frames_of(store), IDENTITY, target)
    restore_directory(target, tmp_path / "new", NEW)


def test_files_are_not_made_through_links(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "settings.tmp").symlink_to(victim)
    with pytest.raises(OSError):
        replace_file(OsDisk(), tmp_path / "settings", b"new")
    assert victim.read_text() == "precious"


def test_a_planted_link_ends_an_init_with_words(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    root = tmp_path / "node"
    root.mkdir()
    (root / "hard_state.tmp").symlink_to(victim)
    with pytest.raises(StorageError):
        init_directory(root, IDENTITY)
    assert victim.read_text() == "precious"


def test_a_local_cluster_is_for_its_owner_only(tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path / "c", nodes=1, data_file_size=1 << 20)
    root = tmp_path / "c"
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    folders = [path for path in root.rglob("*") if path.is_dir()]
    assert folders and not [path for path in folders if path.stat().st_mode & 0o077]
    assert exposed(root / cluster.node_ids[0] / "store") == []


def test_a_directory_that_others_may_read_is_found(tmp_path: Path) -> None:
    for mode, found in ((0o700, 0), (0o750, 0), (0o755, 0o755), (0o701, 0o701)):
        tmp_path.chmod(mode)
        assert readable_by_others(tmp_path) == found
    assert readable_by_others(tmp_path / "nowhere") == 0
