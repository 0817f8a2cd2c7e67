"""Messages of producers of the remoting protocol, at any node."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from broker_adapter.endpoints.v4.request import RemotingRequest
from broker_adapter.endpoints.v4.sends import Delay, batch_of, delay_of
from broker_adapter.errors import IllegalMessage, ResponseCode
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.wire.delay_levels import LEVELS_MS
from broker_adapter.wire.message import MessageRecord, decode
from broker_adapter.wire.message_id import parse_offset_id
from broker_adapter.wire.properties import split_properties
from dledger import RULES_VERSION
from tests.broker_adapter.cluster import BrokerCluster, brokers, in_step
from tests.broker_adapter.v4.asker import LISTEN, asking, send_fields
from tests.broker_adapter.v4.stores import started
from tests.node.local import until


async def stored(cluster: BrokerCluster, topic: str, queue_id: int, offset: int) -> MessageRecord:
    program = await cluster.master()
    await in_step(program)
    result = await program.broker.pull(topic, queue_id, offset, max_messages=1, wait_ms=10_000)
    return decode(result.records[0])


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[BrokerCluster]:
    async with brokers(tmp_path, 3, LISTEN) as cluster:
        await cluster.master()
        yield cluster


async def test_every_node_takes_messages_as_they_are(cluster: BrokerCluster) -> None:
    leader = await cluster.master()
    await until(lambda: leader.metadata.rules_version == RULES_VERSION)  # its entry would follow a message
    for node_id, program in cluster.programs.items():
        async with asking(program.remoting.address) as asker:
            fields = send_fields("orders", 1, TAGS="a", KEYS="k1 k2", UNIQ_KEY=f"id-{node_id}", mine="x y")
            sent = await asker.get(310, b"body", **{**fields, "f": 0x1 | 0x30 | 0x8, "h": 77})
            message = await stored(cluster, "orders", int(sent["queueId"]), int(sent["queueOffset"]))
            assert (message.topic, message.body, message.queue_id) == ("orders", b"body", 1)
            assert (message.flag, message.sys_flag, message.born_timestamp) == (77, 0x1, 1_700_000_000_000)
            assert split_properties(message.properties) == {
                "TAGS": "a",
                "KEYS": "k1 k2",
                "UNIQ_KEY": f"id-{node_id}",
                "mine": "x y",
            }
            assert str(message.born_host).startswith("127.0.0.1:")
            assert parse_offset_id(sent["msgId"]).physical_offset == message.physical_offset
            again = await asker.get(310, b"body", **fields | {"h": 77, "f": 0x1})
            assert again.pop("duplicate") == "true"  # type: ignore[attr-defined]
            entry = {name: sent.pop(name) for name in ("nodeId", "term", "logIndex")}
            assert again == sent, "one message under one id"
            master = await cluster.master()
            assert master.writer.expected is not None
            assert (entry["nodeId"], entry["term"]) == (master.config.node_id, str(master.writer.expected[0]))
            assert int(entry["logIndex"]) == master.writer.last_index - 1, "behind it is what knows its id"


async def test_older_forms_and_one_way_requests(cluster: BrokerCluster) -> None:
    program = await cluster.master()
    async with asking(program.remoting.address) as asker:
        long: dict[str, object] = {"topic": "old", "queueId": 0, "sysFlag": 0, "properties": "a\x01b\x02"}
        answer = await asker.ask(RequestCode.SEND_MESSAGE, b"one", form=1, **long)
        assert (answer.code, answer.form) == (ResponseCode.SUCCESS, 1)
        texts = {name: str(value) for name, value in long.items()}
        asker.connection.notify(RemotingCommand.oneway(RequestCode.SEND_MESSAGE, texts, b"two"))
        assert (await stored(cluster, "old", 0, 1)).body == b"two"
        await asker.send("old", b"three", 0)
        assert (await stored(cluster, "old", 0, 2)).body == b"three"


def batch(*bodies: bytes) -> bytes:
    items = []
    for number, body in enumerate(bodies):
        properties = f"UNIQ_KEY\x01b{number}\x02TAGS\x01t{number}\x02".encode()
        size = 20 + len(body) + 2 + len(properties)
        head = struct.pack(">iiiii", size, 0, 0, number, len(body))
        items.append(head + body + struct.pack(">h", len(properties)) + properties)
    return b"".join(items)


@pytest.mark.parametrize("code", [RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2])
async def test_a_batch_is_one_append(cluster: BrokerCluster, code: int) -> None:
    """C++ clients send batches under the code of single messages."""
    program = next(one for one in cluster.programs.values() if one.writer.expected is None)
    async with asking(program.remoting.address) as asker:
        fields = {**send_fields("batches", 0), "m": "true"}
        sent = await asker.get(code, batch(b"0", b"1", b"2"), **fields)
        assert (sent["queueOffset"], len(sent["msgId"].split(","))) == ("0", 3)
        for number in range(3):
            message = await stored(cluster, "batches", 0, number)
            assert (message.body, message.flag) == (str(number).encode(), number)
            assert split_properties(message.properties)["TAGS"] == f"t{number}"


async def test_batches_that_rocketmq_refuses_are_refused(cluster: BrokerCluster) -> None:
    """By their header: they would be stored at once, as messages of no transaction."""
    delayed = send_fields("t", 0, DELAY="1")
    async with asking((await cluster.master()).remoting.address) as asker:
        for fields in (delayed, {**send_fields("t", 0), "f": 4}, {**send_fields("t", 0), "f": 8}):
            answer = await asker.ask(RequestCode.SEND_BATCH_MESSAGE, batch(b"x"), **{**fields, "m": "true"})
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize(("store", "count"), [("replicated", 13_000), ("classic", 5_000)])
async def test_a_batch_has_as_many_messages_as_fit_by_their_bytes(
    tmp_path: Path, store: str, count: int
) -> None:
    """RocketMQ's example SplitBatchProducer splits lists at a million bytes: some 13,000 messages each. The
    files of the classic store in this test have no room for that."""
    body = batch(*(b"Hello world %d" % number for number in range(count)))
    async with started(store, tmp_path) as address, asking(address) as asker:
        sent = await asker.get(RequestCode.SEND_BATCH_MESSAGE, body, **{**send_fields("t", 0), "m": "true"})
        assert (sent["queueOffset"], len(sent["msgId"].split(","))) == ("0", 4_096)
        async with asyncio.timeout(60):
            while await asker.end("t", 0) < count:
                pass
        again = await asker.get(RequestCode.SEND_BATCH_MESSAGE, body, **{**send_fields("t", 0), "m": "true"})
        assert (again["duplicate"], again["msgId"]) == ("true", sent["msgId"])
        too_many = batch(*[b""] * 16_001)
        refused = await asker.ask(
            RequestCode.SEND_BATCH_MESSAGE, too_many, **{**send_fields("t", 0), "m": "true"}
        )
        assert "FIELD_OUT_OF_RANGE" in (refused.remark or "")


@pytest.mark.parametrize(
    "body", [b"", b"x", batch(b"a")[:-1], batch(b"a") + b"\0", struct.pack(">iiiii", 20, 0, 0, 0, -1)]
)
def test_what_is_no_batch_is_refused(body: bytes) -> None:
    with pytest.raises(IllegalMessage):
        batch_of({}, body, 100)


def test_bodies_of_a_batch_have_the_limit_of_others() -> None:
    assert [one.body for one in batch_of({}, batch(b"a" * 100), 100)] == [b"a" * 100]
    with pytest.raises(IllegalMessage, match="more than 100"):
        batch_of({}, batch(b"a" * 101), 100)


async def test_what_cannot_be_taken_has_rocketmqs_codes(cluster: BrokerCluster) -> None:
    program = await cluster.master()
    async with asking(program.remoting.address) as asker:
        for change, code in (
            ({"b": "a b"}, ResponseCode.MESSAGE_ILLEGAL),
            ({"e": 99}, ResponseCode.MESSAGE_ILLEGAL),
            ({"e": "x"}, ResponseCode.MESSAGE_ILLEGAL),
            ({"i": "DELAY\x01x\x02"}, ResponseCode.MESSAGE_ILLEGAL),
            ({"b": "DLEDGER_SYS_x"}, ResponseCode.NO_PERMISSION),
        ):
            answer = await asker.ask(310, b"x", **{**send_fields("t"), **change})
            assert answer.code == code, answer
            assert answer.remark


async def test_a_delayed_message_comes_later(cluster: BrokerCluster) -> None:
    program = await cluster.master()
    async with asking(program.remoting.address) as asker:
        await asker.send("late", b"at once", 0)
        sent = await asker.send("late", b"level 1", 0, DELAY="1", UNIQ_KEY="d1")
        assert sent["recallHandle"]
        now = await program.broker.pull("late", 0, 0)
        assert [decode(record).body for record in now.records] == [b"at once"]
        message = await stored(cluster, "late", 0, 1)
        assert message.body == b"level 1"
        assert split_properties(message.properties)["DELAY"] == "1"


def test_delays_are_levels_or_times() -> None:
    assert len(LEVELS_MS) == 18
    assert delay_of({"DELAY": "1"}, 1000) == Delay(2000, 1)
    assert delay_of({"DELAY": "18"}, 0) == delay_of({"DELAY": "99"}, 0) == Delay(7_200_000, 18)
    assert delay_of({"DELAY": "0"}, 5) is None
    assert delay_of({"TIMER_DELAY_SEC": "3"}, 5) == Delay(3005)
    assert delay_of({"TIMER_DELAY_MS": "3"}, 5) == Delay(8)
    assert delay_of({"TIMER_DELIVER_MS": "30"}, 5) == delay_of({"__STARTDELIVERTIME": "30"}, 5) == Delay(30)
    assert delay_of({}, 5) is None
    for wrong in ("", "-", "x", "1.5", "1" * 16):
        with pytest.raises(IllegalMessage):
            delay_of({"TIMER_DELIVER_MS": wrong}, 5)


async def test_sends_go_on_while_the_master_goes(
    cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RemotingRequest, "timeout_s", 30.0)  # instead of 3 s, which a busy machine may need
    master = (await cluster.master()).config.node_id
    others = [one for node_id, one in cluster.programs.items() if node_id != master]
    async with AsyncExitStack() as stack:
        askers = [await stack.enter_async_context(asking(one.remoting.address)) for one in others]
        sends = [
            asyncio.create_task(askers[number % 2].send("steady", b"%d" % number, 0, UNIQ_KEY=f"s{number}"))
            for number in range(40)
        ]
        await cluster.stop(master)
        more = [askers[number % 2].send("steady", b"%d" % number, 0) for number in range(40, 50)]
        offsets = [int(sent["queueOffset"]) for sent in await asyncio.gather(*sends, *more)]
    assert sorted(offsets) == list(range(50))
