"""Who waits for an answer gets the first one with its correlation id; nothing stays of those who gave up."""

from __future__ import annotations

from typing import Any

import pytest

from broker_adapter.client.core.values import MessageExt, MessageQueue
from broker_adapter.client.request_reply import PendingRequests, reply_to
from broker_adapter.errors import StoredDataDamaged
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.wire.properties import join_properties

CONNECTION: Any = None


def push(correlation_id: str, body: bytes) -> RemotingCommand:
    """As a broker passes an answer on."""
    fields = {"topic": "c_REPLY_TOPIC", "properties": join_properties({"CORRELATION_ID": correlation_id})}
    return RemotingCommand(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, fields, body)


async def test_the_first_answer_counts_and_each_is_taken() -> None:
    """Of one that is not taken the broker tells its sender that nobody waits."""
    pending = PendingRequests()
    with pending.new_request() as (first_id, first), pending.new_request() as (second_id, second):
        for body in (b"a", b"b"):
            assert (await pending.answered(CONNECTION, push(first_id, body))).code == 0
        assert not second.done()
        assert (await pending.answered(CONNECTION, push(second_id, b"c"))).code == 0
        assert [(await answer).body for answer in (first, second)] == [b"a", b"c"]
    assert (await pending.answered(CONNECTION, push(first_id, b"late"))).code == 0


async def test_a_reply_that_is_unreadable_ends_the_wait() -> None:
    pending = PendingRequests()
    with pending.new_request() as (correlation_id, answer):
        request = push(correlation_id, b"no zlib")
        request.fields["sysFlag"] = "1"
        assert (await pending.answered(CONNECTION, request)).code == 0
        with pytest.raises(StoredDataDamaged, match="820"):
            await answer


async def test_nothing_is_kept_for_those_who_wait_no_more() -> None:
    pending = PendingRequests()
    for _ in range(3):
        with pending.new_request() as (_, answer):
            assert len(pending._pending) == 1
            answer.cancel()
    assert not pending._pending


def test_an_answer_says_what_its_request_said_of_it() -> None:
    said = {"CORRELATION_ID": "i", "REPLY_TO_CLIENT": "c", "CLUSTER": "main", "TTL": "3000", "TAGS": "a"}
    request = MessageExt("t", b"", MessageQueue("t", "a", 0), 0, 0, "", said, 0, 0)
    answer = reply_to(request, b"x")
    assert (answer.topic, answer.body) == ("main_REPLY_TOPIC", b"x")
    assert answer.properties == {
        "MSG_TYPE": "reply",
        "CORRELATION_ID": "i",
        "REPLY_TO_CLIENT": "c",
        "TTL": "3000",
    }
