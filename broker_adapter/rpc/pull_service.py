"""BrokerService.Pull and PullStream: messages of a queue, and waiting for them."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

from broker_adapter.api import BrokerApi, PullResult, PullStatus
from broker_adapter.errors import BrokerError
from broker_adapter.rpc.calls import (
    Context,
    LargeAnswers,
    LargeRequests,
    Places,
    check_count,
    check_least,
    malformed,
    numbered,
    peer_host,
    stopping,
)
from broker_adapter.rpc.convert import pull_result_to_pb, status_to_pb
from broker_adapter.rpc.limits import BrokerLimits
from broker_adapter.v1 import broker_pb2 as pb
from dledger.platform import LARGE_BYTES, client_of

_FEWER = "end some that nobody needs, or use more brokers"


class PullService:
    """The pulling part of BrokerService."""

    def __init__(self, api: BrokerApi, limits: BrokerLimits, large: LargeAnswers) -> None:
        self._api = api
        self._limits = limits
        self._large = large
        self._written = LargeRequests(limits.max_answer_bytes)  # by streams, and not taken yet
        self._waits = Places("waiting pulls", limits.max_waiting_pulls, _FEWER)
        self._streams = Places("pull streams", limits.max_pull_streams, _FEWER)
        self._waiting: set[asyncio.Task[PullResult]] = set()
        self._stopping = False

    @property
    def waiting_pulls(self) -> int:
        return self._waits.taken

    @property
    def open_streams(self) -> int:
        return self._streams.taken

    def stop(self) -> None:
        """Answer all pulls that wait, and end all streams, with SHUTTING_DOWN."""
        self._stopping = True
        for task in self._waiting:
            task.cancel()

    async def pull(self, request: pb.PullRequest | None, context: Context) -> pb.PullResponse:
        try:
            if request is None:
                raise malformed()
            wait_ms = min(request.wait_ms, self._limits.max_wait_ms)
            if not wait_ms:
                result = await self._pull(request, request.offset, 0)
            else:
                with self._waits.taking(client_of(peer_host(context))):
                    result = await self._pull(request, request.offset, wait_ms)
            await self._large.take(_size_of(result), context)
            return pull_result_to_pb(result)
        except Exception as error:
            return _refusal(numbered(error, "Pull"))

    async def pull_stream(self, request: pb.PullRequest | None, context: Context) -> None:
        try:
            if request is None:
                raise malformed()
            with self._streams.taking(client_of(peer_host(context))):
                await self._stream(request, context)
            return
        except Exception as error:
            refusal = _refusal(numbered(error, "PullStream"))
        # Out of there: an error keeps what was pulled in memory, and who does not read this keeps the error.
        await context.write(refusal)

    async def _stream(self, request: pb.PullRequest, context: Context) -> None:
        wait_ms = min(request.wait_ms or self._limits.max_wait_ms, self._limits.max_wait_ms)
        at, client = request.offset, client_of(peer_host(context))
        while True:
            result = await self._pull(request, at, wait_ms)
            if (size := _size_of(result)) >= LARGE_BYTES and not self._written.has_room(size, client):
                small = pb.PullRequest()
                small.CopyFrom(request)
                small.max_bytes = LARGE_BYTES // 2
                result = await self._pull(small, at, 0)
                size = _size_of(result)
            at, is_last = result.next_offset, result.status is PullStatus.OFFSET_ILLEGAL
            # Awaiting the write is the flow control: a slow reader holds up nothing but itself.
            async with nullcontext() if size < LARGE_BYTES else self._written.taking(size, client):
                await context.write(pull_result_to_pb(result))
            if is_last:
                return
            del result  # it has no place while the next one is waited for

    async def _pull(self, request: pb.PullRequest, offset: int, wait_ms: int) -> PullResult:
        """One pull, which `stop` ends if it waits."""
        limits = self._limits
        if self._stopping:
            raise stopping()
        check_least(queue_id=request.queue_id, offset=offset)
        check_count("tags", len(request.tags), limits.max_tags)
        pull = self._api.pull(
            request.topic,
            request.queue_id,
            offset,
            max_messages=min(request.max_messages or limits.pull_messages, limits.max_pull_messages),
            max_bytes=min(request.max_bytes or limits.pull_bytes, limits.max_pull_bytes),
            tags=tuple(request.tags),
            wait_ms=wait_ms,
            group=request.group,
        )
        if not wait_ms:
            return await pull
        task = asyncio.ensure_future(pull)
        self._waiting.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            ours = asyncio.current_task()
            if self._stopping and not (ours is not None and ours.cancelling()):
                raise stopping() from None
            raise
        finally:
            task.cancel()
            self._waiting.discard(task)


def _size_of(result: PullResult) -> int:
    return sum(map(len, result.records))


def _refusal(error: BrokerError) -> pb.PullResponse:
    return pb.PullResponse(status=status_to_pb(error))
