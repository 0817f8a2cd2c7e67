"""The client side to another member: short calls, and the push stream of a leader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio

from dledger.core.messages import (
    Append,
    Commit,
    Heartbeat,
    HeartbeatResponse,
    PositionRequest,
    PositionResponse,
    PushMessage,
    PushResponse,
    TakeLeadership,
    TakeLeadershipResponse,
    VoteRequest,
    VoteResponse,
)
from dledger.errors import InvalidRequest, error_for
from dledger.rpc import convert_peer as convert
from dledger.rpc.append_wire import AppendEncoder, serialize_push
from dledger.rpc.channels import CallCount, ChannelSecurity, open_channel
from dledger.rpc.envelope import Identity
from dledger.rpc.outbox import Outbox
from dledger.rpc.ports import FetchedFrames
from dledger.rpc.tls_failures import explain
from dledger.v1 import peer_pb2 as pb
from dledger.v1 import peer_pb2_grpc

_PUSH_METHOD = "/dledger.v1.PeerService/Push"

Question = VoteRequest | Heartbeat | TakeLeadership | PositionRequest
Answer = VoteResponse | HeartbeatResponse | TakeLeadershipResponse | PositionResponse


class PeerUnreachable(Exception):
    """No answer: no connection, a deadline, a broken stream. Says nothing of what the peer did."""


class PeerTlsFailure(PeerUnreachable):
    """No connection, because the two ends do not agree about TLS: no waiting helps, a person must."""


class PeerClient:
    """One channel to one member, used for everything that this node asks of it."""

    def __init__(
        self,
        peer: str,
        address: str,
        identity: Identity,
        security: ChannelSecurity | None = None,
        encoder: AppendEncoder | None = None,
    ) -> None:
        """`encoder`: one for all members."""
        self.peer = peer
        self._encoder = encoder or AppendEncoder()
        self._address = address
        self._identity = identity
        self._security = security
        self._calls = CallCount()
        self._channel = open_channel(address, security)
        self._stub: Any = peer_pb2_grpc.PeerServiceStub(self._channel)
        self._push: Any = self._channel.stream_stream(
            _PUSH_METHOD, request_serializer=serialize_push, response_deserializer=pb.PushResponse.FromString
        )

    def connect(self) -> None:
        """Begin to connect, so that the first message need not wait for it."""
        self._channel.get_state(try_to_connect=True)

    async def ask(self, message: Question, timeout_s: float) -> Answer:
        """PeerUnreachable without an answer, InvalidRequest if the peer refuses to talk to us."""
        try:
            with self._calls:
                return await self._ask(message, timeout_s)
        except grpc.aio.AioRpcError as error:
            known = explain(self._address, error.details(), self._security)
            if known is not None and self._security is not None:
                raise PeerTlsFailure(known.message) from None
            raise PeerUnreachable(f"{self.peer}: {error.code().name}") from None

    async def _ask(self, message: Question, timeout_s: float) -> Answer:
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
                asked = convert.position_request_to_pb(message, envelope)
                found = await stub.Position(asked, timeout=timeout_s)
                return convert.position_response_from_pb(found, self.peer)

    async def fetch(
        self, first_index: int, last_index: int, max_bytes: int, timeout_s: float
    ) -> AsyncGenerator[FetchedFrames, None]:
        """Committed entries of the peer, to repair ours. PeerUnreachable, InvalidRequest if it has none."""
        request = pb.FetchRequest(
            envelope=self._identity.envelope(self.peer),
            first_index=first_index,
            last_index=last_index,
            max_bytes=max_bytes,
        )
        with self._calls:
            call = self._stub.Fetch(request, timeout=timeout_s)
            try:
                async for response in call:
                    if response.refusal.code:
                        raise _refused(response.refusal)
                    yield FetchedFrames(response.first_index, response.last_index, response.frames)
            except grpc.aio.AioRpcError as error:
                raise PeerUnreachable(f"{self.peer}: {error.code().name}") from None
            finally:
                call.cancel()

    def open_push(self, stream_id: int) -> PushClient:
        # wait_for_ready: the stream opens in the moment in which the peer can be reached.
        call = self._push(wait_for_ready=True)
        envelope = self._identity.envelope(self.peer)
        return PushClient(self.peer, stream_id, envelope, call, self._calls, self._encoder)

    async def close(self) -> None:
        await self._channel.close(0)

    async def retire(self) -> None:
        """Close once no call is under way; a push stream that works goes on until it ends by itself."""
        try:
            await self._calls.idle()
        finally:
            await self.close()


class PushClient:
    """The leader's end of one push stream. Never opened again: a new stream is a new object."""

    def __init__(
        self,
        peer: str,
        stream_id: int,
        envelope: pb.Envelope,
        call: Any,
        calls: CallCount,
        encoder: AppendEncoder,
    ) -> None:
        self._encoder = encoder
        self.peer = peer
        self.stream_id = stream_id
        self.is_up = False
        self._envelope = envelope
        self._call = call
        self._calls = calls
        self._outbox: Outbox[pb.PushRequest | bytes] = Outbox()
        self._commit: pb.PushRequest | None = None  # the last COMMIT that was put

    def put(self, message: PushMessage, payload: bytes | memoryview | None) -> None:
        """Queue a message. How much may wait is bounded by the core, in bytes in flight; for COMMITs, which
        have no bytes, by keeping only the newest of those that follow each other."""
        if isinstance(message, Append):
            assert payload is not None
            self._outbox.put(self._encoder.encode(message, payload))
        elif isinstance(message, Commit):
            waiting = self._commit
            if waiting is not None and self._outbox.last is waiting:
                waiting.committed_index = message.committed_index
                return
            self._commit = convert.push_to_pb(message)
            self._outbox.put(self._commit)
        else:
            self._outbox.put(convert.push_to_pb(message))

    def finish(self) -> None:
        """End the stream after what was put."""
        self._outbox.finish()

    async def run(self, on_up: Callable[[int], None], on_response: Callable[[PushResponse], None]) -> None:
        """Serve the stream until it ends. PeerUnreachable, or InvalidRequest if the peer refuses it."""
        with self._calls:
            await self._run(on_up, on_response)

    async def _run(self, on_up: Callable[[int], None], on_response: Callable[[PushResponse], None]) -> None:
        try:
            await self._shake_hands(on_up)
            writer = asyncio.ensure_future(self._write_all())
            try:
                while (response := await self._call.read()) is not grpc.aio.EOF:
                    on_response(convert.push_response_from_pb(response, self.peer))
            finally:
                writer.cancel()
            code = await self._call.code()
            if code is not grpc.StatusCode.OK:
                raise PeerUnreachable(f"{self.peer}: {code.name}")
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError) as error:
            raise PeerUnreachable(f"{self.peer}: {error}") from None
        finally:
            self._call.cancel()

    async def _shake_hands(self, on_up: Callable[[int], None]) -> None:
        await self._call.write(pb.PushRequest(envelope=self._envelope, stream_id=self.stream_id))
        answer = await self._call.read()
        if answer is grpc.aio.EOF:
            raise PeerUnreachable(f"{self.peer} ended the stream at once")
        if answer.refusal.code:
            raise _refused(answer.refusal)
        self.is_up = True
        on_up(answer.incarnation)

    async def _write_all(self) -> None:
        # The reading side learns of the same end, and reports it.
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            await self._outbox.run(self._call.write)
            await self._call.done_writing()


def _refused(refusal: pb.Refusal) -> InvalidRequest:
    error = error_for(refusal.code, refusal.message)
    return InvalidRequest(f"the peer refuses: {refusal.message}", code=error.code)
