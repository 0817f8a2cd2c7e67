"""Peer messages survive the wire unchanged, and nothing off the wire raises anything but a numbered error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.core.cluster_clock import CountedTime
from dledger.core.directories import MAX_DIRECTORY
from dledger.core.member_clocks import MAX_WALL_MS
from dledger.core.messages import (
    Append,
    Commit,
    Compare,
    Goodbye,
    Heartbeat,
    HeartbeatResponse,
    InstallBase,
    PositionRequest,
    PositionResponse,
    PushMessage,
    PushResponse,
    PushType,
    TakeLeadership,
    TakeLeadershipResponse,
    Truncate,
    VoteRequest,
    VoteResponse,
)
from dledger.core.values import (
    EMPTY_TAIL,
    RULES_VERSION,
    UNKNOWN_UID,
    Base,
    OwnerFitness,
    Tail,
    TermRun,
    VoteResult,
)
from dledger.errors import Code, InvalidRequest
from dledger.rpc import convert_peer as convert
from dledger.rpc.append_wire import encode_append
from dledger.rpc.envelope import FIRST_VERSION, PROTOCOL_VERSION, PeerIdentity
from dledger.store.format.batch import encode_batch
from dledger.v1 import peer_pb2 as pb

_IDENTITY = PeerIdentity("c", "g", "n1", ("n1", "n2"), incarnation=3)
_ENVELOPE = _IDENTITY.envelope("n2")

terms = st.integers(0, 2**62)
indexes = st.integers(-1, 2**62)
counts = st.integers(0, 2**62)
directories = st.integers(0, MAX_DIRECTORY)
nodes = st.sampled_from(["n1", "n2", "node-3"])
owners = st.none() | st.builds(OwnerFitness, lag_bytes=counts, fit=st.booleans())

crcs = st.integers(0, 2**32 - 1)
push_fields = {"term": terms, "leader_id": st.just("n1"), "stream_id": counts, "committed_index": indexes}
pushes = st.one_of(
    st.builds(Commit, **push_fields),
    st.builds(Goodbye, **push_fields, reason=st.text()),
    st.builds(Truncate, **push_fields, index=counts, index_term=indexes).filter(
        lambda message: message.index_term <= message.term
    ),
    st.builds(Compare, **push_fields, index=indexes, index_term=indexes, chain_crc=crcs).filter(
        lambda message: message.index_term <= message.term
    ),
    st.builds(InstallBase, **push_fields, base=st.builds(Base, counts, counts, counts, crcs)).filter(
        lambda message: message.base.term <= message.term
    ),
)


@given(pushes)
def test_push_messages_round_trip(message: PushMessage) -> None:
    wire = convert.push_to_pb(message).SerializeToString()
    assert convert.push_from_pb(pb.PushRequest.FromString(wire), "n1") == (message, None)


def frames_of(first_index: int, terms_of_batches: list[int]) -> bytes:
    tail = EMPTY_TAIL if first_index == 0 else Tail(first_index - 1, 0, 1000, 7)
    data = b""
    for term in terms_of_batches:
        batch = encode_batch(tail, term, [b"a", b"bb"], data_file_size=1 << 20)
        data += bytes(batch.data)
        tail = batch.tail
    return data


@given(
    first_index=st.integers(0, 10**6),
    batch_terms=st.lists(st.integers(1, 5), min_size=1, max_size=6).map(sorted),
    ahead=st.integers(0, 2),
)
def test_appends_round_trip_with_their_terms(first_index: int, batch_terms: list[int], ahead: int) -> None:
    frames = frames_of(first_index, batch_terms)
    runs: list[TermRun] = []
    for number, term in enumerate(batch_terms):
        if not runs or runs[-1].term != term:
            runs.append(TermRun(term, first_index + 2 * number))
    message = Append(
        term=batch_terms[-1] + ahead,
        leader_id="n1",
        stream_id=9,
        committed_index=4,
        prev_index=first_index - 1,
        prev_term=batch_terms[0] - 1,
        first_index=first_index,
        last_index=first_index + 2 * len(batch_terms) - 1,
        runs=tuple(runs),
    )
    wire = encode_append(message, frames)
    assert pb.PushRequest.FromString(wire).SerializeToString(deterministic=True) == wire
    assert convert.push_from_pb(pb.PushRequest.FromString(wire), "n1") == (message, frames)


@given(
    st.builds(
        VoteRequest,
        term=terms,
        candidate_id=st.just("n1"),
        ledger_end_index=indexes,
        ledger_end_term=indexes,
        pre_vote=st.booleans(),
        transfer=st.booleans(),
        round=counts,
    )
)
def test_vote_requests_round_trip(message: VoteRequest) -> None:
    wire = convert.vote_request_to_pb(message, _ENVELOPE).SerializeToString()
    assert convert.vote_request_from_pb(pb.VoteRequest.FromString(wire)) == message


@pytest.mark.parametrize(
    ("counted", "is_sent"),
    [
        (CountedTime(1, MAX_WALL_MS, 0), True),
        (CountedTime(1, MAX_WALL_MS + 1, 0), False),
        (CountedTime(-1, 5, 0), False),
    ],
)
def test_a_time_that_members_would_refuse_is_not_sent(counted: CountedTime, is_sent: bool) -> None:
    """The leader would be cut off because of a stamp that an impossible clock made."""
    wire = convert.heartbeat_to_pb(Heartbeat(1, "n1", 1, 0, cluster_time=counted), _ENVELOPE)
    assert convert.heartbeat_from_pb(wire).cluster_time == (counted if is_sent else None)


@pytest.mark.parametrize("fields", [(-1, 5, 0), (6, 5, 0), (1, MAX_WALL_MS + 1, 0), (1, 2, MAX_WALL_MS + 1)])
def test_impossible_times_of_members_are_refused(fields: tuple[int, int, int]) -> None:
    wire = pb.HeartbeatRequest(cluster_time=pb.CountedTime(**CountedTime(*fields)._asdict()))
    with pytest.raises(InvalidRequest):
        convert.heartbeat_from_pb(wire)


counted_times = st.none() | st.builds(
    lambda stamp_ms, elapsed_ms, slew_ms: CountedTime(stamp_ms, stamp_ms + elapsed_ms, slew_ms),
    st.integers(0, 1 << 42),
    st.integers(0, 1 << 40),
    st.integers(-600_000, 600_000),
)


@given(
    st.builds(
        VoteResponse,
        term=terms,
        voter_id=nodes,
        result=st.sampled_from(VoteResult),
        pre_vote=st.booleans(),
        round=counts,
        cluster_time=counted_times,
    )
)
def test_vote_responses_round_trip(message: VoteResponse) -> None:
    wire = convert.vote_response_to_pb(message, 1).SerializeToString()
    assert convert.vote_response_from_pb(pb.VoteResponse.FromString(wire), message.voter_id) == message


@given(
    st.builds(
        Heartbeat,
        term=terms,
        leader_id=st.just("n1"),
        round=counts,
        committed_index=indexes,
        cluster_time=counted_times,
    )
)
def test_heartbeats_round_trip(message: Heartbeat) -> None:
    wire = convert.heartbeat_to_pb(message, _ENVELOPE).SerializeToString()
    assert convert.heartbeat_from_pb(pb.HeartbeatRequest.FromString(wire)) == message


@given(
    st.builds(
        HeartbeatResponse,
        term=terms,
        node_id=nodes,
        round=counts,
        success=st.booleans(),
        counts=st.booleans(),
        has_room=st.booleans(),
        owner=owners,
        stored_all=st.booleans(),
    )
)
def test_heartbeat_responses_round_trip(message: HeartbeatResponse) -> None:
    wire = convert.heartbeat_response_to_pb(message, 1).SerializeToString()
    parsed = pb.HeartbeatResponse.FromString(wire)
    assert convert.heartbeat_response_from_pb(parsed, message.node_id) == message


@given(
    st.builds(TakeLeadership, term=terms, leader_id=st.just("n1"), take_leadership_index=indexes),
    st.builds(TakeLeadershipResponse, term=terms, node_id=nodes, code=st.sampled_from(Code)),
)
def test_take_leadership_round_trips(question: TakeLeadership, answer: TakeLeadershipResponse) -> None:
    wire = convert.take_leadership_to_pb(question, _ENVELOPE).SerializeToString()
    assert convert.take_leadership_from_pb(pb.TakeLeadershipRequest.FromString(wire)) == question
    wire = convert.take_leadership_response_to_pb(answer).SerializeToString()
    parsed = pb.TakeLeadershipResponse.FromString(wire)
    assert convert.take_leadership_response_from_pb(parsed, answer.node_id) == answer


@given(
    st.builds(
        PushResponse,
        term=terms,
        node_id=nodes,
        stream_id=counts,
        code=st.sampled_from(Code),
        type=st.sampled_from(PushType),
        index=indexes,
        ledger_begin_index=indexes,
        ledger_end_index=indexes,
        conflict_term=indexes,
        conflict_index=indexes,
        counts=st.booleans(),
        awaits_new_term=st.booleans(),
        has_room=st.booleans(),
        owner=owners,
    )
)
def test_push_responses_round_trip(message: PushResponse) -> None:
    wire = convert.push_response_to_pb(message).SerializeToString()
    assert convert.push_response_from_pb(pb.PushResponse.FromString(wire), message.node_id) == message


@given(
    st.builds(PositionRequest, term=terms, node_id=st.just("n1"), round=counts, directory=directories),
    st.builds(
        PositionResponse,
        term=terms,
        node_id=nodes,
        round=counts,
        ledger_end_term=indexes,
        ledger_end_index=indexes,
        rejoining=st.booleans(),
        directories=st.dictionaries(nodes, directories).map(lambda d: tuple(sorted(d.items()))),
    ),
)
def test_positions_round_trip(question: PositionRequest, answer: PositionResponse) -> None:
    wire = convert.position_request_to_pb(question, _ENVELOPE).SerializeToString()
    assert convert.position_request_from_pb(pb.PositionRequest.FromString(wire)) == question
    wire = convert.position_response_to_pb(answer).SerializeToString()
    parsed = pb.PositionResponse.FromString(wire)
    assert convert.position_response_from_pb(parsed, answer.node_id) == answer


def test_a_peer_that_does_not_know_of_rejoining_counts_and_has_room() -> None:
    beat = convert.heartbeat_response_from_pb(pb.HeartbeatResponse(term=1, round=2, success=True), "n2")
    assert (beat.counts, beat.has_room) == (True, True)
    old = pb.PushResponse(term=1, stream_id=1, code=200, type=1)
    answer = convert.push_response_from_pb(old, "n2")
    assert (answer.counts, answer.awaits_new_term) == (True, False)
    assert beat.owner is None and answer.owner is None


def test_an_owner_cannot_lag_by_less_than_nothing() -> None:
    lies = pb.OwnerFitness(lag_bytes=-1)
    with pytest.raises(InvalidRequest, match="lag_bytes"):
        convert.heartbeat_response_from_pb(pb.HeartbeatResponse(term=1, owner=lies), "n2")
    with pytest.raises(InvalidRequest, match="lag_bytes"):
        convert.push_response_from_pb(pb.PushResponse(term=1, stream_id=1, type=1, owner=lies), "n2")


int64s = st.integers(-(2**63), 2**63 - 1)
push_parts = st.one_of(
    st.builds(dict),
    st.builds(lambda i, t: {"compare": pb.Compare(index=i, index_term=t)}, int64s, int64s),
    st.builds(lambda i, t: {"truncate": pb.Truncate(index=i, index_term=t)}, int64s, int64s),
    st.builds(lambda i, t: {"install_base": pb.InstallBase(index=i, term=t, pos=i)}, int64s, int64s),
    st.builds(
        lambda p, t, f, n, d: {
            "append": pb.Append(prev_index=p, prev_term=t, first_index=f, last_index=n, frames=d)
        },
        st.integers(-2, 3),
        st.integers(-2, 3),
        st.integers(-2, 3),
        st.integers(-2, 5),
        st.one_of(st.binary(max_size=200), st.binary(max_size=50).map(lambda b: frames_of(0, [1, 2]) + b)),
    ),
)


@given(int64s, int64s, int64s, push_parts)
def test_any_push_is_a_message_or_a_numbered_error(
    term: int, stream: int, committed: int, part: dict[str, object]
) -> None:
    request = pb.PushRequest(term=term, stream_id=stream, committed_index=committed, **part)  # type: ignore[arg-type]
    try:
        message, _ = convert.push_from_pb(request, "n2")
    except InvalidRequest as error:
        assert error.code is Code.UNEXPECTED_ARGUMENT
    else:
        assert message.term >= 0 and message.stream_id >= 0 and message.committed_index >= -1


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("version", 0, Code.UNSUPPORTED_VERSION),
        ("version", 2, Code.UNSUPPORTED_VERSION),
        ("cluster_id", "other", Code.UNKNOWN_CLUSTER),
        ("group", "other", Code.UNKNOWN_GROUP),
        ("local_id", "stranger", Code.UNKNOWN_MEMBER),
        ("local_id", "n2", Code.UNKNOWN_MEMBER),  # our own id
        ("remote_id", "n3", Code.UNEXPECTED_MEMBER),
    ],
)
def test_envelopes_not_meant_for_us_are_refused(field: str, value: object, code: Code) -> None:
    receiver = PeerIdentity("c", "g", "n2", ("n1", "n2"), incarnation=1)
    envelope = _IDENTITY.envelope("n2")
    assert receiver.check(envelope) == "n1"
    setattr(envelope, field, value)
    with pytest.raises(InvalidRequest) as caught:
        receiver.check(envelope)
    assert caught.value.code is code


LISTS = [("n1", "n2"), ("n1", "n2", "n3"), ("n1", "n2", "n4")]


@pytest.mark.parametrize("ours", LISTS)
@pytest.mark.parametrize("theirs", LISTS)
def test_another_list_of_members_is_refused_whoever_asks(
    ours: tuple[str, ...], theirs: tuple[str, ...]
) -> None:
    sender = PeerIdentity("c", "g", "n1", theirs[::-1], 1)
    receiver = PeerIdentity("c", "g", "n2", ours, 1)
    if ours == theirs:
        assert receiver.check(sender.envelope("n2")) == "n1"
        return
    with pytest.raises(InvalidRequest) as caught:
        receiver.check(sender.envelope("n2"))
    assert caught.value.code is Code.MEMBERS_DIFFER
    assert ", ".join(ours) in str(caught.value) and ", ".join(sorted(theirs)) in str(caught.value)


@pytest.mark.parametrize(
    ("uid", "known", "accepted"),
    [
        (7, 7, True),
        (7, UNKNOWN_UID, True),  # it may lead by a configuration that this node does not have yet
        (UNKNOWN_UID, 7, True),  # it has just been added
        (UNKNOWN_UID, UNKNOWN_UID, False),  # it runs, and was not added
        (0, UNKNOWN_UID, False),  # the first members are known
    ],
)
def test_a_sender_beyond_the_first_members_must_have_been_added(uid: int, known: int, accepted: bool) -> None:
    uids = {"n2": 0, "n4": known}
    receiver = PeerIdentity("c", "g", "n2", ("n1", "n2"), 1, uid_of=uids.__getitem__)
    sender = PeerIdentity("c", "g", "n4", (), 1, uid_of={"n4": uid, "n2": 0}.__getitem__)
    if accepted:
        assert receiver.check(sender.envelope("n2")) == "n4"
        return
    with pytest.raises(InvalidRequest) as caught:
        receiver.check(sender.envelope("n2"))
    assert caught.value.code is Code.UNKNOWN_MEMBER


@pytest.mark.parametrize(
    "version, rules, named",
    [
        (1, 0, "release 0.1.0"),
        (2, 0, "release 0.1.0"),
        (PROTOCOL_VERSION, 0, "rules version 0"),
        (PROTOCOL_VERSION, RULES_VERSION + 1, f"rules version {RULES_VERSION + 1}"),
        (PROTOCOL_VERSION + 1, RULES_VERSION, f"protocol version {PROTOCOL_VERSION + 1}"),
    ],
)
def test_nodes_of_other_rules_are_refused_with_both_versions(version: int, rules: int, named: str) -> None:
    envelope = _IDENTITY.envelope("n2")
    envelope.version, envelope.rules_version = version, rules
    with pytest.raises(InvalidRequest) as caught:
        PeerIdentity("c", "g", "n2", ("n1", "n2"), 1).check(envelope)
    assert caught.value.code is Code.UNSUPPORTED_VERSION
    assert named in str(caught.value) and f"n2 has rules version {RULES_VERSION}" in str(caught.value)


LONG = "x" * 1_000_000


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("version", 0, Code.UNSUPPORTED_VERSION),
        ("version", 1 << 31, Code.UNSUPPORTED_VERSION),
        ("version", (1 << 32) - 1, Code.UNSUPPORTED_VERSION),
        ("rules_version", (1 << 32) - 1, Code.UNSUPPORTED_VERSION),
        ("cluster_id", LONG, Code.UNKNOWN_CLUSTER),
        ("group", LONG, Code.UNKNOWN_GROUP),
        ("members", [LONG, "n1"], Code.MEMBERS_DIFFER),
        ("members", ["n"] * 1_000_000, Code.MEMBERS_DIFFER),
        ("local_id", LONG, Code.UNKNOWN_MEMBER),
        ("local_id", "", Code.UNKNOWN_MEMBER),
        ("local_id", "a\nb", Code.UNKNOWN_MEMBER),
        ("local_id", "a\\5", Code.UNKNOWN_MEMBER),
        ("remote_id", LONG, Code.UNEXPECTED_MEMBER),
    ],
    ids=lambda value: str(value)[:20],
)
def test_no_sender_decides_how_long_a_refusal_is(field: str, value: Any, code: Code) -> None:
    sender = PeerIdentity("c", "g", "n4", ("n1", "n2"), 1, uid_of={"n4": 7, "n2": 0}.__getitem__)
    envelope = sender.envelope("n2")
    receiver = PeerIdentity("c", "g", "n2", ("n1", "n2"), 1, uid_of=lambda _: UNKNOWN_UID)
    assert receiver.check(envelope) == "n4"
    if field == "members":
        envelope.members[:] = value
    else:
        setattr(envelope, field, value)
    with pytest.raises(InvalidRequest) as caught:
        receiver.check(envelope)
    assert caught.value.code is code and len(str(caught.value)) < 1500


def test_no_response_decides_how_long_an_error_is() -> None:
    refused = pb.VoteResponse(refusal=pb.Refusal(code=401, message=LONG))
    with pytest.raises(InvalidRequest) as caught:
        convert.vote_response_from_pb(refused, "n2")
    assert len(str(caught.value)) < 3000


def test_a_node_of_release_0_2_is_a_peer_until_the_group_has_what_it_does_not_know() -> None:
    has_changed = False
    node = PeerIdentity("c", "g", "n2", ("n1", "n2"), 1, has_changed=lambda: has_changed)
    envelope = _IDENTITY.envelope("n2")
    envelope.features = 0
    assert node.check(envelope) == "n1" and node.envelope("n1").version == FIRST_VERSION
    has_changed = True
    with pytest.raises(InvalidRequest, match=r"n1 runs release 0\.2, which cannot be used after") as caught:
        node.check(envelope)
    assert caught.value.code is Code.UNSUPPORTED_VERSION
    assert node.envelope("n1").version > FIRST_VERSION, "the other one refuses this node, too"
    assert node.check(_IDENTITY.envelope("n2")) == "n1"


def test_a_refusal_is_raised_with_its_number() -> None:
    refused = pb.VoteResponse(refusal=pb.Refusal(code=int(Code.UNKNOWN_CLUSTER), message="no"))
    with pytest.raises(InvalidRequest) as caught:
        convert.vote_response_from_pb(refused, "n2")
    assert caught.value.code is Code.UNKNOWN_CLUSTER


def test_codes_of_a_newer_version_are_no_success() -> None:
    answer = convert.take_leadership_response_from_pb(pb.TakeLeadershipResponse(term=1, code=9999), "n2")
    assert answer.code is Code.UNKNOWN


_BEYOND = [2**62 + 1, 2**63 - 1]


def _numbers_of(message: Any, prefix: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], str]]:
    """The paths of all 64 bit numbers that a peer message holds, the envelope apart."""
    found = []
    for field in message.DESCRIPTOR.fields:
        if field.name in ("envelope", "refusal", "directories"):  # the last one has a test of its own
            continue
        if field.message_type is not None:
            inner = getattr(pb, field.message_type.name)()
            found += _numbers_of(inner, (*prefix, field.name))
        elif field.cpp_type == field.CPPTYPE_INT64:
            found.append((prefix, field.name))
    return found


#: Returned or compared for equality only, so nothing is computed from them.
_ECHOED = {"round", "stream_id", "incarnation"}
#: tests/core/test_term_bounds.py
_JUDGED_BY_THE_CORE = {"term", "ledger_end_term"}
_READERS: list[tuple[type[Any], Callable[[Any], object]]] = [
    (pb.VoteRequest, convert.vote_request_from_pb),
    (pb.VoteResponse, lambda m: convert.vote_response_from_pb(m, "n2")),
    (pb.HeartbeatRequest, convert.heartbeat_from_pb),
    (pb.HeartbeatResponse, lambda m: convert.heartbeat_response_from_pb(m, "n2")),
    (pb.PositionRequest, convert.position_request_from_pb),
    (pb.PositionResponse, lambda m: convert.position_response_from_pb(m, "n2")),
    (pb.TakeLeadershipRequest, convert.take_leadership_from_pb),
    (pb.TakeLeadershipResponse, lambda m: convert.take_leadership_response_from_pb(m, "n2")),
    (pb.PushRequest, lambda m: convert.push_from_pb(m, "n2")),
    (pb.PushResponse, lambda m: convert.push_response_from_pb(m, "n2")),
]
_NUMBERS = [
    (kind, reader, path, name)
    for kind, reader in _READERS
    for path, name in _numbers_of(kind())
    if name not in _ECHOED and (path or name not in _JUDGED_BY_THE_CORE)
]


def test_the_table_of_numbers_is_not_empty() -> None:
    assert len(_NUMBERS) >= 20


@pytest.mark.parametrize("value", _BEYOND)
@pytest.mark.parametrize(
    ("kind", "reader", "path", "name"),
    _NUMBERS,
    ids=[".".join((kind.DESCRIPTOR.name, *path, name)) for kind, _, path, name in _NUMBERS],
)
def test_every_number_of_a_peer_has_an_upper_end(
    kind: type[Any], reader: Callable[[Any], object], path: tuple[str, ...], name: str, value: int
) -> None:
    message = kind()
    if kind is pb.PushResponse:
        message.type = PushType.APPEND
    elif kind is pb.PushRequest and not path:
        message.commit.SetInParent()
    at = message
    for step in path:
        at = getattr(at, step)
        at = at.add() if hasattr(at, "add") else at
    setattr(at, name, value)
    with pytest.raises(InvalidRequest):
        reader(message)


@pytest.mark.parametrize("value", [-1, *_BEYOND])
def test_numbers_of_directories_have_a_lower_and_an_upper_end(value: int) -> None:
    for envelope in (pb.Envelope(directory=value), pb.Envelope(known_directory=value)):
        with pytest.raises(InvalidRequest):
            convert.claims_of(envelope)
    with pytest.raises(InvalidRequest):
        convert.position_response_from_pb(pb.PositionResponse(directories={"n1": value}), "n2")


def test_entries_that_follow_one_of_a_later_term_than_their_leader_are_refused() -> None:
    """No leader has an entry of a term that it has not reached."""
    frames = frames_of(5, [8])

    def push(prev_term: int) -> pb.PushRequest:
        append = pb.Append(prev_index=4, prev_term=prev_term, first_index=5, last_index=6, frames=frames)
        return pb.PushRequest(term=8, stream_id=1, append=append)

    message, _ = convert.push_from_pb(push(8), "n2")
    assert isinstance(message, Append) and message.prev_term == 8
    with pytest.raises(InvalidRequest, match=r"does not follow entry .* of term 9"):
        convert.push_from_pb(push(9), "n2")


def test_a_base_of_a_later_term_than_its_leader_is_refused() -> None:
    """Stored, it would be an entry of a term that the node has not reached."""
    base = pb.InstallBase(index=4, term=9, pos=100)
    with pytest.raises(InvalidRequest, match="base_term"):
        convert.push_from_pb(pb.PushRequest(term=8, stream_id=1, install_base=base), "n2")


@pytest.mark.parametrize(("incarnation", "stream_id"), [(2**31, 1), (2**63 - 1, 1), (-1, 1), (1, -1)])
def test_handshakes_out_of_range(incarnation: int, stream_id: int) -> None:
    with pytest.raises(InvalidRequest):
        convert.check_handshake(incarnation, stream_id)
    convert.check_handshake(2**31 - 1, 2**63 - 1)
