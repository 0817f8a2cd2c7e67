"""Files of queues in which nothing can be read any more: they go, and never one that is needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_adapter.errors import ReadFailed, Status
from broker_adapter.store.consume_queue import ConsumeQueue
from broker_adapter.store.consume_queues import ConsumeQueues
from broker_adapter.store.open_files import OpenFiles
from dledger.infra.files.disk import OsDisk
from dledger.testing.virtual.sim_disk import CrashKind, CrashPoint, SimDisk, SimulatedCrash
from tests.broker_adapter.store.helpers import ROOT, Entry, Log, Node, dumb_look, look

QUEUES = ROOT / "consumequeue"


def log_of(script: Sequence[str]) -> Log:
    """A topic's name is a message of it, in one of two queues in turn; "-T" deletes topic T."""
    log = Log()
    for number, word in enumerate(script):
        if word.startswith("-"):
            log.command(b"delete " + word[1:].encode())
        else:
            log.message(word, number % 2)
    return log


def under_queues(disk: SimDisk) -> list[str]:
    """All names, of directories too."""
    found: list[str] = []
    left: list[Path] = [QUEUES]
    while left:
        path = left.pop()
        if disk.exists(path) and path not in disk.files():
            names = [path / name for name in disk.listdir(path)]
            found += [str(name.relative_to(QUEUES)) for name in names]
            left += names
    return sorted(found)


def needed(node: Node) -> list[str]:
    """What readers can need: files with units that can be read, and what they lie in."""
    paths = set()
    for queue in node.dispatcher.queues.all():
        if queue.min_offset < queue.max_offset:
            for path in queue.paths():
                paths |= {path, path.parent, path.parent.parent}
    return sorted(str(path.relative_to(QUEUES)) for path in paths)


def apply_each(node: Node, entries: Sequence[Entry]) -> None:
    for entry in entries:
        node.now += 1
        node.dispatcher.apply([entry])


def test_the_files_of_a_deleted_topic_go_with_the_next_checkpoint() -> None:
    log = log_of(["T", "U"] * 6 + ["-T"])
    node = Node(SimDisk())
    node.dispatcher.load(())
    apply_each(node, log.entries)
    assert under_queues(node.disk) == needed(node)
    assert not any(name.startswith("T") for name in under_queues(node.disk))
    again = Node(node.disk)
    assert again.start(log.entries) == len(log.entries), "the checkpoint agrees with the files"
    assert look(again.dispatcher) == dumb_look(log.entries)


def test_files_go_although_nothing_is_applied_any_more() -> None:
    log = log_of(["T"] * 6 + ["-T"])
    node = Node(SimDisk())
    node.dispatcher.load(())
    node.durable = -1
    node.dispatcher.apply(log.entries)
    assert under_queues(node.disk)
    node.durable = 1 << 60
    node.now += 1
    node.dispatcher.tend()
    assert under_queues(node.disk) == []
    before = list(node.disk.operations)
    node.dispatcher.tend()
    assert node.disk.operations == before


def test_a_queue_whose_messages_were_all_purged_has_no_file() -> None:
    log = log_of(["T"] * 7)
    node = Node(SimDisk())
    node.dispatcher.load(())
    node.dispatcher.apply(log.entries)
    node.dispatcher.purge_below(log.end_pos)
    node.now += 1
    node.dispatcher.tend()
    assert under_queues(node.disk) == []
    log.message("T", 0)
    node.dispatcher.apply(log.entries[-1:])
    again = Node(node.disk)
    again.start(log.entries)
    assert look(again.dispatcher) == look(node.dispatcher)


