"""Conversion of peer messages between protobuf and the values of the core. Validates all received messages.

A ValueError never leaves this module. A message that violates the protocol raises InvalidRequest with a code,
so that a faulty or foreign peer costs one response and never the node.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from dledger.core.cluster_clock import CountedTime
from dledger.core.directories import MAX_DIRECTORY
from dledger.core.member_clocks import MAX_WALL_MS
from dledger.core.membership_json import decode_membership, encode_membership
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
    ENTRY_HEADER_SIZE,
    MAX_INCARNATION,
    MAX_INDEX,
    MAX_POS,
    MAX_STREAM_ID,
    MAX_UID,
    UNKNOWN_UID,
    Base,
    MembershipAt,
    OwnerFitness,
    TermRun,
    VoteResult,
)
from dledger.errors import Code, InvalidRequest
from dledger.rpc.append_wire import ReceivedAppend
from dledger.rpc.envelope import PeerClaims
from dledger.v1 import peer_pb2 as pb

_MAX_FEATURES = 1 << 16
#: Bytes of whole batches. Received bytes are never copied.
Frames = bytes | memoryview

# The header fields that determine the terms of a push: size, index and term of a stored entry. The layout is
# defined in dledger.store.format.batch. The replica verifies the whole batch later.
_PEEK = struct.Struct(">4xiqq")


def _within(name: str, value: int, minimum: int, maximum: int) -> int:
    if not minimum <= value <= maximum:
        raise InvalidRequest(f"{name} is {value}; expected {minimum} to {maximum}")
    return value


def _term(value: int, name: str = "term", least: int = 0) -> int:
    """Check the lower bound of a term. The core checks the upper ones (dledger.core.term_allowance), so that
    they are reported uniformly."""
    if value < least:
        raise InvalidRequest(f"{name} is {value}; the minimum is {least}")
    return value


def _index(name: str, value: int, least: int = -1) -> int:
    return _within(name, value, least, MAX_INDEX)


def check_handshake(incarnation: int, stream_id: int) -> None:
    """Raise InvalidRequest if a peer cannot have reached this count."""
    _within("incarnation", incarnation, 0, MAX_INCARNATION)
    _within("stream_id", stream_id, 0, MAX_STREAM_ID)


def claims_of(envelope: pb.Envelope) -> PeerClaims:
    """Return what the sender knows. Raises InvalidRequest if a number is out of range."""
    return PeerClaims(
        _within("uid", envelope.uid, UNKNOWN_UID, MAX_UID),
        _within("known_uid", envelope.known_uid, UNKNOWN_UID, MAX_UID),
        _directory(envelope.directory),
        _directory(envelope.known_directory),
    )


def _directory(number: int) -> int:
    return _within("directory", number, 0, MAX_DIRECTORY)


# ---------------------------------------------------------------------------------------------- votes


def vote_request_to_pb(message: VoteRequest, envelope: pb.Envelope) -> pb.VoteRequest:
    return pb.VoteRequest(
        envelope=envelope,
        term=message.term,
        ledger_end_index=message.ledger_end_index,
        ledger_end_term=message.ledger_end_term,
        pre_vote=message.pre_vote,
        transfer=message.transfer,
        round=message.round,
        wall_ms=_wall_to_pb(message.wall_ms),
    )


def vote_request_from_pb(request: pb.VoteRequest) -> VoteRequest:
    """Convert a message. Raises InvalidRequest if a number is out of range."""
    return VoteRequest(
        term=_term(request.term),
        candidate_id=request.envelope.local_id,
        ledger_end_index=_index("ledger_end_index", request.ledger_end_index),
        ledger_end_term=_term(request.ledger_end_term, "ledger_end_term", -1),
        pre_vote=request.pre_vote,
        transfer=request.transfer,
        round=request.round,
        wall_ms=_wall_from_pb(request.wall_ms),
    )


def vote_response_to_pb(message: VoteResponse, incarnation: int) -> pb.VoteResponse:
    return pb.VoteResponse(
        term=message.term,
        vote_result=int(message.result),
        pre_vote=message.pre_vote,
        round=message.round,
        incarnation=incarnation,
        wall_ms=_wall_to_pb(message.wall_ms),
        cluster_time=_counted_to_pb(message.cluster_time),
    )


def vote_response_from_pb(response: pb.VoteResponse, peer: str) -> VoteResponse:
    """Convert a response. Raises InvalidRequest if the peer refused the envelope or the result is unknown."""
    raise_refusal(response.refusal, peer)
    try:
        result = VoteResult(response.vote_result)
    except ValueError:
        raise InvalidRequest(f"{peer} sent the unknown vote_result {response.vote_result}") from None
    return VoteResponse(
        term=_term(response.term),
        voter_id=peer,
        result=result,
        pre_vote=response.pre_vote,
        round=response.round,
        wall_ms=_wall_from_pb(response.wall_ms),
        cluster_time=_counted_from_pb(response),
    )


# ----------------------------------------------------------------------------------------- heartbeats


def heartbeat_to_pb(message: Heartbeat, envelope: pb.Envelope) -> pb.HeartbeatRequest:
    return pb.HeartbeatRequest(
        envelope=envelope,
        term=message.term,
        round=message.round,
        committed_index=message.committed_index,
        wall_ms=_wall_to_pb(message.wall_ms),
        cluster_time=_counted_to_pb(message.cluster_time),
        image=message.image_index + 1,
    )


def heartbeat_from_pb(request: pb.HeartbeatRequest) -> Heartbeat:
    """Convert a message. Raises InvalidRequest if a number is out of range."""
    return Heartbeat(
        term=_term(request.term),
        leader_id=request.envelope.local_id,
        round=_within("round", request.round, 0, MAX_STREAM_ID),
        committed_index=_index("committed_index", request.committed_index),
        wall_ms=_wall_from_pb(request.wall_ms),
        cluster_time=_counted_from_pb(request),
        image_index=_within("image", request.image, 0, MAX_INDEX) - 1,
    )


def heartbeat_response_to_pb(message: HeartbeatResponse, incarnation: int) -> pb.HeartbeatResponse:
    return pb.HeartbeatResponse(
        term=message.term,
        round=message.round,
        success=message.success,
        incarnation=incarnation,
        not_counting=not message.counts,
        no_room=not message.has_room,
        owner=_owner_to_pb(message.owner),
        stored_all=message.stored_all,
        wall_ms=_wall_to_pb(message.wall_ms),
        features=message.features,
        image=message.image_index + 1,
    )


def heartbeat_response_from_pb(response: pb.HeartbeatResponse, peer: str) -> HeartbeatResponse:
    """Convert a response. Raises InvalidRequest if the peer refused the envelope."""
    raise_refusal(response.refusal, peer)
    return HeartbeatResponse(
        term=_term(response.term),
        node_id=peer,
        round=response.round,
        success=response.success,
        counts=not response.not_counting,
        has_room=not response.no_room,
        owner=_owner_from_pb(response.owner) if response.HasField("owner") else None,
        stored_all=response.stored_all,
        wall_ms=_wall_from_pb(response.wall_ms),
        features=_within("features", response.features, 0, _MAX_FEATURES),
        image_index=_within("image", response.image, 0, MAX_INDEX) - 1,
    )


def _wall_to_pb(wall_ms: int | None) -> int:
    """Return a wall time for the wire: 0 if there is none, as in version 0.1.0, or if the time is
    impossible."""
    return wall_ms if wall_ms is not None and 0 < wall_ms <= MAX_WALL_MS else 0


def _wall_from_pb(wall_ms: int) -> int | None:
    return _within("wall_ms", wall_ms, 0, MAX_WALL_MS) or None


def _counted_to_pb(counted: CountedTime | None) -> pb.CountedTime | None:
    """Return None if receivers would refuse the time, because a log may contain stamps of a clock with an
    impossible time."""
    if counted is None or not 0 <= counted.stamp_ms <= counted.time_ms <= MAX_WALL_MS:
        return None
    return pb.CountedTime(**counted._asdict())


def _counted_from_pb(message: pb.VoteResponse | pb.HeartbeatRequest) -> CountedTime | None:
    """Convert a message. Raises InvalidRequest if a number is out of range."""
    if not message.HasField("cluster_time"):
        return None
    counted = message.cluster_time
    stamp_ms = _within("stamp_ms", counted.stamp_ms, 0, MAX_WALL_MS)
    time_ms = _within("time_ms", counted.time_ms, stamp_ms, MAX_WALL_MS)
    return CountedTime(stamp_ms, time_ms, _within("slew_ms", counted.slew_ms, -MAX_WALL_MS, MAX_WALL_MS))


def _owner_to_pb(owner: OwnerFitness | None) -> pb.OwnerFitness | None:
    return None if owner is None else pb.OwnerFitness(lag_bytes=owner.lag_bytes, unfit=not owner.fit)


def _owner_from_pb(owner: pb.OwnerFitness) -> OwnerFitness:
    return OwnerFitness(_within("lag_bytes", owner.lag_bytes, 0, MAX_POS), not owner.unfit)


# ------------------------------------------------------------------------------------------ positions


def position_request_to_pb(message: PositionRequest, envelope: pb.Envelope) -> pb.PositionRequest:
    return pb.PositionRequest(
        envelope=envelope, term=message.term, round=message.round, directory=message.directory
    )


def position_request_from_pb(request: pb.PositionRequest) -> PositionRequest:
    """Convert a message. Raises InvalidRequest if a number is out of range."""
    return PositionRequest(
        term=_term(request.term),
        node_id=request.envelope.local_id,
        round=request.round,
        directory=_directory(request.directory),
        uid=request.envelope.uid,
        features=_within("features", request.envelope.features, 0, _MAX_FEATURES),
    )


def position_response_to_pb(message: PositionResponse) -> pb.PositionResponse:
    return pb.PositionResponse(
        term=message.term,
        round=message.round,
        ledger_end_term=message.ledger_end_term,
        ledger_end_index=message.ledger_end_index,
        rejoining=message.rejoining,
        directories=dict(message.directories),
        memberships=[_members_to_pb(known) for known in message.memberships],
    )


def position_response_from_pb(response: pb.PositionResponse, peer: str) -> PositionResponse:
    """Convert a response. Raises InvalidRequest if the peer refused."""
    raise_refusal(response.refusal, peer)
    return PositionResponse(
        term=_term(response.term),
        node_id=peer,
        round=response.round,
        ledger_end_term=_term(response.ledger_end_term, "ledger_end_term", -1),
        ledger_end_index=_index("ledger_end_index", response.ledger_end_index),
        rejoining=response.rejoining,
        directories=tuple(sorted((peer, _directory(n)) for peer, n in response.directories.items())),
        memberships=tuple(_members_from_pb(known) for known in response.memberships),
    )


def _members_to_pb(known: MembershipAt) -> pb.MembersAt:
    return pb.MembersAt(index=known.index, term=known.term, members=encode_membership(known.membership))


def _members_from_pb(known: pb.MembersAt) -> MembershipAt:
    membership = decode_membership(known.members)
    if membership is None:
        raise InvalidRequest("the configuration of the members cannot be read")
    return MembershipAt(_index("index", known.index), _term(known.term, "term", -1), membership)


# ------------------------------------------------------------------------------------ take leadership


def take_leadership_to_pb(message: TakeLeadership, envelope: pb.Envelope) -> pb.TakeLeadershipRequest:
    return pb.TakeLeadershipRequest(
        envelope=envelope, term=message.term, take_leadership_index=message.take_leadership_index
    )


def take_leadership_from_pb(request: pb.TakeLeadershipRequest) -> TakeLeadership:
    """Convert a message. Raises InvalidRequest if a number is out of range."""
    return TakeLeadership(
        term=_term(request.term),
        leader_id=request.envelope.local_id,
        take_leadership_index=_index("take_leadership_index", request.take_leadership_index),
    )


def take_leadership_response_to_pb(message: TakeLeadershipResponse) -> pb.TakeLeadershipResponse:
    return pb.TakeLeadershipResponse(term=message.term, code=int(message.code))


def take_leadership_response_from_pb(
    response: pb.TakeLeadershipResponse, peer: str
) -> TakeLeadershipResponse:
    """Convert a response. Raises InvalidRequest if the peer refused the envelope."""
    raise_refusal(response.refusal, peer)
    return TakeLeadershipResponse(term=_term(response.term), node_id=peer, code=_code(response.code))


# ---------------------------------------------------------------------------------------- push stream


def push_to_pb(message: Compare | Truncate | Commit | Goodbye | InstallBase) -> pb.PushRequest:
    """Convert a message of a push stream. For an APPEND see dledger.rpc.append_wire."""
    request = pb.PushRequest(
        term=message.term, stream_id=message.stream_id, committed_index=message.committed_index
    )
    match message:
        case Commit():
            request.commit.SetInParent()
        case Compare():
            request.compare.index = message.index
            request.compare.index_term = message.index_term
            request.compare.chain_crc = message.chain_crc
            request.compare.SetInParent()
        case Truncate():
            request.truncate.index = message.index
            request.truncate.index_term = message.index_term
            request.truncate.SetInParent()
        case Goodbye():
            request.goodbye.reason = message.reason
            request.goodbye.SetInParent()
        case InstallBase():
            base, membership = message.base, message.membership
            request.install_base.CopyFrom(
                pb.InstallBase(
                    index=base.index,
                    term=base.term,
                    pos=base.pos,
                    chain_crc=base.chain_crc,
                    members=None if membership is None else _members_to_pb(membership),
                )
            )
    return request


def push_from_pb(
    received: pb.PushRequest | ReceivedAppend, leader_id: str
) -> tuple[PushMessage, Frames | None]:
    """Return the message and, for an APPEND, its frames. Raises InvalidRequest, which names the fault."""
    request = received.request if isinstance(received, ReceivedAppend) else received
    kind = request.WhichOneof("push")
    if kind is None or (kind != "append" and kind not in _PUSH_READERS):
        raise InvalidRequest("the push message has an unknown kind")
    term, stream_id, committed_index = request.term, request.stream_id, request.committed_index
    if term < 0 or stream_id < 0 or not -1 <= committed_index <= MAX_INDEX:
        raise InvalidRequest(
            f"invalid push message: term {term}, stream_id {stream_id}, committed_index {committed_index}"
        )
    if kind == "append":
        frames = received.frames if isinstance(received, ReceivedAppend) else request.append.frames
        return _read_append(request, frames, leader_id), frames
    return _PUSH_READERS[kind](request, leader_id), None


def _read_append(request: pb.PushRequest, frames: Frames, leader_id: str) -> PushMessage:
    append = request.append
    prev_index, prev_term = append.prev_index, append.prev_term
    first_index, last_index = append.first_index, append.last_index
    is_range = -1 <= prev_index < first_index <= last_index <= MAX_INDEX and first_index == prev_index + 1
    if not is_range or not -1 <= prev_term <= request.term:
        raise InvalidRequest(
            f"the Append of {first_index}..{last_index} does not follow entry {prev_index} of term"
            f" {prev_term}"
        )
    term = request.term
    runs = term_runs(frames, first_index, last_index, term)
    return Append(
        term,
        leader_id,
        request.stream_id,
        request.committed_index,
        prev_index,
        prev_term,
        first_index,
        last_index,
        runs,
    )


def _read_compare(request: pb.PushRequest, leader_id: str) -> PushMessage:
    compare = request.compare
    return Compare(
        term=request.term,
        leader_id=leader_id,
        stream_id=request.stream_id,
        committed_index=request.committed_index,
        index=_index("index", compare.index),
        index_term=_within("index_term", compare.index_term, -1, request.term),
        chain_crc=compare.chain_crc,
    )


def _read_truncate(request: pb.PushRequest, leader_id: str) -> PushMessage:
    return Truncate(
        term=request.term,
        leader_id=leader_id,
        stream_id=request.stream_id,
        committed_index=request.committed_index,
        index=_index("index", request.truncate.index, 0),
        index_term=_within("index_term", request.truncate.index_term, -1, request.term),
    )


def _read_commit(request: pb.PushRequest, leader_id: str) -> PushMessage:
    return Commit(request.term, leader_id, request.stream_id, request.committed_index)


def _read_goodbye(request: pb.PushRequest, leader_id: str) -> PushMessage:
    reason = request.goodbye.reason
    return Goodbye(request.term, leader_id, request.stream_id, request.committed_index, reason)


def _read_install_base(request: pb.PushRequest, leader_id: str) -> PushMessage:
    message = request.install_base
    base = Base(
        _index("index", message.index, 0),
        _within("base_term", message.term, 0, request.term),
        _within("pos", message.pos, 0, MAX_POS),
        message.chain_crc,
    )
    members = _members_from_pb(message.members) if message.HasField("members") else None
    return InstallBase(request.term, leader_id, request.stream_id, request.committed_index, base, members)


_PUSH_READERS: dict[str, Callable[[pb.PushRequest, str], PushMessage]] = {
    "commit": _read_commit,
    "compare": _read_compare,
    "truncate": _read_truncate,
    "goodbye": _read_goodbye,
    "install_base": _read_install_base,
}


def term_runs(frames: Frames, first_index: int, last_index: int, leader_term: int) -> tuple[TermRun, ...]:
    """Return the terms in `frames`, read from the entry headers. Raises InvalidRequest if the entries are
    invalid.

    Terms never decrease along a log and never exceed the leader's term. If the first entry has the leader's
    term, all entries have, so in the steady state only one header is read.
    """
    if len(frames) < ENTRY_HEADER_SIZE:
        raise InvalidRequest(f"the {len(frames)} bytes of frames in an Append contain no complete entry")
    size, index, term = _PEEK.unpack_from(frames, 0)
    if index != first_index or not 0 <= term <= leader_term or size < ENTRY_HEADER_SIZE:
        raise InvalidRequest(
            f"the frames start with entry {index} of term {term}, expected entry {first_index} of term 0 "
            f"to {leader_term}"
        )
    runs = [TermRun(term, first_index)]
    at, expected, end = size, first_index + 1, len(frames)
    while term != leader_term and at < end:
        if at + ENTRY_HEADER_SIZE > end:
            raise InvalidRequest(f"the frames are truncated at entry {expected}")
        size, index, entry_term = _PEEK.unpack_from(frames, at)
        if index != expected or not term <= entry_term <= leader_term or size < ENTRY_HEADER_SIZE:
            raise InvalidRequest(
                f"the frames contain entry {index} of term {entry_term} after entry {expected - 1} of "
                f"term {term}"
            )
        if entry_term != term:
            term = entry_term
            runs.append(TermRun(term, index))
        at += size
        expected += 1
    if runs[-1].first_index > last_index:
        raise InvalidRequest(f"the frames extend beyond entry {last_index}")
    return tuple(runs)


def push_response_to_pb(message: PushResponse) -> pb.PushResponse:
    return pb.PushResponse(
        term=message.term,
        stream_id=message.stream_id,
        code=int(message.code),
        type=int(message.type),
        index=message.index,
        ledger_begin_index=message.ledger_begin_index,
        ledger_end_index=message.ledger_end_index,
        conflict_term=message.conflict_term,
        conflict_index=message.conflict_index,
        not_counting=not message.counts,
        awaits_new_term=message.awaits_new_term,
        no_room=not message.has_room,
        owner=_owner_to_pb(message.owner),
    )


def push_response_from_pb(response: pb.PushResponse, peer: str) -> PushResponse:
    """Convert a response. Raises InvalidRequest if it is a refusal or invalid."""
    if response.HasField("refusal"):
        raise_refusal(response.refusal, peer)
    kind = _PUSH_TYPES.get(response.type)
    if kind is None:
        raise InvalidRequest(f"{peer} answered with the unknown push type {response.type}")
    term, stream_id, index = response.term, response.stream_id, response.index
    begin, end = response.ledger_begin_index, response.ledger_end_index
    conflict_term, conflict_index = response.conflict_term, response.conflict_index
    if _term(term) < 0 or stream_id < 0:
        raise InvalidRequest(
            f"{peer} answered a push with invalid numbers: term {term}, stream_id {stream_id}"
        )
    numbers = (index, begin, end, conflict_term, conflict_index)
    if min(numbers) < -1 or max(numbers) > MAX_INDEX:
        raise InvalidRequest(
            f"{peer} answered a push with invalid indexes: {index}, {begin}, {end}, {conflict_term}, "
            f"{conflict_index}"
        )
    return PushResponse(
        term,
        peer,
        stream_id,
        _code(response.code),
        kind,
        index,
        begin,
        end,
        conflict_term,
        conflict_index,
        not response.not_counting,
        response.awaits_new_term,
        not response.no_room,
        _owner_from_pb(response.owner) if response.HasField("owner") else None,
    )


_PUSH_TYPES = {int(kind): kind for kind in PushType}
_CODES = {int(code): code for code in Code}


def _code(number: int) -> Code:
    """Return the code of a number. Unknown numbers, from newer versions, become UNKNOWN and never a
    success."""
    return _CODES.get(number, Code.UNKNOWN)


def raise_refusal(refusal: pb.Refusal, peer: str) -> None:
    """Raise InvalidRequest if a response of `peer` contains a refusal."""
    if refusal.code:
        raise InvalidRequest(f"{peer} refused the request: {refusal.message:.2000}", code=_code(refusal.code))
