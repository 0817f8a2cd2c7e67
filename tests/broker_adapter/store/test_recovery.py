"""Derived files after crashes, cuts, flips and losses: found and made again, never trusted, never fatal."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker_adapter.store.dispatcher import StoreOptions
from broker_adapter.wire.index_layout import IndexShape
from dledger.testing.virtual.sim_disk import CrashKind, CrashPoint, SimDisk, SimulatedCrash
from tests.broker_adapter.store.helpers import ROOT, SMALL, Log, Node, commands_of, dumb_look, look
from tests.conftest import SIXTHS

KEYS = [("T", "k"), ("T", "k0"), ("T", "k1"), ("U", "k2"), ("T", "none")]


def make_log(count: int, seed: int = 0) -> Log:
    log, rng = Log(), Random(seed)
    for number in range(count):
        kind = rng.randrange(12)
        if kind == 0:
            log.add(rng.randbytes(rng.randrange(120)))
        elif kind == 1:
            log.command(rng.choice([b"delete U", b"other"]))
        else:
            keys = rng.choice(["", "k", f"k{number % 3} k"])
            log.message(rng.choice("TTU"), rng.randrange(2), tag=rng.choice(["", "a", "b"]), keys=keys)
    return log


LOG = make_log(40)
DUMB = dumb_look(LOG.entries, KEYS)


def check(
    disk: SimDisk, where: str, *, durable: int = -1, options: StoreOptions = SMALL, twice: bool = True
) -> None:
    """A node that starts on this disk ends as one that applied the log once; and so does one after it."""
    node = Node(disk, options)
    known = node.start(LOG.entries)
    assert known >= durable, where
    assert look(node.dispatcher, KEYS) == DUMB, where
    assert node.metadata.applied == commands_of(LOG.entries), where
    if not twice:
        return
    node.dispatcher.close()
    again = Node(disk, options)
    assert again.start(LOG.entries) == len(LOG.entries), where
    assert look(again.dispatcher, KEYS) == DUMB, where


def run(disk: SimDisk, node: Node, *, purges: bool = False) -> None:
    node.dispatcher.load(())
    for first in range(0, len(LOG.entries), 3):
        node.now = first // 9  # a checkpoint is due now and then
        node.dispatcher.apply(LOG.entries[first : first + 3])
        if purges and first in (21, 30):
            node.dispatcher.purge_below(PURGED if first == 30 else LOG.entries[17].pos)
    node.dispatcher.close()


def operations(*, purges: bool = False) -> int:
    disk = SimDisk()
    run(disk, Node(disk), purges=purges)
    return len(disk.operations)


OPERATIONS = operations()
PURGED = LOG.entries[26].pos


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(CrashKind))
@pytest.mark.parametrize("point", list(CrashPoint))
@pytest.mark.parametrize("first", SIXTHS)
def test_a_crash_at_any_operation_loses_nothing(first: int, point: CrashPoint, kind: CrashKind) -> None:
    assert OPERATIONS > 100
    for number in range(1 + first, OPERATIONS + 1, len(SIXTHS)):
        disk = SimDisk()
        node = None
        disk.schedule_crash(number, point)
        with pytest.raises(SimulatedCrash):
            node = Node(disk)
            run(disk, node)
        disk.crash(kind, Random(number), reorder=bool(number % 2))
        written = -1 if node is None else node.dispatcher.figures().checkpoint.index
        durable = len([entry for entry in LOG.entries if entry.index <= written])
        check(disk, f"{kind} {point} {number}: {disk.operations[-1]}", durable=durable)


def without_purged(seen: dict[str, object]) -> dict[str, object]:
    kept: dict[str, object] = {}
    for name, value in seen.items():
        if isinstance(value, tuple):
            _, max_offset, floor, units = value
            units = [unit for unit in units if unit[0] >= PURGED]
            kept[name] = (max_offset - len(units), max_offset, floor, units)
        else:
            assert isinstance(value, list)
            kept[name] = [offset for offset in value if offset >= PURGED]
    return kept


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(CrashKind))
def test_a_crash_around_purging_loses_nothing_that_the_log_still_has(kind: CrashKind) -> None:
    disk = SimDisk()
    run(disk, Node(disk), purges=True)
    removed = [operation for operation in disk.operations if operation.startswith("unlink")]
    assert len(removed) > 3
    for number in range(disk.operations.index(removed[0]) - 60, operations(purges=True) + 1):
        disk = SimDisk()
        disk.schedule_crash(number, CrashPoint.AFTER)
        node = Node(disk)
        with pytest.raises(SimulatedCrash):
            run(disk, node, purges=True)
        disk.crash(kind, Random(number), reorder=bool(number % 2))
        written = node.dispatcher.figures().checkpoint.index
        again = Node(disk)
        known = again.start(LOG.entries)
        where = f"{kind} {number}: {disk.operations[-1]}"
        assert known >= len([entry for entry in LOG.entries if entry.index <= written]), where
        again.dispatcher.purge_below(PURGED)
        assert without_purged(look(again.dispatcher, KEYS)) == without_purged(DUMB), where
        again.dispatcher.close()
        third = Node(disk)
        assert third.start(LOG.entries) == len(LOG.entries), where
        assert look(third.dispatcher) == look(again.dispatcher), where


@pytest.mark.slow
def test_a_crash_while_starting_changes_nothing() -> None:
    for number in range(40, OPERATIONS, 37):
        disk = SimDisk()
        disk.schedule_crash(number, CrashPoint.AFTER)
        with pytest.raises(SimulatedCrash):
            run(disk, Node(disk))
        disk.crash(CrashKind.POWER, Random(number))
        step = 1
        while True:
            twin = disk.copy()
            twin.schedule_crash(step, CrashPoint.AFTER)
            try:
                Node(twin).start(LOG.entries)
                break
            except SimulatedCrash:
                twin.crash(CrashKind.POWER, Random(step), reorder=bool(step % 2))
                check(twin, f"{number}, then at the start {step}")
            step += 1
        assert step > 3


def closed() -> SimDisk:
    disk = SimDisk()
    run(disk, Node(disk))
    return disk


@pytest.mark.slow
@pytest.mark.parametrize("first", SIXTHS)
def test_a_flip_of_any_byte_of_any_file_is_found_or_does_no_harm(first: int) -> None:
    disk = closed()
    found = 0
    for path in disk.files():
        for at in range(first, len(disk.content(path)), len(SIXTHS)):
            twin = disk.copy()
            twin.flip(path, at, 1 << at % 8)
            found += Node(twin.copy()).dispatcher.recover() is None
            check(twin, f"{path} at {at}", twice=at % 50 == 0)
    assert found > 1000 // len(SIXTHS)


def test_missing_cut_longer_and_foreign_files_are_found_or_left_alone() -> None:
    disk = closed()
    for path in disk.files():
        content = disk.content(path)
        twin = disk.copy()
        twin.unlink(path)
        assert Node(twin.copy()).dispatcher.recover() is None, path
        check(twin, f"without {path}")
        for size in {0, 1, len(content) // 2, len(content) - 1, len(content) + 20}:
            twin = disk.copy()
            twin.set_content(path, (content + bytes(20))[:size])
            assert Node(twin.copy()).dispatcher.recover() is None, (path, size)
            check(twin, f"{path} with {size} bytes")
        twin = disk.copy()
        foreign = path.with_name("notes.txt")
        twin.set_content(foreign, b"mine")
        check(twin, str(foreign))
        assert twin.content(foreign) == b"mine"


def test_files_that_no_checkpoint_names_are_removed() -> None:
    disk = closed()
    for name in ("T/0/00000000000000009960", "T/1/00000000000000000960"):
        disk.set_content(ROOT / "consumequeue" / name, bytes(80))
    disk.set_content(ROOT / "index" / "99990101000000000", bytes(400))
    files = len(disk.files())
    check(disk, "more files")
    assert len(disk.files()) == files - 3


def test_without_a_checkpoint_nothing_is_believed() -> None:
    disk = closed()
    disk.unlink(ROOT / "derived_checkpoint")
    assert Node(disk).dispatcher.recover() is None
    check(disk, "no checkpoint")


def test_no_checkpoint_outlives_the_state_that_it_speaks_of() -> None:
    log, disk = Log(), SimDisk()
    for _ in range(6):
        log.message(keys="k")
    node = Node(disk)
    node.start(log.entries)
    image = b"".join(node.dispatcher.save())
    node.dispatcher.load([image])
    node.dispatcher.replay(log.entries)  # the same files again, but no entry was applied yet
    node.dispatcher.close()
    assert Node(disk).dispatcher.recover() is None


def test_files_of_another_shape_are_made_again() -> None:
    other = StoreOptions(units_per_file=5, index_shape=IndexShape(7, 9), checkpoint_interval_s=0.0)
    for options in (other, StoreOptions(units_per_file=4, index_shape=IndexShape(5, 13))):
        disk = closed()
        assert Node(disk, options).dispatcher.recover() is None
        check(disk, "written with other sizes", options=options)


def test_an_unreadable_disk_is_no_reason_to_crash() -> None:
    for nth in range(1, 12):
        disk = closed()
        disk.fail("pread", nth=nth)
        node = Node(disk)
        # The first read is that of the checkpoint, which is read a second time, page by page.
        assert (node.dispatcher.recover() is None) == (nth > 1)
        disk.repair()
        check(disk, f"read {nth} failed")


def test_metadata_that_cannot_be_loaded_are_made_again() -> None:
    disk = closed()
    node = Node(disk)

    def refuse(data: bytes) -> None:
        raise ValueError("of a later version")

    node.metadata.load = refuse  # type: ignore[method-assign]
    assert node.dispatcher.recover() is None
    assert look(node.dispatcher) == {}
    check(disk, "metadata")


def test_what_was_dispatched_after_the_checkpoint_is_not_indexed_twice() -> None:
    disk = SimDisk()
    node = Node(disk)
    node.dispatcher.load(())
    node.dispatcher.apply(LOG.entries[:10])
    node.now = -1.0
    node.dispatcher.apply(LOG.entries[10:])
    items = node.dispatcher.index.items
    again = Node(disk)
    assert again.start(LOG.entries) == 10
    assert again.dispatcher.index.items == items
    assert look(again.dispatcher, KEYS) == DUMB


def test_a_failing_disk_stops_the_node_and_no_checkpoint_says_otherwise() -> None:
    for operation in ("pwritev", "fdatasync", "sync_directory", "rename"):
        for nth in (1, 3, 9):
            disk = SimDisk()
            node = Node(disk)
            disk.fail(operation, nth=nth)
            with pytest.raises(OSError):
                run(disk, node)
                disk.fail(operation, nth=1)
                node.dispatcher.load(())
                run(disk, node)
            disk.repair()
            disk.crash(CrashKind.POWER, Random(nth))
            check(disk, f"{operation} {nth}")


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32), st.lists(st.integers(1, 7), min_size=2, max_size=6))
@example(1175, [4, 1])  # power is lost after files of a deleted topic were removed with their directory
def test_any_history_of_batches_crashes_and_restarts_ends_as_the_log_says(
    seed: int, sizes: list[int]
) -> None:
    disk, rng = SimDisk(), Random(seed)
    for size in sizes:
        node = Node(disk)
        if node.dispatcher.recover() is None:
            node.dispatcher.load(())
        node.now = rng.choice([0.0, -1.0])  # checkpoints with every batch, or at the end at best
        applied = node.dispatcher.dispatched.index
        left = [entry for entry in LOG.entries if entry.index > applied]
        for first in range(0, rng.randrange(len(left) + 1), size):
            node.durable = rng.choice([1 << 60, rng.randrange(60)])
            node.dispatcher.apply(left[first : first + size])
        if rng.random() < 0.3:
            node.dispatcher.close()
        if rng.random() < 0.7:
            disk.crash(rng.choice(list(CrashKind)), Random(rng.randrange(1000)), reorder=rng.random() < 0.5)
    check(disk, "in the end")
