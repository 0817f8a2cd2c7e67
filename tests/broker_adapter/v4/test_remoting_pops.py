"""POP over the remoting protocol, at any node."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from broker_adapter.delivery.api import Delivery
from broker_adapter.endpoints.v4.bodies import batch_acks
from broker_adapter.endpoints.v4.node_queries import share
from broker_adapter.endpoints.v4.pops import POP_CK
from broker_adapter.errors import IllegalMessage, ResponseCode
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.wire.message import MessageRecord, decode
from broker_adapter.wire.properties import split_properties
from tests.broker_adapter.cluster import BrokerCluster, brokers
from tests.broker_adapter.namesrv.helpers import name_server
from tests.broker_adapter.v4.asker import LISTEN, Asker, asking
from tests.broker_adapter.v4.test_remoting_consumers import beat, records
from tests.node.local import until

OK, NOTHING = ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[BrokerCluster]:
    async with brokers(tmp_path, 2, LISTEN) as cluster:
        await cluster.master()
        yield cluster


@pytest.fixture
async def asker(cluster: BrokerCluster) -> AsyncIterator[Asker]:
    slave = next(one for one in cluster.programs.values() if one.writer.expected is None)
    async with asking(slave.remoting.address) as asker:
        await asker.send("t", b"0", 0, TAGS="a", mine="x")
        await asker.get(RequestCode.HEART_BEAT, beat("c", "g", "t"))
        yield asker


async def pop(asker: Asker, **more: object) -> RemotingCommand:
    fields: dict[str, object] = {
        "consumerGroup": "g",
        "topic": "t",
        "queueId": -1,
        "maxMsgNums": 32,
        "invisibleTime": 60_000,
        "pollTime": 0,
        "bornTime": 0,
        "initMode": 0,
        "expType": "TAG",
        "exp": "*",
        "order": "false",
    }
    return await asker.ask(RequestCode.POP_MESSAGE, **(fields | more))


def receipt(message: MessageRecord) -> str:
    return split_properties(message.properties)[POP_CK]


def receipt_fields(extra: str) -> dict[str, object]:
    """As the Java client takes them from the receipt."""
    words = extra.split(" ")
    return {
        "consumerGroup": "g",
        "topic": "t",
        "queueId": words[6],
        "offset": words[7],
        "extraInfo": extra,
    }


async def test_a_message_is_popped_hidden_and_acknowledged(asker: Asker, cluster: BrokerCluster) -> None:
    answer = await pop(asker)
    assert answer.code == OK
    (message,) = records(answer.body)
    assert (message.body, message.reconsume_times) == (b"0", 0)
    properties = split_properties(message.properties)
    assert (properties["TAGS"], properties["mine"]) == ("a", "x")
    words = receipt(message).split(" ")
    assert words[:3] == ["0", answer.fields["popTime"], "60000"]
    assert 2 <= int(words[3]) < 1 << 31
    assert words[4:] == ["0", "broker-a", "0", "0"]
    assert answer.fields["startOffsetInfo"].startswith("0 0 ")
    assert answer.fields["msgOffsetInfo"] == "0 0 0"
    hidden = await pop(asker)
    assert hidden.code == NOTHING
    # Java reads these of every answer.
    assert {"popTime", "invisibleTime", "reviveQid", "restNum"} <= hidden.fields.keys()
    acked = receipt_fields(receipt(message))
    assert (await asker.ask(RequestCode.ACK_MESSAGE, **acked)).code == OK
    again = await asker.ask(RequestCode.ACK_MESSAGE, **acked)
    assert again.code == ResponseCode.NO_MESSAGE
    counted = (await cluster.master()).traffic.sums("GROUP_GET_NUMS", "t@g")
    assert counted is not None and counted.hour.amount == 1
    await asker.send("t", b"1", 0, POP_CK="of another broker")
    (other,) = records((await pop(asker, pollTime=20_000)).body)
    assert other.properties.count(POP_CK) == 1 and receipt(other).endswith(" broker-a 0 1")


async def test_a_group_that_pops_and_pulls_is_not_given_what_it_has_committed(asker: Asker) -> None:
    """As in RocketMQ. What it has popped and not acknowledged comes again."""
    (message,) = records((await pop(asker, maxMsgNums=1, invisibleTime=1_000)).body)
    for n in range(3):
        await asker.send("t", b"%d" % (n + 1), 0)
    commit = {"consumerGroup": "g", "topic": "t", "queueId": 0, "commitOffset": 3}
    await asker.get(RequestCode.UPDATE_CONSUMER_OFFSET, **commit)
    fresh = records((await pop(asker)).body)
    if [one.body for one in fresh] != [b"3"]:  # the time of the first one was over
        assert [one.body for one in fresh] == [b"0", b"3"]
        return
    (again,) = records((await pop(asker, pollTime=20_000)).body)
    assert again.body == message.body == b"0"


@pytest.mark.parametrize("clean", ["", "false", "true"])
async def test_a_group_deleted_by_mqadmin_keeps_what_it_has_done_unless_it_is_cleaned(
    asker: Asker, clean: str
) -> None:
    (message,) = records((await pop(asker)).body)
    await asker.get(RequestCode.ACK_MESSAGE, **receipt_fields(receipt(message)))
    for n in range(2):
        await asker.send("pulled", b"%d" % n, 0)
    of = {"consumerGroup": "g", "topic": "pulled", "queueId": 0}
    await asker.get(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=1, **of)
    how = {"cleanOffset": clean} if clean else {}
    for _ in range(2):
        await asker.get(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="g", **how)
    await asker.get(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"g"}')
    offset = (await asker.get(RequestCode.QUERY_CONSUMER_OFFSET, **of))["offset"]
    assert (offset, (await pop(asker)).code) == (("0", OK) if clean == "true" else ("1", NOTHING))


async def test_a_message_that_failed_comes_again_with_the_number_of_its_attempts(asker: Asker) -> None:
    (message,) = records((await pop(asker)).body)
    changed = await asker.ask(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **receipt_fields(receipt(message)), invisibleTime=1000
    )
    assert changed.code == OK
    old = await asker.ask(RequestCode.ACK_MESSAGE, **receipt_fields(receipt(message)))
    assert old.code == ResponseCode.NO_MESSAGE
    (again,) = records((await pop(asker, pollTime=20_000)).body)
    assert (again.body, again.reconsume_times) == (b"0", 1)
    assert split_properties(again.properties).keys() == {"TAGS", "mine", POP_CK}
    assert (await asker.ask(RequestCode.ACK_MESSAGE, **receipt_fields(receipt(again)))).code == OK


async def test_a_receipt_from_before_a_reset_is_acknowledged_and_changes_nothing(asker: Asker) -> None:
    (message,) = records((await pop(asker)).body)
    fields = {"group": "g", "topic": "t", "queueId": 0, "offset": 0, "timestamp": -1}
    await asker.get(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **fields)
    acked = receipt_fields(receipt(message))
    assert (await asker.ask(RequestCode.ACK_MESSAGE, **acked)).code == OK
    (again,) = records((await pop(asker, pollTime=20_000)).body)
    assert again.body == b"0"


async def test_the_receipt_that_java_makes_after_a_change_acknowledges(asker: Asker) -> None:
    (message,) = records((await pop(asker)).body)
    fields = receipt_fields(receipt(message))
    wanted_ms, longest_ms = 100 * 3_600_000, 12 * 3_600_000
    told = await asker.get(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **fields, invisibleTime=wanted_ms)
    assert told["invisibleTime"] == str(longest_ms)
    made = f"{fields['offset']} {told['popTime']} {told['invisibleTime']} {told['reviveQid']} 0 broker-a 0 0"
    assert (await asker.ask(RequestCode.ACK_MESSAGE, **receipt_fields(made))).code == OK


async def test_the_receipt_that_java_makes_where_a_record_has_no_room_acknowledges(asker: Asker) -> None:
    told = (await pop(asker)).fields
    start = told["startOffsetInfo"].split(" ")[2]
    made = f"{start} {told['popTime']} {told['invisibleTime']} {told['reviveQid']} 0 broker-a 0 0"
    assert (await asker.ask(RequestCode.ACK_MESSAGE, **receipt_fields(made))).code == OK


def batch(receipts: list[str], **more: object) -> bytes:
    """As the Java client merges receipts of one pop."""
    words = [one.split(" ") for one in receipts]
    start = int(words[0][0])
    bits = sum(1 << int(one[7]) - start for one in words)
    ack = {
        "c": "g",
        "t": "t",
        "r": "0",
        "so": start,
        "q": int(words[0][6]),
        "rq": int(words[0][3]),
        "pt": int(words[0][1]),
        "it": int(words[0][2]),
        "b": b64encode(bits.to_bytes(1 + bits.bit_length() // 8, "little")).decode(),
    }
    return json.dumps({"brokerName": "broker-a", "acks": [ack | more]}).encode()


async def test_many_messages_are_acknowledged_at_once(asker: Asker) -> None:
    for number in range(1, 4):
        await asker.send("t", b"%d" % number, 0)
    receipts = [receipt(one) for one in records((await pop(asker, invisibleTime=1000)).body)]
    assert (await asker.ask(RequestCode.BATCH_ACK_MESSAGE, batch(receipts[1:3]))).code == OK
    found: list[bytes] = []
    while len(found) < 2:
        found += [one.body for one in records((await pop(asker, pollTime=20_000)).body)]
    assert found == [b"0", b"3"]
    # What was given again since stays with whoever has it.
    assert (await asker.ask(RequestCode.BATCH_ACK_MESSAGE, batch(receipts))).code == OK
    told = await asker.get(RequestCode.NOTIFICATION, **WAITER, pollTime=0)
    assert told["hasMsg"] == "false"
    assert (await pop(asker, pollTime=0)).code == NOTHING


async def test_a_batch_of_acknowledgements_that_is_none(asker: Asker) -> None:
    (message,) = records((await pop(asker)).body)
    for body in (b"", b"{}", b'{"acks": []}'):
        assert (await asker.ask(RequestCode.BATCH_ACK_MESSAGE, body)).code == ResponseCode.NO_MESSAGE
    many = b64encode(b"\xff" * 1_024).decode()
    for wrong in ({"b": "?"}, {"b": many}, {"so": "0"}, {"q": 1 << 63}, {"c": None}, {"q": 1 << 40}):
        answer = await asker.ask(RequestCode.BATCH_ACK_MESSAGE, batch([receipt(message)], **wrong))
        assert (answer.code == OK) == (wrong == {"q": 1 << 40}), wrong
        assert answer.code == OK or "737 REQUEST_MALFORMED" in (answer.remark or "")


def test_the_bits_of_a_batch_are_offsets_and_so_many_may_be_in_all() -> None:
    def body(*sets: bytes) -> bytes:
        named = {"c": "g", "t": "t", "so": 7, "q": 0, "rq": 1, "pt": 1}
        return json.dumps({"acks": [named | {"b": b64encode(one).decode()} for one in sets]}).encode()

    places = [0, 7, 8, 1_000, 3_072 * 8 - 1]
    bits = sum(1 << place for place in places).to_bytes(3_072, "little")
    assert [one.offsets for one in batch_acks(body(bits, b"\1"))] == [[7 + place for place in places], [7]]
    for one, two in ((b"\xff" * 512, b"\1"), (b"\xff" * 513, b"")):
        with pytest.raises(IllegalMessage):
            batch_acks(body(one, two))


WAITER = {"consumerGroup": "g", "topic": "t", "queueId": -1, "bornTime": 0}


async def test_a_peek_shows_what_a_pop_would_give(asker: Asker) -> None:
    peek = {"consumerGroup": "g", "topic": "t", "queueId": 0, "maxMsgNums": 32}
    for _ in range(2):
        answer = await asker.ask(RequestCode.PEEK_MESSAGE, **peek)
        assert (answer.code, answer.remark) == (OK, "FOUND")
        (message,) = records(answer.body)
        assert (message.body, message.reconsume_times) == (b"0", 0)
        assert POP_CK not in split_properties(message.properties)
    assert (await pop(asker, invisibleTime=1000)).code == OK
    assert (await asker.ask(RequestCode.PEEK_MESSAGE, **peek)).code == ResponseCode.PULL_NOT_FOUND
    assert (await asker.get(RequestCode.NOTIFICATION, **WAITER, pollTime=20_000))["hasMsg"] == "true"
    (again,) = records((await asker.ask(RequestCode.PEEK_MESSAGE, **peek | {"queueId": -1})).body)
    assert (again.body, again.reconsume_times) == (b"0", 1)
    for wrong, code in (
        ({"queueId": 99}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"consumerGroup": "none"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    ):
        assert (await asker.ask(RequestCode.PEEK_MESSAGE, **peek | wrong)).code == code


async def test_who_waits_is_told_of_a_message_and_counted(asker: Asker, cluster: BrokerCluster) -> None:
    polled = {"consumerGroup": "g", "topic": "t", "queueId": -1}
    assert (await pop(asker)).code == OK
    assert await asker.get(RequestCode.NOTIFICATION, **WAITER, pollTime=0) == {
        "hasMsg": "false",
        "pollingFull": "false",
    }
    assert await asker.get(RequestCode.POLLING_INFO, **polled) == {"pollingNum": "0"}
    popping = asyncio.ensure_future(pop(asker, pollTime=30_000))
    waiting = [
        asyncio.ensure_future(asker.get(RequestCode.NOTIFICATION, **WAITER, pollTime=30_000))
        for _ in range(2)
    ]
    delivery = (await cluster.master()).delivery
    await until(lambda: delivery.waiting_receives("g", "t") == 3)
    assert await asker.get(RequestCode.POLLING_INFO, **polled) == {"pollingNum": "3"}
    await asker.send("t", b"1", 0)
    answer = await popping  # what those who only ask were told of is there for who takes it
    assert [one.body for one in records(answer.body)] == [b"1"]
    await asker.send("t", b"2", 0)
    assert {one["hasMsg"] for one in await asyncio.gather(*waiting)} == {"true"}


async def test_one_engine_serves_both_protocols(cluster: BrokerCluster, asker: Asker) -> None:
    """What one client has popped the other does not get, and what it acknowledged nobody."""
    (message,) = records((await pop(asker)).body)
    delivery = (await cluster.master()).delivery

    async def by_v2() -> list[Delivery]:
        return await delivery.receive("g", "t", client_id="v2", invisible_ms=60_000)

    assert await by_v2() == []
    await asker.send("t", b"1", 0)
    (other,) = await by_v2()
    assert decode(other.record).body == b"1"
    assert (await pop(asker)).code == NOTHING
    assert (await asker.ask(RequestCode.ACK_MESSAGE, **receipt_fields(receipt(message)))).code == OK


async def test_filters_and_bounds_of_a_pop(asker: Asker) -> None:
    assert (await pop(asker, exp="(", expType="SQL92")).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert (await pop(asker, exp="b")).code == NOTHING
    await asker.send("t", b"1", 0, TAGS="b")
    assert [one.body for one in records((await pop(asker, exp="b")).body)] == [b"1"]


async def test_an_ordered_pop_keeps_the_order_of_a_queue_in_any_group(asker: Asker) -> None:
    """In RocketMQ the request decides, not the group."""
    for body in (b"1", b"2"):
        await asker.send("t", body, 0)
    first = records((await pop(asker, order="true", maxMsgNums=2)).body)
    assert [one.body for one in first] == [b"0", b"1"]
    for one in first:
        assert (await pop(asker, order="true")).code == NOTHING
        names = {"consumerGroup": "g", "topic": "t", "queueId": -1, "order": "true"}
        assert (await asker.get(RequestCode.NOTIFICATION, pollTime=0, **names))["hasMsg"] == "false"
        await asker.get(RequestCode.ACK_MESSAGE, **receipt_fields(receipt(one)))
    (last,) = records((await pop(asker, order="true")).body)
    assert last.body == b"2"
    await asker.send("t", b"3", 0)
    (unordered,) = records((await pop(asker)).body)
    assert unordered.body == b"3", "a pop without order does not wait for the others"


@pytest.mark.parametrize(
    "extra", ["", "1 2 3", "x 0 0 0 0 b 0 0", f"{1 << 62}9 0 0 0 0 b 0 0", "1 0 0 0 0 b 0 5"]
)
async def test_a_receipt_that_is_none_is_refused(asker: Asker, extra: str) -> None:
    fields = {"consumerGroup": "g", "topic": "t", "queueId": 0, "offset": 0, "extraInfo": extra}
    for code in (RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME):
        answer = await asker.ask(code, invisibleTime=60_000, **fields)
        assert answer.code in (ResponseCode.NO_MESSAGE, ResponseCode.MESSAGE_ILLEGAL)


async def test_the_broker_assigns_all_queues_to_each_member(cluster: BrokerCluster, asker: Asker) -> None:
    wanted = {"topic": "t", "consumerGroup": "g", "clientId": "c", "messageModel": "CLUSTERING"}
    found = await asker.body(RequestCode.QUERY_ASSIGNMENT, json.dumps(wanted).encode())
    queue = {"topic": "t", "brokerName": "broker-a", "queueId": -1}
    assert found == {"messageQueueAssignments": [{"messageQueue": queue, "mode": "POP"}]}
    wanted["topic"] = "%RETRY%g"
    slave = next(one for one in cluster.programs.values() if one.writer.expected is None)
    await until(lambda: slave.metadata.topic("%RETRY%g") is not None)
    found = await asker.body(RequestCode.QUERY_ASSIGNMENT, json.dumps(wanted).encode())
    assert [(one["messageQueue"]["queueId"], one["mode"]) for one in found["messageQueueAssignments"]] == [
        (0, "PULL")
    ]
    mode = {"topic": "t", "consumerGroup": "g", "popShareQueueNum": 0}
    for name, code in (("POP", OK), ("PULL", ResponseCode.MESSAGE_ILLEGAL)):
        body = json.dumps(mode | {"mode": name}).encode()
        assert (await asker.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body)).code == code


def test_each_queue_has_one_member() -> None:
    members = ["a", "b", "c"]
    assert sorted(queue for one in members for queue in share(range(8), members, one)) == list(range(8))
    assert share(range(8), members, "d") == []


async def test_an_assignment_has_the_queues_of_all_brokers(tmp_path: Path) -> None:
    """A client sends the request to one broker of the route, and drops the queues that the response lacks."""
    async with AsyncExitStack() as stack:
        names = await stack.enter_async_context(name_server(tmp_path / "names"))
        askers = []
        for name in ("broker-a", "broker-b"):
            settings = {**LISTEN, "name": name, "namesrv": [names.address]}
            cluster = await stack.enter_async_context(brokers(tmp_path / name, 1, settings))
            master = await cluster.master()
            asker = await stack.enter_async_context(asking(master.remoting.address))
            await asker.send("t", b"0", 0)
            await asker.get(RequestCode.HEART_BEAT, beat("c", "g", "t"))
            await asker.get(RequestCode.HEART_BEAT, beat("d", "g", "t"))
            askers.append(asker)
        route, both = names.name_server.tables.route, {"broker-a", "broker-b"}
        await until(lambda: all(both <= route(topic).queues.keys() for topic in ("t", "%RETRY%g")))
        for asker in askers:
            wanted = {"topic": "t", "consumerGroup": "g", "clientId": "c", "messageModel": "CLUSTERING"}
            assert await assigned(asker, wanted) == [("broker-a", -1), ("broker-b", -1)]
            wanted["topic"] = "%RETRY%g"
            assert await assigned(asker, wanted) == [("broker-a", 0)]
            assert await assigned(asker, wanted | {"clientId": "d"}) == [("broker-b", 0)]


async def assigned(asker: Asker, wanted: dict[str, str]) -> list[tuple[str, int]]:
    found = await asker.body(RequestCode.QUERY_ASSIGNMENT, json.dumps(wanted).encode())
    queues = [one["messageQueue"] for one in found["messageQueueAssignments"]]
    return [(queue["brokerName"], queue["queueId"]) for queue in queues]
