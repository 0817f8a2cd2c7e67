"""What members of a group decide, without I/O: who has which queue, what may be committed, what is asked."""

from __future__ import annotations

import json
from random import Random

import pytest

from broker_adapter.client import group_requests
from broker_adapter.client.core.process_queue import FlowLimits, ProcessQueue
from broker_adapter.client.core.pulling import pull_request, pull_result
from broker_adapter.client.core.rebalance import (
    AllocateStrategy,
    allocate_averagely,
    allocate_averagely_by_circle,
)
from broker_adapter.client.core.subscription import SqlFilter, Subscription
from broker_adapter.client.core.values import MessageExt, MessageQueue
from broker_adapter.errors import FrameRefused, IllegalMessage, RemotingFailed, TopicRefused
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.wire import message as record
from broker_adapter.wire.properties import join_properties
from tests.broker_adapter.client.scripted import finish

QUEUES = [MessageQueue("t", broker, number) for broker in "ab" for number in range(4)]
STRATEGIES = [allocate_averagely, allocate_averagely_by_circle]


def numbers(queues: list[MessageQueue]) -> list[int]:
    return [QUEUES.index(queue) for queue in queues]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("members", range(1, 11))
def test_each_queue_has_one_member_and_shares_differ_by_one(strategy: AllocateStrategy, members: int) -> None:
    names = [f"c{number}" for number in range(members)]
    shares = [strategy(QUEUES, names, name) for name in names]
    assert sorted(queue for share in shares for queue in share) == QUEUES
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_averagely_gives_neighbours() -> None:
    """As RocketMQ's own members of the group compute it."""
    shares = [numbers(allocate_averagely(QUEUES, ["x", "y", "z"], name)) for name in "xyz"]
    assert shares == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_by_circle_gives_queues_by_turns() -> None:
    shares = [numbers(allocate_averagely_by_circle(QUEUES, ["x", "y", "z"], name)) for name in "xyz"]
    assert shares == [[0, 3, 6], [1, 4, 7], [2, 5]]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_order_in_which_a_broker_lists_them_does_not_matter(strategy: AllocateStrategy) -> None:
    shuffled = Random(1).sample(QUEUES, len(QUEUES))
    assert strategy(shuffled, ["z", "x", "x", "y"], "y") == strategy(QUEUES, ["x", "y", "z"], "y")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_who_is_no_member_has_nothing(strategy: AllocateStrategy) -> None:
    assert strategy(QUEUES, ["x"], "stranger") == []
    assert strategy(QUEUES, [], "stranger") == []


def message(offset: int, *, size: int = 1, tags: str = "") -> MessageExt:
    return MessageExt(
        "t",
        b"x",
        QUEUES[0],
        offset,
        100 + offset,
        f"ID{offset}",
        {"TAGS": tags} if tags else {},
        0,
        0,
        size=size,
    )


def filled(*offsets: int, begin: int = 0) -> ProcessQueue:
    queue = ProcessQueue(begin)
    queue.add([message(offset) for offset in offsets], max(offsets) + 1)
    return queue


def test_only_what_is_done_without_a_gap_is_committed() -> None:
    queue = filled(0, 1, 2)
    first, second, third = queue.take_messages(3)
    queue.done([second])
    assert queue.to_commit() is None
    queue.done([first])
    assert queue.to_commit() == 2
    queue.committed(2)
    assert queue.to_commit() is None
    queue.done([third])
    assert queue.to_commit() == 3 and len(queue) == 0


def test_messages_that_the_broker_filtered_are_committed_too() -> None:
    queue = ProcessQueue(0)
    queue.add([], 50)
    assert queue.to_commit() == queue.next_offset == 50


def test_what_waits_is_not_committed() -> None:
    queue = filled(5, 6, begin=5)
    queue.add([], 90)
    assert queue.to_commit() is None and queue.next_offset == 90


def test_nothing_of_a_dropped_queue_is_committed() -> None:
    queue = filled(0)
    queue.done(queue.take_messages(1))
    queue.is_dropped = True
    assert queue.to_commit() is None


def test_messages_put_back_come_again_in_their_order() -> None:
    queue = filled(0, 1, 2)
    taken = queue.take_messages(2)
    queue.put_back(taken)
    assert [one.queue_offset for one in queue.take_messages(9)] == [0, 1, 2]
    assert queue.to_commit() is None


def test_a_message_that_comes_twice_is_taken_once() -> None:
    queue = filled(0, 1)
    queue.add([message(0), message(1), message(2)], 3)
    assert [one.queue_offset for one in queue.take_messages(9)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("limits", "full"),
    [
        (FlowLimits(messages=3), True),
        (FlowLimits(messages=4), False),
        (FlowLimits(size=3), True),
        (FlowLimits(size=4), False),
        (FlowLimits(span=9), True),
        (FlowLimits(span=11), False),
    ],
)
def test_a_full_queue_is_not_pulled(limits: FlowLimits, full: bool) -> None:
    queue = filled(0, 1, 9)
    assert queue.is_full(limits) is full
    queue.done(queue.take_messages(3))
    assert not queue.is_full(limits)


@pytest.mark.parametrize(("begin", "to"), [(7, 3), (7, 20)])
def test_an_offset_that_is_not_there_is_moved(begin: int, to: int) -> None:
    queue = ProcessQueue(begin)
    queue.move_to(to)
    assert queue.next_offset == to
    assert queue.to_commit() == (to if to > begin else None)


