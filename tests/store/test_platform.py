"""What other systems than Linux do instead of its calls."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger.infra.files import platform
from dledger.infra.files.disk import OsDisk

FULL_SYNC = 51  # macOS's F_FULLFSYNC


@pytest.fixture
def handle(tmp_path: Path) -> Iterator[int]:
    handle = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield handle
    os.close(handle)


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    for name in names:
        monkeypatch.delattr(os, name)


@pytest.mark.parametrize("before", [0, 10, 5000, 3 << 20])
@pytest.mark.parametrize("has_call", [True, False])
def test_reserved_space_extends_the_file_with_zeros_and_keeps_its_contents(
    handle: int, monkeypatch: pytest.MonkeyPatch, before: int, has_call: bool
) -> None:
    if not has_call:
        without(monkeypatch, "posix_fallocate")
    content = b"x" * before
    os.pwrite(handle, content, 0)
    OsDisk().allocate(handle, 4096, 2 << 20)
    size = max(before, 4096 + (2 << 20))
    assert os.fstat(handle).st_size == size
    assert os.pread(handle, size, 0) == content + bytes(size - before)


def test_reserving_by_writing_uses_the_space_at_once(handle: int, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "posix_fallocate")
    OsDisk().allocate(handle, 0, 1 << 20)
    os.fsync(handle)
    assert os.fstat(handle).st_blocks * 512 >= 1 << 20


def test_without_advice_the_cache_is_kept(handle: int, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "posix_fadvise")
    os.pwrite(handle, b"data", 0)
    OsDisk().drop_cache(handle)
    assert OsDisk().pread(handle, 4, 0) == b"data"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The syncs that a system with F_FULLFSYNC and without fdatasync makes."""
    made: list[tuple[str, int]] = []
    monkeypatch.setattr(platform, "FULL_SYNC", FULL_SYNC)
    without(monkeypatch, "fdatasync")
    monkeypatch.setattr(os, "fsync", lambda handle: made.append(("fsync", handle)))
    monkeypatch.setattr(fcntl, "fcntl", lambda handle, command: made.append((str(command), handle)))
    return made


def test_syncs_also_empty_the_cache_of_the_drive_where_fsync_does_not(
    handle: int, tmp_path: Path, asked: list[tuple[str, int]]
) -> None:
    OsDisk().fdatasync(handle)
    assert asked == [(str(FULL_SYNC), handle)]
    OsDisk().sync_directory(tmp_path)
    assert [name for name, _ in asked] == [str(FULL_SYNC)] * 2


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.EINVAL, errno.ENOTTY, errno.EIO])
def test_only_a_drive_without_that_command_is_synced_otherwise(
    handle: int, asked: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(handle: int, command: int) -> None:
        raise OSError(number, "refused")

    monkeypatch.setattr(fcntl, "fcntl", fail)
    if number == errno.EIO:
        with pytest.raises(OSError, match="refused"):
            OsDisk().fdatasync(handle)
        assert not asked
    else:
        OsDisk().fdatasync(handle)
        assert asked == [("fsync", handle)]
