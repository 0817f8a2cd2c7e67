"""Transport between simulated nodes, a substitute for gRPC over `network`.

Links, push streams and their receivers are the real ones; only the carrier is simulated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

from dledger.core.messages import Message, PushMessage, PushResponse
from dledger.errors import Code, DLedgerError, InvalidRequest
from dledger.rpc.envelope import PeerClaims
from dledger.rpc.peer_transport import Answer, PeerUnreachable, Question, check_fetch
from dledger.rpc.ports import FetchedFrames, ImageChunk, ImageQuestion
from dledger.rpc.push_stream import Payload, PushReceiver, PushSender
from dledger.testing.network import Outcome, Request, SimFetch, SimFetched, SimPushStream, SimStreamBroken
from dledger.testing.world import NodeLife

#: Range of pauses in ms before a new attempt to reach a peer.
_RECONNECT_MS = (5, 60)


class SimTransport:
    """Implements dledger.rpc.peer_transport.PeerTransport, from one process to a node."""

    def __init__(self, process: NodeLife, peer: str) -> None:
        self.address = peer
        self._process = process
        self._network = process.sim.network

    def connect(self) -> None: ...

    async def request(self, message: Question, timeout_s: float) -> Answer:
        answer = await self._request(message, timeout_s)
        assert not isinstance(answer, SimFetched | ImageChunk)
        return answer

    async def image(self, question: ImageQuestion, timeout_s: float) -> ImageChunk:
        answer = await self._request(question, min(timeout_s, self._silence_s))
        assert isinstance(answer, ImageChunk)
        return answer

    @property
    def _silence_s(self) -> float:
        """A connection without responses breaks long before the timeout of some calls."""
        return self._process.sim.profile.keepalive_ms / 1000

    async def _request(self, message: Request, timeout_s: float) -> Answer | SimFetched | ImageChunk:
        process, peer = self._process, self.address
        future: asyncio.Future[Answer | SimFetched | ImageChunk] = process.loop.create_future()

        def answered(outcome: Outcome) -> None:
            if future.done():
                return
            if isinstance(outcome, DLedgerError):
                future.set_exception(_refused(outcome))
            elif isinstance(outcome, PeerUnreachable):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        deadline = process.loop.call_later(timeout_s, answered, PeerUnreachable(f"{peer}: no answer"))
        self._network.request(process, peer, message, int(timeout_s * 1000), answered)
        try:
            return await future
        finally:
            deadline.cancel()
            if future.done() and not future.cancelled():
                future.exception()  # mark as retrieved if the caller was cancelled

    def fetch(
        self, first_index: int, last_index: int, max_bytes: int, timeout_s: float
    ) -> AsyncGenerator[FetchedFrames, None]:
        fetch = SimFetch(first_index, last_index, max_bytes)
        return _SimFetchCall(self._request(fetch, min(timeout_s, self._silence_s)))

    def open_push(self, stream_id: int) -> PushSender:
        return PushSender(stream_id, _SimPushCall(self._process, self.address, stream_id))

    async def close(self) -> None: ...
    async def retire(self) -> None: ...


def _refused(error: DLedgerError) -> InvalidRequest:
    return InvalidRequest(f"the peer refused: {error}", code=error.code)


class _SimFetchCall(AsyncGenerator[FetchedFrames, None]):
    """A call that returns the first piece, the only one that a repair reads. It is not a generator function,
    because a generator logs a warning if it is collected after its loop has died."""

    def __init__(self, request: Coroutine[Any, Any, Answer | SimFetched | ImageChunk]) -> None:
        self._pending = request

    async def asend(self, value: None) -> FetchedFrames:
        answer = await self._pending
        assert isinstance(answer, SimFetched)
        return answer.frames

    async def athrow(self, *error: Any) -> FetchedFrames:
        raise StopAsyncIteration

    async def aclose(self) -> None: ...


class _SimPushCall:
    """Implements dledger.rpc.push_stream.PushCall."""

    broken: tuple[type[Exception], ...] = ()  # writes to a broken stream are silently lost

    def __init__(self, process: NodeLife, peer: str, stream_id: int) -> None:
        self._process = process
        self._peer = peer
        self._stream_id = stream_id
        self._stream: SimPushStream | None = None

    def encode(self, message: PushMessage, payload: Payload) -> tuple[Message, Payload]:
        return message, payload

    async def open(self) -> int:
        """Wait until the peer can be reached and return its incarnation, as with `wait_for_ready`."""
        rng = self._process.sim.network.rng
        while (stream := await self._connect()) is None:
            await asyncio.sleep(rng.randint(*_RECONNECT_MS) / 1000)
        self._stream = stream
        incarnation = await self._next()
        if isinstance(incarnation, InvalidRequest):
            raise _refused(incarnation)
        if not isinstance(incarnation, int):
            raise PeerUnreachable(f"{self._peer} ended the stream immediately")
        stream.is_up = True
        return incarnation

    async def _connect(self) -> SimPushStream | None:
        opened: asyncio.Future[SimPushStream | None] = self._process.loop.create_future()

        def on_stream(stream: SimPushStream | None) -> None:
            if not opened.done():
                opened.set_result(stream)
            elif stream is not None:
                stream.leave()

        self._process.sim.network.connect(self._process, self._peer, self._stream_id, on_stream)
        return await opened

    async def write(self, item: Any) -> None:
        assert self._stream is not None
        self._stream.push(item)

    async def done_writing(self) -> None:
        assert self._stream is not None
        self._stream.push(None)

    async def read(self) -> PushResponse | None:
        carried = await self._next()
        if carried is None:
            return None
        if isinstance(carried, InvalidRequest):
            raise _refused(carried)
        assert isinstance(carried, tuple) and isinstance(carried[0], PushResponse)
        return carried[0]

    async def _next(self) -> Any:
        assert self._stream is not None
        try:
            return await self._stream.leader_end.read()
        except SimStreamBroken:
            raise PeerUnreachable(f"{self._peer}: the stream broke") from None

    def cancel(self) -> None:
        if self._stream is not None and self._process.alive:
            self._stream.leave()


class _SimReceivedPushes:
    """Implements dledger.rpc.push_stream.ReceivedPushes."""

    def __init__(self, stream: SimPushStream) -> None:
        self._stream = stream

    async def read(self) -> tuple[PushMessage, Payload] | None:
        return await self._stream.follower_end.read()  # type: ignore[return-value]  # created by `encode`

    async def write(self, response: PushResponse) -> None:
        self._stream.answer((response, None))

    async def refuse(self, error: InvalidRequest) -> None:
        self._stream.answer(error)
        self._stream.follower.push_refused(error)


async def answer(
    process: NodeLife, peer: str, claims: PeerClaims, message: Request
) -> Answer | SimFetched | ImageChunk | DLedgerError:
    """Serve a call in the same way as a node's PeerService."""
    try:
        process.inbound.check_claims(peer, claims)
        if isinstance(message, SimFetch):
            first, last, size = message.first_index, message.last_index, message.max_bytes
            check_fetch(first, last)
            return SimFetched(await process.inbound.fetch(first, last, size, uncommitted=True))
        if isinstance(message, ImageQuestion):
            return await process.inbound.image(peer, message)
        return await process.inbound.request(peer, message)  # type: ignore[return-value]  # it matches the request
    except TimeoutError:
        return DLedgerError("the node did not answer in time", code=Code.TIMEOUT)
    except DLedgerError as error:
        return error


async def receive_pushes(process: NodeLife, stream: SimPushStream) -> None:
    """Serve a push stream in the same way as a node's PeerService."""
    try:
        process.inbound.check_claims(stream.leader.node_id, stream.claims)
    except InvalidRequest as error:
        stream.answer(error)
        return
    stream.answer(process.incarnation)
    receiver = PushReceiver(stream.leader.node_id, stream.stream_id, stream.leader.incarnation)
    await receiver.serve(process.inbound, _SimReceivedPushes(stream))
    stream.answer(None)
