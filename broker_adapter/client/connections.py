"""Connections to servers, one for each address, and how much may be under way on all of them."""

from __future__ import annotations

import asyncio
import ssl

from broker_adapter.client.options import ClientOptions
from broker_adapter.errors import AnswerMissing, Busy, PutRefused, Status
from broker_adapter.remoting.byte_budget import ByteBudget
from broker_adapter.remoting.client import connect
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Dispatch
from broker_adapter.remoting.signing import sign


class Connections:
    """Opened when they are asked for, opened again after they ended. On one event loop."""

    def __init__(self, options: ClientOptions, dispatch: Dispatch, tls: ssl.SSLContext | None) -> None:
        self._options = options
        self._dispatch = dispatch
        self._tls = tls
        self._open: dict[str, RemotingConnection] = {}  # least recently used first
        self._opening: dict[str, asyncio.Task[RemotingConnection]] = {}
        self._in_flight = asyncio.Semaphore(options.max_in_flight)
        self._bytes = ByteBudget(options.max_in_flight_bytes)
        self._is_closed = False

    async def invoke(self, address: str, request: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """The answer, whatever its code. Waits while too much is in flight.

        PutRefused (NOT_CONNECTED) if nothing was sent, AnswerMissing (ANSWER_MISSING) if it was sent and
        there is no answer in time.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        size = len(request.body)
        try:
            async with asyncio.timeout_at(deadline):
                await self._in_flight.acquire()
                try:
                    await self._take_bytes(size)
                except BaseException:
                    self._in_flight.release()
                    raise
        except TimeoutError:
            raise Busy(
                Status.TOO_MANY_CALLS, f"{address}: too much in flight for {timeout_s:g} s; nothing was sent"
            ) from None
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    connection = await self.get(address)
            except TimeoutError:
                text = f"{address}: not connected within {timeout_s:g} s"
                raise PutRefused(Status.NOT_CONNECTED, text) from None
            left = deadline - asyncio.get_running_loop().time()
            return await connection.invoke(self._signed(request), left)
        finally:
            self._in_flight.release()
            self._bytes.give_back(size)

    async def invoke_long(self, address: str, request: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """As `invoke`, for requests that brokers keep waiting: they would take the room of all others. The
        caller bounds how many there are."""
        return await (await self.get(address)).invoke(self._signed(request), timeout_s)

    async def notify(self, address: str, request: RemotingCommand) -> None:
        """Send a one-way request. PutRefused (NOT_CONNECTED), Busy (TOO_MANY_PENDING_BYTES)."""
        connection = await self.get(address)
        # Nothing else has to be waited for: a program that does nothing but this would keep the loop from
        # sending it, and from all else.
        await asyncio.sleep(0)
        if connection.unsent_bytes > self._options.max_in_flight_bytes // 2:
            raise Busy(Status.TOO_MANY_PENDING_BYTES, f"{address}: it does not read what was sent")
        connection.notify(self._signed(request))

    async def get(self, address: str) -> RemotingConnection:
        """PutRefused (NOT_CONNECTED) if nobody takes the connection in time."""
        connection = self._open.pop(address, None)
        if connection is not None and not connection.is_closed:
            self._open[address] = connection
            return connection
        if self._is_closed:
            await asyncio.sleep(0)  # a program may try again at once
            raise PutRefused(Status.NOT_CONNECTED, "the client is closed")
        opening = self._opening.get(address)
        if opening is None or opening.done():
            opening = asyncio.get_running_loop().create_task(self._connect(address))
            self._opening[address] = opening
            opening.add_done_callback(lambda _: self._forget(address, opening))
        try:
            return await asyncio.shield(opening)  # others wait for it too
        except AnswerMissing as error:
            raise PutRefused(Status.NOT_CONNECTED, error.message) from None
        except asyncio.CancelledError:
            if self._is_closed and opening.cancelled():
                raise PutRefused(Status.NOT_CONNECTED, "the client is closed") from None
            raise

    def _forget(self, address: str, opened: asyncio.Task[RemotingConnection]) -> None:
        if self._opening.get(address) is opened:
            del self._opening[address]
        _ = opened.cancelled() or opened.exception()  # who asked may have gone

    async def close(self) -> None:
        """End all. What is under way fails."""
        self._is_closed = True
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        for connection in list(self._open.values()):
            connection.close("the client is closed")
        await self._dispatch.stop()

    def _signed(self, request: RemotingCommand) -> RemotingCommand:
        if self._options.credentials is not None:
            sign(request, self._options.credentials)
        return request

    async def _connect(self, address: str) -> RemotingConnection:
        connection = await connect(
            address, timeout_s=self._options.connect_timeout_s, dispatch=self._dispatch, tls=self._tls
        )
        try:
            self._make_room()
        except AnswerMissing:
            connection.close("there is no room for it")
            raise
        self._open[address] = connection
        return connection

    def _make_room(self) -> None:
        """For one more: the connection that was used longest ago is closed, if nothing goes on there.

        AnswerMissing (ANSWER_MISSING) if all are in use.
        """
        self._open = {address: one for address, one in self._open.items() if not one.is_closed}
        for address, one in list(self._open.items()):
            if len(self._open) < self._options.max_connections:
                return
            if one.is_idle:
                self._open.pop(address).close("not used for longest")
        if len(self._open) >= self._options.max_connections:
            raise AnswerMissing(
                Status.ANSWER_MISSING, f"all {len(self._open)} connections of the client are in use"
            )

    async def _take_bytes(self, size: int) -> None:
        granted = asyncio.get_running_loop().create_future()

        def grant() -> None:
            if granted.done():
                self._bytes.give_back(size)  # nobody waits any more
            else:
                granted.set_result(None)

        if self._bytes.ask(size, grant):
            return
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._bytes.give_back(size)
            else:
                self._bytes.withdraw(grant)
            raise
