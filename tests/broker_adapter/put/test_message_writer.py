"""One append gets queue offsets in the step in which the log takes it, and is all or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from broker_adapter.api import OutgoingMessage, TopicConfig
from broker_adapter.errors import (
    BrokerError,
    Busy,
    IllegalMessage,
    NotMaster,
    PutIndeterminate,
    Status,
    error_for,
)
from broker_adapter.log.replicated import ReplicatedAppends
from broker_adapter.put.message_writer import AnyTopic, AppendedBatch, LateCommand, MessageWriter, PutLimits
from broker_adapter.put.record_writer import RecordBatch
from broker_adapter.wire.host import Host
from broker_adapter.wire.message import decode
from dledger import AppendOutcome, Assigned, Code, Indeterminate, Overloaded

HOST = Host(bytes((10, 0, 0, 1)), 10911)
LEADERSHIP = (3, 7)


class FakeLog:
    """Takes batches of at most `room` messages, one entry after the other; `commit` answers them."""

    def __init__(self) -> None:
        self.room = 1000
        self.batches: list[list[bytes]] = []
        self.waiting: list[tuple[asyncio.Future[AppendOutcome], AppendOutcome]] = []
        self.timeouts: list[float | None] = []
        self._pos = 0

    @property
    def steps_ms(self) -> int:
        return 0

    def cluster_time_ms(self) -> int:
        return 1

    def append_batch(
        self,
        sizes: Sequence[int],
        fill: Callable[[Assigned], Sequence[bytes]],
        *,
        expected: tuple[int, int],
        timeout: float | None = None,
    ) -> asyncio.Future[AppendOutcome]:
        assert expected == LEADERSHIP
        if len(sizes) > self.room:
            raise Overloaded("no room for so many", code=Code.LEADER_PENDING_FULL)
        positions = []
        for size in sizes:
            positions.append(self._pos)
            self._pos += 48 + size
        records = list(fill(Assigned(0, 3, positions, 5)))
        assert [len(record) for record in records] == list(sizes)
        self.batches.append(records)
        self.timeouts.append(timeout)
        future: asyncio.Future[AppendOutcome] = asyncio.get_running_loop().create_future()
        self.waiting.append((future, AppendOutcome(0, len(sizes), 3, positions[0])))
        return future

    def commit(self) -> None:
        for future, outcome in self.waiting:
            future.set_result(outcome)
        self.waiting.clear()

    def bodies(self) -> list[list[bytes]]:
        return [[decode(record).body for record in batch] for batch in self.batches]


def writer(
    log: FakeLog,
    *,
    topics: AnyTopic | None = None,
    stored: Callable[[str, int, int], None] = lambda topic, messages, size: None,
) -> MessageWriter:
    made = MessageWriter(
        ReplicatedAppends(log),
        HOST,
        PutLimits(max_body_bytes=1000, max_command_bytes=1000, timeout_ms=500),
        master=lambda: None,
        topics=topics,
        stored=stored,
    )
    made.open_for(*LEADERSHIP)
    return made


def put(writer: MessageWriter, *batches: tuple[int, Sequence[bytes]]) -> asyncio.Task[AppendedBatch]:
    """One append. Of each batch: its queue, and bodies."""
    queued = [
        writer.records("t", queue_id, [OutgoingMessage(body) for body in bodies], born_host=HOST)
        for queue_id, bodies in batches
    ]
    return asyncio.ensure_future(writer.put_together(queued, "", []))


async def test_batches_of_one_append_get_offsets_of_their_own() -> None:
    log = FakeLog()
    w = writer(log)
    one = put(w, (0, [b"a", b"b"]), (1, [b"c"]), (0, [b"d"]), (1, [b"e"]))
    await asyncio.sleep(0)
    log.commit()
    places = (await one).places
    assert [place.queue_offset for place in places] == [0, 0, 2, 1]
    records = [decode(record) for record in log.batches[0]]
    assert [(m.queue_id, m.queue_offset) for m in records] == [(0, 0), (0, 1), (1, 0), (0, 2), (1, 1)]
    assert [at for place in places for at in place.physical_offsets] == [m.physical_offset for m in records]
    assert w.table.next_offset("t", 0) == 3 and w.table.next_offset("t", 1) == 2


async def test_each_batch_of_one_append_is_told_the_entry_of_its_own_first_message() -> None:
    log = FakeLog()
    one = put(writer(log), (0, [b"a", b"b"]), (1, [b"c"]), (0, [b"d"]))
    await asyncio.sleep(0)
    log.commit()
    places = (await one).places
    assert [(place.log_index, place.term) for place in places] == [(0, 3), (2, 3), (3, 3)]
    firsts = [decode(log.batches[0][at]).physical_offset for at in (0, 2, 3)]
    assert [place.physical_offset for place in places] == firsts


async def test_an_append_that_the_log_refuses_takes_no_offsets() -> None:
    log = FakeLog()
    log.room = 1
    w = writer(log)
    with pytest.raises(Busy) as refused:
        await put(w, (1, [b"b", b"c"]))
    assert refused.value.status is Status.TOO_MANY_PENDING_BYTES
    assert w.table.next_offset("t", 1) == 0


async def test_a_broker_that_is_no_longer_master_stores_nothing() -> None:
    log = FakeLog()
    w = writer(log)
    one = put(w, (0, [b"a"]))
    w.close()  # before the task has started
    with pytest.raises(NotMaster):
        await one
    assert log.batches == []


async def test_an_append_whose_outcome_is_unknown_is_in_doubt() -> None:
    log = FakeLog()
    one = put(writer(log), (0, [b"a"]))
    await asyncio.sleep(0)
    [(future, _)] = log.waiting
    future.set_exception(Indeterminate("nobody knows", code=Code.TERM_CHANGED))
    with pytest.raises(PutIndeterminate):
        await one


async def test_messages_are_counted_once_the_log_has_them_for_good() -> None:
    log, told = FakeLog(), list[tuple[str, int, int]]()
    w = writer(log, stored=lambda *one: told.append(one))
    one = put(w, (0, [b"a", b"b", b"c"]), (1, [b"d"]))
    await asyncio.sleep(0)
    assert told == []
    log.commit()
    await one
    sizes = [len(record) for record in log.batches[0]]
    assert told == [("t", 3, sum(sizes[:3])), ("t", 1, sizes[3])]
    doubtful = put(w, (0, [b"e"]))
    await asyncio.sleep(0)
    [(future, _)] = log.waiting
    future.set_exception(Indeterminate("nobody knows", code=Code.TERM_CHANGED))
    with pytest.raises(PutIndeterminate):
        await doubtful
    assert len(told) == 2


async def test_records_of_several_queues_are_refused_if_one_of_them_takes_nothing() -> None:
    class SecondQueueIsGone(AnyTopic):
        def refusal(self, topic: str, queue_id: int) -> BrokerError | None:
            return error_for(Status.TOPIC_CHANGED, "gone") if queue_id == 1 else None

    log = FakeLog()
    w = writer(log, topics=SecondQueueIsGone())
    queued = [w.records("t", queue_id, [OutgoingMessage(b"a")], born_host=HOST) for queue_id in (0, 1)]
    with pytest.raises(Busy):
        await w.put_stored(queued)
    assert log.batches == [] and w.table.next_offset("t", 0) == 0


async def test_records_that_cannot_be_made_take_no_offset_of_the_append(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = FakeLog()
    w = writer(log)

    def broken(batch: RecordBatch, queue_offset: int, positions: Sequence[int], stamp: int) -> list[bytes]:
        raise RuntimeError("no such record")

    monkeypatch.setattr(RecordBatch, "fill", broken)
    with pytest.raises(RuntimeError):
        await put(w, (0, [b"a"]), (1, [b"b"]))
    assert w.table.next_offset("t", 0) == 0 and w.table.next_offset("t", 1) == 0


async def test_a_command_behind_messages_gets_their_offsets() -> None:
    log = FakeLog()
    w = writer(log)
    command = LateCommand(4, lambda firsts, steps_ms: b"%d %d" % (firsts[0], firsts[1] + 10))
    batches = [w.records("t", 0, [OutgoingMessage(b"a")], born_host=HOST) for _ in range(2)]
    one = asyncio.ensure_future(w.put_together(batches, "COMMANDS", [command]))
    await asyncio.sleep(0)
    log.commit()
    await one
    assert log.bodies() == [[b"a", b"a", b"0 11"]]


async def test_who_waits_for_an_append_may_go_and_the_append_goes_on() -> None:
    log = FakeLog()
    w = writer(log)
    one = put(w, (0, [b"a"]))
    await asyncio.sleep(0)
    one.cancel()
    await asyncio.sleep(0)
    log.commit()
    assert one.cancelled() and w.table.next_offset("t", 0) == 1


def test_messages_of_every_door_take_turns_over_the_queues_of_a_topic() -> None:
    log = FakeLog()
    made, topic, other = writer(log), TopicConfig("t", 3, 3), TopicConfig("u", 2, 2)
    assert [made.queue_of(one, -1) for one in (topic, other, topic, topic, other, topic)] == [
        0,
        0,
        1,
        2,
        1,
        0,
    ]
    assert made.queue_of(topic, 2) == 2
    for wrong in (-2, 3):
        with pytest.raises(IllegalMessage):
            made.queue_of(topic, wrong)
    made.close()
    made.open_for(*LEADERSHIP)
    assert made.queue_of(topic, -1) == 0


def test_messages_without_a_queue_go_to_write_queues_only() -> None:
    """A topic whose queues are being reduced has more queues to read than to write."""
    w, topic = writer(FakeLog()), TopicConfig("t", read_queues=4, write_queues=2)
    assert [w.queue_of(topic, -1) for _ in range(5)] == [0, 1, 0, 1, 0]
