"""What the Dispatcher makes of committed entries, and what its owner may rely on."""

from __future__ import annotations

import pytest

from broker_adapter.errors import ReadFailed, Status
from broker_adapter.store import dispatching
from broker_adapter.wire.consume_queue_unit import FILLER_SIZE, MAX_FILLERS, ConsumeQueueUnit
from broker_adapter.wire.java_hash import tag_code
from broker_adapter.wire.message import Version, decode
from dledger import ImageRefused
from dledger.testing.virtual.sim_disk import SimDisk
from tests.broker_adapter.store.helpers import (
    EVER,
    ROOT,
    START_MS,
    V6,
    Commands,
    Entry,
    Log,
    Node,
    commands_of,
    dumb_look,
    look,
)

KEYS = [("T", "k1"), ("T", "k2"), ("T", "u1"), ("U", "k1"), ("T", "none")]


def varied_log() -> Log:
    log = Log()
    log.message(tag="A", keys="k1 k2", unique="u1")
    log.message("U", 3, keys="k1")
    log.add(b"no record at all")
    log.message(tag="Aa", host=V6)
    log.message(tag="BB", keys="k1 k1")
    log.command(b"one")
    log.message(part=4, keys="k1")  # prepared: found by key, in no queue
    log.message(part=12, keys="k1")  # rollback: nowhere
    log.message(part=8, keys="k2")  # commit
    log.message("%RETRY%group|x", version=Version.V2)
    log.add(log.entries[0].body)  # a copy: not the record of the place where it lies
    log.command(b"delete U")
    log.message("U", 3, tag="after the deletion", keys="k1")
    for number in range(9):
        log.message("T", number % 2, tag=f"tag{number}", keys="k1")
    return log


def started(log: Log, disk: SimDisk | None = None) -> Node:
    node = Node(disk or SimDisk())
    node.start(log.entries)
    return node


def test_what_readers_see_is_what_the_log_says_in_batches_of_any_size() -> None:
    log = varied_log()
    for size in (1, 2, 5, 100):
        node = Node(SimDisk())
        node.dispatcher.load(())
        for first in range(0, len(log.entries), size):
            node.dispatcher.apply(log.entries[first : first + size])
        assert look(node.dispatcher, KEYS) == dumb_look(log.entries, KEYS)
        assert node.metadata.applied == commands_of(log.entries) and len(node.metadata.applied) == 2
        assert node.dispatcher.figures().foreign_records == 2
        last = log.entries[-1]
        assert node.dispatcher.dispatched == (last.index, last.term, log.end_pos)


def test_a_unit_says_where_the_record_is_and_what_its_tag_hashes_to() -> None:
    log = Log()
    log.message(tag="TagA")
    log.message()
    node = started(log)
    queue = node.dispatcher.queues.get("T", 0)
    assert queue is not None
    size = len(log.entries[0].body)
    assert queue.read(0, 10) == [
        ConsumeQueueUnit(48, size, tag_code("TagA")),
        ConsumeQueueUnit(48 + size + 48, len(log.entries[1].body), 0),
    ]
    content = node.disk.content(ROOT / "consumequeue/T/0/00000000000000000000")
    assert content[:20] == (48).to_bytes(8) + size.to_bytes(4) + tag_code("TagA").to_bytes(8, signed=True)
    assert content[40:] == bytes(40)  # four units a file


def test_arrivals_are_told_once_a_batch_when_they_can_be_read() -> None:
    log = Log()
    log.message("A", 1)
    log.message("B", 0)
    log.command(b"between")
    log.message("A", 1)
    node = started(log)
    assert [sorted(arrivals) for arrivals in node.arrivals] == [[("A", 1, 2), ("B", 0, 1)]]
    node.dispatcher.apply([log.command(b"alone")])
    node.dispatcher.apply([log.message("B", part=4)])
    node.dispatcher.apply([])
    assert len(node.arrivals) == 1


@pytest.mark.parametrize("offset", [0, 1, 2 + MAX_FILLERS + 1, (1 << 63) - 1])
def test_a_message_with_an_offset_that_was_given_before_or_is_far_away_is_set_aside(offset: int) -> None:
    log = Log()
    log.message()
    log.message()
    wrong = log.message(offset=offset)
    log.next_offsets["T", 0] = 2
    log.message(tag="after it")
    node = started(log)
    queue = node.dispatcher.queues.get("T", 0)
    assert queue is not None and queue.max_offset == 3
    assert queue.read(2, 1) == [
        ConsumeQueueUnit(log.entries[3].pos + 48, len(log.entries[3].body), tag_code("after it"))
    ]
    found = node.dispatcher.figures().set_aside
    assert (found.number, found.last_index) == (1, wrong.index)


