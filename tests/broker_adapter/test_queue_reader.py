"""Reads of queues that are behind the log: it was purged, and their least offsets are about to follow."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from broker_adapter.errors import ReadFailed, Status
from broker_adapter.log.replicated import ReplicatedRecords
from broker_adapter.store.queue_reader import QueueReader
from broker_adapter.wire.consume_queue_unit import ConsumeQueueUnit
from broker_adapter.wire.java_hash import tag_code
from broker_adapter.wire.message import MessageRecord, decode, encode
from broker_adapter.wire.properties import TAGS, join_properties
from dledger import Code
from dledger import ReadFailed as LogReadFailed
from dledger.core.values import ENTRY_HEADER_SIZE
from dledger.infra.files.cached_reads import NotCached, read_cached

SIZE = len(encode(MessageRecord("t", b"body", "")))
#: Distance of entries in this log.
STEP = 200


class Log:
    """Entry n begins at n * STEP and was stored at 1000 + n ms. `begin_pos` is where a purge has come to."""

    def __init__(self, begin: int) -> None:
        self.begin_pos = begin * STEP

    def read_bodies(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        if any(pos < self.begin_pos for pos, _ in spans):
            raise LogReadFailed("purged", code=Code.INDEX_LESS_THAN_LOCAL_BEGIN)
        return [self.body_at(pos) for pos, _ in spans]

    def body_at(self, pos: int) -> bytes:
        n = pos // STEP
        message = MessageRecord("t", b"body", "", queue_offset=n, store_timestamp=1000 + n)
        return bytes(encode(message))


class Files:
    """One queue of `end` messages, whose files begin at `least`; reads below `gone` find that out late."""

    def __init__(self, end: int, gone: int = 0) -> None:
        self.end = end
        self.gone = gone

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        return 0, self.end

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> Sequence[ConsumeQueueUnit]:
        if offset < self.gone:
            raise ReadFailed(Status.OFFSET_BELOW_MINIMUM, "purged meanwhile")
        offsets = range(offset, min(offset + count, self.end))
        return [ConsumeQueueUnit(n * STEP + ENTRY_HEADER_SIZE, SIZE, 0) for n in offsets]

    def first_position(self, topic: str, queue_id: int) -> int:
        return 0

    def find_keys(self, topic: str, key: str, begin_ms: int, end_ms: int, most: int) -> Sequence[int]:
        return []


@pytest.mark.parametrize("gone", [0, 3])
@pytest.mark.parametrize(
    ("timestamp_ms", "offset"), [(0, 6), (1002, 6), (1006, 6), (1007, 7), (1009, 9), (5000, 10)]
)
def test_an_offset_by_time_is_one_that_the_log_still_has(gone: int, timestamp_ms: int, offset: int) -> None:
    reader = QueueReader(Files(10, gone), ReplicatedRecords(Log(begin=6)))
    assert reader.offset_by_time("t", 0, timestamp_ms) == offset


@pytest.mark.parametrize(("begin", "newest_ms"), [(0, 1009), (9, 1009), (10, 0)])
def test_a_queue_of_which_everything_was_purged_has_no_newest_message(begin: int, newest_ms: int) -> None:
    assert QueueReader(Files(10), ReplicatedRecords(Log(begin))).newest_ms("t", 0) == newest_ms
    assert QueueReader(Files(0), ReplicatedRecords(Log(begin))).newest_ms("t", 0) == 0


def test_a_query_finds_nothing_of_a_deleted_topic_with_the_same_name() -> None:
    """Its messages are in the log and in the index still; the queues of the new topic begin behind them."""

    class Keyed(Log):
        def body_at(self, pos: int) -> bytes:
            n = pos // STEP
            properties = join_properties({"KEYS": "k"})
            return bytes(
                encode(MessageRecord("t", b"body", properties, queue_offset=n, store_timestamp=1000 + n))
            )

    class Anew(Files):
        def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
            return 3, self.end

        def find_keys(self, topic: str, key: str, begin_ms: int, end_ms: int, most: int) -> Sequence[int]:
            return [n * STEP + ENTRY_HEADER_SIZE for n in reversed(range(self.end))]

    found = QueueReader(Anew(5), ReplicatedRecords(Keyed(0))).query(
        "t", "k", begin_ms=0, end_ms=1 << 60, max_messages=9
    )
    assert [decode(record).queue_offset for record in found] == [4, 3]


RARE = join_properties({TAGS: "rare"})


class TaggedLog(Log):
    """The messages with the tag "rare" are those in `rare`."""

    def __init__(self, rare: set[int]) -> None:
        super().__init__(begin=0)
        self.rare = rare

    def body_at(self, pos: int) -> bytes:
        n = pos // STEP
        text = RARE if n in self.rare else ""
        return bytes(encode(MessageRecord("t", b"body", text, queue_offset=n)))


class TaggedFiles(Files):
    def __init__(self, end: int, rare: set[int]) -> None:
        super().__init__(end)
        self.rare = rare

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> Sequence[ConsumeQueueUnit]:
        units = super().units(topic, queue_id, offset, count)
        code, size = tag_code("rare"), SIZE + len(RARE)
        return [
            unit._replace(tag_code=code, size=size) if n in self.rare else unit
            for n, unit in enumerate(units, offset)
        ]


@pytest.mark.parametrize("step", [1, 3, 50, 1000])
@pytest.mark.parametrize("max_messages", [1, 32, 200])
def test_pulls_of_a_tag_return_each_of_its_messages_once(step: int, max_messages: int) -> None:
    end = 10_000
    rare = set(range(7, end, step))
    reader = QueueReader(TaggedFiles(end, rare), ReplicatedRecords(TaggedLog(rare)))
    found: list[int] = []
    at = 0
    while at < end:
        result = reader.read(
            "t", 0, at, max_messages=max_messages, max_bytes=1 << 20, tags=frozenset({"rare"})
        )
        assert len(result.records) <= max_messages and at < result.next_offset <= at + 4096
        found += [decode(record).queue_offset for record in result.records]
        at = result.next_offset
    assert found == sorted(rare)


def test_a_search_for_a_rare_tag_needs_a_thread() -> None:
    """It would keep the event loop busy for milliseconds."""

    def pull(rare: set[int]) -> list[int]:
        reader = QueueReader(TaggedFiles(10_000, rare), ReplicatedRecords(TaggedLog(rare)))
        result = reader.read("t", 0, 0, max_messages=1, max_bytes=1, tags=frozenset({"rare"}))
        return [decode(record).queue_offset for record in result.records]

    assert read_cached(partial(pull, {100, 101})) == [100]
    with pytest.raises(NotCached):
        read_cached(partial(pull, {4000}))
    assert pull({4000}) == [4000]


@pytest.mark.parametrize(("max_bytes", "count"), [(1, 1), (SIZE, 1), (2 * SIZE - 1, 1), (3 * SIZE, 3)])
def test_a_pull_returns_at_least_one_message_and_otherwise_at_most_its_bytes(
    max_bytes: int, count: int
) -> None:
    reader = QueueReader(Files(10), ReplicatedRecords(Log(begin=0)))
    result = reader.read("t", 0, 0, max_messages=9, max_bytes=max_bytes, tags=frozenset())
    assert (len(result.records), result.next_offset) == (count, count)


def test_the_bytes_of_a_pull_of_a_tag_are_limited_over_all_its_scans() -> None:
    rare = {10, 200, 1000}
    reader = QueueReader(TaggedFiles(2000, rare), ReplicatedRecords(TaggedLog(rare)))
    size = 2 * (SIZE + len(RARE))
    result = reader.read("t", 0, 0, max_messages=9, max_bytes=size, tags=frozenset({"rare"}))
    assert [decode(record).queue_offset for record in result.records] == [10, 200]
    assert result.next_offset == 1000
