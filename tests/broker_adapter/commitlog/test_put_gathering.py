"""What comes in one turn of the loop is one batch of the log, and each put is still all or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from broker_adapter.api import OutgoingMessage, SendResult, TopicConfig
from broker_adapter.commitlog.message_writer import AnyTopic, MessageWriter, PutLimits
from broker_adapter.commitlog.record_writer import RecordBatch
from broker_adapter.errors import (
    BrokerError,
    Busy,
    IllegalMessage,
    NotMaster,
    PutIndeterminate,
    Status,
    error_for,
)
from broker_adapter.format.host import Host
from broker_adapter.format.message import decode
from broker_adapter.log.replicated import ReplicatedAppends
from dledger import AppendOutcome, Assigned, Code, Indeterminate, Overloaded

HOST = Host(bytes((10, 0, 0, 1)), 10911)
LEADERSHIP = (3, 7)


class FakeLog:
    """Takes batches of at most `room` messages, one entry after the other; `commit` answers them."""

    def __init__(self) -> None:
        self.room = 1000
        self.batches: list[list[bytes]] = []
        self.waiting: list[tuple[asyncio.Future[AppendOutcome], AppendOutcome]] = []
        self.timeouts: list[int] = []
        self._pos = 0

    def cluster_time_ms(self) -> int:
        return 1

    def append_batch(
        self,
        sizes: Sequence[int],
        fill: Callable[[Assigned], Sequence[bytes]],
        *,
        expected: tuple[int, int],
        timeout_ms: int = 0,
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
        self.timeouts.append(timeout_ms)
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
    most_bytes: int = 1 << 20,
    most_messages: int = 100,
    topics: AnyTopic | None = None,
    stored: Callable[[str, int, int], None] = lambda topic, messages, size: None,
) -> MessageWriter:
    made = MessageWriter(
        ReplicatedAppends(log),
        HOST,
        PutLimits(
            max_body_bytes=1000,
            max_command_bytes=1000,
            timeout_ms=500,
            max_append_bytes=most_bytes,
            max_append_messages=most_messages,
        ),
        master=lambda: None,
        topics=topics,
        stored=stored,
    )
    made.open_for(*LEADERSHIP)
    return made


def put(
    writer: MessageWriter, queue_id: int, *bodies: bytes, timeout_ms: int = 0
) -> asyncio.Task[SendResult]:
    messages = [OutgoingMessage(body) for body in bodies]
    return asyncio.ensure_future(writer.put("t", queue_id, messages, born_host=HOST, timeout_ms=timeout_ms))


async def turns() -> None:
    """Tasks begin in one turn, what they gathered goes in the next."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_puts_of_one_turn_share_a_batch_and_get_offsets_of_their_own() -> None:
    log = FakeLog()
    w = writer(log)
    puts = [put(w, 0, b"a", b"b"), put(w, 1, b"c"), put(w, 0, b"d"), put(w, 1, b"e")]
    await turns()
    assert log.bodies() == [[b"a", b"b", b"c", b"d", b"e"]]
    log.commit()
    found = [(r.queue_id, r.queue_offset) for r in await asyncio.gather(*puts)]
    assert found == [(0, 0), (1, 0), (0, 2), (1, 1)]
    records = [decode(record) for record in log.batches[0]]
    assert [(m.queue_id, m.queue_offset) for m in records] == [(0, 0), (0, 1), (1, 0), (0, 2), (1, 1)]
    positions = [at for one in puts for at in one.result().physical_offsets]
    assert positions == [m.physical_offset for m in records]
    assert w.table.next_offset("t", 0) == 3 and w.table.next_offset("t", 1) == 2


async def test_a_lone_put_goes_at_the_end_of_its_turn() -> None:
    log = FakeLog()
    one = put(writer(log), 0, b"a")
    await turns()
    log.commit()
    assert (await one).queue_offset == 0


@pytest.mark.parametrize("limits", [{"most_messages": 2}, {"most_bytes": 256 + 2 * (48 + 91 + 1 + 1)}])
async def test_no_batch_is_greater_than_the_limit_but_for_a_put_that_is(limits: dict[str, int]) -> None:
    log = FakeLog()
    w = writer(log, **limits)
    puts = [put(w, 0, b"a"), put(w, 1, b"b"), put(w, 2, b"c"), put(w, 3, b"d", b"e", b"f"), put(w, 4, b"g")]
    await turns()
    assert log.bodies() == [[b"a", b"b"], [b"c"], [b"d", b"e", b"f"], [b"g"]]
    log.commit()
    await asyncio.gather(*puts)


async def test_what_is_refused_together_is_tried_one_by_one_and_takes_no_offsets() -> None:
    log = FakeLog()
    log.room = 1
    w = writer(log)
    puts = [put(w, 0, b"a"), put(w, 1, b"b", b"c"), put(w, 2, b"d")]
    await turns()
    assert log.bodies() == [[b"a"], [b"d"]]
    log.commit()
    assert (await puts[0]).queue_offset == (await puts[2]).queue_offset == 0
    with pytest.raises(Busy) as refused:
        await puts[1]
    assert refused.value.status is Status.TOO_MANY_PENDING_BYTES
    assert w.table.next_offset("t", 1) == 0


