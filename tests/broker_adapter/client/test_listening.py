"""What a consumer tells of its membership, and what it does not when it is abandoned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from broker_adapter.client import GroupListener, MessageQueue
from broker_adapter.errors import NotMaster
from tests.broker_adapter.client.helpers import until
from tests.broker_adapter.client.test_consumer import QUEUES, world


class Told(GroupListener):
    def __init__(self) -> None:
        self.owned: dict[int, tuple[int, int]] = {}  # queue -> (offset, generation)
        self.under_way: list[Mapping[MessageQueue, int]] = []
        self.commits: list[tuple[dict[int, int], BaseException | None]] = []
        self.repetitions: list[int] = []
        self.revocations = 0

    def assigned(self, queue: MessageQueue, offset: int, generation: int) -> None:
        assert queue.queue_id not in self.owned
        self.owned[queue.queue_id] = (offset, generation)

    def revoked(self, queue: MessageQueue) -> None:
        del self.owned[queue.queue_id]
        self.revocations += 1

    def committing(self, offsets: Mapping[MessageQueue, int], generation: int) -> None:
        assert not self.under_way
        self.under_way.append(offsets)

    def commit_repeated(self, offsets: Mapping[MessageQueue, int], number: int) -> None:
        assert self.under_way[-1] is offsets
        self.repetitions.append(number)

    def committed(self, offsets: Mapping[MessageQueue, int], error: BaseException | None) -> None:
        assert self.under_way.pop() is offsets
        self.commits.append(({queue.queue_id: at for queue, at in offsets.items()}, error))


async def test_a_listener_hears_of_queues_that_come_and_go_and_of_every_commit() -> None:
    async with world() as w:
        w.produce(60)
        one, other = Told(), Told()
        async with w.consumer(member_id="a", listener=one):
            await until(lambda: len(one.owned) == QUEUES and w.all_committed())
            assert {offset for offset, _ in one.owned.values()} == {0}
            async with w.consumer(member_id="b", listener=other):
                await until(lambda: len(one.owned) == len(other.owned) == QUEUES // 2)
                assert {offset for offset, _ in other.owned.values()} == {10}
                [later] = {generation for _, generation in other.owned.values()}
                assert {generation for _, generation in one.owned.values()} <= set(range(later))
            await until(lambda: len(one.owned) == QUEUES)
        assert not one.owned and not other.owned
        assert one.revocations == QUEUES + QUEUES // 2 and other.revocations == QUEUES // 2
        stored: dict[int, int] = {}
        for offsets, error in one.commits:
            assert error is None
            stored |= offsets
        assert stored == dict.fromkeys(range(QUEUES), 10)


async def test_a_listener_hears_that_a_commit_was_refused() -> None:
    async with world() as w:
        told = Told()
        async with w.consumer(listener=told) as consumer:
            await until(lambda: len(told.owned) == QUEUES)
            w.cluster.groups["g"].generation += 1
            w.produce(6)
            await until(lambda: any(error is not None for _, error in told.commits))
            await until(lambda: len(consumer.assignment) == QUEUES)


async def test_a_listener_hears_of_every_repetition_of_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        broker, refused = w.cluster.brokers[0], 0
        commit = broker.commit_offsets

        async def refuse_two(*arguments: Any) -> None:
            nonlocal refused
            refused += 1
            if refused <= 2:
                raise NotMaster("not yet")
            await commit(*arguments)

        monkeypatch.setattr(broker, "commit_offsets", refuse_two)
        told = Told()
        async with w.consumer(listener=told):
            w.produce(6)
            await until(lambda: bool(told.commits))
        assert told.repetitions == [2, 3]
        assert told.commits[0][1] is None


async def test_an_abandoned_consumer_neither_commits_nor_leaves() -> None:
    async with world() as w:
        consumer = w.consumer(member_id="a", commit_interval=3600, lease=600)
        await consumer.start()
        w.produce(60)
        await until(w.all_seen)
        before = dict(w.offsets)
        await consumer.abandon()
        await consumer.close()
        assert w.offsets == before and set(w.cluster.groups["g"].members) == {"a"}
