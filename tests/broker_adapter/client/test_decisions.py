"""What the client decides, without I/O: routes, queues, what answers mean, bytes of messages."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest

from broker_adapter.client import Admin, ClientOptions, ConsumeSettings, FlowLimits, Producer, PullConsumer
from broker_adapter.client.core import requests
from broker_adapter.client.core.admin_bodies import (
    parse_consume_stats,
    parse_groups,
    parse_offset_table,
    parse_topic_stats,
    parse_topics,
)
from broker_adapter.client.core.outcomes import error_of, retries_elsewhere, send_error
from broker_adapter.client.core.queue_choice import QueueChoice, select_by_hash
from broker_adapter.client.core.route_data import TopicRoute, parse_clusters, parse_route
from broker_adapter.client.core.send_attempts import SendAttempts
from broker_adapter.client.core.values import Message, MessageQueue, decode_one
from broker_adapter.client.group_requests import parse_locked
from broker_adapter.errors import (
    BrokerError,
    FrameRefused,
    IllegalMessage,
    PutIndeterminate,
    Status,
    StoredDataDamaged,
    TopicRefused,
)
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.wire import message as record
from broker_adapter.wire.compression import CompressionType
from broker_adapter.wire.properties import join_properties
from broker_adapter.wire.sys_flag import COMPRESSED
from tests.broker_adapter.client.scripted import decode_messages

ROUTE = {
    "brokerDatas": [
        {"brokerName": "b", "cluster": "main", "brokerAddrs": {"1": "h:2"}},
        {"brokerName": "a", "cluster": "main", "brokerAddrs": {"0": "h:1", "2": "h:3"}},
    ],
    "queueDatas": [
        {"brokerName": "b", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6},
        {"brokerName": "a", "readQueueNums": 2, "writeQueueNums": 1, "perm": 6},
        {"brokerName": "c", "readQueueNums": 1, "writeQueueNums": 1, "perm": 0},
    ],
}


def route(**more: object) -> TopicRoute:
    return parse_route(json.dumps({**ROUTE, **more}).encode())


def queue(broker: str, number: int = 0) -> MessageQueue:
    return MessageQueue("t", broker, number)


def attempts(filters: dict[str, str], deadline: float = 30.0) -> SendAttempts:
    return SendAttempts("t", filters, deadline, None, is_ordered=False)


UNKNOWN = PutIndeterminate(Status.OUTCOME_UNKNOWN, "no response")


def test_an_unknown_outcome_does_not_extend_the_time_of_a_send() -> None:
    short, long = attempts({}, deadline=3.0), attempts({}, deadline=1_000.0)
    for one in (short, long):
        one.failed(queue("a"), UNKNOWN, 0.0)
        first = one.deadline
        one.failed(queue("a"), UNKNOWN, 2.0)
        assert one.deadline == first, "brokers forget the id from the first attempt on"
    assert short.deadline == 3.0 and long.deadline < 60.0


def test_no_attempt_is_safe_after_unknown_outcomes_in_several_logs() -> None:
    sending = attempts({"a": "log 1", "b": "log 2", "c": "log 1"})
    sending.failed(queue("a"), UNKNOWN, 0.0)
    assert sending.is_safe(queue("c")) and not sending.is_safe(queue("b"))
    sending.failed(queue("b"), UNKNOWN, 0.0)
    assert not any(sending.is_safe(queue(name)) for name in "abc")


def test_only_masters_take_messages_and_slaves_are_read() -> None:
    assert route().publish_queues("t") == (queue("a"),)
    assert route().subscribe_queues("t") == (queue("a"), queue("a", 1), queue("b"))


def test_an_ordered_topic_keeps_queues_of_brokers_that_are_away() -> None:
    assert route(orderTopicConf="z:1;a:2").publish_queues("t") == (queue("z"), queue("a"), queue("a", 1))


@pytest.mark.parametrize(
    ("broker", "number", "address"),
    [("a", 0, "h:1"), ("a", 1, "h:3"), ("a", 7, "h:1"), ("b", 0, "h:2"), ("z", 0, None)],
)
def test_a_slave_that_is_not_there_is_replaced(broker: str, number: int, address: str | None) -> None:
    assert route().reader(broker, number) == address


def test_numeric_keys_without_quotes_are_read_and_texts_left_alone() -> None:
    body = rb'{"brokerAddrTable":{"x{1:":{"brokerAddrs":{0:"h:1", 10 :"h{1:2"},"brokerName":"x{1:"}},'
    (found,) = parse_clusters(body + rb'"clusterAddrTable":{"c":["x{1:"]}}')["c"]
    assert found.addresses == {0: "h:1", 10: "h{1:2"} and found.name == "x{1:"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"brokerDatas":[1]}',
        b'{"queueDatas":[{"brokerName":"a"}]}',
        json.dumps({"queueDatas": [{**ROUTE["queueDatas"][0], "readQueueNums": 1 << 40}]}).encode(),
        b'{"queueDatas":[{"brokerName":"a","readQueueNums":1e999,"writeQueueNums":1,"perm":6}]}',
        b'{"queueDatas":5}',
        b'{"brokerDatas":{"a":1}}',
        json.dumps({"queueDatas": [{**ROUTE["queueDatas"][0], "readQueueNums": 40_000}] * 2}).encode(),
        json.dumps({"queueDatas": [{**ROUTE["queueDatas"][2], "readQueueNums": 0}] * 65_537}).encode(),
        json.dumps({"brokerDatas": [ROUTE["brokerDatas"][0]] * 4_097}).encode(),
        json.dumps(
            {"brokerDatas": [{"brokerName": "a", "brokerAddrs": {str(n): "h:1" for n in range(4_097)}}]}
        ).encode(),
        b'{"a":"' + b'\\"' * 1_000_000,  # from each quote a text might begin
    ],
)
def test_what_is_no_route_is_refused(body: bytes) -> None:
    with pytest.raises(FrameRefused):
        parse_route(body)


@pytest.mark.parametrize("order", ["a", "a:-1", "a:x", "a:" + "9" * 5_000, "a:٣", "a:40000;b:40000"])
def test_an_order_that_is_none_is_refused(order: str) -> None:
    with pytest.raises(FrameRefused):
        route(orderTopicConf=order).publish_queues("t")


@pytest.mark.parametrize("body", [b'{"brokerAddrTable":[1]}', b'{"clusterAddrTable":[1]}'])
def test_what_are_no_clusters_is_refused(body: bytes) -> None:
    with pytest.raises(FrameRefused):
        parse_clusters(body)


@pytest.mark.parametrize("text", ["", "x", "1_0", " 1", "٣", "1e3", "9" * 19, "9" * 4_000, "-" + "9" * 19])
def test_what_is_no_number_of_64_bits_is_refused(text: str) -> None:
    with pytest.raises(FrameRefused):
        requests.number(RemotingCommand(0, {"offset": text}), "offset")


def test_a_number_without_bounds_is_refused_in_each_body() -> None:
    queue_data = b'{"topic":"t","brokerName":"b","queueId":%s}'
    table = b'{"offsetTable":{' + queue_data % b"0" + b':{"consumerOffset":1e999,"minOffset":1e999}}}'
    config = b'{"%s":{"t":{"topicName":"t","groupName":"t","readQueueNums":1e999,"retryQueueNums":1e999}}}'
    for parse, body in (
        (parse_locked, b'{"lockOKMQSet":[' + queue_data % b"1e999" + b"]}"),
        (parse_offset_table, b'{"offsetTable":{' + queue_data % b"1e999" + b":1}}"),
        (parse_consume_stats, table),
        (parse_topic_stats, table),
        (parse_topics, config % b"topicConfigTable"),
        (parse_groups, config % b"subscriptionGroupTable"),
    ):
        with pytest.raises(FrameRefused):
            parse(body)


def test_queues_come_by_turns() -> None:
    choice = QueueChoice(5.0)
    queues = [queue("a"), queue("a", 1), queue("b")]
    assert {choice.pick(queues, 0.0) for _ in range(3)} == set(queues)


def test_brokers_that_failed_are_avoided_for_a_time_and_tried_ones_most() -> None:
    choice, queues = QueueChoice(5.0), [queue("a"), queue("b")]
    choice.failed("a", 0.0)
    assert {choice.pick(queues, 4.9).broker_name for _ in range(4)} == {"b"}
    assert choice.pick(queues, 4.9, tried=frozenset({"b"})) == queue("a")
    assert choice.pick(queues, 4.9, tried=frozenset({"a", "b"})) in queues
    assert {choice.pick(queues, 5.0).broker_name for _ in range(4)} == {"a", "b"}


def test_a_success_ends_the_avoidance() -> None:
    choice, queues = QueueChoice(5.0), [queue("a"), queue("b")]
    choice.failed("a", 0.0)
    choice.succeeded("a")
    assert {choice.pick(queues, 0.0).broker_name for _ in range(2)} == {"a", "b"}


def test_no_queue_is_an_error() -> None:
    with pytest.raises(TopicRefused, match="TOPIC_NOT_WRITABLE"):
        QueueChoice(5.0).pick([], 0.0)


def test_a_key_is_hashed_as_in_java() -> None:
    queues = [queue("a", number) for number in range(7)]
    # "hello".hashCode() is 99162322; "polygenelubricants".hashCode() is -2147483648.
    assert select_by_hash(queues, Message("t", b"x"), "hello").queue_id == 99162322 % 7
    assert select_by_hash(queues, Message("t", b"x"), "polygenelubricants").queue_id == 2147483648 % 7


def answer(code: int, remark: str | None = None) -> RemotingCommand:
    return RemotingCommand(code, remark=remark)


@pytest.mark.parametrize(
    ("code", "remark", "status"),
    [
        (1, "UNKNOWN_ERROR", Status.OUTCOME_UNKNOWN),
        (1, "[PC_SYNCHRONIZED]broker busy, start flow control for a while", Status.OUTCOME_UNKNOWN),
        (2, "[PC_SYNCHRONIZED]broker busy", Status.OUTCOME_UNKNOWN),
        (2, "[TIMEOUT_CLEAN_QUEUE]broker busy", Status.TOO_MANY_CALLS),
        (215, None, Status.TOO_MANY_CALLS),
        (14, "service not available now", Status.SHUTTING_DOWN),
        (16, "the broker's permission", Status.TOPIC_NOT_WRITABLE),
        (17, "topic[x] not exist", Status.TOPIC_UNKNOWN),
        (22, None, Status.OUTCOME_UNKNOWN),
        (13, "the message is illegal", Status.REQUEST_MALFORMED),
        (14, "703 DISK_FULL: no room", Status.DISK_FULL),
        # Neither a number that does not belong to the name, nor one whose code is another.
        (1, "703 DISK_FULL: no room", Status.OUTCOME_UNKNOWN),
        (14, "701 DISK_FULL: no room", Status.SHUTTING_DOWN),
        (14, "703 NONSENSE: no room", Status.SHUTTING_DOWN),
    ],
)
def test_what_the_answer_to_a_send_means(code: int, remark: str | None, status: Status) -> None:
    assert send_error(answer(code, remark), "h:1").status is status


@pytest.mark.parametrize(
    ("code", "status"),
    [(1, Status.REQUEST_FAILED), (22, Status.MESSAGE_NOT_FOUND), (16, Status.CHANGE_NOT_ALLOWED)],
)
def test_what_other_answers_mean(code: int, status: Status) -> None:
    assert error_of(answer(code), "h:1").status is status


@pytest.mark.parametrize(("code", "again"), [(1, True), (2, True), (14, True), (17, True), (13, False)])
def test_a_wrong_message_is_not_sent_again(code: int, again: bool) -> None:
    assert retries_elsewhere(send_error(answer(code), "h:1")) is again


def test_the_text_of_an_error_names_the_server_and_its_reason_once() -> None:
    assert (
        str(send_error(answer(14, "703 DISK_FULL: no room"), "h:1")) == "703 DISK_FULL: h:1: code 14: no room"
    )


@pytest.mark.parametrize(
    "message",
    [
        Message("t", b"x", delay_level=19),
        Message("t", b"x", delay_level=-1),
        Message("t", b"x", keys=["two words"]),
        Message("t", b"x", keys=[""]),
        Message("t", b"x", properties={"UNIQ_KEY": "mine"}),
    ],
)
def test_what_a_message_may_not_say(message: Message) -> None:
    with pytest.raises(IllegalMessage):
        message.wire_properties("K")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("topic", 1),
        ("body", "text"),
        ("body", None),
        ("tags", ["a"]),
        ("delay_level", "3"),
        ("properties", {"price": 5}),
        ("properties", {5: "price"}),
        ("properties", "price"),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_name(field: str, value: Any) -> None:
    fields: dict[str, Any] = {"topic": "t", "body": b"x", field: value}
    with pytest.raises(IllegalMessage, match=f"{field.removesuffix('ies')}.* of a message must be"):
        Message(**fields)


def test_a_text_of_keys_is_not_split_into_letters() -> None:
    assert Message("t", b"x", keys="k1").wire_properties("K")["KEYS"] == "k1"
    assert Message("t", b"x", keys="k1  k2").keys == ("k1", "k2")


def test_properties_of_a_message() -> None:
    message = Message("t", b"x", tags="a", keys=["k", "l"], delay_level=3, properties={"mine": "1"})
    assert message.wire_properties("K") == {
        "mine": "1",
        "TAGS": "a",
        "KEYS": "k l",
        "DELAY": "3",
        "UNIQ_KEY": "K",
        "WAIT": "true",
    }


def test_the_bytes_of_a_batch() -> None:
    item = b"\0\0\0\x1d" + bytes(8) + b"\0\0\0\x07" + b"\0\0\0\x02hi" + b"\0\x05k\x01vv\x02"
    assert requests.batch_body([(b"hi", {"k": "vv"}, 7)]) == item


def stored(body: bytes, sys_flag: int) -> bytes:
    text = join_properties({"UNIQ_KEY": "K", "TAGS": "a"})
    return bytes(
        record.encode(record.MessageRecord("t", body, text, queue_id=3, queue_offset=9, sys_flag=sys_flag))
    )


def test_received_messages_are_inflated() -> None:
    plain, packed = stored(b"one", 0), stored(zlib.compress(b"two"), CompressionType.ZLIB.sys_flag)
    first, second = decode_messages(plain + packed, "a")
    assert (first.body, second.body, second.sys_flag) == (b"one", b"two", 0)
    assert (first.queue, first.queue_offset) == (MessageQueue("t", "a", 3), 9)
    assert (first.message_id, first.tags) == ("K", "a")


@pytest.mark.parametrize(
    ("body", "sys_flag"),
    [
        (b"no zlib", COMPRESSED),
        (zlib.compress(b"two")[:-1], COMPRESSED),
        (zlib.compress(bytes((16 << 20) + 1)), COMPRESSED),
        (b"zstd", CompressionType.ZSTD.sys_flag),
    ],
)
def test_bodies_that_cannot_be_inflated_or_are_too_large_do_not_hide_others(
    body: bytes, sys_flag: int
) -> None:
    first, second = decode_messages(stored(body, sys_flag) + stored(b"next", 0), "a")
    assert (first.body, first.sys_flag) == (body, sys_flag)
    assert first.body_error is not None and first.body_error.status is Status.BODY_UNREADABLE
    assert (second.body, second.body_error) == (b"next", None)
    with pytest.raises(StoredDataDamaged, match="820"):
        decode_one(stored(body, sys_flag), "a")


@pytest.mark.parametrize("size", [0, 5])
def test_bodies_are_neither_empty_nor_too_large(size: int) -> None:
    with pytest.raises(BrokerError):
        requests.check_body(size, 4)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"timeout": "3"}, TypeError),
        ({"timeout": 0.0}, ValueError),
        ({"max_in_flight": -1}, ValueError),
        ({"max_topics": 1.5}, TypeError),
        ({"compress_type": "LZ4"}, TypeError),
        ({"credentials": ("k", "s")}, TypeError),
    ],
)
def test_options_of_another_type_or_range_are_refused_by_their_name(
    wrong: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error, match=f"{next(iter(wrong))} must be"):
        ClientOptions(**wrong)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"batch": 0}, ValueError),
        ({"pull_batch": "x"}, TypeError),
        ({"limits": 5}, TypeError),
        ({"is_ordered": 1}, TypeError),
        ({"threads": True}, TypeError),
    ],
)
def test_settings_with_which_nothing_would_be_consumed_are_refused(
    wrong: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error, match=f"{next(iter(wrong))} must be"):
        ConsumeSettings(**wrong)
    with pytest.raises(ValueError, match="messages must be above 0"):
        FlowLimits(messages=0)


async def test_negative_offsets_are_refused_before_they_are_sent() -> None:
    queue = MessageQueue("t", "b", 0)
    with pytest.raises(IllegalMessage, match="the offset -1 is negative"):
        await Admin("127.0.0.1:1").reset_offset("g", queue, -1)
    consumer = PullConsumer("g", "127.0.0.1:1")
    consumer.assign([queue])
    with pytest.raises(IllegalMessage, match="the offset -5 is negative"):
        await consumer.commit(queue, -5)
    with pytest.raises(IllegalMessage, match="the offset -1 is negative"):
        await consumer.pull(queue, -1)
    with pytest.raises(IllegalMessage, match="the offset -1 is negative"):
        consumer.seek(queue, -1)


@pytest.mark.parametrize("address", ["foo", "127.0.0.1", "h:99999", "h:1,h:2"])
async def test_an_address_of_a_name_server_without_a_port_is_refused_at_once(address: str) -> None:
    with pytest.raises(ValueError, match="is not an address of the form host:port"):
        Producer("g", address)


@pytest.mark.parametrize("flag", [1 << 31, -(1 << 31) - 1, 1 << 40])
def test_a_flag_that_does_not_fit_is_refused_before_it_is_sent(flag: int) -> None:
    with pytest.raises(IllegalMessage, match="FIELD_OUT_OF_RANGE"):
        Message("t", b"x", flag=flag)


def test_the_greatest_flags_and_the_longest_delay_are_accepted() -> None:
    for flag in ((1 << 31) - 1, -(1 << 31)):
        message = Message("t", b"x", flag=flag, delay_level=18)
        assert message.wire_properties("K")["DELAY"] == "18"
