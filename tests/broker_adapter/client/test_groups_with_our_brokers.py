"""Members of a group at brokers of ours, and the first example of the documentation."""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from broker_adapter.client import (
    Admin,
    ClientOptions,
    ConsumeFromWhere,
    ConsumeSettings,
    ConsumeStatus,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConsumer,
)
from broker_adapter.remoting.codes import RequestCode
from tests.broker_adapter.cluster import brokers
from tests.broker_adapter.namesrv.helpers import name_server
from tests.broker_adapter.processor.asker import asking
from tests.node.local import until

QUEUES, TOPIC = 6, "orders"
DOCUMENTATION = Path(__file__).resolve().parents[3] / "docs" / "remoting-client.md"
OPTIONS = ClientOptions(timeout_s=60.0, poll_name_server_s=0.2, heartbeat_broker_s=0.2)
CONSUMING = ConsumeSettings(
    is_ordered=True,
    suspend_s=0.05,
    lock_interval_s=0.2,
    lock_live_s=1.5,
    pull_retry_s=0.05,
    commit_interval_s=0.02,
)


@pytest.fixture
async def names(tmp_path: Path) -> AsyncIterator[str]:
    """Address of a NameServer that knows a broker, which keeps locks of members for three seconds."""
    async with name_server(tmp_path / "namesrv", remoting_listen="127.0.0.1:0") as server:
        door = {"listen": "127.0.0.1:0", "lock_live_ms": 3_000}
        async with brokers(tmp_path, 1, {"remoting": door, "namesrv": [server.address]}):
            yield server.remoting_address


class Group:
    """Messages of one group: what was sent, and what its members were given, by queue."""

    def __init__(self, names: str, producer: Producer) -> None:
        self._names = names
        self._producer = producer
        self.sent: dict[MessageQueue, int] = defaultdict(int)
        self.seen: dict[MessageQueue, list[int]] = defaultdict(list)

    def member(self) -> PushConsumer:
        made = PushConsumer(
            "g",
            self._names,
            self._listen,
            consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            settings=CONSUMING,
            options=OPTIONS,
        )
        made.subscribe(TOPIC)
        return made

    async def _listen(self, messages: Sequence[MessageExt]) -> None:
        for message in messages:
            self.seen[message.queue].append(message.queue_offset)

    async def produce(self, of_each_queue: int) -> None:
        """At the node's own name, under which nobody reads."""
        batch = [Message(TOPIC, b"x") for _ in range(of_each_queue)]
        for queue in range(QUEUES):
            await self._producer.send_batch(batch, queue=MessageQueue(TOPIC, "broker-a-n1", queue))
            self.sent[MessageQueue(TOPIC, "broker-a", queue)] += of_each_queue

    async def all_is_committed(self, admin: Admin) -> None:
        async with asyncio.timeout(60):
            while await admin.group_offsets("g") != self.sent:
                await asyncio.sleep(0)

    def check(self) -> None:
        """Everything, each message for the first time in the order of its queue."""
        for queue, count in self.sent.items():
            assert list(dict.fromkeys(self.seen[queue])) == list(range(count)), queue


def shares(*members: PushConsumer) -> list[int]:
    """How many queues of the topic each has."""
    return [sum(queue.topic == TOPIC for queue in member.assigned) for member in members]


async def test_members_share_the_queues_and_nothing_is_lost_when_they_come_die_and_go(names: str) -> None:
    async with Admin(names, options=OPTIONS) as admin, Producer("p", names, options=OPTIONS) as producer:
        await admin.create_topic(TOPIC, queues=QUEUES)
        group = Group(names, producer)
        first, second, third = (group.member() for _ in range(3))
        await group.produce(10)
        async with first:
            await group.produce(10)
            async with second:
                await group.produce(10)
                await third.start()
                await until(lambda: shares(first, second, third) == [2, 2, 2])
                assigned = [queue for one in (first, second, third) for queue in one.assigned]
                assert len({queue for queue in assigned if queue.topic == TOPIC}) == QUEUES
                await group.produce(10)
                await group.all_is_committed(admin)
                await third.abandon()
                await until(lambda: sum(shares(first, second)) == QUEUES)
                await group.produce(10)
            await until(lambda: shares(first) == [QUEUES])
            await group.produce(10)
            await group.all_is_committed(admin)
        group.check()


