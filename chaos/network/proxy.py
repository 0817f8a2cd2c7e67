"""One proxied connection: bytes from one socket to another, past the gates of two directed links."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from random import Random
from typing import Any

from chaos.network.impairment import CLEAR, Impairment, LinkCounters

_PIECE = 64 << 10
#: Of one direction of one connection, waiting for their time: more stay with the sender, as in a network.
MAX_WAITING_BYTES = 1 << 20
_LINGER_NOT = struct.pack("ii", 1, 0)  # a close that resets


class ConnectionBroken(ConnectionError):
    """The impairment on the link breaks this connection."""


class LinkGate:
    """One directed link, shared by all connections whose bytes pass it."""

    def __init__(self, rng: Random) -> None:
        self.impairment = CLEAR
        self.counters = LinkCounters()
        self._rng = rng
        self._changed = asyncio.Event()
        self._free_at = 0.0  # when the throttle lets the next piece begin

    def set(self, impairment: Impairment) -> None:
        """From now on; whoever waits looks again."""
        if impairment != self.impairment:
            self.impairment = impairment
            self._free_at = 0.0
            self._changed.set()
            self._changed = asyncio.Event()

    @property
    def is_clear(self) -> bool:
        return self.impairment is CLEAR or self.impairment == CLEAR

    async def until_open(self) -> None:
        """Wait while the link is cut."""
        if self.impairment.cut:
            self.counters.held += 1
            while self.impairment.cut:
                await self._changed.wait()

    def breaks(self) -> bool:
        """Draw whether this piece breaks its connection."""
        chance = self.impairment.reset_chance
        if chance and self._rng.random() < chance:
            self.counters.resets += 1
            return True
        return False

    async def until_due(self, arrived_at: float, size: int, last_at: float) -> float:
        """Wait until a piece may arrive, after the one before it; when that was. A change of the impairment
        counts at once, also for pieces that wait already."""
        loop = asyncio.get_running_loop()
        luck = self._rng.uniform(-1, 1)
        waited = False
        while True:
            impairment, now = self.impairment, loop.time()
            due = max(arrived_at + (impairment.delay_ms + luck * impairment.jitter_ms) / 1000, last_at)
            if impairment.bytes_per_second:
                due = max(due, self._free_at)
            if due <= now:
                break
            waited = True
            with suppress(TimeoutError):
                async with asyncio.timeout(due - now):
                    await self._changed.wait()
        if waited:
            self.counters.delayed += 1
        if impairment.bytes_per_second:
            self._free_at = max(now, self._free_at) + size / impairment.bytes_per_second
        return now


class Forwarding:
    """A connection that was accepted, and the one to the target that belongs to it."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, there: LinkGate, back: LinkGate
    ) -> None:
        self._reader, self._writer = reader, writer
        self._there, self._back = there, back
        self._target: asyncio.StreamWriter | None = None

    async def run(self, host: str, port: int) -> None:
        """Until both sides have ended, or one has failed (OSError). Connecting needs both directions."""
        while self._there.impairment.cut or self._back.impairment.cut:
            await self._there.until_open()
            await self._back.until_open()
        reader, self._target = await asyncio.open_connection(host, port)
        await _all_of(
            _Direction(self._reader, self._target, self._there).run(),
            _Direction(reader, self._writer, self._back).run(),
        )
        for writer in (self._writer, self._target):
            writer.close()

    def abort(self) -> None:
        """End both connections with a reset, unless they have ended."""
        for writer in (self._writer, self._target):
            if writer is not None and not writer.is_closing():
                sock = writer.get_extra_info("socket")
                with suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
                writer.transport.abort()


class _Direction:
    """Bytes from `reader` to `writer`, past `gate`. Without impairment they go straight through."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: LinkGate) -> None:
        self._reader, self._writer, self._gate = reader, writer, gate
        #: (when it came, piece), oldest first. Its end is b"", and None if it was a reset.
        self._waiting: deque[tuple[float, bytes | None]] = deque()
        self._waiting_bytes = 0
        self._news = asyncio.Event()  # something waits
        self._room = asyncio.Event()
        self._room.set()

    async def run(self) -> None:
        """ConnectionError if the other end has to learn of a failure. That has to pass the gate, too."""
        await _all_of(self._read_all(), self._deliver_late())

    async def _read_all(self) -> None:
        gate, loop = self._gate, asyncio.get_running_loop()
        piece: bytes | None = b"-"
        while piece:
            try:
                piece = await self._reader.read(_PIECE)
            except OSError:
                piece = None
            if gate.impairment.hang and piece:
                gate.counters.swallowed += 1
            elif piece and gate.is_clear and not self._waiting:
                await self._pass(piece)
            else:
                self._waiting.append((loop.time(), piece))
                self._waiting_bytes += len(piece or b"")
                self._news.set()
                if self._waiting_bytes > MAX_WAITING_BYTES:
                    self._room.clear()
                await self._room.wait()

    async def _deliver_late(self) -> None:
        gate, last_at = self._gate, 0.0
        while True:
            await self._news.wait()
            arrived_at, piece = self._waiting[0]
            await gate.until_open()
            last_at = await gate.until_due(arrived_at, len(piece or b""), last_at)
            await gate.until_open()
            if piece is None or gate.breaks():
                raise ConnectionBroken("reset")
            if not piece:
                with suppress(OSError):
                    self._writer.write_eof()
                return
            await self._pass(piece)
            self._waiting.popleft()
            self._waiting_bytes -= len(piece)
            if not self._waiting:
                self._news.clear()
            if self._waiting_bytes <= MAX_WAITING_BYTES:
                self._room.set()

    async def _pass(self, piece: bytes) -> None:
        # Where the receiver is gone, the opposite direction reads that, and reports it past its own gate.
        if self._writer.is_closing():
            return
        with suppress(OSError):
            self._writer.write(piece)
            await self._writer.drain()
            self._gate.counters.passed += 1
            self._gate.counters.passed_bytes += len(piece)


async def _all_of(*parts: Coroutine[Any, Any, None]) -> None:
    """Run all; the first error ends the others and is raised."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
