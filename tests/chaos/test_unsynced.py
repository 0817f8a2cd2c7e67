"""A loss of power takes what no returned sync covers, and nothing else: judged by the simulator's disk."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.injection.disk import FaultInjectingDisk
from chaos.injection.orders import Counters, FaultOrders, InjectedEffect, OrderFile, combined, read_counter
from chaos.injection.unsynced import JOURNAL, lose_power
from dledger.infra.files.disk import CrashKind, Disk, replace_file
from dledger.testing.virtual.sim_disk import SimDisk

Operation = tuple[str, str, int, int]
OPERATIONS = st.tuples(
    st.sampled_from(["write", "write", "sync", "truncate", "allocate", "rename", "unlink", "sync_directory"]),
    st.sampled_from(["a", "b", "data/a", "data/b"]),
    st.integers(0, 30),
    st.integers(1, 30),
)


class Everything(Random):
    """Draws that lose all there is to lose."""

    def random(self) -> float:
        return 0.0

    def choice(self, seq: Any) -> Any:
        return 0  # the simulator loses all from this change on, and the first one is 1

    def randrange(self, *bounds: Any) -> int:
        return 0


def folders(path: Path) -> tuple[Path, Path]:
    root, folder = path / "store", path / "injection"
    root.mkdir()
    folder.mkdir()
    return root, folder


def apply(disk: Disk, root: Path, operation: Operation, number: int) -> None:
    """One operation, on whichever disk; what names no file does nothing."""
    what, name, at, size = operation
    path = root / name
    if what == "sync_directory":
        disk.sync_directory(path.parent)
        return
    if what != "write" and not disk.exists(path):
        return
    if what == "rename":
        disk.rename(path, path.with_name("b" if path.name == "a" else "a"))
        return
    if what == "unlink":
        disk.unlink(path)
        return
    handle = disk.open(path, create=True)
    match what:
        case "write":
            disk.pwritev(handle, [bytes([number % 255 + 1]) * size], at)
        case "sync":
            disk.fdatasync(handle)
        case "truncate":
            disk.truncate(handle, size)
        case _:
            disk.allocate(handle, at, size)
    disk.close(handle)


def content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def simulated(sim: SimDisk) -> dict[str, bytes]:
    return {str(path.relative_to("/")): sim.content(path) for path in sim.files()}


@settings(deadline=None, max_examples=100)
@given(st.lists(OPERATIONS, max_size=40), st.integers(0, 40))
def test_all_that_is_lost_is_what_no_sync_covers(operations: Sequence[Operation], restart_at: int) -> None:
    with TemporaryDirectory() as temporary:
        root, folder = folders(Path(temporary))
        sim, disk = SimDisk(), FaultInjectingDisk(root, folder)
        for one, base in ((sim, Path("/")), (disk, root)):
            one.mkdir(base / "data")
            one.sync_directory(base)
        for number, operation in enumerate(operations):
            if number == restart_at:
                disk = FaultInjectingDisk(
                    root, folder
                )  # the process died; what it wrote is in the page cache
            apply(sim, Path("/"), operation, number)
            apply(disk, root, operation, number)
        assert content(root) == simulated(sim)
        sim.crash(CrashKind.POWER, Everything())
        lose_power(root, folder, Everything())
        assert content(root) == simulated(sim)
        assert lose_power(root, folder, Random(1)).unsynced == 0, "what remains is durable"


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 1 << 30), st.lists(st.integers(1, 50), min_size=1, max_size=8))
def test_appends_are_lost_from_a_byte_on(seed: int, sizes: list[int]) -> None:
    with TemporaryDirectory() as temporary:
        root, folder = folders(Path(temporary))
        disk = FaultInjectingDisk(root, folder)
        handle = disk.open(root / "log", create=True)
        disk.pwritev(handle, [b"durable"], 0)
        disk.fdatasync(handle)
        disk.sync_directory(root)
        written = b"durable"
        for number, size in enumerate(sizes, 1):
            disk.pwritev(handle, [bytes([number]) * size], len(written))
            written += bytes([number]) * size
        disk.close(handle)
        loss = lose_power(root, folder, Random(seed))
        left = (root / "log").read_bytes()
        assert written.startswith(left) and left.startswith(b"durable")
        assert len(written) - len(left) == loss.lost_bytes


def test_a_journal_does_not_grow_with_what_is_durable(tmp_path: Path) -> None:
    root, folder = folders(tmp_path)
    disk = FaultInjectingDisk(root, folder)
    handle = disk.open(root / "log", create=True)
    disk.sync_directory(root)
    rng = Random(1)
    for _ in range(1000):
        disk.pwritev(handle, [rng.randbytes(4096)], 0)  # what it replaces is in the journal
        disk.fdatasync(handle)
    assert (folder / JOURNAL).stat().st_size < 1 << 21
    assert lose_power(root, folder, Random(1)).unsynced == 0


def test_orders_are_followed_and_counted(tmp_path: Path) -> None:
    root, folder = folders(tmp_path)
    disk, orders = FaultInjectingDisk(root, folder), OrderFile(folder)
    handle = disk.open(root / "log", create=True)
    orders.save(FaultOrders(write_error=True, sync_error=True))
    with pytest.raises(OSError) as caught:
        disk.pwritev(handle, [b"x"], 0)
    assert caught.value.errno == errno.EIO
    for sync in (lambda: disk.fdatasync(handle), lambda: disk.sync_directory(root)):
        with pytest.raises(OSError):
            sync()
    orders.save(FaultOrders(quota_bytes=100, slow_ms=1))
    with pytest.raises(OSError) as caught:
        disk.allocate(handle, 0, 101)
    assert caught.value.errno == errno.ENOSPC
    disk.allocate(handle, 0, 100)
    assert disk.free_bytes(root) == 0
    with pytest.raises(OSError):
        disk.open(root / "more", create=True)
    disk.pwritev(handle, [b"x"], 99)
    disk.fdatasync(handle)
    orders.save(FaultOrders())
    replace_file(disk, root / "log", b"y" * 1000)
    counts = {what: read_counter(folder, what) for what in InjectedEffect}
    assert counts[InjectedEffect.WRITE_ERROR] == 1 and counts[InjectedEffect.SYNC_ERROR] == 2
    assert (
        counts[InjectedEffect.NO_SPACE] == 2
        and counts[InjectedEffect.SLOW_SYNC] == 1
        and counts[InjectedEffect.STUCK_SYNC] == 0
    )


def test_counts_go_on_in_the_next_life(tmp_path: Path) -> None:
    for _ in range(2):
        Counters(tmp_path).add(InjectedEffect.STUCK_SYNC)
    assert (
        read_counter(tmp_path, InjectedEffect.STUCK_SYNC) == 2
        and read_counter(tmp_path / "no", InjectedEffect.NO_SPACE) == 0
    )


def test_orders_of_overlapping_faults_add_up() -> None:
    both = combined([FaultOrders(slow_ms=5, clock_ms=-10), FaultOrders(slow_ms=6, quota_bytes=7, stuck=True)])
    assert both == FaultOrders(slow_ms=11, clock_ms=-10, quota_bytes=7, stuck=True)
    assert combined([]) == FaultOrders()


def test_whatever_is_drawn_something_that_was_not_durable_is_lost(tmp_path: Path) -> None:
    for seed in range(40):
        root, folder = folders(Path(mkdtemp(dir=tmp_path)))
        disk = FaultInjectingDisk(root, folder)
        handle = disk.open(root / "a", create=True)
        disk.fdatasync(handle)
        disk.sync_directory(root)
        disk.pwritev(handle, [b"some bytes"], 0)
        disk.close(handle)
        loss = lose_power(root, folder, Random(seed))
        assert (loss.unsynced, loss.undone) == (1, 1) and loss.lost_bytes > 0
        assert len((root / "a").read_bytes().rstrip(b"\0")) < len(b"some bytes")
