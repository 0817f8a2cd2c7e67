"""LogService.ReadStream and ReadIndex: committed entries, and linearizable read indexes."""

from __future__ import annotations

from typing import Any, TypeAlias

import grpc.aio

from dledger.errors import Code, DLedgerError, InvalidRequest, Overloaded, ReadFailed
from dledger.infra.quotas import Quota, client_of, peer_host
from dledger.infra.transport.handlers import malformed
from dledger.rpc.convert_log import status_of
from dledger.rpc.ports import LogPort
from dledger.v1 import log_pb2 as pb

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

_MAGIC_NORMAL = 1
#: Maximum time that a linearizable read waits until this node has stored the read index.
_CATCH_UP_MS = 5_000


class ReadService:
    """The read part of LogService."""

    def __init__(self, port: LogPort) -> None:
        self._port = port
        self._stream_quota = Quota(
            port.limits.max_read_streams,
            "read streams are open",
            "close some, or raise limits.max_read_streams",
        )

    @property
    def open_streams(self) -> int:
        return self._stream_quota.used

    async def read_index(
        self, request: pb.ReadIndexRequest | None, context: _Context
    ) -> pb.ReadIndexResponse:
        try:
            if request is None:
                raise malformed()
            self._check_group(request.group)
            return pb.ReadIndexResponse(read_index=await self._port.read_index())
        except DLedgerError as error:
            return pb.ReadIndexResponse(status=status_of(error), read_index=-1)

    async def read_stream(self, request: pb.ReadRequest | None, context: _Context) -> None:
        try:
            if request is None:
                raise malformed()
            self._check_group(request.group)
            await self._read_counted(request, context)
        except DLedgerError as error:
            await context.write(self._response(-1, status=status_of(error)))

    async def _read_counted(self, request: pb.ReadRequest, context: _Context) -> None:
        client = client_of(peer_host(context.peer()))
        if (refusal := self._stream_quota.refusal(client)) is not None:
            self._port.limit_hit("max_read_streams")
            raise Overloaded(refusal, code=Code.TOO_MANY_CONNECTIONS)
        with self._stream_quota.holding(client):
            await self._read(request, context)

    async def _read(self, request: pb.ReadRequest, context: _Context) -> None:
        port = self._port
        if request.from_index < -1 or request.count < 0:
            raise InvalidRequest(
                f"invalid read request: from_index {request.from_index}, count {request.count}"
            )
        port.check_serving()
        if request.mode == pb.READ_MODE_LINEARIZABLE:
            await port.wait_readable(await port.read_index(), timeout_ms=_CATCH_UP_MS)
        elif request.mode != pb.READ_MODE_LOCAL:
            raise InvalidRequest(f"read mode {request.mode} is unknown")
        if request.format not in (pb.READ_FORMAT_ENTRIES, pb.READ_FORMAT_FRAMES):
            raise InvalidRequest(f"read format {request.format} is unknown")
        at = request.from_index if request.from_index >= 0 else port.begin_index
        self._check_range(at)
        remaining = request.count
        sent = False
        while True:
            while at <= port.readable_index:
                try:
                    at, users = await self._send_chunk(request, context, at, remaining)
                except ReadFailed:
                    if sent or request.from_index >= 0 or at >= port.begin_index:
                        raise
                    at = port.begin_index  # the start of the log was purged: continue from the new start
                    continue
                sent = True
                if remaining:
                    remaining -= users
                    if remaining == 0:
                        return
            if not request.follow:
                break
            await port.wait_readable(at, timeout_ms=None)
        if not sent:  # so that the reader learns the bounds of the log
            await context.write(self._response(at))

    async def _send_chunk(
        self, request: pb.ReadRequest, context: _Context, at: int, remaining: int
    ) -> tuple[int, int]:
        """Send one message with entries. Returns the index at which to continue, and the number of user
        entries sent."""
        port = self._port
        last = port.readable_index
        if remaining:  # some entries may be internal: the loop continues with the remaining ones
            last = min(last, at + remaining - 1)
        as_entries = request.format == pb.READ_FORMAT_ENTRIES
        if at < port.begin_index:  # purged during the read
            self._check_range(at)
        decode = as_entries or remaining > 0  # required to count user entries
        chunk = await port.load(at, last, port.limits.read_chunk_bytes, decode=decode)
        response = self._response(chunk.last_index + 1)
        if as_entries:
            internal = request.include_internal
            response.entries.extend(
                pb.Entry(index=index, term=term, pos=pos, body=body, magic=magic)
                for index, term, pos, magic, body in chunk.entries
                if internal or magic == _MAGIC_NORMAL
            )
        else:
            response.frames = chunk.data
        # Awaiting the write is the flow control: a slow reader only delays itself.
        await context.write(response)
        return chunk.last_index + 1, chunk.user_entries

    def _check_range(self, at: int) -> None:
        begin, end = self._port.begin_index, self._port.readable_index
        if at < begin:
            raise ReadFailed(
                f"index {at} was purged; the range is {begin}..{end}", code=Code.INDEX_LESS_THAN_LOCAL_BEGIN
            )
        if at > end + 1:
            raise ReadFailed(
                f"index {at} is beyond the committed end; the range is {begin}..{end}",
                code=Code.INDEX_OUT_OF_RANGE,
            )

    def _response(self, next_index: int, status: pb.Status | None = None) -> pb.ReadResponse:
        port = self._port
        return pb.ReadResponse(
            status=status,
            next_index=next_index,
            committed_index=port.readable_index,
            ledger_begin_index=port.begin_index,
        )

    def _check_group(self, group: str) -> None:
        if group != self._port.group:
            raise InvalidRequest(
                f"the request is for group {group!r}; this node serves {self._port.group!r}",
                code=Code.UNKNOWN_GROUP,
            )
