"""An APPEND taken from its bytes as they are: the same message, and the same opinion of what is none."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from dledger.core.messages import Append
from dledger.core.values import TermRun
from dledger.rpc import append_wire
from dledger.rpc.append_wire import AppendEncoder, ReceivedAppend, encode_append, parse_push
from dledger.v1 import peer_pb2 as pb

numbers = st.integers(0, 2**62)
FRAMES = b"frames" * 1000


def append_of(term: int, committed: int, prev: int) -> Append:
    return Append(term, "n1", 9, committed, prev, term, prev + 1, prev + 5, (TermRun(term, prev + 1),))


def whole(received: object) -> pb.PushRequest:
    """As protobuf would have it."""
    if not isinstance(received, ReceivedAppend):
        assert isinstance(received, pb.PushRequest)
        return received
    request = pb.PushRequest()
    request.CopyFrom(received.request)
    request.append.frames = bytes(received.frames)
    return request


@given(numbers, st.integers(-1, 2**62), st.integers(-1, 2**61))
def test_the_frames_of_an_append_are_not_copied(term: int, committed: int, prev: int) -> None:
    wire = encode_append(append_of(term, committed, prev), FRAMES)
    received = parse_push(wire)
    assert isinstance(received, ReceivedAppend)
    assert received.frames.obj is wire
    assert received.frames == FRAMES
    assert whole(received) == pb.PushRequest.FromString(wire)


@pytest.mark.parametrize(
    "request_",
    [
        pb.PushRequest(term=5, stream_id=2, commit=pb.Commit()),
        pb.PushRequest(term=5, goodbye=pb.Goodbye(reason="long" * 2000)),
        pb.PushRequest(envelope=pb.Envelope(group="g" * 9000), term=3),
        pb.PushRequest(envelope=pb.Envelope(group="g"), append=pb.Append(first_index=3, frames=FRAMES)),
        pb.PushRequest(append=pb.Append(frames=FRAMES)),
        pb.PushRequest(append=pb.Append(frames=b"short")),
        pb.PushRequest(append=pb.Append()),
    ],
    ids=lambda request: request.WhichOneof("push") or "none",
)
def test_every_message_of_the_stream_is_read_as_protobuf_reads_it(request_: pb.PushRequest) -> None:
    assert whole(parse_push(request_.SerializeToString())) == request_


def test_fields_in_another_order_are_read_all_the_same() -> None:
    """Another implementation may write them as it likes; the last of a field counts."""
    append = pb.Append(frames=FRAMES).SerializeToString() + pb.Append(first_index=7).SerializeToString()
    wire = b"\x3a" + b"%c%c" % (len(append) & 0x7F | 0x80, len(append) >> 7) + append
    for late in (b"", pb.PushRequest(term=8).SerializeToString()):
        assert whole(parse_push(wire + late)) == pb.PushRequest.FromString(wire + late)


@given(
    st.binary(max_size=60),
    st.integers(0, 40),
    st.integers(0, 10),
)
def test_what_protobuf_refuses_is_refused(noise: bytes, at: int, drop: int) -> None:
    wire = encode_append(append_of(5, 4, 3), b"frames" * 3)
    broken = wire[:at] + noise + wire[at + drop :]
    try:
        expected: pb.PushRequest | None = pb.PushRequest.FromString(broken)
    except DecodeError:
        expected = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(append_wire, "_MIN_VIEW_BYTES", 0)
        found = parse_push(broken)
    assert (None if found is None else whole(found)) == expected


def test_what_goes_to_all_followers_is_put_together_once() -> None:
    encoder = AppendEncoder()
    first = encoder.encode(append_of(5, 4, 3), FRAMES)
    assert encoder.encode(append_of(5, 4, 3), FRAMES) is first
    other = bytes(bytearray(FRAMES))
    for message, frames in ((append_of(5, 5, 3), FRAMES), (append_of(5, 5, 3), other[:-1])):
        assert encoder.encode(message, frames) == encode_append(message, frames)