@pytest.mark.parametrize("life", ["the first", "after a restart", "after an image"])
def test_what_was_set_aside_stays_so_in_a_replay_that_begins_with_it(life: str) -> None:
    """The first message of a queue in a replay is where the queue begins: not one that had no place in it."""
    log = Log()
    for _ in range(3):
        log.message()
    log.message(offset=1)
    log.next_offsets["T", 0] = 3
    after = [log.message(), log.message()]
    source = started(log)
    if life == "after a restart":
        source.dispatcher.close()
        source = Node(source.disk)
        assert source.start(log.entries) == len(log.entries)
    elif life == "after an image":
        image, source = source.dispatcher.save(), Node(SimDisk())
        source.dispatcher.load(image)
        source.dispatcher.replay(log.entries)
    node = Node(SimDisk())
    node.dispatcher.load(source.dispatcher.save())
    node.dispatcher.replay(log.entries[3:])
    after.append(log.message())
    node.dispatcher.apply(after[2:])
    queue = node.dispatcher.queues.get("T", 0)
    assert queue is not None and (queue.min_offset, queue.max_offset) == (3, 6)
    assert [unit.physical_offset for unit in queue.read(3, 3)] == [entry.pos + 48 for entry in after]
    assert node.dispatcher.figures().set_aside.number == 0


@pytest.mark.parametrize("missing", [4, 5, 6])
def test_so_many_offsets_in_a_row_are_filled_and_not_one_more(
    missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatching, "MAX_FILLERS", 5)
    log = Log()
    log.message()
    log.message(offset=1 + missing)
    queue = started(log).dispatcher.queues.get("T", 0)
    assert queue is not None and queue.max_offset == (1 if missing > 5 else missing + 2)


@pytest.mark.parametrize("part", [4, 12])
def test_offsets_that_messages_of_transactions_have_taken_are_filled(part: int) -> None:
    """Logs of earlier versions have such messages: they took offsets, and stopped all nodes for good."""
    log = Log()
    log.message()
    for offset in (1, 2):
        log.message(part=part, offset=offset)
    log.next_offsets["T", 0] = 3
    log.message(tag="after them")
    node = started(log)
    queue = node.dispatcher.queues.get("T", 0)
    assert queue is not None and (queue.min_offset, queue.max_offset) == (0, 4)
    after = log.entries[3].pos + 48
    filler = ConsumeQueueUnit(after, FILLER_SIZE, 0)
    assert queue.read(1, 5) == [
        filler,
        filler,
        ConsumeQueueUnit(after, len(log.entries[3].body), tag_code("after them")),
    ]
    node.dispatcher.purge_below(after)
    assert queue.min_offset == 1  # where fillers have the place of the message behind them
    node.dispatcher.close()
    again = Node(node.disk)
    assert again.start(log.entries) == len(log.entries)
    assert look(again.dispatcher) == look(node.dispatcher)


class Failing(Commands):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def apply(self, index: int, body: bytes) -> None:
        if body == b"wrong":
            raise self.error
        super().apply(index, body)


def failing(error: Exception) -> Node:
    node = Node(SimDisk(), metadata=Failing(error))
    node.dispatcher.load(())
    return node


def test_a_command_that_raises_is_set_aside_and_the_next_one_is_applied() -> None:
    log = Log()
    wrong = log.command(b"wrong")
    right = log.command(b"right")
    node = failing(KeyError("a mistake"))
    node.dispatcher.apply(log.entries)
    assert node.metadata.applied == [(right.index, "right")]
    assert node.dispatcher.figures().set_aside == (1, wrong.index, "KeyError: 'a mistake'")


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), MemoryError()])
def test_what_fails_for_want_of_something_on_this_node_is_not_set_aside(error: Exception) -> None:
    log = Log()
    log.command(b"wrong")
    node = failing(error)
    with pytest.raises(type(error)):
        node.dispatcher.apply(log.entries)
    assert node.dispatcher.figures().set_aside.number == 0


def test_a_batch_that_failed_half_way_is_in_no_checkpoint() -> None:
    log = Log()
    for _ in range(3):
        log.message(keys="k1")
    node = failing(OSError(5, "Input/output error"))
    node.dispatcher.apply(log.entries)
    node.now = -1.0  # so that close has a checkpoint to make
    node.dispatcher.apply([log.message(keys="k2")])
    good = list(log.entries)
    wrong = [log.message(keys="k1"), log.command(b"one"), log.command(b"wrong")]
    with pytest.raises(OSError):
        node.dispatcher.apply(wrong)
    node.dispatcher.close()
    again = Node(node.disk)
    assert again.start([*good, *wrong]) == 3
    assert look(again.dispatcher, KEYS) == dumb_look([*good, *wrong], KEYS)
    assert again.metadata.applied == commands_of(wrong)


