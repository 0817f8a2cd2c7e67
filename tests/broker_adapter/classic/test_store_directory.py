"""Stores of RocketMQ as its brokers leave them behind, and damaged ones."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

import pytest

from broker_adapter.api import QueueOffset
from broker_adapter.errors import BrokerError, Status
from broker_adapter.log.classic.store_directory import StoreDirectory
from broker_adapter.wire.message import encode
from tests.broker_adapter.classic.store_writer import FILE_SIZE, StoreWriter


@pytest.fixture
def writer(tmp_path: Path) -> StoreWriter:
    writer = StoreWriter(tmp_path / "store")
    writer.topic("t", 2)
    return writer


def filled(writer: StoreWriter, count: int = 60) -> None:
    for number in range(count):
        writer.put("t", b"%d" % number * 50, number % 2)


def refused(root: Path) -> Status:
    with pytest.raises(BrokerError) as caught:
        StoreDirectory(root).survey()
    return caught.value.status


def test_every_message_is_found_over_all_files(writer: StoreWriter) -> None:
    filled(writer, 90)
    messages = [writer.put("t", b"last", 1)]
    store = StoreDirectory(writer.finish())
    contents = store.survey()
    assert len(store.files) > 3 and store.is_clean
    assert (contents.messages, contents.deleted, contents.units_compared) == (91, 0, 91)
    assert contents.queues["t", 0][2:4] == (0, 45) and contents.queues["t", 1][2:4] == (0, 46)
    assert contents.log_end == messages[0].physical_offset + len(encode(messages[0]))
    assert contents.dirty_bytes == 0
    found = list(store.messages(contents))
    assert len(found) == 91 and found[-1].message.body == b"last"
    digest = blake2b(digest_size=16)
    for one in found:
        if one.message.queue_id:
            digest.update(one.record[:28] + one.record[36:])
    assert contents.queues["t", 1].digest == digest.hexdigest()


def test_a_queue_begins_where_retention_has_left_it(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store", begin=3 * FILE_SIZE)
    writer.topic("t")
    writer.start_queue("t", 0, 700)
    filled_one = [writer.put("t", b"x") for _ in range(20)]
    contents = StoreDirectory(writer.finish()).survey()
    assert contents.queues["t", 0][2:5] == (700, 720, filled_one[0].physical_offset)
    assert contents.log_begin == 3 * FILE_SIZE and contents.units_compared == 20


def test_half_messages_and_rolled_back_ones_have_no_place(writer: StoreWriter) -> None:
    for sys_flag in (0, 4, 8, 12):
        writer.put("t", b"x", sys_flag=sys_flag)
    assert StoreDirectory(writer.finish()).survey().queues["t", 0].messages == 2


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("at", [0, 4, 28, 50, 100, 120])
def test_the_log_ends_at_a_torn_record(writer: StoreWriter, clean: bool, at: int) -> None:
    """Whatever comes behind it: RocketMQ cuts it."""
    filled(writer, 10)
    torn = writer.put("t", b"torn" * 10, 1)
    filled(writer, 3)
    root = writer.finish(clean=clean)
    path = root / "commitlog" / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    raw[torn.physical_offset + at] ^= 0xFF
    path.write_bytes(raw)
    contents = StoreDirectory(root).survey()
    if at == 50:  # part of the host: nothing sums that up
        assert contents.messages == 14
        return
    assert (contents.messages, contents.log_end) == (10, torn.physical_offset)
    assert contents.dirty_bytes > 300 and contents.end_reason


def test_a_bad_record_before_the_recovery_is_damage(writer: StoreWriter) -> None:
    filled(writer, 200)
    root = writer.finish()
    files = StoreDirectory(root).files
    assert len(files) > 4
    path = files[len(files) - 4].path
    raw = bytearray(path.read_bytes())
    raw[100] ^= 1
    path.write_bytes(raw)
    assert refused(root) is Status.STORE_DAMAGED
    # After a kill, with a checkpoint of long ago, RocketMQ looks at all, and ends there.
    (root / "abort").write_text("")
    assert StoreDirectory(root).survey().log_end < files[len(files) - 3].begin


def test_after_a_kill_files_that_the_checkpoint_covers_are_believed(writer: StoreWriter) -> None:
    filled(writer, 200)
    root = writer.finish(clean=False, checkpoint_ms=1_700_000_001_000 + len(writer.log) + 3_000)
    files = StoreDirectory(root).files
    raw = bytearray(files[0].path.read_bytes())
    raw[100] ^= 1
    files[0].path.write_bytes(raw)
    assert refused(root) is Status.STORE_DAMAGED


def test_units_that_are_missing_are_made_again_after_a_kill(writer: StoreWriter) -> None:
    filled(writer, 20)
    writer.units["t", 1] = writer.units["t", 1][:4]
    writer.next["t", 1] = 4
    contents = StoreDirectory(writer.finish(clean=False)).survey()
    assert (contents.messages, contents.units_compared, contents.units_missing) == (20, 14, 6)


def test_what_no_unit_points_to_after_a_clean_stop_was_deleted(writer: StoreWriter) -> None:
    """The ConsumeQueues of a topic go with it; its messages stay in the CommitLog."""
    filled(writer, 20)
    del writer.units["t", 1]
    contents = StoreDirectory(writer.finish()).survey()
    assert (contents.messages, contents.deleted) == (10, 10) and ("t", 1) not in contents.queues


@pytest.mark.parametrize("clean", [True, False])
def test_a_topic_made_again_begins_anew(writer: StoreWriter, clean: bool) -> None:
    filled(writer, 20)
    writer.units.clear()
    writer.next.clear()
    newest = [writer.put("t", b"new", 0) for _ in range(3)]
    store = StoreDirectory(writer.finish(clean=clean))
    contents = store.survey()
    assert contents.queues["t", 0][2:5] == (0, 3, newest[0].physical_offset)
    assert [one.message.body for one in store.messages(contents) if not one.message.queue_id] == [b"new"] * 3


def test_units_of_other_messages_are_damage(writer: StoreWriter) -> None:
    filled(writer, 20)
    first = writer.units["t", 0]
    first[3] = first[2]
    root = writer.finish()
    assert refused(root) is Status.STORE_DAMAGED
    (root / "consumequeue").rename(root / "away")
    assert StoreDirectory(root).survey().messages == 20


def test_gaps_of_offsets_and_batches_are_refused(writer: StoreWriter) -> None:
    writer.put("t", b"x")
    writer.next["t", 0] = 5
    writer.put("t", b"y")
    writer.units.clear()
    root = writer.finish(clean=False)
    assert refused(root) is Status.STORE_DAMAGED
    other = StoreWriter(root.parent / "other")
    other.topic("t")
    other.put("t", b"x", sys_flag=1 << 7)
    assert refused(other.finish()) is Status.STORE_UNSUPPORTED


def test_a_last_file_that_was_never_extended_does_not_count(writer: StoreWriter) -> None:
    filled(writer, 10)
    root = writer.finish()
    (root / "commitlog" / f"{len(StoreDirectory(root).files) * FILE_SIZE:020d}").write_bytes(b"")
    assert StoreDirectory(root).survey().messages == 10


def test_files_that_are_no_pieces_of_one_log_are_refused(writer: StoreWriter) -> None:
    filled(writer)
    root = writer.finish()
    (root / "commitlog" / f"{FILE_SIZE:020d}").rename(root / "commitlog" / f"{FILE_SIZE + 1:020d}")
    assert refused(root) is Status.STORE_UNREADABLE
    (root / "commitlog" / f"{FILE_SIZE + 1:020d}").rename(root / "commitlog" / f"{FILE_SIZE:020d}")
    with (root / "commitlog" / f"{2 * FILE_SIZE:020d}").open("ab") as file:
        file.write(b"x")
    assert refused(root) is Status.STORE_UNREADABLE
    assert refused(root / "commitlog") is Status.STORE_UNREADABLE
    assert refused(writer.root.parent) is Status.STORE_UNREADABLE


def test_the_tables_are_read_as_fastjson_writes_them(writer: StoreWriter) -> None:
    writer.put("t", b"x")
    writer.topic("fifo", 3, order=True, attributes={"message.type": "FIFO"})
    writer.groups["g"] = {"groupName": "g", "consumeMessageOrderly": True, "retryMaxTimes": 3}
    writer.offsets = {"t@g": {0: 12, 1: 3}, "%RETRY%g@g": {0: 1}}
    writer.delays = {1: 5, 18: 2}
    store = StoreDirectory(writer.finish())
    assert store.topics["fifo"].message_type == "FIFO" and store.topics["fifo"].order
    assert store.groups["g"].consume_orderly and store.groups["g"].retry_max_times == 3
    expected = [QueueOffset("t", 0, 12), QueueOffset("t", 1, 3), QueueOffset("%RETRY%g", 0, 1)]
    assert store.offsets == {"g": expected}
    assert store.delays == {1: 5, 18: 2}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("topics.json", "["),
        ("topics.json", "[]"),
        ("topics.json", '{"topicConfigTable":{"t":1}}'),
        ("topics.json", '{"topicConfigTable":{"t":{"perm":"6"}}}'),
        ("topics.json", '{"topicConfigTable":{"t":{"perm":true}}}'),
        ("topics.json", "[" * 100_000),
        ("subscriptionGroup.json", '{"subscriptionGroupTable":{"g":{"retryQueueNums":null}}}'),
        ("subscriptionGroup.json", '{"subscriptionGroupTable":[]}'),
        ("consumerOffset.json", '{"offsetTable":{"t":{0:1}}}'),
        ("consumerOffset.json", '{"offsetTable":{"t@g":{"x":1}}}'),
        ("consumerOffset.json", '{"offsetTable":{"t@g":{0:"1"}}}'),
        ("delayOffset.json", '{"offsetTable":{"1":1.5}}'),
    ],
)
def test_a_table_that_no_broker_writes_is_refused(writer: StoreWriter, name: str, text: str) -> None:
    writer.put("t", b"x")
    root = writer.finish()
    path = root / "config" / name
    good = path.read_text()
    path.write_text(text)
    assert refused(root) is Status.STORE_TABLE_DAMAGED
    if text.startswith("["):  # no JSON object: the version before counts
        path.with_name(name + ".bak").write_text(good)
        assert StoreDirectory(root).survey().messages == 1


def test_a_store_without_topics_is_refused(writer: StoreWriter) -> None:
    writer.put("t", b"x")
    assert refused(writer.finish(config=False)) is Status.STORE_UNREADABLE