@pytest.mark.parametrize("late", [0, 1, 2, 5])
def test_a_topic_made_anew_goes_on_in_the_file_that_was_about_to_go(late: int) -> None:
    """The durable checkpoint names it still: made anew, it would be disbelieved after a crash."""
    log = log_of(["T"] * 5 + ["-T"] + ["T"] * (late + 1))
    node = Node(SimDisk())
    node.dispatcher.load(())
    apply_each(node, log.entries[:5])
    assert node.dispatcher.figures().checkpoint.index == log.entries[4].index
    node.durable = log.entries[4].index  # no later checkpoint is written
    apply_each(node, log.entries[5:])
    for kind in CrashKind:
        disk = node.disk.copy()
        disk.crash(kind, Random(late))
        again = Node(disk)
        assert again.start(log.entries) == 5
        assert look(again.dispatcher) == dumb_look(log.entries)
    node.durable = 1 << 60
    node.dispatcher.tend()
    assert look(node.dispatcher) == dumb_look(log.entries), "the file that was taken back has not gone"
    node.now += 1
    node.dispatcher.close()
    assert under_queues(node.disk) == needed(node)
    third = Node(node.disk)
    assert third.start(log.entries) == len(log.entries)
    assert look(third.dispatcher) == dumb_look(log.entries)


SCRIPT = ["T", "U", "T", "T", "T", "U", "-T", "U", "T", "T", "-T", "T", "-U", "T", "U", "-T", "-U", "U"]


def run(disk: SimDisk, log: Log) -> Node:
    node = Node(disk)
    node.dispatcher.load(())
    apply_each(node, log.entries)
    node.dispatcher.close()
    return node


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(CrashKind))
@pytest.mark.parametrize("point", list(CrashPoint))
def test_after_a_crash_at_any_operation_no_needless_file_stays(point: CrashPoint, kind: CrashKind) -> None:
    log = log_of(SCRIPT)
    whole = SimDisk()
    run(whole, log)
    assert any(operation.startswith("rmdir") for operation in whole.operations)
    for number in range(1, len(whole.operations) + 1):
        disk = SimDisk()
        disk.schedule_crash(number, point)
        with pytest.raises(SimulatedCrash):
            run(disk, log)
        disk.crash(kind, Random(number), reorder=bool(number % 2))
        again = Node(disk)
        again.start(log.entries)
        where = f"{number}: {whole.operations[number - 1]}"
        assert look(again.dispatcher) == dumb_look(log.entries), where
        again.now += 1
        again.dispatcher.close()
        assert under_queues(disk) == needed(again), where
        third = Node(disk)
        assert third.start(log.entries) == len(log.entries), where
        assert look(third.dispatcher) == dumb_look(log.entries), where


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["T", "T", "U", "-T", "-U"]), max_size=30), st.data())
def test_scripts_of_any_order_leave_what_is_needed(script: list[str], data: st.DataObject) -> None:
    """The log is durable, and checkpoints are written, later than entries are applied: by any delay."""
    log = log_of(script)
    node = Node(SimDisk())
    node.dispatcher.load(())
    for entry in log.entries:
        node.now += data.draw(st.integers(0, 1))
        if data.draw(st.booleans()):
            node.durable = entry.index
        node.dispatcher.apply([entry])
        if data.draw(st.integers(0, 5)) == 0:
            node.dispatcher.tend()
        assert look(node.dispatcher) == dumb_look([one for one in log.entries if one.index <= entry.index])
    node.durable = 1 << 60
    node.now += 1
    for _ in range(2):
        node.dispatcher.tend()
    node.dispatcher.close()
    assert under_queues(node.disk) == needed(node)
    again = Node(node.disk)
    assert again.start(log.entries) == len(log.entries)
    assert look(again.dispatcher) == dumb_look(log.entries)


def test_a_node_that_begins_with_an_image_makes_no_files_of_deleted_topics() -> None:
    log = log_of(["T", "U"] * 5 + ["-T", "U"])
    node = Node(SimDisk())
    node.dispatcher.load(())
    node.dispatcher.apply(log.entries)
    image = list(node.dispatcher.save())
    behind = Node(SimDisk())
    behind.dispatcher.load(image)
    behind.dispatcher.replay(log.entries[3:])
    log.message("U", 0)
    behind.dispatcher.apply(log.entries[-1:])
    assert not any(name.startswith("T") for name in under_queues(behind.disk))
    assert behind.dispatcher.queues.next_offsets()[("T", 0)] == 5, "its offsets go on all the same"