@pytest.mark.parametrize("ends", ["well", "later", "raises"])
async def test_a_consumer_takes_a_message_out_of_turn_and_says_how_that_went(names: str, ends: str) -> None:
    """As operators want it who have found a message in the dead letters: offsets stay where they are."""
    listened: list[MessageExt] = []

    def listen(messages: Sequence[MessageExt]) -> ConsumeStatus | None:
        listened.extend(messages)
        if len(listened) > 1 and ends == "raises":
            raise ValueError("not this one")
        return ConsumeStatus.RECONSUME_LATER if len(listened) > 1 and ends == "later" else None

    async with Admin(names, options=OPTIONS) as admin, Producer("p", names, options=OPTIONS) as producer:
        await admin.create_topic(TOPIC, queues=1)
        first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        consumer = PushConsumer("g", names, listen, consume_from=first, settings=CONSUMING, options=OPTIONS)
        consumer.subscribe(TOPIC)
        async with consumer:
            await producer.send(Message(TOPIC, b"x"))
            done = {MessageQueue(TOPIC, "broker-a", 0): 1, MessageQueue("%RETRY%g", "broker-a", 0): 0}
            await until(lambda: consumer.positions == done)
            of = {"consumerGroup": "g", "clientId": consumer.client_id}
            async with asking(names) as asker:
                found = await asker.body(
                    RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=TOPIC, acceptStandardJsonOnly=True
                )
                (address,) = [
                    one["brokerAddrs"]["0"] for one in found["brokerDatas"] if one["brokerName"] == "broker-a"
                ]
            async with asking(address) as asker:
                told = await asker.body(
                    RequestCode.CONSUME_MESSAGE_DIRECTLY, **of, msgId=listened[0].offset_message_id
                )
                info = (await asker.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, **of)).body.decode()
        expected = {"well": "CR_SUCCESS", "later": "CR_LATER", "raises": "CR_THROW_EXCEPTION"}[ends]
        remark = "ValueError('not this one')" if ends == "raises" else None
        assert (told["consumeResult"], told["remark"], told["order"]) == (expected, remark, True)
        assert [one.body for one in listened] == [b"x", b"x"]
        assert await admin.group_offsets("g") == {MessageQueue(TOPIC, "broker-a", 0): 1}
    found = re.findall(r'({"brokerName"[^}]*}):({[^}]*})', info)
    queues = {
        (of["topic"], of["queueId"]): json.loads(told) for of, told in ((json.loads(q), t) for q, t in found)
    }
    assert queues[TOPIC, 0]["commitOffset"] == 1 and queues[TOPIC, 0]["locked"] is True
    assert queues["%RETRY%g", 0]["commitOffset"] == 0
    assert '"PROP_CONSUMEORDERLY":"true"' in info and '"PROP_CONSUME_TYPE":"CONSUME_PASSIVELY"' in info


async def test_the_first_example_of_the_documentation_works(
    names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which is one of the blocking faces."""
    found = re.search(r"```python\n(.*?)```", DOCUMENTATION.read_text(), re.S)
    assert found is not None and '"127.0.0.1:9876"' in found[1]
    source = found[1].replace("127.0.0.1:9876", names)
    await asyncio.to_thread(exec, compile(source, DOCUMENTATION.name, "exec"), {})
    sent, received = capsys.readouterr().out.splitlines()[-2:]
    assert sent.startswith("SEND_OK ") and received == "drinks one coffee"
