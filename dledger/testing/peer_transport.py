"""How the nodes of a simulation reach each other: what gRPC does between real ones, over `network`.

The links, the push streams and what receives them are those of a real node; only what carries them differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

from dledger.core.messages import Message, PushMessage, PushResponse
from dledger.errors import Code, DLedgerError, InvalidRequest
from dledger.rpc.peer_transport import Answer, PeerUnreachable, Question, check_fetch
from dledger.rpc.ports import FetchedFrames
from dledger.rpc.push_stream import Payload, PushReceiver, PushSender
from dledger.testing.network import Broken, Fetch, Fetched, Outcome, PushStream, Request
from dledger.testing.world import Life

#: A peer that cannot be reached is tried again after so many ms.
_RECONNECT_MS = (5, 60)


class SimTransport:
    """Implements dledger.rpc.peer_transport.PeerTransport, from one process to a node."""

    def __init__(self, process: Life, peer: str) -> None:
        self.address = peer
        self._process = process
        self._network = process.sim.network

    def connect(self) -> None: ...

    async def ask(self, message: Question, timeout_s: float) -> Answer:
        answer = await self._ask(message, timeout_s)
        assert not isinstance(answer, Fetched)
        return answer

    async def _ask(self, message: Request, timeout_s: float) -> Answer | Fetched:
        process, peer = self._process, self.address
        future: asyncio.Future[Answer | Fetched] = process.loop.create_future()

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
        self._network.ask(process, peer, message, int(timeout_s * 1000), answered)
        try:
            return await future
        finally:
            deadline.cancel()
            if future.done() and not future.cancelled():
                future.exception()  # nobody else asks, if whoever waited was cancelled

    def fetch(
        self, first_index: int, last_index: int, max_bytes: int, timeout_s: float
    ) -> AsyncGenerator[FetchedFrames, None]:
        """A connection on which nothing is heard breaks, long before the call takes too long."""
        silence_s = min(timeout_s, self._process.sim.profile.keepalive_ms / 1000)
        return _SimFetchCall(self._ask(Fetch(first_index, last_index, max_bytes), silence_s))

    def open_push(self, stream_id: int) -> PushSender:
        return PushSender(stream_id, _SimPushCall(self._process, self.address, stream_id))

    async def close(self) -> None: ...
    async def retire(self) -> None: ...


def _refused(error: DLedgerError) -> InvalidRequest:
    return InvalidRequest(f"the peer refuses: {error}", code=error.code)


class _SimFetchCall(AsyncGenerator[FetchedFrames, None]):
    """Up to the first piece, which is all that a repair takes from a call. No generator function, as those
    complain when they are collected with a loop that has died."""

    def __init__(self, asking: Coroutine[Any, Any, Answer | Fetched]) -> None:
        self._asking = asking

    async def asend(self, value: None) -> FetchedFrames:
        answer = await self._asking
        assert isinstance(answer, Fetched)
        return answer.frames

    async def athrow(self, *error: Any) -> FetchedFrames:
        raise StopAsyncIteration

    async def aclose(self) -> None: ...


class _SimPushCall:
    """Implements dledger.rpc.push_stream.PushCall."""

    broken: tuple[type[Exception], ...] = ()  # what is written to a stream that has broken is lost in silence

    def __init__(self, process: Life, peer: str, stream_id: int) -> None:
        self._process = process
        self._peer = peer
        self._stream_id = stream_id
        self._stream: PushStream | None = None

    def encode(self, message: PushMessage, payload: Payload) -> tuple[Message, Payload]:
        return message, payload

    async def open(self) -> int:
        """As with `wait_for_ready`: in the moment in which the peer can be reached."""
        rng = self._process.sim.network.rng
        while (stream := await self._connect()) is None:
            await asyncio.sleep(rng.randint(*_RECONNECT_MS) / 1000)
        self._stream = stream
        incarnation = await self._next()
        if not isinstance(incarnation, int):
            raise PeerUnreachable(f"{self._peer} ended the stream at once")
        stream.is_up = True
        return incarnation

    async def _connect(self) -> PushStream | None:
        found: asyncio.Future[PushStream | None] = self._process.loop.create_future()

        def on_stream(stream: PushStream | None) -> None:
            if not found.done():
                found.set_result(stream)
            elif stream is not None:
                stream.leave()

        self._process.sim.network.connect(self._process, self._peer, self._stream_id, on_stream)
        return await found

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
        except Broken:
            raise PeerUnreachable(f"{self._peer}: the stream broke") from None

    def cancel(self) -> None:
        if self._stream is not None and self._process.alive:
            self._stream.leave()


class _SimReceivedPushes:
    """Implements dledger.rpc.push_stream.ReceivedPushes."""

    def __init__(self, stream: PushStream) -> None:
        self._stream = stream

    async def read(self) -> tuple[PushMessage, Payload] | None:
        return await self._stream.follower_end.read()  # type: ignore[return-value]  # what `encode` made

    async def write(self, response: PushResponse) -> None:
        self._stream.answer((response, None))

    async def refuse(self, error: InvalidRequest) -> None:
        self._stream.answer(error)
        self._stream.follower.push_refused(error)


async def answer(process: Life, peer: str, message: Request) -> Answer | Fetched | DLedgerError:
    """What a node's PeerService does with a call."""
    try:
        if isinstance(message, Fetch):
            first, last, size = message.first_index, message.last_index, message.max_bytes
            check_fetch(first, last)
            return Fetched(await process.inbound.fetch(first, last, size, uncommitted=True))
        return await process.inbound.ask(peer, message)  # type: ignore[return-value]  # it fits the question
    except TimeoutError:
        return DLedgerError("the node did not answer in time", code=Code.TIMEOUT)
    except DLedgerError as error:
        return error


async def receive_pushes(process: Life, stream: PushStream) -> None:
    """What a node's PeerService does with one push stream."""
    stream.answer(process.incarnation)
    receiver = PushReceiver(stream.leader.node_id, stream.stream_id, stream.leader.incarnation)
    await receiver.serve(process.inbound, _SimReceivedPushes(stream))
    stream.answer(None)