def test_entries_that_are_no_records_are_counted_and_passed_over() -> None:
    log = Log()
    good = log.message(keys="k").body
    sizes = [b"", b"x", bytes(88), good[:90], good + b"x"]
    for body in [*sizes, b"\0" * 500, bytes(4) + good[4:], good[:84] + b"\xff" * 4 + good[88:]]:
        log.add(body)
    for topic in ("a b", "x/y", ".."):
        log.add(b"")  # so that the next one is not the first with this index
        log.message(topic)
    negative = log.message(queue_id=1)
    log.entries[-1] = negative._replace(body=negative.body[:12] + b"\xff" * 4 + negative.body[16:])
    negative = log.message(queue_id=1)
    log.entries[-1] = negative._replace(body=negative.body[:20] + b"\xff" * 8 + negative.body[28:])
    node = started(log)
    assert list(look(node.dispatcher)) == ["T@0"]
    assert node.dispatcher.figures().foreign_records == len(log.entries) - 1


@pytest.mark.slow
def test_every_byte_of_a_record_may_be_wrong() -> None:
    log = Log()
    body = log.message(tag="A", keys="k1 k2", unique="u").body
    for at in range(len(body)):
        for mask in (0x01, 0x80, 0xFF):
            node = Node(SimDisk())
            node.dispatcher.load(())
            changed = bytearray(body)
            changed[at] ^= mask
            entry = Entry(0, 1, bytes(changed), 0)
            node.dispatcher.apply([entry])
            figures = node.dispatcher.figures()
            ends = sum(queue.max_offset for queue in node.dispatcher.queues.all())
            if figures.set_aside.number:  # another queue offset
                assert 20 <= at < 28 and ends in (0, 1 + int.from_bytes(changed[20:28]))
            else:
                assert figures.foreign_records + ends == 1


def test_deletion_hides_what_was_there_and_offsets_go_on() -> None:
    log = Log()
    for _ in range(6):
        log.message()
    log.command(b"delete T")
    log.message(tag="new")
    node = started(log)
    queue = node.dispatcher.queues.get("T", 0)
    assert queue is not None and (queue.min_offset, queue.max_offset) == (6, 7)
    with pytest.raises(ReadFailed) as caught:
        queue.read(5, 1)
    assert caught.value.status is Status.OFFSET_BELOW_MINIMUM
    assert queue.read(6, 1)[0].tag_code == tag_code("new")


