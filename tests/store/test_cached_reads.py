"""Reads on the event loop are answered by the page cache, or run again on a thread."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextvars import Context
from pathlib import Path

import pytest

from dledger.infra.files.cached_reads import MAX_BYTES, NotCached, is_only_cached, read_cached
from dledger.infra.files.disk import OsDisk
from dledger.infra.files.handle_cache import HandleCache
from dledger.store.disk_store import DiskLogStore
from dledger.store.identity import init_directory
from tests.store.helpers import IDENTITY, make_batches
from tests.store.test_retention import filled

CONTENT = bytes(range(256)) * (MAX_BYTES // 256 + 1)


@pytest.fixture
def handle(tmp_path: Path) -> Iterator[int]:
    handle = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.pwrite(handle, CONTENT, 0)
    yield handle
    os.close(handle)


def pread(handle: int, size: int, offset: int = 0) -> Callable[[], bytes]:
    return lambda: OsDisk().pread(handle, size, offset)


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the system cannot read without a wait")
@pytest.mark.parametrize("size", [1, 5000, MAX_BYTES])
def test_written_bytes_are_read_from_the_cache(handle: int, size: int) -> None:
    assert read_cached(pread(handle, size, 3)) == CONTENT[3 : 3 + size]


def test_a_system_that_always_waits_has_nothing_cached(handle: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "RWF_NOWAIT", raising=False)
    with pytest.raises(NotCached):
        read_cached(pread(handle, 1))


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the system cannot read without a wait")
@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EOPNOTSUPP, errno.EIO])
def test_a_read_that_would_wait_or_finds_bad_sectors_is_left_to_a_thread(
    handle: int, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The thread finds out what can be read around a bad sector."""

    def preadv(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(NotCached):
        read_cached(pread(handle, 1))


def test_bytes_that_a_read_lacks_are_not_cached(handle: int) -> None:
    with pytest.raises(NotCached):
        read_cached(pread(handle, 2, len(CONTENT) - 1))


def test_the_bytes_of_all_reads_together_are_limited(handle: int) -> None:
    def work() -> int:
        return sum(len(OsDisk().pread(handle, MAX_BYTES // 2 + 1, 0)) for _ in range(2))

    with pytest.raises(NotCached):
        read_cached(work)
    assert work() == MAX_BYTES + 2, "without the limit it is read"


def test_only_the_work_itself_must_not_wait(handle: int) -> None:
    assert read_cached(is_only_cached) and not is_only_cached()
    with pytest.raises(ZeroDivisionError):
        read_cached(lambda: 1 // 0)
    assert not is_only_cached()


def test_a_file_is_opened_on_a_thread_only() -> None:
    opened: list[str] = []
    files = HandleCache[str](lambda name: opened.append(name) or len(opened), lambda handle: None, 10)

    def use() -> int:
        with files.using("a") as handle:
            return handle

    with pytest.raises(NotCached):
        read_cached(use)
    assert not opened
    assert use() == 1 == read_cached(use)


def test_a_cached_read_does_not_wait_for_a_file_that_opens() -> None:
    def open_file(name: str) -> int:
        if name == "slow":
            with pytest.raises(NotCached):
                read_cached(use)
        return 1

    files = HandleCache[str](open_file, lambda handle: None, 10)

    def use() -> int:
        with files.using("a") as handle:
            return handle

    use()
    with files.using("slow"):
        pass
    assert read_cached(use) == 1


class WatchedDisk(OsDisk):
    """Runs `during` in the middle of the next read, and lists the open files."""

    def __init__(self) -> None:
        self.during: Callable[[], None] | None = None
        self.opened = dict[int, Path]()

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        handle = super().open(path, create=create, write=write)
        self.opened[handle] = path
        return handle

    def close(self, handle: int) -> None:
        del self.opened[handle]
        super().close(handle)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        during, self.during = self.during, None
        if during is not None:
            during()
        return super().pread(handle, size, offset)


def test_files_purged_during_a_cached_read_are_closed_by_the_next_sync(tmp_path: Path) -> None:
    """Their close may take long, because the disk then frees their space."""
    disk = WatchedDisk()
    init_directory(tmp_path, IDENTITY, disk=disk)
    store = DiskLogStore.open(tmp_path, disk=disk)
    filled(store)
    end = store.tail.pos
    border = store.borders()[-1]

    def missing() -> list[Path]:
        return [path for path in disk.opened.values() if not path.exists()]

    entry = store.entry(store.end_index)
    disk.during = lambda: Context().run(store.purge_to, border)
    read_cached(lambda: store.read_bodies([(entry.pos, entry.size - 48)], end))
    assert missing(), "the read keeps them open"
    store.append(make_batches(1, tail=store.tail))
    store.sync()
    assert not missing()
    store.close()
