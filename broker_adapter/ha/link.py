"""One connection of a slave to its master."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from broker_adapter.errors import AnswerMissing, Status
from broker_adapter.ha.transfers import Transfer, TransferReader, encode_report

#: Of RocketMQ: how often either side says something (haSendHeartbeatInterval), and how long the other one
#: waits for it (haHousekeepingInterval).
HEARTBEAT_S = 5.0
SILENCE_S = 20.0
#: What one read gives at most. As much again, twice, waits in memory; then the master has to.
_READ_BYTES = 1 << 20


class Link:
    """`open` it, `read` until it fails, `report` what is stored, `close` it. What was reported last is said
    again every `heartbeat_s`, however long nobody reads."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str, position: int
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._name = name
        self._transfers = TransferReader(position)
        self._reported = position
        self._heartbeats: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, address: str, position: int, *, timeout_s: float = 10.0, heartbeat_s: float = HEARTBEAT_S
    ) -> Link:
        """Ask for the log from a physical offset on. AnswerMissing (ANSWER_MISSING)."""
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(timeout_s):
                opened = await asyncio.open_connection(
                    host.removeprefix("[").removesuffix("]"), int(port), limit=_READ_BYTES
                )
        except (OSError, TimeoutError) as error:
            text = f"{address}: no connection: {str(error) or 'no answer in time'}"
            raise AnswerMissing(Status.ANSWER_MISSING, text) from None
        link = cls(*opened, address, position)
        link.report(position)
        link._heartbeats = asyncio.get_running_loop().create_task(link._repeat(heartbeat_s))
        return link

    async def read(self, silence_s: float = SILENCE_S) -> list[Transfer]:
        """What has come, at least something. AnswerMissing if the connection has ended, or nothing comes;
        FrameRefused."""
        try:
            async with asyncio.timeout(silence_s):
                data = await self._reader.read(_READ_BYTES)
        except TimeoutError:
            text = f"{self._name}: the master says nothing for {silence_s:g} s"
            raise AnswerMissing(Status.ANSWER_MISSING, text) from None
        except OSError as error:
            raise AnswerMissing(Status.ANSWER_MISSING, f"{self._name}: {error}") from None
        if not data:
            raise AnswerMissing(Status.ANSWER_MISSING, f"{self._name}: the master has ended the connection")
        return list(self._transfers.feed(data))

    def report(self, position: int) -> None:
        """All before it is stored."""
        self._reported = position
        self._writer.write(encode_report(position))

    async def close(self) -> None:
        if self._heartbeats is not None:
            self._heartbeats.cancel()
            await asyncio.gather(self._heartbeats, return_exceptions=True)
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def _repeat(self, heartbeat_s: float) -> None:
        while True:
            await asyncio.sleep(heartbeat_s)
            self.report(self._reported)
