"""A send that no limit allows is refused before it is read: 300,000 properties take a second."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import Message

from broker_adapter.endpoints.rejected import Code, Rejected
from broker_adapter.endpoints.v5.messages.message_in import MAX_PROPERTIES
from broker_adapter.endpoints.v5.messages.methods import MAX_MESSAGES, METHODS, SEND_MESSAGE
from broker_adapter.endpoints.v5.messages.request import Request
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from broker_adapter.v2 import shape_pb2 as client_shapes
from dledger.infra.loops.turns import LARGE_BYTES


def never(_: bytes) -> Message:
    raise AssertionError("it was read as a whole")


def properties(count: int) -> dict[str, str]:
    return {f"{i:06}": "x" for i in range(count)}


def sends(**fields: Any) -> bytes:
    return calls.SendMessageRequest(messages=[pb.Message(**fields)]).SerializeToString()


@pytest.mark.parametrize(
    ("request_bytes", "code"),
    [
        (sends(user_properties=properties(10_000)), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (sends(user_properties=properties(129), body=b"x" * LARGE_BYTES), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (b"\x0a\x00" * (MAX_MESSAGES + 1), Code.BAD_REQUEST),
        (b"\x0a\xff" * LARGE_BYTES, Code.BAD_REQUEST),
    ],
    ids=["properties", "one too many beside a body", "messages", "garbage"],
)
def test_a_send_beyond_any_limit_is_refused_without_being_read(
    request_bytes: bytes, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unreadable:
        FromString = staticmethod(never)

    method = METHODS[SEND_MESSAGE]._replace(request=Unreadable)  # type: ignore[arg-type]
    monkeypatch.setitem(METHODS, SEND_MESSAGE, method)
    with pytest.raises(Rejected) as refused:
        Request(SEND_MESSAGE, request_bytes).parsed()
    assert refused.value.code == code


def test_a_large_send_within_the_limits_is_read_as_it_is() -> None:
    given = sends(user_properties=properties(MAX_PROPERTIES), body=b"x" * (4 << 20))
    assert Request(SEND_MESSAGE, given).parsed().SerializeToString(
        deterministic=True
    ) == calls.SendMessageRequest.FromString(given).SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("shape", "meant"),
    [
        (client_shapes.SendMessageShape, calls.SendMessageRequest),
        (client_shapes.MessageShape, pb.Message),
    ],
)
def test_shapes_have_the_names_and_numbers_of_what_is_meant(shape: Any, meant: Any) -> None:
    for field in shape.DESCRIPTOR.fields:
        same = meant.DESCRIPTOR.fields_by_name[field.name]
        assert (field.number, field.is_repeated) == (same.number, same.is_repeated)
