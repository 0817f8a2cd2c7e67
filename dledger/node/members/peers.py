"""Links to the other members. A link sends short calls at any time, and has a push stream while this node
leads.

An unresponsive peer does not affect other peers: calls have deadlines, only a few run at once, and excess
calls are dropped. The core repeats important messages.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol

from dledger.core.messages import (
    Heartbeat,
    Message,
    PositionRequest,
    PushMessage,
    PushResponse,
    TakeLeadership,
    VoteRequest,
)
from dledger.errors import Code, InvalidRequest
from dledger.infra.logs import get_logger
from dledger.rpc.peer_transport import PeerTlsFailure, PeerTransport, PeerUnreachable, PushStream, Question
from dledger.rpc.ports import FetchedFrames, ImageChunk, ImageQuestion

_log = get_logger("peers")

_MAX_CALLS = {Heartbeat: 8, VoteRequest: 4, TakeLeadership: 1, PositionRequest: 1}
#: A vote is sent once it is durable. On a slow disk this takes longer than an election time-out, and the vote
#: still counts. Beyond this number of vote requests, a new one cancels the oldest.
_VOTE_WITHIN_S = 5.0
_BACKOFF_MIN_S = 0.05
_BACKOFF_MAX_S = 0.5
#: A stream that existed for this long is reopened immediately.
_GOOD_LIFE_S = 1.0
_DRAIN_S = 1.0
_FETCH_BYTES = 1 << 20


class PeerEvents(Protocol):
    """Receiver of messages and stream events of a peer."""

    def peer_answered(self, peer: str, message: Message) -> None: ...
    def stream_up(self, peer: str, stream_id: int, incarnation: int) -> None: ...
    def stream_down(self, peer: str, stream_id: int) -> None: ...
    def directory_replaced(self, peer: str, reason: str) -> None: ...
    def member_replaced(self, reason: str) -> None: ...


class PeerLink:
    """The link to one other member."""

    def __init__(
        self,
        peer: str,
        client: PeerTransport,
        events: PeerEvents,
        *,
        role_epoch: Callable[[], int],
        call_timeout_ms: int,
        last_stream_id: int = 0,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """`role_epoch`: current value of this node. `last_stream_id`: of an earlier link to the peer.
        `uniform`: random source for pauses.
        """
        self.peer = peer
        self._client = client
        self._events = events
        self._uniform = uniform
        self._role_epoch = role_epoch
        self.last_stream_id = last_stream_id  # id of the newest stream
        self._timeout_s = call_timeout_ms / 1000
        self._calls: dict[type, deque[asyncio.Task[None]]] = {kind: deque() for kind in _MAX_CALLS}
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeper: asyncio.Task[None] | None = None
        self._stream: PushStream | None = None
        self._last_refusal = ""
        self._closed = False

    @property
    def address(self) -> str:
        return self._client.address

    @property
    def is_connected(self) -> bool:
        """Return True if the push stream is open. It exists only while this node leads."""
        return self._stream is not None and self._stream.is_up

    def connect(self) -> None:
        self._client.connect()

    def renew(self, make: Callable[[], PeerTransport]) -> None:
        """Reconnect with new certificates.

        A working push stream stays on its old connection until it ends. A stream that could not be opened is
        tried again, because the old certificate may be the reason.
        """
        if self._closed:
            return
        old, self._client = self._client, make()
        self._spawn(old.retire())
        self._client.connect()
        if self._keeper is not None and not self.is_connected:
            self.lead()

    def send_request(self, message: Question) -> None:
        """Send a request. The response arrives as an event, or never."""
        calls, limit = self._calls[type(message)], _MAX_CALLS[type(message)]
        if self._closed or (len(calls) >= limit and not isinstance(message, VoteRequest)):
            return
        if len(calls) >= limit:
            calls.popleft().cancel()
        call = self._spawn(self._call(message))
        calls.append(call)
        call.add_done_callback(partial(_forget, calls))

    def push(self, message: PushMessage, payload: bytes | memoryview | None) -> None:
        """Send a message on the stream it names, or drop it if the stream has ended."""
        stream = self._stream
        if stream is not None and stream.stream_id == message.stream_id:
            stream.put(message, payload)

    async def fetch(self, first_index: int, last_index: int, timeout_s: float) -> FetchedFrames:
        """Fetch durable entries from the peer, starting at first_index, up to a size that fits into memory.

        Raises PeerUnreachable, or InvalidRequest if the peer cannot supply them.
        """
        frames = self._client.fetch(first_index, last_index, _FETCH_BYTES, timeout_s)
        async with aclosing(frames) as parts:
            async for part in parts:
                return part
        raise InvalidRequest(f"the response from {self.peer} has no entries starting at {first_index}")

    async def image(self, question: ImageQuestion, timeout_s: float) -> ImageChunk:
        """Fetch a chunk of a state image from the peer. Raises PeerUnreachable and InvalidRequest."""
        return await self._client.image(question, timeout_s)

    def lead(self) -> None:
        """Keep a push stream open from now on. If this node leads in a new term, open a new stream."""
        self.follow()
        if not self._closed:
            self._keeper = self._spawn(self._keep_stream())

    def follow(self) -> None:
        """Finish the push stream after its queued messages."""
        keeper, stream = self._keeper, self._stream
        self._keeper = self._stream = None
        if keeper is None:
            return
        if stream is None or not stream.is_up:
            keeper.cancel()
        else:
            stream.finish()
            asyncio.get_running_loop().call_later(_DRAIN_S, keeper.cancel)

    async def close(self) -> None:
        """Stop sending. The core keeps running while a node stops, until its disk thread has ended."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()

    async def _call(self, message: Question) -> None:
        within_s = _VOTE_WITHIN_S if isinstance(message, VoteRequest) else self._timeout_s
        try:
            answer = await self._client.request(message, within_s)
        except PeerTlsFailure as error:
            self._log_once(str(error))
            return
        except PeerUnreachable:
            return
        except InvalidRequest as error:
            self._on_refusal(error)
            return
        self._events.peer_answered(self.peer, answer)

    async def _keep_stream(self) -> None:
        me = asyncio.current_task()
        loop = asyncio.get_running_loop()
        pause = _BACKOFF_MIN_S
        while True:
            opened_at = loop.time()
            await self._run_stream(self._client.open_push(self._next_stream_id()))
            if self._keeper is not me:
                return
            if loop.time() - opened_at > _GOOD_LIFE_S:
                pause = _BACKOFF_MIN_S
                continue  # reopen as soon as the peer is reachable
            await asyncio.sleep(self._uniform(_BACKOFF_MIN_S, pause))
            pause = min(pause * 2, _BACKOFF_MAX_S)

    def _next_stream_id(self) -> int:
        """Return an id that never repeats, even after restarts, because role_epoch contains the incarnation.

        Usually the streams to all members have the same id, so that a push is encoded once for all of them.
        """
        self.last_stream_id = max(self.last_stream_id + 1, self._role_epoch())
        return self.last_stream_id

    async def _run_stream(self, stream: PushStream) -> None:
        self._stream = stream

        def on_up(incarnation: int) -> None:
            self._last_refusal = ""
            self._events.stream_up(self.peer, stream.stream_id, incarnation)

        def on_response(response: PushResponse) -> None:
            self._events.peer_answered(self.peer, response)

        try:
            await stream.run(on_up, on_response)
        except PeerUnreachable as error:
            _log.debug("push stream ended", peer=self.peer, reason=str(error))
        except InvalidRequest as error:
            self._on_refusal(error)
        except Exception as error:
            # A bug on either side ends this stream, but must not prevent later ones.
            _log.error("push stream failed", peer=self.peer, exc_info=error)
        finally:
            if self._stream is stream:
                self._stream = None
            if stream.is_up:
                stream.is_up = False
                self._events.stream_down(self.peer, stream.stream_id)

    def _on_refusal(self, error: InvalidRequest) -> None:
        self._log_once(str(error))
        if error.code is Code.DIRECTORY_REPLACED:
            self._events.directory_replaced(self.peer, error.message)
        elif error.code is Code.MEMBER_REPLACED:
            self._events.member_replaced(error.message)

    def _log_once(self, reason: str) -> None:
        if self._last_refusal != reason:  # log it once, not with every heartbeat
            self._last_refusal = reason
            _log.warning("peer refuses requests", peer=self.peer, address=self._client.address, reason=reason)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _forget(calls: deque[asyncio.Task[None]], call: asyncio.Task[None]) -> None:
    if call in calls:
        calls.remove(call)
