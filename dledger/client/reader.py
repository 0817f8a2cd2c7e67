"""Reads entries as one stream. If a server fails, the read continues on another server."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Literal

import tenacity
from zlib_ng.zlib_ng import crc32

from dledger.client.batching import check_integer, check_timeout
from dledger.client.directory import PROBE_TIMEOUT, LeaderDirectory
from dledger.client.values import Entry
from dledger.core.values import ENTRY_HEADER_SIZE
from dledger.errors import Code, DLedgerError, InvalidRequest, ReadFailed, StorageError
from dledger.infra.addresses import check_address
from dledger.rpc.log_client import LogClient, NetworkFailure, ReadChunk
from dledger.status.model import NodeStatus

ReadMode = Literal["linearizable", "local"]
MODES = ("linearizable", "local")

#: Seconds between servers that could not serve a read: first none, then longer pauses.
_RETRY_PAUSE = tenacity.wait_chain(tenacity.wait_none(), tenacity.wait_random(0.02, 0.1))
#: Time to search for the leader before another server is used, in seconds.
_LEADER_WAIT = 0.3


class _ServerFailed(Exception):
    """Raised if a server cannot continue the read."""

    def __init__(self, reason: DLedgerError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class LogReadStream:
    """One read, which may use several servers. Returns entries without gaps or duplicates."""

    def __init__(
        self,
        directory: LeaderDirectory,
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
            raise InvalidRequest(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
        check_integer("from_index", from_index, -1)
        if count is not None:
            check_integer("count", count, 1)
        if server is not None:
            check_address(server)
        check_timeout(timeout)
        self._directory = directory
        self._next = from_index
        self._remaining = count  # None means all
        self._follow = follow
        self._linearizable = mode == "linearizable"
        self._server = server
        self._timeout = timeout
        self._stall_timeout = stall_timeout
        self._failed: list[str] = []  # servers that failed since the last chunk

    async def chunks(self) -> AsyncGenerator[list[Entry], None]:
        """Iterate over non-empty lists of consecutive entries. Raises ReadFailed, InvalidRequest,
        StorageError."""
        while True:
            try:
                client, stream, entries = await self._start()
            except _ServerFailed as failed:
                raise _final(failed.reason) from None
            try:
                while entries is not None:
                    self._failed.clear()
                    if entries:
                        yield entries
                    if self._remaining == 0:
                        return
                    entries = await self._receive(client, stream)
                if not self._follow:
                    return
            except _ServerFailed:
                continue  # resume from self._next at another server
            finally:
                await stream.aclose()

    def _accept(self, chunk: ReadChunk) -> list[Entry]:
        entries, after = decode(chunk.frames, self._next)
        self._next = max(after, chunk.next_index)
        if self._remaining is not None:
            del entries[self._remaining :]
            self._remaining -= len(entries)
        return entries

    async def _start(self) -> tuple[LogClient, AsyncGenerator[ReadChunk, None], list[Entry] | None]:
        """Open a stream on any server that can serve it. Returns it with its first entries."""
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(_ServerFailed),
            wait=_RETRY_PAUSE,
            stop=tenacity.stop_never if self._follow else tenacity.stop_after_delay(self._timeout),
            reraise=True,
        )
        return await retrying(self._try_one_server)

    async def _try_one_server(self) -> tuple[LogClient, AsyncGenerator[ReadChunk, None], list[Entry] | None]:
        client = await self._choose()
        stream = client.read(
            self._next,
            self._remaining or 0,
            follow=self._follow,
            linearizable=self._linearizable,
            include_internal=True,  # frames contain them anyway, and every index can be checked
        )
        try:
            return client, stream, await self._receive(client, stream)
        except BaseException:
            await stream.aclose()
            raise

    async def _choose(self) -> LogClient:
        """Choose the requested server, if any, otherwise the leader. If no leader is found in time, or if a
        server has failed since the last chunk, choose the first server that has not failed. Raises
        _ServerFailed if that server does not respond."""
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
            status = await client.get_status(PROBE_TIMEOUT)
            self._directory.require_own(address, status)
        except DLedgerError as error:
            raise self._give_up(address, await self._directory.explained(address, error)) from None
        return client

    def _give_up(self, address: str, reason: DLedgerError) -> _ServerFailed:
        self._failed.append(address)
        if isinstance(reason, NetworkFailure):
            self._directory.lost(address)
        return _ServerFailed(reason)

    async def _receive(
        self, client: LogClient, stream: AsyncGenerator[ReadChunk, None]
    ) -> list[Entry] | None:
        """Return the next entries, or None at the end. Raises _ServerFailed, and errors that would also occur
        on every other server."""
        waiting = asyncio.ensure_future(anext(stream, None))
        try:
            while not (await asyncio.wait([waiting], timeout=self._stall_timeout))[0]:
                await self._check_on(client)
            chunk = waiting.result()
            return None if chunk is None else self._accept(chunk)
        except NetworkFailure as failure:
            reason = await self._directory.explained(client.address, failure)
            raise self._give_up(client.address, reason) from None
        except ReadFailed as error:
            # A lagging follower does not have the end yet that another server has reported.
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
        """Check whether a silent server is suspended or partitioned, or merely has no new entries. Raises
        _ServerFailed."""
        try:
            own = await client.get_status(PROBE_TIMEOUT)
        except DLedgerError as error:
            raise self._give_up(client.address, error) from None
        if self._server is not None:
            return
        # The others are queried later and may be slightly ahead. If the server does not send their entries
        # within the next `stall_timeout` either, it has lost contact with its cluster.
        if own.committed_index >= self._next or not self._follow:
            return
        answers = await self._directory.statuses(PROBE_TIMEOUT)
        others = [s for s in answers.values() if isinstance(s, NodeStatus)]
        later = [s for s in others if s.cluster_id == own.cluster_id and s.term > own.term]
        if any(s.committed_index > own.committed_index for s in later):
            behind = NetworkFailure(f"{client.address} has lost contact with its cluster")
            raise self._give_up(client.address, behind)


def _final(reason: DLedgerError) -> DLedgerError:
    """Return the error of a read that no server could serve in time."""
    if isinstance(reason, ReadFailed | StorageError):
        return reason
    return ReadFailed(f"no server could serve the read; last: {reason.message}", code=reason.code)


# Decoding of entries in their stored encoding (docs/formats.md), for fast reads.
#
# The layout belongs to the store. It is decoded separately here, so that a client does not depend on the
# store and verifies the data of a server independently.

#: magic, size, index, term, pos, channel, chain_crc, body_crc, body_size; big endian.
_unpack_header = struct.Struct(">iiqqqiIIi").unpack_from
MAGIC_NORMAL = 1


def decode(frames: bytes, expected_index: int) -> tuple[list[Entry], int]:
    """Decode frames. Returns (the users' entries at or after `expected_index`, the index after the last
    entry).

    Checks that indexes are consecutive (if `expected_index` is -1, the first may have any index), that
    entries are complete, and that the checksum of each body matches. Raises StorageError (DATA_DAMAGED).
    """
    entries: list[Entry] = []
    at, end, next_index = 0, len(frames), expected_index
    while at < end:
        if end - at < ENTRY_HEADER_SIZE:
            raise _damaged(next_index, "the header is truncated")
        magic, size, index, term, pos, channel, chain_crc, body_crc, body_size = _unpack_header(frames, at)
        after = at + size
        if size != body_size + ENTRY_HEADER_SIZE or after > end or body_size < 0:
            raise _damaged(
                next_index, f"invalid sizes: entry {size}, body {body_size}, remaining {end - at} bytes"
            )
        if index != next_index:
            if index > next_index >= 0:
                raise _damaged(next_index, f"missing: the next entry sent is {index}")
            if next_index >= 0:  # a whole batch was sent, of which the first entries were not requested
                at = after
                continue
        if magic == MAGIC_NORMAL:
            body = frames[at + ENTRY_HEADER_SIZE : after]
            # Entries of original DLedger have no checksums: all three fields are 0.
            if crc32(body) != body_crc and (body_crc or chain_crc or channel):
                raise _damaged(index, "body_crc does not match the body")
            entries.append(Entry(index, term, pos, body))
        next_index = index + 1
        at = after
    return entries, next_index


def _damaged(index: int, what: str) -> StorageError:
    return StorageError(f"entry {index} as sent by the server: {what}", code=Code.DATA_DAMAGED)
