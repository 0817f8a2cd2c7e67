"""One connection of the remoting protocol, from either end.

Requests go both ways; answers are paired with them by `opaque` and come in any order. What one connection can
take is bounded: frames that are not complete, requests that are being answered, answers that are not read.
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
from broker_adapter.remoting.byte_budget import ByteBudget
from broker_adapter.remoting.command import MAX_FRAME, RemotingCommand, encode
from broker_adapter.remoting.frames import FrameReader
from dledger.platform import AdmittedConnection, client_address, get_logger, wake_queue

_log = get_logger("remoting")

#: A frame that has so much to come is read when the memory for it was granted.
_LARGE_BYTES = 64 << 10
#: Commands taken from one connection at a time: 2 to 3 ms; 6 ms if they are one with the largest header. All
#: connections share the turns of the event loop (`wake_queue`): thousands may send at once.
_TURN = 64
_OPAQUES = 1 << 31
#: For SO_LINGER: a closed socket is reset, and what was not sent is dropped; or it is closed in order.
_RESET, _IN_ORDER = struct.pack("ii", 1, 0), struct.pack("ii", 0, 0)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Of one connection. Bytes, seconds, counts."""

    max_frame: int = MAX_FRAME
    frame_s: float = 30.0  # from the first byte of a frame to its last
    idle_s: float = 120.0  # nothing came for so long; RocketMQ's serverChannelMaxIdleTimeSeconds
    under_way: int = 4096  # requests that are being answered: above it nothing more is read
    unsent_bytes: int = 64 << 20  # answers that the other end does not read
    unsent_s: float = 60.0  # for it to read some of them


