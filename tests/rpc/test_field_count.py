"""Messages of very many fields are refused before they are parsed."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_adapter.endpoints.rejected import Code
from broker_adapter.v2 import service_pb2 as calls
from dledger.infra.transport import field_count
from dledger.infra.transport.field_count import SMALL_BYTES, has_too_many_fields
from tests.broker_adapter.v5.world import world

LARGE = 4 << 20


def few(count: int, size: int = 0) -> calls.SendMessageRequest:
    """A batch of messages with two properties each."""
    request = calls.SendMessageRequest()
    for number in range(count):
        one = request.messages.add(body=bytes(size), topic={"name": "t"})
        one.user_properties["key"], one.user_properties["other"] = f"{number}", "x"
        one.system_properties.message_id = f"{number}"
    return request


def acks(count: int, size: int) -> calls.AckMessageRequest:
    entry = {"message_id": "0" * 34, "receipt_handle": "x" * size}
    return calls.AckMessageRequest(entries=[entry] * count)


@pytest.mark.parametrize(
    "data",
    [
        bytes((0x0A, 0)) * (LARGE // 2),  # empty messages
        calls.SendMessageRequest(messages=[{"body": b"x"}]).SerializeToString() * (LARGE // 5),
        # Properties of one message.
        bytes((0x0A, 0xFC, 0xFF, 0x7F)) + bytes((0x12, 0)) * ((0x1FFFFC) // 2),
        bytes((0x28, 1)) * (LARGE // 2),  # numbers that are not known
        bytes((0x0B, 0x0C)) * (LARGE // 2),  # groups
    ],
    ids=["messages", "bodies", "properties", "unknown", "groups"],
)
def test_smallest_fields_are_not_parsed(data: bytes) -> None:
    assert has_too_many_fields(calls.SendMessageRequest, data)


@pytest.mark.parametrize(
    "request_", [few(1, LARGE), few(1_024, 4_000), few(1_024), acks(1_024, 900), acks(3_000, 300)]
)
def test_requests_as_clients_send_them_are_parsed(request_: Message) -> None:
    assert not has_too_many_fields(type(request_), request_.SerializeToString())


@pytest.mark.parametrize("count", [0, 1, 100])
def test_fields_are_counted_at_every_depth(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(field_count, "SMALL_BYTES", 0)
    data = few(count).SerializeToString()
    fields = count * (1 + 1 + 2 + 2 * 3 + 2)  # itself, its body, topic, properties, system properties
    fields -= count  # an empty body is not there
    assert not has_too_many_fields(calls.SendMessageRequest, data, fields)
    assert not count or has_too_many_fields(calls.SendMessageRequest, data, fields - 1)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=200))
def test_whatever_the_bytes_the_count_ends(data: bytes) -> None:
    padded = data + bytes(SMALL_BYTES)
    assert has_too_many_fields(calls.SendMessageRequest, padded) in (False, True)
    assert has_too_many_fields(calls.SendMessageRequest, bytes(SMALL_BYTES) + data) in (False, True)


async def test_such_a_request_is_refused_with_a_number() -> None:
    async with world() as here:
        raw = await here.raw("AckMessage", bytes((0x1A, 0)) * (1 << 18))
        answer = calls.AckMessageResponse.FromString(raw)
        assert answer.status.code == Code.PAYLOAD_TOO_LARGE
