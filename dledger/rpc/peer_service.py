"""PeerService: checks sender and recipient of the other members' requests, converts them, and passes them to
the node."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeAlias

import grpc.aio

from dledger.core.messages import (
    HeartbeatResponse,
    PositionResponse,
    PushMessage,
    PushResponse,
    TakeLeadershipResponse,
    VoteResponse,
)
from dledger.errors import Code, DLedgerError, InvalidRequest, Overloaded
from dledger.infra.transport.first_messages import FirstMessages
from dledger.infra.transport.handlers import malformed
from dledger.infra.transport.peer_names import PeerNames
from dledger.rpc import convert_peer as convert
from dledger.rpc.copies import Copies
from dledger.rpc.envelope import refusal
from dledger.rpc.peer_transport import check_fetch
from dledger.rpc.ports import ImageQuestion, PeerPort
from dledger.rpc.push_stream import PushReceiver
from dledger.v1 import peer_pb2 as pb

_log = logging.getLogger(__name__)

_MAX_LOGGED = 64
#: Calls of members that copy entries or images. Each member makes one at a time.
_MAX_COPIES = 16

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


def _as_refusal(error: DLedgerError | TimeoutError) -> pb.Refusal:
    if isinstance(error, DLedgerError):
        return pb.Refusal(code=int(error.code), message=error.message)
    return pb.Refusal(code=int(Code.TIMEOUT), message="the node did not answer in time")


class PeerService:
    """The server side of votes, heartbeats, pushes and transfers of leadership."""

    def __init__(
        self,
        port: PeerPort,
        names: PeerNames | None = None,
        limit_hit: Callable[[str], None] = lambda _: None,
        first_messages: FirstMessages | None = None,
    ) -> None:
        self._port = port
        self._names = names
        self._first_messages = first_messages or FirstMessages()
        self._limit_hit = limit_hit
        self._copies = Copies(_MAX_COPIES, "copies for members are under way", lambda: limit_hit("copies"))
        self._logged_hosts: set[str] = set()  # addresses of senders with a wrong secret

    def _admit(self, envelope: pb.Envelope, context: _Context) -> str:
        """Return the sender's node id if envelope and certificate agree and neither node was replaced or uses
        a replaced directory, or raise InvalidRequest."""
        identity = self._port.identity
        try:
            peer = identity.check(envelope)
        except InvalidRequest as error:
            self._count_wrong_secret(error, context)
            raise
        if self._names is not None:
            self._names.check(peer, context.auth_context())
        self._port.check_claims(peer, convert.claims_of(envelope))
        return peer

    def _count_wrong_secret(self, error: InvalidRequest, context: _Context) -> None:
        """Count messages with a wrong secret, and log each address once."""
        if error.code is not Code.SECRET_REFUSED:
            return
        self._limit_hit("cluster_secret")
        host = context.peer().rpartition(":")[0]
        if host not in self._logged_hosts and len(self._logged_hosts) < _MAX_LOGGED:
            self._logged_hosts.add(host)
            _log.error("%s sent a message as a member with %s", host, error.message)

    async def vote(self, request: pb.VoteRequest | None, context: _Context) -> pb.VoteResponse:
        try:
            if request is None:
                raise malformed()
            peer = self._admit(request.envelope, context)
            answer = await self._port.request(peer, convert.vote_request_from_pb(request))
        except (DLedgerError, TimeoutError) as error:
            return pb.VoteResponse(refusal=_as_refusal(error))
        assert isinstance(answer, VoteResponse)
        return convert.vote_response_to_pb(answer, self._port.identity.incarnation)

    async def heartbeat(self, request: pb.HeartbeatRequest | None, context: _Context) -> pb.HeartbeatResponse:
        try:
            if request is None:
                raise malformed()
            peer = self._admit(request.envelope, context)
            answer = await self._port.request(peer, convert.heartbeat_from_pb(request))
        except (DLedgerError, TimeoutError) as error:
            return pb.HeartbeatResponse(refusal=_as_refusal(error))
        assert isinstance(answer, HeartbeatResponse)
        return convert.heartbeat_response_to_pb(answer, self._port.identity.incarnation)

    async def take_leadership(
        self, request: pb.TakeLeadershipRequest | None, context: _Context
    ) -> pb.TakeLeadershipResponse:
        try:
            if request is None:
                raise malformed()
            peer = self._admit(request.envelope, context)
            answer = await self._port.request(peer, convert.take_leadership_from_pb(request))
        except (DLedgerError, TimeoutError) as error:
            return pb.TakeLeadershipResponse(refusal=_as_refusal(error))
        assert isinstance(answer, TakeLeadershipResponse)
        return convert.take_leadership_response_to_pb(answer)

    async def position(self, request: pb.PositionRequest | None, context: _Context) -> pb.PositionResponse:
        try:
            if request is None:
                raise malformed()
            peer = self._admit(request.envelope, context)
            answer = await self._port.request(peer, convert.position_request_from_pb(request))
        except (DLedgerError, TimeoutError) as error:
            return pb.PositionResponse(refusal=_as_refusal(error))
        assert isinstance(answer, PositionResponse)
        return convert.position_response_to_pb(answer)

    async def fetch(self, request: pb.FetchRequest | None, context: _Context) -> None:
        try:
            if request is None:
                raise malformed()
            self._copies.count(self._admit(request.envelope, context), context)
            check_fetch(request.first_index, request.last_index)
            next_index = request.first_index
            while next_index <= request.last_index:
                frames = await self._port.fetch(
                    next_index, request.last_index, request.max_bytes, uncommitted=request.uncommitted
                )
                await context.write(
                    pb.FetchResponse(
                        first_index=frames.first_index, last_index=frames.last_index, frames=frames.data
                    )
                )
                next_index = frames.last_index + 1
        except DLedgerError as error:
            await context.write(pb.FetchResponse(refusal=_as_refusal(error)))

    async def image(self, request: pb.ImageRequest | None, context: _Context) -> pb.ImageResponse:
        try:
            if request is None:
                raise malformed()
            peer = self._admit(request.envelope, context)
            self._copies.count(peer, context)
            question = ImageQuestion(request.least_index, request.index, request.term, request.chunk)
            chunk = await self._port.image(peer, question)
        except DLedgerError as error:
            return pb.ImageResponse(refusal=_as_refusal(error))
        return pb.ImageResponse(manifest=chunk.manifest, data=chunk.data)

    async def push(self, _: object, context: _Context) -> None:
        try:
            hello = await self._first_messages.read(context)
            if not isinstance(hello, pb.PushRequest):
                raise malformed()
            peer = self._admit(hello.envelope, context)
            convert.check_handshake(hello.envelope.incarnation, hello.stream_id)
        except (InvalidRequest, Overloaded) as error:
            await context.write(pb.PushResponse(refusal=refusal(error)))
            return
        incarnation = self._port.identity.incarnation
        await context.write(pb.PushResponse(incarnation=incarnation, stream_id=hello.stream_id))
        carrier = _GrpcReceivedPushes(peer, hello.stream_id, context)
        receiver = PushReceiver(peer, hello.stream_id, hello.envelope.incarnation)
        await receiver.serve(self._port, carrier)


class _GrpcReceivedPushes:
    """Implements dledger.rpc.push_stream.ReceivedPushes."""

    def __init__(self, peer: str, stream_id: int, context: _Context) -> None:
        self._peer = peer
        self._stream_id = stream_id
        self._context = context

    async def read(self) -> tuple[PushMessage, bytes | memoryview | None] | None:
        request = await self._context.read()
        if request is grpc.aio.EOF:
            return None
        if request is None:
            raise malformed()
        return convert.push_from_pb(request, self._peer)

    async def write(self, response: PushResponse) -> None:
        await self._context.write(convert.push_response_to_pb(response))

    async def refuse(self, error: InvalidRequest) -> None:
        await self._context.write(pb.PushResponse(refusal=refusal(error), stream_id=self._stream_id))
