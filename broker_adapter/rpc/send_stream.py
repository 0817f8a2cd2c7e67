"""A client's side of SendStream: many batches under way, each with its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import Any

import grpc.aio

from broker_adapter.api import OutgoingMessage, SendResult
from broker_adapter.errors import IllegalMessage, PutIndeterminate, Status
from broker_adapter.rpc.convert import error_from_pb, messages_to_pb, send_result_from_pb
from broker_adapter.v1 import broker_pb2 as pb
from dledger import NetworkFailure, answer_of


class NoAnswer(PutIndeterminate):
    """A broken connection or a time-out: says nothing of what the broker did."""

    def __init__(self, message: str) -> None:
        super().__init__(Status.OUTCOME_UNKNOWN, message)


class SendStream:
    """One SendStream call. Any number of tasks may send."""

    def __init__(self, address: str, call: Any) -> None:
        self._address = address
        self._call = call
        self._ids = count(1)
        self._writing = asyncio.Lock()  # gRPC takes one message after the other
        self._waiting: dict[int, asyncio.Future[pb.SendResponse]] = {}
        self._failure: NoAnswer | None = None
        self._reader = asyncio.create_task(self._read_all())

    @property
    def broken(self) -> bool:
        """Whether it is of no more use."""
        return self._failure is not None

    async def send(
        self, topic: str, queue_id: int, messages: Sequence[OutgoingMessage], timeout_ms: int
    ) -> SendResult:
        """Send one batch and await its answer. Cancelling leaves the batch's fate unknown."""
        request_id = next(self._ids)
        try:
            request = pb.SendRequest(
                request_id=request_id, topic=topic, queue_id=queue_id, timeout_ms=timeout_ms
            )
            messages_to_pb(request, messages)
        except (ValueError, TypeError) as error:
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, str(error)) from None
        if self._failure is not None:
            raise NoAnswer(self._failure.message)
        future: asyncio.Future[pb.SendResponse] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future
        try:
            async with self._writing:
                await answer_of(self._address, lambda: self._call.write(request), self._call.cancelled)
            response = await future
        except NetworkFailure as failure:
            # The reader learns why the stream broke; whoever writes only that it did.
            self._fail(NoAnswer(failure.message))
            raise NoAnswer(failure.message) from None
        finally:
            self._waiting.pop(request_id, None)
            future.cancel()
        if response.HasField("status"):
            raise error_from_pb(response.status)
        return send_result_from_pb(response)

    def close(self) -> None:
        """End the call at once; who waits gets NoAnswer."""
        self._fail(NoAnswer(f"{self._address}: the stream was closed"))
        self._call.cancel()

    async def _read_all(self) -> None:
        try:
            while True:
                response = await answer_of(self._address, self._call.read, self._call.cancelled)
                if response is grpc.aio.EOF:
                    raise NetworkFailure(f"{self._address}: the server ended the stream")
                future = self._waiting.get(response.request_id)
                if future is not None and not future.done():
                    future.set_result(response)
        except NetworkFailure as failure:
            self._fail(NoAnswer(failure.message))

    def _fail(self, failure: NoAnswer) -> None:
        if self._failure is None:
            self._failure = failure
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(NoAnswer(failure.message))