async def test_a_broker_that_ceases_to_be_master_within_the_turn_stores_nothing() -> None:
    log = FakeLog()
    w = writer(log)
    puts = [put(w, 0, b"a"), put(w, 1, b"b")]
    asyncio.get_running_loop().call_soon(w.close)  # behind the puts, before what they gathered
    await turns()
    assert log.batches == []
    for one in puts:
        with pytest.raises(NotMaster):
            await one


async def test_what_becomes_of_the_batch_becomes_of_each_put() -> None:
    log = FakeLog()
    w = writer(log)
    puts = [put(w, 0, b"a"), put(w, 1, b"b")]
    await turns()
    [(future, _)] = log.waiting
    future.set_exception(Indeterminate("nobody knows", code=Code.TERM_CHANGED))
    for one in puts:
        with pytest.raises(PutIndeterminate):
            await one


async def test_messages_of_batches_are_counted_once_the_log_has_them_for_good() -> None:
    log, told = FakeLog(), list[tuple[str, int, int]]()
    w = writer(log, stored=lambda *one: told.append(one))
    puts = [put(w, 0, b"a", b"b", b"c"), put(w, 1, b"d")]
    await turns()
    assert told == []
    log.commit()
    await asyncio.gather(*puts)
    sizes = [len(record) for record in log.batches[0]]
    assert told == [("t", 3, sum(sizes[:3])), ("t", 1, sizes[3])]
    doubtful = put(w, 0, b"e")
    await turns()
    [(future, _)] = log.waiting
    future.set_exception(Indeterminate("nobody knows", code=Code.TERM_CHANGED))
    with pytest.raises(PutIndeterminate):
        await doubtful
    assert len(told) == 2


async def test_a_put_of_several_queues_is_refused_if_one_of_them_takes_nothing() -> None:
    class SecondQueueIsGone(AnyTopic):
        def refusal(self, topic: str, queue_id: int) -> BrokerError | None:
            return error_for(Status.TOPIC_CHANGED, "gone") if queue_id == 1 else None

    log = FakeLog()
    w = writer(log, topics=SecondQueueIsGone())
    queued = [w.records("t", queue_id, [OutgoingMessage(b"a")], born_host=HOST) for queue_id in (0, 1)]
    stored = asyncio.ensure_future(w.put_stored(queued))
    await turns()
    log.commit()
    with pytest.raises(Busy):
        await stored
    assert log.batches == [] and w.table.next_offset("t", 0) == 0


async def test_a_put_cancelled_within_its_turn_is_not_stored_and_one_cancelled_later_harms_nobody() -> None:
    log = FakeLog()
    w = writer(log)
    puts = [put(w, 0, b"a"), put(w, 0, b"b"), put(w, 0, b"c")]
    asyncio.get_running_loop().call_soon(puts[0].cancel)
    await turns()
    puts[1].cancel()
    await turns()
    log.commit()
    assert log.bodies() == [[b"b", b"c"]]
    assert (await puts[2]).queue_offset == 1


async def test_a_batch_expires_when_the_last_of_its_puts_does() -> None:
    log = FakeLog()
    w = writer(log)
    puts = [put(w, 0, b"a", timeout_ms=100), put(w, 0, b"b"), put(w, 0, b"c", timeout_ms=200)]
    await turns()
    assert log.timeouts == [500]
    log.commit()
    await asyncio.gather(*puts)


async def test_records_that_cannot_be_made_take_no_offset_of_any_put(monkeypatch: pytest.MonkeyPatch) -> None:
    log = FakeLog()
    w = writer(log)
    fill = RecordBatch.fill

    def broken(batch: RecordBatch, queue_offset: int, positions: Sequence[int], stamp: int) -> list[bytes]:
        if batch.sizes == [size_of_b]:
            raise RuntimeError("no such record")
        return fill(batch, queue_offset, positions, stamp)

    size_of_b = len(b"long") + 91 + 1
    monkeypatch.setattr(RecordBatch, "fill", broken)
    puts = [put(w, 0, b"a"), put(w, 1, b"long"), put(w, 0, b"b")]
    await turns()
    assert log.bodies() == [[b"a"], [b"b"]]  # one by one, behind what failed together
    with pytest.raises(RuntimeError):
        await puts[1]
    assert w.table.next_offset("t", 0) == 2 and w.table.next_offset("t", 1) == 0
    log.commit()
    assert [(await puts[i]).queue_offset for i in (0, 2)] == [0, 1]


def test_messages_of_every_door_take_turns_over_the_queues_of_a_topic() -> None:
    log = FakeLog()
    made, topic, other = writer(log), TopicConfig("t", write_queues=3), TopicConfig("u", write_queues=2)
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
