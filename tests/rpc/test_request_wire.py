"""The bytes of a client's append are those of the message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.rpc.request_wire import SessionMark, encode_append_request
from dledger.v1 import log_pb2 as pb

counts = st.integers(0, 2**62)


@given(
    st.text(max_size=9),
    counts,
    st.lists(st.binary(max_size=300), max_size=9),
    st.none() | st.builds(SessionMark, counts, counts),
    st.integers(0, 2**31),
)
def test_an_append_is_read_as_the_message_it_is(
    group: str, request_id: int, bodies: list[bytes], mark: SessionMark | None, timeout_ms: int
) -> None:
    expected = pb.AppendRequest(group=group, request_id=request_id, bodies=bodies, timeout_ms=timeout_ms)
    if mark is not None:
        expected.session.CopyFrom(pb.SessionRef(session_id=mark.session_id, seq=mark.seq))
        expected.session.SetInParent()
    wire = encode_append_request(group, request_id, bodies, mark, timeout_ms)
    assert pb.AppendRequest.FromString(wire) == expected


def test_what_is_no_bytes_is_no_body() -> None:
    with pytest.raises(TypeError):
        encode_append_request("g", 1, ["text"], None, 0)  # type: ignore[list-item]