def test_tags_of_a_subscription() -> None:
    one = Subscription("t", " a || b||")
    assert one.tags == ("a", "b") and one.wants(message(0, tags="b")) and not one.wants(message(0, tags="ab"))
    assert not one.wants(message(0))
    every = Subscription("t")
    assert every.wants(message(0)) and every.wants(message(0, tags="x"))


def test_brokers_are_told_the_hashes_of_tags() -> None:
    found = Subscription("t", "hello", 5).to_json()
    assert (found["codeSet"], found["tagsSet"], found["subVersion"]) == ([99162322], ["hello"], 5)


@pytest.mark.parametrize("expression", ["", " || ", "||".join(map(str, range(1025)))])
def test_what_is_no_expression(expression: str) -> None:
    with pytest.raises(IllegalMessage):
        Subscription("t", expression)


def answer(code: int, body: bytes = b"", **fields: str) -> RemotingCommand:
    offsets = {"nextBeginOffset": "7", "minOffset": "1", "maxOffset": "9"}
    return RemotingCommand(code, {**offsets, **fields}, body)


def test_a_condition_is_left_to_the_broker() -> None:
    one = Subscription("t", SqlFilter("price > 10"), 5)
    assert one.to_json() == {
        "classFilterMode": False,
        "codeSet": [],
        "expressionType": "SQL92",
        "subString": "price > 10",
        "subVersion": 5,
        "tagsSet": [],
        "topic": "t",
    }
    fields = pull_request("g", QUEUES[1], 5, one, max_messages=32, wait_s=0.0).fields
    assert (fields["expressionType"], fields["subscription"]) == ("SQL92", "price > 10")
    with pytest.raises(IllegalMessage):
        Subscription("t", SqlFilter(" "))


def test_a_pull_filters_tags_of_the_same_hash() -> None:
    texts = [join_properties({"TAGS": tag}) for tag in ("Aa", "BB")]
    body = b"".join(bytes(record.encode(record.MessageRecord("t", b"x", text))) for text in texts)
    result = finish(
        pull_result(answer(0, body, suggestWhichBrokerId="1"), QUEUES[0], Subscription("t", "BB"), 32)
    )
    assert [one.tags for one in result.messages] == ["BB"]
    assert (result.next_offset, result.min_offset, result.max_offset, result.suggested_broker) == (7, 1, 9, 1)


@pytest.mark.parametrize("status", [19, 20, 21])
def test_a_pull_without_messages(status: int) -> None:
    result = finish(pull_result(answer(status), QUEUES[0], Subscription("t"), 32))
    assert result.status == status and not result.messages and result.next_offset == 7


def test_an_answer_that_is_none_to_a_pull() -> None:
    with pytest.raises(TopicRefused):
        finish(pull_result(answer(17), QUEUES[0], Subscription("t"), 32))
    with pytest.raises(RemotingFailed, match="804 REQUEST_FAILED"):
        finish(pull_result(answer(1), QUEUES[0], Subscription("t"), 32))
    with pytest.raises(FrameRefused):
        finish(pull_result(answer(19, nextBeginOffset="x"), QUEUES[0], Subscription("t"), 32))


@pytest.mark.parametrize(("wait_s", "flags", "millis"), [(0.0, "4", "0"), (15.0, "6", "15000")])
def test_a_long_poll_is_asked_for_by_a_flag(wait_s: float, flags: str, millis: str) -> None:
    fields = pull_request("g", QUEUES[1], 5, Subscription("t"), max_messages=32, wait_s=wait_s).fields
    assert (fields["sysFlag"], fields["suspendTimeoutMillis"], fields["queueOffset"]) == (flags, millis, "5")


def test_a_heartbeat_names_groups_and_subscriptions() -> None:
    request = group_requests.heartbeat("me", producers=["p"], group="g", subscriptions=[Subscription("t")])
    found = json.loads(request.body)
    assert found["clientID"] == "me" and found["producerDataSet"] == [{"groupName": "p"}]
    (consumer,) = found["consumerDataSet"]
    assert (consumer["groupName"], consumer["messageModel"]) == ("g", "CLUSTERING")
    assert [one["topic"] for one in consumer["subscriptionDataSet"]] == ["t"]
    assert json.loads(group_requests.heartbeat("me").body)["consumerDataSet"] == []


def test_a_message_goes_back_under_the_topic_to_which_it_was_sent() -> None:
    again = MessageExt("%RETRY%g", b"x", QUEUES[0], 0, 77, "ID", {"RETRY_TOPIC": "t"}, 0, 0)
    fields = group_requests.send_back("g", again, delay_level=0, max_attempts=16).fields
    assert (fields["originTopic"], fields["offset"], fields["maxReconsumeTimes"]) == ("t", "77", "16")


def test_locks_and_members_are_read() -> None:
    request = group_requests.lock("g", "me", QUEUES[:1])
    assert json.loads(request.body)["mqSet"] == [{"topic": "t", "brokerName": "a", "queueId": 0}]
    body = b'{"lockOKMQSet":[{"topic":"t","brokerName":"a","queueId":0}]}'
    assert group_requests.parse_locked(body) == set(QUEUES[:1])
    assert group_requests.parse_members(b'{"consumerIdList":["x","y"]}') == ["x", "y"]
    assert group_requests.parse_members(b"{}") == []


@pytest.mark.parametrize("body", [b"", b"[]", b'{"lockOKMQSet":3}', b'{"lockOKMQSet":[1]}'])
def test_what_is_no_list_of_locks(body: bytes) -> None:
    with pytest.raises(FrameRefused):
        group_requests.parse_locked(body)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"consumerIdList":3}'])
def test_what_is_no_list_of_members(body: bytes) -> None:
    with pytest.raises(FrameRefused):
        group_requests.parse_members(body)
