"""Reading: one stream of entries that goes on at another server where the last one left off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Literal

import tenacity

from dledger.client.directory import PROBE_TIMEOUT, Directory
from dledger.client.frames import decode
from dledger.client.values import Entry
from dledger.errors import Code, DLedgerError, InvalidRequest, ReadFailed, StorageError
from dledger.rpc.log_client import LogClient, NetworkFailure, ReadChunk
from dledger.status.model import NodeStatus

ReadMode = Literal["linearizable", "local"]
MODES = ("linearizable", "local")

#: Between servers that could not serve a read: at once to the next one, then with pauses, in seconds.
_RETRY_PAUSE = tenacity.wait_chain(tenacity.wait_none(), tenacity.wait_random(0.02, 0.1))
#: How long to look for the leader before any other server has to do, in seconds.
_LEADER_WAIT = 0.3


class _NextServer(Exception):
    """This server cannot go on with the read."""

    def __init__(self, reason: DLedgerError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Reader:
    """One read. Entries come out without a gap or a repeat, whichever servers they come from."""

    def __init__(
        self,
        directory: Directory,
        from_index: int,
        count: int | None,
        *,
        follow: bool,
        mode: ReadMode,
        server: str | None,
        timeout: float,
        stall_timeout: float,
    ) -> None:
        if mode not in MODES:
            raise InvalidRequest(f"mode is one of {', '.join(MODES)}, not {mode!r}")
        if from_index < -1 or (count is not None and count < 1):
            raise InvalidRequest("from_index is -1 (the beginning) or more, count None (all) or 1 or more")
        self._directory = directory
        self._next = from_index
        self._left = count  # None: all
        self._follow = follow
        self._linearizable = mode == "linearizable"
        self._server = server
        self._timeout = timeout
        self._stall_timeout = stall_timeout
        self._failed: list[str] = []  # servers that failed since the last chunk

    async def chunks(self) -> AsyncGenerator[list[Entry], None]:
        """Non-empty lists of consecutive entries. Raises ReadFailed, InvalidRequest, StorageError."""
        while True:
            try:
                client, stream, entries = await self._start()
            except _NextServer as failed:
                raise _final(failed.reason) from None
            try:
                while entries is not None:
                    self._failed.clear()
                    if entries:
                        yield entries
                    if self._left == 0:
                        return
                    entries = await self._receive(client, stream)
                if not self._follow:
                    return
            except _NextServer:
                continue  # elsewhere, from self._next on
            finally:
                await stream.aclose()

    def _accept(self, chunk: ReadChunk) -> list[Entry]:
        entries, after = decode(chunk.frames, self._next)
        self._next = max(after, chunk.next_index)
        if self._left is not None:
            del entries[self._left :]
            self._left -= len(entries)
        return entries

    async def _start(self) -> tuple[LogClient, AsyncGenerator[ReadChunk, None], list[Entry] | None]:
        """A stream and its first entries, from whichever server can give them."""
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(_NextServer),
            wait=_RETRY_PAUSE,
            stop=tenacity.stop_never if self._follow else tenacity.stop_after_delay(self._timeout),
            reraise=True,
        )
        return await retrying(self._try_one_server)

    async def _try_one_server(self) -> tuple[LogClient, AsyncGenerator[ReadChunk, None], list[Entry] | None]:
        client = await self._choose()
        stream = client.read(
            self._next,
            self._left or 0,
            follow=self._follow,
            linearizable=self._linearizable,
            include_internal=True,  # frames hold them anyway, and so every index is accounted for
        )
        try:
            return client, stream, await self._receive(client, stream)
        except BaseException:
            await stream.aclose()
            raise

    async def _choose(self) -> LogClient:
        """The server asked for; else the leader; else whichever answers, those that failed last."""
        if self._directory.closed:
            raise ReadFailed("the client is closed", code=Code.READ_NOT_CONFIRMED)
        if self._server is not None:
            return self._directory.client(self._server)
        if not self._failed:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LEADER_WAIT):
                    return await self._directory.leader()
        servers = self._directory.addresses
        if len(self._failed) >= len(servers):
            self._failed.clear()
        address = next((a for a in servers if a not in self._failed), servers[0])
        client = self._directory.client(address)
        try:
            await client.get_status(PROBE_TIMEOUT)
        except DLedgerError as error:
            raise self._give_up(address, error) from None
        return client

    def _give_up(self, address: str, reason: DLedgerError) -> _NextServer:
        self._failed.append(address)
        if isinstance(reason, NetworkFailure):
            self._directory.lost(address)
        return _NextServer(reason)

    async def _receive(
        self, client: LogClient, stream: AsyncGenerator[ReadChunk, None]
    ) -> list[Entry] | None:
        """The next entries, None at the end. Raises _NextServer, and errors that no server can help."""
        waiting = asyncio.ensure_future(anext(stream, None))
        try:
            while not (await asyncio.wait([waiting], timeout=self._stall_timeout))[0]:
                await self._check_on(client)
            chunk = waiting.result()
            return None if chunk is None else self._accept(chunk)
        except NetworkFailure as failure:
            raise self._give_up(client.address, failure) from None
        except ReadFailed as error:
            # A follower that lags does not have the end yet that another one showed.
            if error.code == Code.READ_NOT_CONFIRMED or (
                self._follow and error.code == Code.INDEX_OUT_OF_RANGE
            ):
                raise self._give_up(client.address, error) from None
            raise
        except InvalidRequest:
            raise
        except DLedgerError as error:
            raise self._give_up(client.address, error) from None
        finally:
            if not waiting.done():
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)

    async def _check_on(self, client: LogClient) -> None:
        """A silent server: is it paused or cut off, or is there just nothing new? Raises _NextServer."""
        try:
            own = await client.get_status(PROBE_TIMEOUT)
        except DLedgerError as error:
            raise self._give_up(client.address, error) from None
        if self._server is not None:
            return
        # Asked after it, the others may be ahead by a moment; by what has not arrived in the next
        # `stall_timeout` either, only if this server no longer hears from the cluster.
        if own.committed_index >= self._next or not self._follow:
            return
        answers = await self._directory.statuses(PROBE_TIMEOUT)
        later = [s for s in answers.values() if isinstance(s, NodeStatus) and s.term > own.term]
        if any(s.committed_index > own.committed_index for s in later):
            behind = NetworkFailure(f"{client.address} has lost contact with its cluster")
            raise self._give_up(client.address, behind)


def _final(reason: DLedgerError) -> DLedgerError:
    """The error of a read that no server could serve in time."""
    if isinstance(reason, ReadFailed | StorageError):
        return reason
    return ReadFailed(f"no server could serve the read; last: {reason.message}", code=reason.code)
