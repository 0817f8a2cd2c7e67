"""Stores that a genuine broker of RocketMQ has written, imported into a group of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_adapter.client import (
    Admin,
    ConsumeFromWhere,
    ConsumeStatus,
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    SendResult,
    TransactionProducer,
)
from broker_adapter.errors import BrokerError
from broker_adapter.log.classic.store_directory import StoreDirectory
from broker_adapter.migration.importer import Importer, plan_of
from broker_adapter.server.program import BrokerProgram
from broker_adapter.wire.message import decode
from broker_adapter.wire.properties import split_properties
from tests.broker_adapter.cluster import brokers
from tests.broker_adapter.migration.test_import import OneTarget
from tests.broker_adapter.namesrv.helpers import name_server
from tests.broker_adapter.v4.asker import LISTEN
from tests.node.local import until
from tests.process.cluster import free_ports

from . import genuine
from .genuine import eventually

pytestmark = [pytest.mark.xdist_group("interop"), pytest.mark.process, pytest.mark.long]
MESSAGES, QUEUES = 60, 4
TOPIC, GROUP = "orders", "billing"


async def used(at: str, store: Path) -> list[tuple[SendResult, bytes]]:
    """What was sent to a broker, which has had consumers, transactions and delays."""
    sent = []
    async with Admin(at) as admin:

        async def is_up() -> bool:
            try:
                return any((await admin.clusters()).values())
            except BrokerError:
                return False

        await eventually(is_up)
        await admin.create_topic(TOPIC, queues=QUEUES)
    async with Producer("makers", at) as producer:
        for number in range(MESSAGES):
            body = b"%d" % number * (1 + 4_000 * (number % 9 == 0))  # some are compressed
            message = Message(TOPIC, body, tags="a", keys=[f"k{number}"], properties={"colour": "blue"})
            sent.append((await producer.send(message), body))
        await producer.send(Message(TOPIC, b"in two hours", delay_level=18))
    async with TransactionProducer("banks", at, lambda _: LocalTransactionState.UNKNOWN) as producer:
        for state in (LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.ROLLBACK_MESSAGE):
            ended = await producer.send_in_transaction(
                Message(TOPIC, state.name.encode()), lambda _, state=state: state
            )
            assert ended.is_ended
    await consumed(at, MESSAGES + 1)

    async def is_written() -> bool:
        found = StoreDirectory(store).offsets.get(GROUP, [])
        return sum(one.offset for one in found if one.topic == TOPIC) == MESSAGES + 1

    await eventually(is_written)
    return sent


async def consumed(at: str, count: int) -> None:
    """By a group, which sends one of them back."""
    got: set[bytes] = set()
    again: list[MessageExt] = []

    def listen(messages: list[MessageExt]) -> ConsumeStatus:
        (message,) = messages
        if message.body == b"1" and not message.reconsume_times:
            return ConsumeStatus.RECONSUME_LATER
        if message.reconsume_times:
            again.append(message)
        got.add(message.body)
        return ConsumeStatus.CONSUME_SUCCESS

    consumer = PushConsumer(GROUP, at, listen, consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer.subscribe(TOPIC, "*")
    async with consumer:

        async def is_done() -> bool:
            return len(got) == count and bool(again)

        await eventually(is_done)


@pytest.mark.parametrize("stop", ["terminate", "kill"])
async def test_a_store_after_its_broker_was_stopped(tmp_path: Path, stop: str) -> None:
    genuine.require()
    store, (port, _) = tmp_path / "java/store", free_ports(2)
    async with name_server(tmp_path / "names") as names:
        with genuine.broker(
            tmp_path / "java", names.address, port, flushConsumerOffsetInterval=500
        ) as process:
            sent = await used(names.address, store)
            getattr(process, stop)()
            process.wait(60)
    directory = StoreDirectory(store)
    contents = directory.survey()
    assert directory.is_clean == (stop == "terminate")
    assert contents.units_compared + contents.units_missing == contents.messages
    plan = plan_of(directory, contents)
    # One waits for two hours. The other has come again, which a broker that is killed may not have noted yet.
    assert plan.delayed == 1 or (stop == "kill" and plan.delayed == 2)
    assert {key[0] for key in plan.queues} == {TOPIC, f"%RETRY%{GROUP}"}
    said: list[str] = []
    async with brokers(tmp_path / "nodes", 1, LISTEN) as cluster:
        ours = await cluster.master()
        for _ in range(2):  # the second finds all of it there
            async with OneTarget(ours.remoting.address) as target:
                assert await Importer(directory, target, said.append).run(contents) == plan
        assert sum("compared: equal" in one for one in said) == 2
        assert [one.split()[0] for one in said if "delayed" in one] == [str(plan.delayed), "0"]
        await until(lambda: ours.delivery.figures().held_messages == 1)
        await equal(ours, directory, sent)


async def equal(ours: BrokerProgram, directory: StoreDirectory, sent: list[tuple[SendResult, bytes]]) -> None:
    """Messages where their producer was told that they are, and the groups where they were."""
    for result, body in sent:
        found = await ours.broker.pull(TOPIC, result.queue.queue_id, result.queue_offset, max_messages=1)
        message = decode(found.records[0])
        assert split_properties(message.properties)["UNIQ_KEY"] == result.message_id
        assert len(body) > 4_000 or message.body == body
    (by_key,) = await ours.broker.query(TOPIC, "k7", begin_ms=0, end_ms=1 << 60, max_messages=9)
    assert decode(by_key).body == b"7"
    offsets = await ours.broker.offsets(GROUP)
    assert sorted(offsets) == sorted(directory.offsets[GROUP])
    config = {one.name: one for one in ours.broker.topics()}[TOPIC]
    assert (config.read_queues, config.write_queues) == (QUEUES, QUEUES)