def test_an_image_and_the_entries_that_are_left_lead_to_the_same_state() -> None:
    log = varied_log()
    everything = look(started(log).dispatcher)
    for image_at in range(len(log.entries) + 1):
        source = Node(SimDisk())
        source.dispatcher.load(())
        source.dispatcher.apply(log.entries[:image_at])
        image = b"".join(source.dispatcher.save())
        for begin in range(0, image_at + 1, 3):
            node = Node(SimDisk())
            node.start(log.entries[: image_at // 2])  # files of an earlier life
            node.dispatcher.load([image[:7], image[7:]])
            for first in range(begin, image_at, 2):
                node.dispatcher.replay(log.entries[first : min(first + 2, image_at)])
            node.dispatcher.apply(log.entries[image_at:])
            begin_pos = log.entries[begin].pos if begin < len(log.entries) else log.end_pos
            assert node.metadata.applied == commands_of(log.entries)
            seen = look(node.dispatcher)
            assert set(seen) == set(everything)
            for place, (_, max_offset, floor, units) in everything.items():  # type: ignore[misc]
                kept = [unit for unit in units if unit[0] >= begin_pos]
                assert seen[place] == (max_offset - len(kept), max_offset, floor, kept), (image_at, begin)
            assert b"".join(node.dispatcher.save()) == b"".join(started(log).dispatcher.save())


def test_after_a_replay_that_lacks_messages_queues_end_where_the_image_says() -> None:
    log = Log()
    for _ in range(5):
        log.message()
    image = started(log).dispatcher.save()
    after = log.message()
    for kept in (log.entries[1:4], [*log.entries[:2], *log.entries[3:5]]):
        node = Node(SimDisk())
        node.dispatcher.load(image)
        node.dispatcher.replay(kept)
        node.dispatcher.apply([after])
        queue = node.dispatcher.queues.get("T", 0)
        assert queue is not None and queue.max_offset == 6
        assert queue.read(5, 1)[0].physical_offset == after.pos + 48
        assert node.dispatcher.figures().set_aside.number == 1
        assert b"".join(node.dispatcher.save()) == b"".join(started(log).dispatcher.save())
    node = Node(SimDisk())
    node.dispatcher.load(started(Log()).dispatcher.save())
    node.dispatcher.replay(log.entries[:1])  # of a queue that the image does not know
    node.dispatcher.apply([log.command(b"one")])
    queue = node.dispatcher.queues.get("T", 0)
    assert queue is not None and (queue.min_offset, queue.max_offset) == (0, 0)


@pytest.mark.parametrize("cut", [1, 10, 27, 28, 40])
def test_an_image_that_is_damaged_is_refused(cut: int) -> None:
    image = b"".join(started(varied_log()).dispatcher.save())
    flipped = bytearray(image)
    flipped[cut] ^= 4
    for wrong in (image[:cut], bytes(flipped), image + b"x"):
        with pytest.raises(ImageRefused, match="IMAGE_DAMAGED"):
            Node(SimDisk()).dispatcher.load([wrong])


def test_purging_raises_minima_and_removes_whole_files() -> None:
    log = Log()
    for number in range(20):
        log.message(queue_id=number % 2, keys="k")
    node = started(log)
    kept = log.entries[13]
    node.dispatcher.purge_below(kept.pos)
    seen = look(node.dispatcher)
    units = [unit for queue in ("T@0", "T@1") for unit in seen[queue][3]]  # type: ignore[index]
    assert min(units)[0] == kept.pos + 48 and len(units) == 7
    queue = node.dispatcher.queues.get("T", 0)
    assert queue is not None and (queue.min_offset, queue.max_offset) == (7, 10)
    with pytest.raises(ReadFailed):
        queue.read(6, 1)
    names = [path.name for path in node.disk.files() if path.parent == ROOT / "consumequeue/T/0"]
    assert names == [f"{80:020d}", f"{160:020d}"]  # the first of three files is gone
    found = list(node.dispatcher.index.find("T", "k", *EVER))
    assert found[:7] == sorted((u[0] for u in units), reverse=True)
    assert len([path for path in node.disk.files() if path.parent == ROOT / "index"]) == 1
    node.dispatcher.purge_below(log.end_pos)
    assert queue.min_offset == queue.max_offset == 10 and queue.read(10, 5) == []
    node.dispatcher.apply([log.message()])
    assert queue.read(10, 5)[0].physical_offset == log.entries[-1].pos + 48
    again = Node(node.disk)
    assert again.start(log.entries) == len(log.entries)
    assert look(again.dispatcher) == look(node.dispatcher)


def test_offset_by_time_is_the_first_message_stored_then_or_later() -> None:
    log = Log()
    for _ in range(11):
        log.message()
    node = started(log)
    times = {entry.pos + 48: decode(entry.body).store_timestamp for entry in log.entries}

    def at(time: int) -> int:
        return node.dispatcher.queues.offset_by_time("T", 0, time, lambda unit: times[unit.physical_offset])

    assert at(0) == at(START_MS + 400) == 0
    assert at(START_MS + 401) == at(START_MS + 800) == 1
    assert at(START_MS + 4400) == 10 and at(START_MS + 4401) == at(1 << 60) == 11
    node.dispatcher.purge_below(log.entries[4].pos)
    assert at(0) == 4 and at(START_MS + 2401) == 6
    assert node.dispatcher.queues.offset_by_time("none", 0, 5, lambda unit: 0) == 0


def test_no_checkpoint_is_above_what_the_log_has_durable() -> None:
    log = varied_log()
    node = Node(SimDisk())
    node.durable = log.entries[3].index
    node.dispatcher.load(())
    written = []
    for entry in log.entries:
        node.dispatcher.apply([entry])
        written.append(node.dispatcher.figures().checkpoint.index)
        assert written[-1] <= node.durable
    assert written[-1] == log.entries[3].index  # the one that was begun next waits
    node.dispatcher.close()
    assert node.dispatcher.figures().checkpoint.index == written[-1]
    again = Node(node.disk)
    assert again.start(log.entries) == 4
    assert look(again.dispatcher, KEYS) == dumb_look(log.entries, KEYS)


def test_close_makes_a_checkpoint_of_everything() -> None:
    log = varied_log()
    disk = SimDisk()
    node = Node(disk)
    node.dispatcher.load(())
    node.dispatcher.apply(log.entries[:1])
    node.now = -1.0  # none is due from here on
    node.dispatcher.apply(log.entries[1:])
    assert node.dispatcher.figures().checkpoint.index == log.entries[0].index
    node.dispatcher.close()
    again = Node(disk)
    assert again.start(log.entries) == len(log.entries)
    assert look(again.dispatcher, KEYS) == dumb_look(log.entries, KEYS)
    assert again.metadata.applied == commands_of(log.entries)
