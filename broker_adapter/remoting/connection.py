"""A connection of the remoting protocol, for clients and servers.

Both ends may send requests. A response has the `opaque` of its request; responses may arrive in any order.
Each connection has limits on incomplete frames, requests in progress, and unread responses.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from broker_adapter.errors import AnswerMissing, FrameRefused, Status
from broker_adapter.remoting.command import MAX_FRAME, RemotingCommand, decode, encode, split_mark
from dledger.infra.logs import get_logger
from dledger.infra.loops.turns import wake_queue
from dledger.infra.quotas import FairQueue, client_address
from dledger.infra.transport.listener import AdmittedConnection

_log = get_logger("remoting")

#: If at least this many bytes of a frame are missing, the frame is read only after memory for it was granted.
_LARGE_BYTES = 64 << 10
#: Maximum commands and bytes of commands processed per connection and turn. This takes about 2 ms, or 6 ms
#: for a header of the maximum size. Connections take turns on the event loop (`wake_queue`), because
#: thousands may send at the same time.
_TURN, _TURN_BYTES = 32, 48 << 10
_OPAQUES = 1 << 31
_INT = struct.Struct(">i")
_MARK_END = 2 * _INT.size
#: The first bytes of other protocols, which are read as the length of a frame.
_OTHER_PROTOCOLS = {
    b"HTTP": "the other end is an HTTP server, such as a status page",
    b"GET ": "the other end is an HTTP client, and this is no status page",
    b"PRI ": "the other end is a gRPC client, and this is no gRPC port",
}
_COMPACT_BYTES = 64 << 10
#: Values of SO_LINGER: reset the connection and drop unsent data, or close it normally.
_RESET, _IN_ORDER = struct.pack("ii", 1, 0), struct.pack("ii", 0, 0)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of one connection: bytes, seconds, counts."""

    max_frame: int = MAX_FRAME
    frame_s: float = 30.0  # from the first byte of a frame to its last
    idle_s: float = 120.0  # without incoming data; RocketMQ's serverChannelMaxIdleTimeSeconds
    under_way: int = 4096  # requests in progress, above which reading pauses
    unsent_bytes: int = 64 << 20  # responses that the peer does not read
    unsent_s: float = 60.0  # time limit for the peer to resume reading


class ConnectionUser(Protocol):
    """Callbacks for the life cycle of a connection.

    Called on its event loop. They must not raise exceptions.
    """

    def connected(self, connection: RemotingConnection) -> None: ...

    def unsent(self, connection: RemotingConnection) -> None:
        """Called when the peer reads too slowly, so that data is waiting beyond the socket buffer."""

    def closed(self, connection: RemotingConnection, reason: str) -> None:
        """Called once, even for a connection that was never established."""


class FrameReader:
    """Splits a byte stream into commands: `feed` data, then call `next` until it returns None.

    After a FrameRefused, the stream is unusable, because the start of the next frame is unknown.
    """

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        """`max_frame`: bytes after the length field."""
        self._max_frame = max_frame
        self._buffer = bytearray()
        self._at = 0  # bytes before it are consumed

    @property
    def buffered(self) -> int:
        """Number of bytes that are not consumed yet."""
        return len(self._buffer) - self._at

    @property
    def missing(self) -> int:
        """Number of bytes that the current frame still lacks, or 0 if its length is unknown."""
        return max(0, (self._size() or 0) - self.buffered)

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> RemotingCommand | None:
        """Return the next command, or None if no frame is complete.

        Raises FrameRefused (FRAME_INVALID). Lengths are checked as soon as they arrive, so that an invalid
        frame is rejected before it is complete.
        """
        size = self._size()
        if size is None or self.buffered < size:
            return None
        begin, self._at = self._at, self._at + size
        frame = bytes(memoryview(self._buffer)[begin + _INT.size : self._at])
        if self._at == len(self._buffer) or self._at >= _COMPACT_BYTES:
            del self._buffer[: self._at]
            self._at = 0
        return decode(frame)

    def _size(self) -> int | None:
        """Return the size of the whole next frame, or None if it is not known yet."""
        buffered = self.buffered
        if buffered < _INT.size:
            return None
        length: int = _INT.unpack_from(self._buffer, self._at)[0]
        if not _INT.size <= length <= self._max_frame:
            other = _OTHER_PROTOCOLS.get(_INT.pack(length))
            text = f"the frame is {length} bytes long; expected {_INT.size} to {self._max_frame}"
            raise FrameRefused(f"{text}: {other}" if other else text)
        if buffered >= _MARK_END:
            _, header = split_mark(_INT.unpack_from(self._buffer, self._at + _INT.size)[0])
            if header > length - _INT.size:
                raise FrameRefused(f"the header of {header} bytes does not fit in a frame of {length}")
        return _INT.size + length


