"""Members of a group at brokers of ours, and the first example of the documentation."""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
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
    PullConsumer,
    PushConsumer,
    SqlFilter,
)
from broker_adapter.client.group_requests import MessageModel
from broker_adapter.errors import IllegalMessage
from broker_adapter.remoting.codes import RequestCode
from tests.broker_adapter.cluster import brokers
from tests.broker_adapter.namesrv.helpers import name_server
from tests.broker_adapter.v4.asker import asking
from tests.node.local import until

QUEUES, TOPIC = 6, "orders"
DOCUMENTATION = Path(__file__).resolve().parents[3] / "docs" / "remoting-client.md"
OPTIONS = ClientOptions(timeout=60.0, poll_name_server_s=0.2, heartbeat_broker_s=0.2)
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
    async with name_server(tmp_path / "namesrv") as server:
        door = {"listen": "127.0.0.1:0", "lock_live_ms": 3_000}
        async with brokers(tmp_path, 1, {"remoting": door, "namesrv": [server.address]}):
            yield server.address


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
        """Under the member's write-only name, under which nobody reads."""
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


@pytest.mark.parametrize("model", list(MessageModel))
async def test_messages_of_queues_that_are_added_to_a_running_group_are_consumed(
    names: str, model: MessageModel
) -> None:
    """With default settings: the end of such a queue may be behind its first messages."""
    seen: set[bytes] = set()
    is_late = False

    def allocate(queues: Sequence[MessageQueue], members: Sequence[str], member: str) -> list[MessageQueue]:
        return list(queues) if is_late else list(queues[:1])

    consumer = PushConsumer(
        "g",
        names,
        lambda messages: seen.update(one.body for one in messages),
        model=model,
        allocate=allocate,
        settings=CONSUMING,
        options=OPTIONS,
    )
    consumer.subscribe(TOPIC)
    async with Admin(names, options=OPTIONS) as admin, Producer("p", names, options=OPTIONS) as producer:
        await admin.create_topic(TOPIC, queues=1)
        async with consumer:
            await until(lambda: consumer.is_balanced)
            await admin.create_topic(TOPIC, queues=4)
            for queue in range(4):
                await producer.send(
                    Message(TOPIC, b"%d" % queue), queue=MessageQueue(TOPIC, "broker-a-n1", queue)
                )
            is_late = True
            await admin.create_topic(TOPIC, queues=5)  # members look again
            await until(lambda: seen == {b"0", b"1", b"2", b"3"})


@pytest.mark.parametrize("kind", ["push", "pull"])
async def test_consumers_with_default_settings_start_at_the_first_message_of_a_recreated_topic(
    names: str, kind: str
) -> None:
    seen: list[bytes] = []
    async with (
        AsyncExitStack() as stack,
        Admin(names, options=OPTIONS) as admin,
        Producer("p", names, options=OPTIONS) as producer,
    ):
        for body in (b"old", b"new"):
            await admin.create_topic(TOPIC, queues=1)
            await producer.send(Message(TOPIC, body))
            if body == b"old":
                await admin.delete_topic(TOPIC)
        if kind == "push":
            consumer = PushConsumer(
                "g",
                names,
                lambda messages: seen.extend(one.body for one in messages),
                settings=CONSUMING,
                options=OPTIONS,
            )
            consumer.subscribe(TOPIC)
            await stack.enter_async_context(consumer)
            await until(lambda: seen == [b"new"])
        else:
            pulling = await stack.enter_async_context(PullConsumer("g", names, options=OPTIONS))
            pulling.assign(await pulling.queues(TOPIC))
            assert [one.body for one in await pulling.poll(60)] == [b"new"]


@pytest.mark.parametrize("model", list(MessageModel))
async def test_a_consumer_can_start_before_its_topic_exists(
    names: str, model: MessageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker_adapter.client.push_consumer._MISSING_TOPIC_S", 0.1)
    seen: list[bytes] = []
    consumer = PushConsumer(
        "g",
        names,
        lambda messages: seen.extend(one.body for one in messages),
        model=model,
        settings=CONSUMING,
        options=OPTIONS,
    )
    consumer.subscribe(TOPIC)
    async with (
        Producer("p", names, options=OPTIONS) as producer,
        Admin(names, options=OPTIONS) as admin,
        consumer,
    ):
        assert consumer.is_balanced and consumer.assigned == []
        await admin.create_topic(TOPIC, queues=1)
        await producer.send(Message(TOPIC, b"first"))
        await until(lambda: seen == [b"first"])


async def test_a_consumer_with_an_invalid_sql_filter_does_not_start(names: str) -> None:
    async with Admin(names, options=OPTIONS) as admin:
        await admin.create_topic(TOPIC, queues=1)
    consumer = PushConsumer("g", names, lambda messages: None, options=OPTIONS)
    consumer.subscribe(TOPIC, SqlFilter("price >"))
    with pytest.raises(IllegalMessage, match="expected a property or a constant"):
        async with consumer:
            pytest.fail("it started")


async def test_a_member_that_was_given_nothing_has_stored_where_it_started(names: str) -> None:
    """Or the next one would start behind the messages that arrived between them."""
    seen: list[bytes] = []

    def member() -> PushConsumer:
        made = PushConsumer(
            "g",
            names,
            lambda messages: seen.extend(one.body for one in messages),
            consume_from=ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
            consume_timestamp_ms=1 << 42,
            settings=CONSUMING,
            options=OPTIONS,
        )
        made.subscribe(TOPIC)
        return made

    async with Admin(names, options=OPTIONS) as admin, Producer("p", names, options=OPTIONS) as producer:
        await admin.create_topic(TOPIC, queues=1)
        await producer.send(Message(TOPIC, b"before"))
        async with member() as first:
            await until(lambda: first.is_balanced)
        await producer.send(Message(TOPIC, b"after"))
        async with member():
            await until(lambda: seen == [b"after"])


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
