"""ConsumeQueues read without a broker: what was written, in order, and what cannot be read is said."""

from __future__ import annotations

from broker_adapter.store.consume_queues import DIRECTORY, ConsumeQueues
from broker_adapter.store.index_files import DIRECTORY as INDEX_DIRECTORY
from broker_adapter.store.index_files import IndexFiles
from broker_adapter.store.offline import OfflineIndex, OfflineQueues
from broker_adapter.wire.consume_queue_unit import FILLER, ConsumeQueueUnit, encode_units
from broker_adapter.wire.index_layout import IndexShape, index_keys
from dledger.testing.virtual.sim_disk import SimDisk
from tests.broker_adapter.store.helpers import ROOT


def filled(counts: dict[tuple[str, int], int], units_per_file: int = 4) -> SimDisk:
    """Queues of so many units each."""
    disk = SimDisk()
    disk.mkdir(ROOT)
    queues = ConsumeQueues(ROOT, disk, units_per_file=units_per_file)
    for (topic, queue_id), count in counts.items():
        queues.obtain(topic, queue_id).append(0, encode_units(unit(n) for n in range(count)))
    return disk


def unit(number: int) -> ConsumeQueueUnit:
    return ConsumeQueueUnit(48 + 200 * number, 100 + number, number - 5)


def test_all_units_of_all_queues_come_in_order() -> None:
    counts = {("a", 2): 11, ("a", 10): 8, ("b", 0): 1}
    offline = OfflineQueues(ROOT, filled(counts))
    found = list(offline.units())
    assert found == [
        (topic, queue_id, n, unit(n)) for (topic, queue_id), count in counts.items() for n in range(count)
    ]
    assert offline.problems == []


def test_a_unit_that_was_never_written_ends_a_file_and_the_gap_is_said() -> None:
    disk = filled({("a", 0): 8})
    path = ROOT / DIRECTORY / "a" / "0" / f"{0:020d}"
    handle = disk.open(path)
    disk.pwritev(handle, [bytes(20)], 40)
    disk.close(handle)
    offline = OfflineQueues(ROOT, disk)
    assert [found.queue_offset for found in offline.units()] == [0, 1, 4, 5, 6, 7]
    [problem] = offline.problems
    assert f"{80:020d}" in problem and "ends at 40" in problem


def test_half_a_unit_at_the_end_is_none() -> None:
    disk = filled({("a", 0): 3})
    handle = disk.open(ROOT / DIRECTORY / "a" / "0" / f"{0:020d}")
    disk.truncate(handle, 50)
    disk.close(handle)
    assert [found.queue_offset for found in OfflineQueues(ROOT, disk).units()] == [0, 1]


def test_what_stands_before_a_queue_that_begins_later_is_no_message() -> None:
    disk = filled({("a", 0): 3})
    handle = disk.open(ROOT / DIRECTORY / "a" / "0" / f"{0:020d}")
    disk.pwritev(handle, [encode_units([FILLER])], 0)
    disk.close(handle)
    assert [found.queue_offset for found in OfflineQueues(ROOT, disk).units()] == [1, 2]


def test_a_queue_that_was_restored_from_an_image_begins_within_its_first_file() -> None:
    """As on a node that lost its directory and rejoined after the first messages had been purged."""
    disk = filled({})
    queue = ConsumeQueues(ROOT, disk, units_per_file=4).obtain("a", 0)
    queue.begin_at(6)
    queue.append(6, encode_units(unit(n) for n in range(6, 14)))
    offline = OfflineQueues(ROOT, disk)
    assert [found.queue_offset for found in offline.units()] == list(range(6, 14))
    assert offline.problems == []


def test_foreign_files_are_said_and_nothing_is_an_answer() -> None:
    disk = filled({("a", 0): 1})
    disk.close(disk.open(ROOT / DIRECTORY / "a" / "0" / "notes.txt", create=True))
    offline = OfflineQueues(ROOT, disk)
    assert len(list(offline.units())) == 1 and "notes.txt" in offline.problems[0]
    assert list(OfflineQueues(ROOT / "absent", disk).units()) == []


#: What OfflineIndex takes for the shape of files beside which no checkpoint stands.
SHAPE = IndexShape()


def indexed(count: int) -> SimDisk:
    """So many messages, each with an id and two keys; one of them is that of all."""
    disk = SimDisk()
    disk.mkdir(ROOT)
    index = IndexFiles(ROOT, disk, shape=SHAPE)
    index.add(("t", f"id{n}", f"all k{n}", 48 + 100 * n, 1_700_000_000_000 + n) for n in range(count))
    return disk


def test_an_index_holds_what_was_added_under_each_key_and_nothing_else() -> None:
    index = OfflineIndex(ROOT, indexed(5))
    for n in range(5):
        at = 48 + 100 * n
        assert index.holds(index_keys("t", f"id{n}", f"all k{n}"), at)
        assert not index.holds(index_keys("t", f"id{n}", f"all k{n + 1}"), at)
        assert not index.holds(index_keys("u", f"id{n}", None), at)
    assert not index.holds(index_keys("t", "id5", None), 548)
    # Those of the checkpoint, which a broker that is up may not have written yet.
    assert len(index.problems) <= 1


def test_without_files_an_index_holds_nothing_and_a_foreign_one_is_no_error() -> None:
    disk = SimDisk()
    disk.mkdir(ROOT)
    assert not OfflineIndex(ROOT, disk).holds(["t#k"], 48)
    disk.mkdir(ROOT / INDEX_DIRECTORY)
    disk.close(disk.open(ROOT / INDEX_DIRECTORY / "notes.txt", create=True))
    assert not OfflineIndex(ROOT, disk).holds(["t#k"], 48)