class RemotingConnection(AdmittedConnection):
    """A connection of the remoting protocol. `host` and `peer` (host:port) identify the other end."""

    def __init__(
        self,
        user: ConnectionUser,
        answer: Callable[[RemotingConnection, RemotingCommand], None],
        limits: ConnectionLimits,
        budget: FairQueue,
    ) -> None:
        """Create a connection.

        `answer` is called with each request and returns immediately. It must call `begin` when the processing
        of the request starts, and `end` when it ends. `budget`: memory for incomplete frames.
        """
        self.host = self.peer = ""
        self.certificate: object = None  # the peer's, as returned by ssl.SSLSocket.getpeercert
        self.is_closed = False
        self.active_s = asyncio.get_running_loop().time()  # time of the last incoming data
        self._user = user
        self._answer = answer
        self._limits = limits
        self._reader = FrameReader(limits.max_frame)
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[RemotingCommand]] = {}
        self._opaques = itertools.count()
        self._budget = budget
        self._granted = 0  # bytes granted from the budget
        self._is_asking = False
        self._under_way = 0
        self._is_full = False  # the peer does not read
        self._is_reading = True
        self._is_waiting = False  # for a turn of the event loop
        self._has_yielded = self._has_received = False
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._reason = "closed by the other end"

    @property
    def auth_context(self) -> Mapping[str, list[bytes]]:
        """Names in the peer's certificate, in the format of gRPC. Empty if there is no certificate."""
        certificate = self.certificate
        if not isinstance(certificate, dict):
            return {}
        common = [
            value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"
        ]
        others = [value for _, value in certificate.get("subjectAltName", ())]
        return {
            "x509_common_name": [name.encode() for name in common],
            "x509_subject_alternative_name": [name.encode() for name in others],
        }

    @property
    def is_idle(self) -> bool:
        """True if no request is in progress in either direction."""
        return not self._under_way and not self._waiting and not self._reader.buffered

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    # -- sending ------------------------------------------------------------------------------------------

    def send(self, command: RemotingCommand) -> None:
        """Write a command. If the connection has ended, drop the command.

        Raises FrameRefused (FRAME_INVALID) if the command is too large.
        """
        self.send_encoded(encode(command))

    def send_encoded(self, data: bytes) -> None:
        """Write a whole frame, under the same conditions as `send`."""
        if self._transport is None or self.is_closed or self._transport.is_closing():
            return
        self._transport.write(data)
        if self.unsent_bytes > self._limits.unsent_bytes:
            self.close(f"more than {self._limits.unsent_bytes} bytes were not read")
        elif self._is_full:
            self._user.unsent(self)

    async def invoke(self, request: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """Send a request and return the response, which may have any code.

        Raises AnswerMissing (ANSWER_MISSING) if no response arrives within `timeout_s`.
        """
        if self.is_closed:
            raise AnswerMissing(Status.ANSWER_MISSING, f"{self.peer}: {self._reason}")
        request.opaque = next(self._opaques) % _OPAQUES
        answer: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        self._waiting[request.opaque] = answer
        try:
            self.send(request)
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise AnswerMissing(
                Status.ANSWER_MISSING,
                f"{self.peer}: no response to request {request.code} within {timeout_s:g} s",
            ) from None
        finally:
            self._waiting.pop(request.opaque, None)

    def notify(self, request: RemotingCommand) -> None:
        """Send a one-way request. Its delivery is not confirmed."""
        assert request.is_oneway, "notify takes one-way requests only"
        request.opaque = next(self._opaques) % _OPAQUES
        self.send(request)

    def begin(self) -> None:
        """Start a request, which counts as in progress until `end`."""
        self._under_way += 1

    def end(self) -> None:
        """End a request after its response was sent, or if there is no response."""
        self._under_way -= 1
        self._resume_reading()

    def end_turn(self) -> None:
        """Process the remaining commands in a later step of the event loop, because the current one was
        refused.

        No executor limits the number of refusals. Otherwise a client that sends requests without reading the
        refusals would keep the event loop busy.
        """
        self._has_yielded = True

    def close(self, reason: str) -> None:
        """Close immediately and discard unsent data. May be called repeatedly."""
        if self.is_closed:
            return
        self._reason = reason
        if self._transport is not None:
            if not self._under_way:
                self._linger(_IN_ORDER)
            self._transport.abort()
        elif self.on_close is not None:
            self.on_close()
        self._end()

    def reset_at_end(self) -> None:
        """Reset the connection if this process exits, or closes it while responses are outstanding.

        RocketMQ's Java client 4.9 ignores a normal close. Its pending requests then expire, which leaves no
        time to try another broker. After a reset it tries another broker immediately.
        """
        self._linger(_RESET)

    def _linger(self, how: bytes) -> None:
        transport = self._transport
        if transport is not None and (opened := transport.get_extra_info("socket")) is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, how)

    def leave(self) -> None:
        self._end()

    # -- receiving ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.host, port = transport.get_extra_info("peername", ("", 0))[:2]
        self.peer = f"{self.host}:{port}"
        self.certificate = transport.get_extra_info("peercert")
        if self.is_closed:
            transport.abort()
            return
        self._arm(self._limits.idle_s)
        self._user.connected(self)

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            return
        if not self._reader.buffered:
            self._arm(self._limits.frame_s)
        self._has_received = True
        self._reader.feed(data)
        self.active_s = asyncio.get_running_loop().time()
        if not self._is_waiting:
            self._is_waiting = True
            self._wait()

    def eof_received(self) -> None:
        self._linger(_IN_ORDER)  # the peer may still read

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.is_closed:
            self._reason = self._reason if exc is None else str(exc)
            if self._is_tls_client and not self._has_received:
                self._reason += "; the server may require a certificate of a CA that it trusts"
        self._end()

    @property
    def _is_tls_client(self) -> bool:
        tls = None if self._transport is None else self._transport.get_extra_info("ssl_object")
        return tls is not None and not tls.server_side

    def pause_writing(self) -> None:
        self._is_full = True
        self._set_reading(False)
        self._arm(self._limits.unsent_s)

    def resume_writing(self) -> None:
        self._is_full = False
        self._arm(self._limits.idle_s)
        self._resume_reading()

    def _wait(self) -> None:
        """Queue this connection for its turn, and pause reading until then."""
        wake_queue().add(client_address(self.host), self._process_frames)
        if self._is_waiting:
            self._set_reading(False)

    def _process_frames(self) -> None:
        """Process some of the received commands, and the others in later steps of the event loop."""
        self._is_waiting = self._has_yielded = False
        if self.is_closed:
            return
        enough = self._reader.buffered - _TURN_BYTES  # what is left after these bytes
        try:
            for _ in range(_TURN):
                if self.is_closed or self._is_full or self._under_way >= self._limits.under_way:
                    self._set_reading(False)
                    return
                command = self._reader.next()
                if command is None:
                    self._set_reading(self._can_read_more())
                    return
                self._on_frame(command)
                if self._has_yielded or self._reader.buffered <= enough:
                    break
        except FrameRefused as error:
            _log.info("closing a connection", peer=self.peer, reason=str(error))
            self.close(str(error))
            return
        self._set_reading(False)
        self._resume_reading()

    def _can_read_more(self) -> bool:
        """Return True if reading may continue although no frame is complete."""
        if not self._reader.buffered:
            self._arm(self._limits.idle_s)
        missing = self._reader.missing
        if missing < _LARGE_BYTES or (self._granted and not self._is_asking):
            return True
        if not self._is_asking:
            self._granted = missing
            self._is_asking = not self._budget.request(self._grant, client_address(self.host), missing)
        return not self._is_asking

    def _grant(self) -> None:
        self._is_asking = False
        self._arm(self._limits.frame_s)  # the wait for memory does not count
        self._resume_reading()

    def _release_memory(self) -> None:
        if self._is_asking:
            self._budget.withdraw(self._grant, client_address(self.host))
        elif self._granted:
            self._budget.release(client_address(self.host), self._granted)
        self._granted, self._is_asking = 0, False

    def _on_frame(self, command: RemotingCommand) -> None:
        self._release_memory()
        self._arm(self._limits.frame_s)  # the next frame has its own deadline
        if not command.is_answer:
            self._answer(self, command)
        elif (waiting := self._waiting.pop(command.opaque, None)) is not None and not waiting.done():
            waiting.set_result(command)

    def _resume_reading(self) -> None:
        if not self._is_reading and not self._is_waiting and not self.is_closed:
            self._is_waiting = True
            asyncio.get_running_loop().call_soon(self._wait)

    def _set_reading(self, reading: bool) -> None:
        if reading is self._is_reading or self._transport is None or self._transport.is_closing():
            return
        self._is_reading = reading
        change: Callable[[], None] = (
            self._transport.resume_reading if reading else self._transport.pause_reading
        )
        change()

    def _arm(self, seconds: float) -> None:
        """Set the deadline.

        The timer is restarted only if it would fire too late; otherwise it restarts itself when it fires.
        Most deadlines are extended often.
        """
        loop = asyncio.get_running_loop()
        self._deadline = loop.time() + seconds
        if self._timer is not None:
            if self._timer.when() <= self._deadline:
                return
            self._timer.cancel()
        self._timer = loop.call_at(self._deadline, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        if loop.time() < self._deadline:
            self._timer = loop.call_at(self._deadline, self._check_deadline)
        else:
            self._on_deadline()

    def _on_deadline(self) -> None:
        if self._is_full:
            self.close(f"responses were not read for {self._limits.unsent_s:g} s")
        elif self._is_asking or self._under_way:
            self._arm(self._limits.idle_s)  # the peer waits for us
        elif self._reader.buffered:
            self.close(f"a frame was not complete within {self._limits.frame_s:g} s")
        else:
            self.close(f"nothing was received for {self._limits.idle_s:g} s")

    def _end(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._release_memory()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(AnswerMissing(Status.ANSWER_MISSING, f"{self.peer}: {self._reason}"))
        self._user.closed(self, self._reason)