class ConnectionUser(Protocol):
    """What happens at a connection. Called on its event loop; must not raise."""

    def connected(self, connection: RemotingConnection) -> None: ...

    def requested(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        """Nothing is awaited: start what answers it. `connection.begin` and `end` bracket it."""

    def active(self, connection: RemotingConnection) -> None:
        """Something came."""

    def unsent(self, connection: RemotingConnection) -> None:
        """More waits for the other end to read it than a socket takes."""

    def closed(self, connection: RemotingConnection, reason: str) -> None:
        """Once, also for a connection that never was connected."""


class RemotingConnection(AdmittedConnection):
    """See the module. `host`, and `peer` (host:port): of the other end once connected."""

    def __init__(self, user: ConnectionUser, limits: ConnectionLimits, budget: ByteBudget) -> None:
        """`budget`: for frames that are not complete."""
        self.host = self.peer = ""
        self.certificate: object = None  # of the other end, as ssl.SSLSocket.getpeercert gives it
        self.is_closed = False
        self._user = user
        self._limits = limits
        self._reader = FrameReader(limits.max_frame)
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[RemotingCommand]] = {}
        self._opaques = itertools.count()
        self._budget = budget
        self._granted = 0  # bytes of it
        self._is_asking = False
        self._under_way = 0
        self._is_full = False  # the other end does not read
        self._is_reading = True
        self._is_waiting = False  # for a turn of the event loop
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._reason = "closed by the other end"

    @property
    def auth_context(self) -> Mapping[str, list[bytes]]:
        """What the certificate of the other end names, in the form in which gRPC has it; {} without one."""
        found = self.certificate
        if not isinstance(found, dict):
            return {}
        common = [value for part in found.get("subject", ()) for key, value in part if key == "commonName"]
        others = [value for _, value in found.get("subjectAltName", ())]
        return {
            "x509_common_name": [name.encode() for name in common],
            "x509_subject_alternative_name": [name.encode() for name in others],
        }

    @property
    def is_idle(self) -> bool:
        """Nothing is being asked or answered."""
        return not self._under_way and not self._waiting and not self._reader.buffered

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    # -- sending ------------------------------------------------------------------------------------------

    def send(self, command: RemotingCommand) -> None:
        """Write it; drop it if the connection has ended. FrameRefused (FRAME_INVALID) if it is too large."""
        self.send_encoded(encode(command))

    def send_encoded(self, data: bytes) -> None:
        """As `send`, of a whole frame."""
        if self._transport is None or self.is_closed or self._transport.is_closing():
            return
        self._transport.write(data)
        if self.unsent_bytes > self._limits.unsent_bytes:
            self.close(f"more than {self._limits.unsent_bytes} bytes were not read")
        elif self._is_full:
            self._user.unsent(self)

    async def invoke(self, request: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """The answer, whatever its code. AnswerMissing (ANSWER_MISSING) if there is none in time."""
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
                Status.ANSWER_MISSING, f"{self.peer}: no answer to {request.code} within {timeout_s:g} s"
            ) from None
        finally:
            self._waiting.pop(request.opaque, None)

    def notify(self, request: RemotingCommand) -> None:
        """Send a one-way request: whether it comes is not known."""
        assert request.is_oneway, "somebody would wait for the answer"
        request.opaque = next(self._opaques) % _OPAQUES
        self.send(request)

    def begin(self) -> None:
        """A request is being answered from now on."""
        self._under_way += 1

    def end(self) -> None:
        """Its answer was sent, or there is none."""
        self._under_way -= 1
        self._go_on()

    def close(self, reason: str) -> None:
        """At once; what was not sent is lost. Repeatable."""
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
        """If this process ends, or closes the connection while it owes answers, the other end sees a reset.

        RocketMQ's Java client 4.9 passes over an orderly end: what it has asked for waits for its whole time,
        and nothing is left of that for another broker. After a reset it goes there at once.
        """
        self._linger(_RESET)

    def _linger(self, how: bytes) -> None:
        if self._transport is not None and (of_it := self._transport.get_extra_info("socket")) is not None:
            of_it.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, how)

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
        self._reader.feed(data)
        self._user.active(self)
        if not self._is_waiting:
            self._is_waiting = True
            self._wait()

    def eof_received(self) -> None:
        self._linger(_IN_ORDER)  # it may read on

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and not self.is_closed:
            self._reason = str(exc)
        self._end()

    def pause_writing(self) -> None:
        self._is_full = True
        self._set_reading(False)
        self._arm(self._limits.unsent_s)

    def resume_writing(self) -> None:
        self._is_full = False
        self._arm(self._limits.idle_s)
        self._go_on()

    def _wait(self) -> None:
        """Nothing more is read until this connection has had a turn."""
        wake_queue().add(self.host, self._take)
        if self._is_waiting:
            self._set_reading(False)

    def _take(self) -> None:
        """Some of the commands that have come; the others in another turn of the loop."""
        self._is_waiting = False
        if self.is_closed:
            return
        try:
            for _ in range(_TURN):
                if self.is_closed or self._is_full or self._under_way >= self._limits.under_way:
                    self._set_reading(False)
                    return
                command = self._reader.next()
                if command is None:
                    self._set_reading(self._may_read_on())
                    return
                self._took(command)
        except FrameRefused as error:
            _log.info("closing a connection", peer=self.peer, reason=str(error))
            self.close(str(error))
            return
        self._set_reading(False)
        self._go_on()

    def _may_read_on(self) -> bool:
        """No frame is complete."""
        if not self._reader.buffered:
            self._arm(self._limits.idle_s)
        missing = self._reader.missing
        if missing < _LARGE_BYTES or (self._granted and not self._is_asking):
            return True
        if not self._is_asking:
            self._granted = missing
            self._is_asking = not self._budget.ask(missing, self._grant, client_address(self.host))
        return not self._is_asking

    def _grant(self) -> None:
        self._is_asking = False
        self._arm(self._limits.frame_s)  # it could not go on before
        self._go_on()

    def _give_back(self) -> None:
        if self._is_asking:
            self._budget.withdraw(self._grant, client_address(self.host))
        elif self._granted:
            self._budget.give_back(self._granted, client_address(self.host))
        self._granted, self._is_asking = 0, False

    def _took(self, command: RemotingCommand) -> None:
        self._give_back()
        self._arm(self._limits.frame_s)  # the next frame has its own time
        if not command.is_answer:
            self._user.requested(self, command)
        elif (waiting := self._waiting.pop(command.opaque, None)) is not None and not waiting.done():
            waiting.set_result(command)

    def _go_on(self) -> None:
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
        """A timer that would be late is made anew; one that is early looks again: most are moved on often."""
        loop = asyncio.get_running_loop()
        self._deadline = loop.time() + seconds
        if self._timer is not None:
            if self._timer.when() <= self._deadline:
                return
            self._timer.cancel()
        self._timer = loop.call_at(self._deadline, self._look)

    def _look(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        if loop.time() < self._deadline:
            self._timer = loop.call_at(self._deadline, self._look)
        else:
            self._late()

    def _late(self) -> None:
        if self._is_full:
            self.close(f"answers were not read for {self._limits.unsent_s:g} s")
        elif self._is_asking or self._under_way:
            self._arm(self._limits.idle_s)  # it waits for us
        elif self._reader.buffered:
            self.close(f"a frame was not complete within {self._limits.frame_s:g} s")
        else:
            self.close(f"nothing came for {self._limits.idle_s:g} s")

    def _end(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._give_back()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(AnswerMissing(Status.ANSWER_MISSING, f"{self.peer}: {self._reason}"))
        self._user.closed(self, self._reason)
