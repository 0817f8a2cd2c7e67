"""A simulated loss of power leaves a tree: each file and directory is in a directory that exists."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from dledger.testing.virtual.sim_disk import CrashKind, SimDisk

ROOT = Path("/root")


def made() -> SimDisk:
    disk = SimDisk()
    disk.mkdir(ROOT)
    disk.sync_directory(Path("/"))
    disk.mkdir(ROOT / "a")
    disk.mkdir(ROOT / "a/b")
    return disk


def left_by(disk: SimDisk, reorder: bool) -> list[set[str]]:
    """Names that losses of power can leave."""
    found = []
    for seed in range(20):
        twin = disk.copy()
        twin.crash(CrashKind.POWER, Random(seed), reorder=reorder)
        found.append({str(path) for path in (ROOT, ROOT / "a", ROOT / "a/b") if twin.exists(path)})
    return found


@pytest.mark.parametrize("reorder", [False, True])
def test_a_directory_that_was_synced_is_lost_if_its_own_name_was_not(reorder: bool) -> None:
    disk = made()
    disk.sync_directory(ROOT / "a")
    found = left_by(disk, reorder)
    assert {"/root"} in found and {"/root", "/root/a/b"} not in found


@pytest.mark.parametrize("reorder", [False, True])
def test_a_directory_whose_removal_is_durable_does_not_return_with_old_names(reorder: bool) -> None:
    disk = made()
    disk.rmdir(ROOT / "a/b")
    disk.rmdir(ROOT / "a")
    disk.sync_directory(ROOT)
    assert left_by(disk, reorder) == [{"/root"}] * 20
    disk.mkdir(ROOT / "a")
    disk.sync_directory(ROOT)
    assert left_by(disk, reorder) == [{"/root", "/root/a"}] * 20
    disk.mkdir(ROOT / "a/b")
    disk.sync_directory(ROOT / "a")
    assert left_by(disk, reorder) == [{"/root", "/root/a", "/root/a/b"}] * 20


@pytest.mark.parametrize("change", ["rewritten", "cut"])
def test_a_byte_that_a_sync_would_still_write_does_not_flip(change: str) -> None:
    disk, path = SimDisk(), Path("/file")
    handle = disk.open(path, create=True)
    disk.pwritev(handle, [bytes(8)], 0)
    disk.fdatasync(handle)
    if change == "rewritten":
        disk.pwritev(handle, [bytes(2)], 3)
    else:
        disk.truncate(handle, 3)
        disk.allocate(handle, 0, 8)
    disk.sync_directory(Path("/"))
    assert disk.flip_durable(path, 4, 1) is None
    is_wrong = disk.flip_durable(path, 2, 1)
    disk.fdatasync(handle)
    assert is_wrong is not None and is_wrong() and disk.is_content_durable(path)
