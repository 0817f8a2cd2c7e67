"""Both ends of a push stream, independent of its transport: gRPC, or virtual time in the simulator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from dledger.core.messages import Commit, Goodbye, PushMessage, PushResponse
from dledger.errors import InvalidRequest
from dledger.infra.transport.outbox import Outbox, Writing
from dledger.rpc.ports import PeerPort

Payload = bytes | memoryview | None


class PushCall(Protocol):
    """The leader's side of the call that carries one push stream."""

    @property
    def broken(self) -> tuple[type[Exception], ...]:
        """Exceptions of `write` and `done_writing` after the call has ended, which `read` reports as well."""

    def encode(self, message: PushMessage, payload: Payload) -> Any:
        """Encode a message for `write`. The result is a new object for each message other than an APPEND."""

    async def open(self) -> int:
        """Perform the handshake and return the incarnation of the peer. Raises PeerUnreachable, and
        InvalidRequest if the peer refuses."""

    def write(self, item: Any) -> Writing: ...

    async def done_writing(self) -> None: ...

    async def read(self) -> PushResponse | None:
        """Read a response. Returns None if the peer has ended the stream normally. Raises PeerUnreachable if
        it broke."""

    def cancel(self) -> None:
        """Cancel the call. Idempotent."""


class PushSender:
    """The leader's end of a push stream. It is never reopened: a new stream is a new object."""

    def __init__(self, stream_id: int, call: PushCall) -> None:
        self.stream_id = stream_id
        self.is_up = False
        self._call = call
        self._outbox: Outbox[Any] = Outbox()
        self._commit: object = None  # the last queued COMMIT

    def put(self, message: PushMessage, payload: Payload) -> None:
        """Queue a message. The core limits queued messages by the bytes in flight. COMMITs, which have no
        bytes, are limited by replacing a queued COMMIT that would directly precede another."""
        item = self._call.encode(message, payload)
        if isinstance(message, Commit):
            waiting, self._commit = self._commit, item
            if waiting is not None and self._outbox.last is waiting:
                self._outbox.replace_last(item)
                return
        self._outbox.put(item)

    def finish(self) -> None:
        """End the stream after the queued messages."""
        self._outbox.finish()

    async def run(self, on_up: Callable[[int], None], on_response: Callable[[PushResponse], None]) -> None:
        """Serve the stream until it ends. Raises PeerUnreachable, and InvalidRequest if the peer refuses
        it."""
        call = self._call
        try:
            incarnation = await call.open()
            self.is_up = True
            on_up(incarnation)
            writer = asyncio.ensure_future(self._write_all())
            try:
                while (response := await call.read()) is not None:
                    on_response(response)
            finally:
                writer.cancel()
        finally:
            call.cancel()

    async def _write_all(self) -> None:
        with suppress(*self._call.broken):
            await self._outbox.run(self._call.write)
            await self._call.done_writing()


class ReceivedPushes(Protocol):
    """The follower's side of the call that carries one push stream."""

    async def read(self) -> tuple[PushMessage, Payload] | None:
        """Read a message. Returns None if the leader has ended the stream. Raises InvalidRequest if the bytes
        are invalid."""

    async def write(self, response: PushResponse) -> None: ...

    async def refuse(self, error: InvalidRequest) -> None:
        """Send the reason why this end closes the stream."""


class PushReceiver:
    """One leader's push stream, from the follower's side. Implements dledger.rpc.ports.PushPeer."""

    def __init__(self, peer: str, stream_id: int, incarnation: int) -> None:
        """`incarnation`: the incarnation of the peer."""
        self.peer = peer
        self.stream_id = stream_id
        self.incarnation = incarnation
        self._outbox: Outbox[PushResponse] = Outbox()
        self._reader: asyncio.Future[None] | None = None
        self._replaced = False
        self._refusal: InvalidRequest | None = None
        self._said_goodbye = False

    def respond(self, response: PushResponse) -> None:
        self._outbox.put(response)

    def refuse(self, error: InvalidRequest) -> None:
        self._refusal = error

    def replace(self) -> None:
        self._replaced = True
        if self._reader is not None:
            self._reader.cancel()  # do not wait for the next message, which may never arrive

    async def serve(self, port: PeerPort, call: ReceivedPushes) -> None:
        writer = asyncio.ensure_future(self._outbox.run(call.write))
        reader = self._reader = asyncio.ensure_future(self._read_all(port, call))
        try:
            port.push_opened(self)
            await asyncio.wait((reader,))
            if not self._replaced:
                await reader
        except InvalidRequest as error:
            # The stream is faulty, not the node: report it and let the leader open a new one.
            await call.refuse(error)
        finally:
            reader.cancel()
            writer.cancel()
            port.push_ended(self, said_goodbye=self._said_goodbye)

    async def _read_all(self, port: PeerPort, call: ReceivedPushes) -> None:
        while not self._replaced:
            received = await call.read()
            if received is None or self._replaced:
                return
            message, payload = received
            if message.stream_id != self.stream_id:
                raise InvalidRequest(
                    f"a message for stream {message.stream_id} arrived on stream {self.stream_id}"
                )
            if isinstance(message, Goodbye):
                self._said_goodbye = True
            port.push_received(self, message, payload)
            if self._refusal is not None:
                raise self._refusal
