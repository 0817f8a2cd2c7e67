"""One ConsumeQueue: its bytes and file names, reads at every place, idempotent appends."""

from __future__ import annotations

import pytest

from broker_adapter.errors import ReadFailed, Status, StoredDataDamaged
from broker_adapter.store.consume_queue import CheckpointMismatch, ConsumeQueue
from broker_adapter.store.open_files import OpenFiles
from broker_adapter.wire.consume_queue_unit import ConsumeQueueUnit, encode_units
from dledger.testing.virtual.sim_disk import SimDisk
from tests.broker_adapter.store.helpers import ROOT

DIRECTORY = ROOT / "consumequeue/T/3"
UNITS = [ConsumeQueueUnit(48 + 200 * number, 100 + number, number - 5) for number in range(11)]


def new_queue(units_per_file: int = 4) -> tuple[SimDisk, ConsumeQueue]:
    disk = SimDisk()
    disk.mkdir(ROOT)
    return disk, ConsumeQueue("T", 3, DIRECTORY, OpenFiles(disk, ROOT, limit=1), units_per_file)


def filled(units_per_file: int = 4) -> tuple[SimDisk, ConsumeQueue]:
    disk, queue = new_queue(units_per_file)
    queue.append(0, encode_units(UNITS))
    return disk, queue


def test_units_lie_in_files_that_are_called_by_their_first_byte() -> None:
    disk, queue = new_queue()
    queue.append(0, encode_units([(0x1030, 0x70, -2)]))
    queue.append(1, encode_units([(0x2040, 0x71, 0)] * 4))
    names = [path.name for path in disk.files()]
    assert names == ["00000000000000000000", "00000000000000000080"]
    assert disk.content(DIRECTORY / names[0]) == bytes.fromhex(
        "0000000000001030 00000070 FFFFFFFFFFFFFFFE" + "0000000000002040 00000071 0000000000000000" * 3
    )
    assert disk.content(DIRECTORY / names[1]) == bytes.fromhex(
        "0000000000002040 00000071 0000000000000000" + "00" * 60
    )


def test_every_range_can_be_read_and_nothing_outside() -> None:
    _, queue = filled()
    for offset in range(12):
        for count in range(14):
            assert queue.read(offset, count) == UNITS[offset : offset + count]
    with pytest.raises(ReadFailed) as caught:
        queue.read(12, 1)
    assert caught.value.status is Status.OFFSET_ABOVE_MAXIMUM
    with pytest.raises(ReadFailed) as caught:
        queue.read(-1, 1)
    assert caught.value.status is Status.OFFSET_BELOW_MINIMUM


def test_equal_units_are_passed_others_and_gaps_are_refused() -> None:
    _, queue = filled()
    more = ConsumeQueueUnit(9000, 7, 7)
    for offset in range(12):
        queue.append(offset, encode_units(UNITS[offset:]))
        queue.append(offset, encode_units(UNITS[offset : offset + 2]))
    assert queue.max_offset == 11
    queue.append(9, encode_units([*UNITS[9:], more]))
    assert queue.read(0, 99) == [*UNITS, more]
    with pytest.raises(StoredDataDamaged) as caught:
        queue.append(10, encode_units([more]))
    assert caught.value.status is Status.UNIT_DAMAGED
    with pytest.raises(StoredDataDamaged) as caught:
        queue.append(13, encode_units([more]))
    assert caught.value.status is Status.QUEUE_ORDER
    assert queue.max_offset == 12


def test_a_queue_may_begin_anywhere() -> None:
    for begin in range(9):
        disk, queue = new_queue()
        queue.begin_at(begin)
        queue.append(begin, encode_units(UNITS))
        assert (queue.min_offset, queue.max_offset) == (begin, begin + 11)
        assert queue.read(begin + 1, 99) == UNITS[1:]
        again = ConsumeQueue("T", 3, DIRECTORY, OpenFiles(disk, ROOT), 4)
        again.restore(queue.state())
        assert again.state() == queue.state() and again.read(begin, 99) == UNITS
        again.append(begin + 11, encode_units([UNITS[0]]))  # its sums go on where they were
        third = ConsumeQueue("T", 3, DIRECTORY, OpenFiles(disk, ROOT), 4)
        third.restore(again.state())


def test_purging_at_every_place_keeps_what_is_above() -> None:
    for place in range(13):
        for beside in (-1, 0, 1):
            disk, queue = filled()
            physical_offset = 48 + 200 * place + beside
            doomed = queue.purge_below(physical_offset)
            kept = [unit for unit in UNITS if unit.physical_offset >= physical_offset]
            assert queue.min_offset == 11 - len(kept) and queue.read(queue.min_offset, 99) == kept
            assert doomed == [DIRECTORY / f"{80 * number:020d}" for number in range(queue.min_offset // 4)]
            for path in doomed:
                disk.unlink(path)
            again = ConsumeQueue("T", 3, DIRECTORY, OpenFiles(disk, ROOT), 4)
            again.restore(queue.state())
            assert again.read(queue.min_offset, 99) == kept
            assert queue.purge_below(physical_offset) == []


def test_restoring_cuts_what_is_beyond() -> None:
    disk, queue = filled()
    state = queue.state()
    queue.append(11, encode_units([UNITS[0]] * 1))
    again = ConsumeQueue("T", 3, DIRECTORY, OpenFiles(disk, ROOT), 4)
    again.restore(state)
    assert disk.content(DIRECTORY / f"{160:020d}") == encode_units(UNITS[8:]) + bytes(20)


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_offset": 12},
        {"min_offset": -1},
        {"floor": 12},
        {"floor": -1},
        {"crcs": ()},
        {"crcs": (1, 2)},
        {"crcs": (1, 2, 3, 4)},
        {"max_offset": 10},
    ],
)
def test_a_state_that_no_queue_has_is_a_disagreement(wrong: dict[str, object]) -> None:
    disk, queue = filled()
    again = ConsumeQueue("T", 3, DIRECTORY, OpenFiles(disk, ROOT), 4)
    with pytest.raises(CheckpointMismatch):
        again.restore(queue.state()._replace(**wrong))  # type: ignore[arg-type]


def test_units_that_cannot_be_are_never_given_to_a_reader() -> None:
    disk, _ = filled()
    path = DIRECTORY / f"{80:020d}"
    content = disk.content(path)
    for wrong in (bytes(80), content[20:40] + content[:20] + content[40:], content[:30], b"\xff" * 80):
        disk.set_content(path, wrong)
        fresh = ConsumeQueue("T", 3, DIRECTORY, OpenFiles(disk, ROOT), 4)
        fresh.max_offset = 11
        with pytest.raises(StoredDataDamaged) as caught:
            fresh.read(2, 6)
        assert caught.value.status is Status.UNIT_DAMAGED
    disk.unlink(path)
    fresh = ConsumeQueue("T", 3, DIRECTORY, OpenFiles(disk, ROOT), 4)
    fresh.max_offset = 11
    with pytest.raises(StoredDataDamaged):
        fresh.read(5, 1)


def test_time_search_goes_on_when_messages_are_purged_under_it() -> None:
    _, queue = filled()

    def purge_and_tell(unit: ConsumeQueueUnit) -> int:
        queue.purge_below(48 + 200 * 8)
        return unit.physical_offset

    assert queue.offset_by_time(0, purge_and_tell) == 8
