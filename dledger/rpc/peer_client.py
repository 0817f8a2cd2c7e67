"""The client side of the connection to another member: unary calls, and the leader's push stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import grpc
import grpc.aio

from dledger.core.messages import (
    Append,
    Heartbeat,
    PositionRequest,
    PushMessage,
    PushResponse,
    TakeLeadership,
    VoteRequest,
)
from dledger.infra.transport.channels import CallCount, ChannelSecurity, open_channel
from dledger.infra.transport.outbox import Writing
from dledger.infra.transport.tls_failures import explain
from dledger.rpc import convert_peer as convert
from dledger.rpc.append_wire import AppendEncoder, serialize_push
from dledger.rpc.envelope import PeerIdentity
from dledger.rpc.peer_transport import Answer, PeerTlsFailure, PeerUnreachable, Question
from dledger.rpc.ports import FetchedFrames, ImageChunk, ImageQuestion
from dledger.rpc.push_stream import PushSender
from dledger.v1 import peer_pb2 as pb
from dledger.v1 import peer_pb2_grpc

_PUSH_METHOD = "/dledger.v1.PeerService/Push"


class PeerClient:
    """One channel to one member, used for all requests of this node to it. Implements
    dledger.rpc.peer_transport.PeerTransport."""

    def __init__(
        self,
        peer: str,
        address: str,
        identity: PeerIdentity,
        security: ChannelSecurity | None = None,
        encoder: AppendEncoder | None = None,
    ) -> None:
        """`encoder`: shared by all members."""
        self.peer = peer
        self._encoder = encoder or AppendEncoder()
        self.address = address
        self._identity = identity
        self._security = security
        self._calls = CallCount()
        self._channel = open_channel(address, security)
        self._stub: Any = peer_pb2_grpc.PeerServiceStub(self._channel)
        self._push: Any = self._channel.stream_stream(
            _PUSH_METHOD, request_serializer=serialize_push, response_deserializer=pb.PushResponse.FromString
        )

    def connect(self) -> None:
        """Start connecting, so that the first message does not have to wait."""
        self._channel.get_state(try_to_connect=True)

    async def request(self, message: Question, timeout_s: float) -> Answer:
        """Send a request and return the response. Raises PeerUnreachable if none arrives, InvalidRequest if
        the peer rejects this node."""
        try:
            with self._calls:
                return await self._send_request(message, timeout_s)
        except grpc.aio.AioRpcError as error:
            known = explain(self.address, error.details(), self._security)
            if known is not None and self._security is not None:
                raise PeerTlsFailure(known.message) from None
            raise PeerUnreachable(f"{self.peer}: {error.code().name}") from None

    async def _send_request(self, message: Question, timeout_s: float) -> Answer:
        stub, envelope = self._stub, self._identity.envelope(self.peer)
        match message:
            case VoteRequest():
                vote = await stub.Vote(convert.vote_request_to_pb(message, envelope), timeout=timeout_s)
                return convert.vote_response_from_pb(vote, self.peer)
            case Heartbeat():
                beat = await stub.Heartbeat(convert.heartbeat_to_pb(message, envelope), timeout=timeout_s)
                return convert.heartbeat_response_from_pb(beat, self.peer)
            case TakeLeadership():
                request = convert.take_leadership_to_pb(message, envelope)
                taken = await stub.TakeLeadership(request, timeout=timeout_s)
                return convert.take_leadership_response_from_pb(taken, self.peer)
            case PositionRequest():
                position_request = convert.position_request_to_pb(message, envelope)
                position = await stub.Position(position_request, timeout=timeout_s)
                return convert.position_response_from_pb(position, self.peer)

    async def fetch(
        self, first_index: int, last_index: int, max_bytes: int, timeout_s: float
    ) -> AsyncGenerator[FetchedFrames, None]:
        """Fetch durable entries from the peer to repair the entries of this node. They may be uncommitted,
        because the repair proves that they are the same. Raises PeerUnreachable, and InvalidRequest if the
        peer has none of the entries."""
        request = pb.FetchRequest(
            envelope=self._identity.envelope(self.peer),
            first_index=first_index,
            last_index=last_index,
            max_bytes=max_bytes,
            uncommitted=True,
        )
        with self._calls:
            call = self._stub.Fetch(request, timeout=timeout_s)
            try:
                async for response in call:
                    convert.raise_refusal(response.refusal, self.peer)
                    yield FetchedFrames(response.first_index, response.last_index, response.frames)
            except grpc.aio.AioRpcError as error:
                raise PeerUnreachable(f"{self.peer}: {error.code().name}") from None
            finally:
                call.cancel()

    async def image(self, question: ImageQuestion, timeout_s: float) -> ImageChunk:
        request = pb.ImageRequest(envelope=self._identity.envelope(self.peer), **question._asdict())
        with self._calls:
            try:
                response = await self._stub.Image(request, timeout=timeout_s)
            except grpc.aio.AioRpcError as error:
                raise PeerUnreachable(f"{self.peer}: {error.code().name}") from None
        convert.raise_refusal(response.refusal, self.peer)
        return ImageChunk(response.manifest, response.data)

    def open_push(self, stream_id: int) -> PushSender:
        # wait_for_ready: the stream opens as soon as the peer is reachable.
        call = self._push(wait_for_ready=True)
        envelope = self._identity.envelope(self.peer)
        carrier = _GrpcPushCall(self.peer, stream_id, envelope, call, self._calls, self._encoder)
        return PushSender(stream_id, carrier)

    async def close(self) -> None:
        await self._channel.close(0)

    async def retire(self) -> None:
        """Close once no call is pending. A working push stream continues until it ends."""
        try:
            await self._calls.idle()
        finally:
            await self.close()


class _GrpcPushCall:
    """Implements dledger.rpc.push_stream.PushCall."""

    broken = (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError)

    def __init__(
        self,
        peer: str,
        stream_id: int,
        envelope: pb.Envelope,
        call: Any,
        calls: CallCount,
        encoder: AppendEncoder,
    ) -> None:
        self._peer = peer
        self._stream_id = stream_id
        self._envelope = envelope
        self._call = call
        self._calls = calls
        self._encoder = encoder
        self._is_counted = False

    def encode(self, message: PushMessage, payload: bytes | memoryview | None) -> pb.PushRequest | bytes:
        if isinstance(message, Append):
            assert payload is not None
            return self._encoder.encode(message, payload)
        return convert.push_to_pb(message)

    async def open(self) -> int:
        self._calls.acquire()
        self._is_counted = True
        try:
            await self._call.write(pb.PushRequest(envelope=self._envelope, stream_id=self._stream_id))
            answer = await self._call.read()
        except self.broken as error:
            raise PeerUnreachable(f"{self._peer}: {error}") from None
        if answer is grpc.aio.EOF:
            raise PeerUnreachable(f"{self._peer} ended the stream immediately")
        convert.raise_refusal(answer.refusal, self._peer)
        convert.check_handshake(answer.incarnation, answer.stream_id)
        return int(answer.incarnation)

    def write(self, item: pb.PushRequest | bytes) -> Writing:
        return self._call.write(item)  # type: ignore[no-any-return]

    async def done_writing(self) -> None:
        await self._call.done_writing()

    async def read(self) -> PushResponse | None:
        try:
            response = await self._call.read()
            if response is not grpc.aio.EOF:
                return convert.push_response_from_pb(response, self._peer)
            code = await self._call.code()
        except self.broken as error:
            raise PeerUnreachable(f"{self._peer}: {error}") from None
        if code is not grpc.StatusCode.OK:
            raise PeerUnreachable(f"{self._peer}: {code.name}")
        return None

    def cancel(self) -> None:
        self._call.cancel()
        if self._is_counted:
            self._is_counted = False
            self._calls.release()