def test_files_of_an_earlier_version_go_at_the_first_checkpoint() -> None:
    """Its checkpoints name the newest file of each queue, also of deleted topics."""
    log = log_of(["T"] * 5 + ["U", "-T"])
    disk = SimDisk()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConsumeQueue, "retire", lambda self: [])
        run(disk, log)
    assert "T/0/00000000000000000000" in under_queues(disk)
    node = Node(disk)
    assert node.start(log.entries) == len(log.entries)
    log.message("U", 0)
    node.now += 1
    node.dispatcher.apply(log.entries[-1:])
    assert under_queues(disk) == needed(node)
    assert look(node.dispatcher) == dumb_look(log.entries)


def test_a_reader_who_has_the_file_open_is_told_that_the_messages_are_gone(tmp_path: Path) -> None:
    """On the real file system: a handle outlives the name, and directories go around it."""
    queues = ConsumeQueues(tmp_path, OsDisk(), units_per_file=4)
    queue = queues.obtain("T", 0)
    units = b"".join(map(unit_of, range(3)))
    queue.append(0, units)
    assert len(queue.read(0, 3)) == 3  # the file is open now
    queues.delete_topic("T")
    queues.remove(queues.snapshot().doomed)
    assert not (tmp_path / "consumequeue").exists()
    with pytest.raises(ReadFailed) as caught:
        queue.read(0, 1)
    assert caught.value.status is Status.OFFSET_BELOW_MINIMUM
    queue.append(3, unit_of(3))
    assert len(queue.read(3, 1)) == 1
    queues.close()


def test_a_read_that_meets_the_file_made_anew_says_that_the_messages_are_gone(tmp_path: Path) -> None:
    queues = ConsumeQueues(tmp_path, OsDisk(), units_per_file=4)
    queue = queues.obtain("T", 0)
    queue.append(0, unit_of(0))
    stored = queue._stored

    def deleted_meanwhile(offset: int, count: int) -> bytes:
        queues.delete_topic("T")
        queues.remove(queues.snapshot().doomed)
        queue.append(1, unit_of(1))
        return stored(offset, count)

    queue._stored = deleted_meanwhile  # type: ignore[method-assign]
    with pytest.raises(ReadFailed) as caught:
        queue.read(0, 1)
    assert caught.value.status is Status.OFFSET_BELOW_MINIMUM
    queues.close()


def test_a_directory_with_somebody_elses_file_stays(tmp_path: Path) -> None:
    files = OpenFiles(OsDisk(), tmp_path)
    path = tmp_path / "consumequeue/T/0/00000000000000000000"
    files.create(path, 80)
    (path.parent.parent / "notes").write_text("mine")
    files.remove(path)
    assert [one.name for one in (tmp_path / "consumequeue/T").iterdir()] == ["notes"]


def unit_of(number: int) -> bytes:
    return (48 + 200 * number).to_bytes(8, "big") + (100).to_bytes(4, "big") + bytes(8)


def test_a_file_that_goes_after_it_was_used_and_let_go_again_need_not_be_synced(tmp_path: Path) -> None:
    files = OsDisk()
    path = tmp_path / "t" / "0" / "file"
    opened = OpenFiles(files, tmp_path)
    opened.create(path, 100)
    opened.retire(path)
    first = opened.take_changes()
    assert opened.take_back(path)
    opened.write(path, b"x", 0)
    opened.retire(path)  # its messages were purged while the first checkpoint was being written
    first.sync(files)
    opened.remove_retired(path)
    opened.take_changes().sync(files)


def test_a_file_that_was_taken_back_is_synced_with_all_that_is_in_it(tmp_path: Path) -> None:
    files = OsDisk()
    path = tmp_path / "t" / "0" / "file"
    opened = OpenFiles(files, tmp_path)
    opened.create(path, 100)
    opened.retire(path)
    assert opened.take_changes().files == set()
    assert opened.take_back(path)
    assert opened.take_changes().files == {path}
