"""A client's side of SendStream: many batches under way, each with its answer.

Batches that are sent in the same turn of the loop, or while a message is being written, travel in one
message: a broker appends to its log at once what comes at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import chain, count
from typing import Any

import grpc.aio

from broker_adapter.api import OutgoingMessage, SendResult
from broker_adapter.errors import IllegalMessage, PutIndeterminate, Status
from broker_adapter.rpc.convert import error_from_pb, messages_to_pb, send_result_from_pb
from broker_adapter.v1 import broker_pb2 as pb
from dledger.platform import NetworkFailure, answer_of

#: Batches travel together up to so many bytes of bodies and what is around them; a greater one goes alone.
_MOST_TOGETHER = 1 << 20
#: What a message takes beside its body, about (bytes).
_MESSAGE_OVERHEAD = 128


class NoAnswer(PutIndeterminate):
    """A broken connection or a time-out: says nothing of what the broker did."""

    def __init__(self, message: str) -> None:
        super().__init__(Status.OUTCOME_UNKNOWN, message)


class _Outgoing:
    """One batch, until it is answered."""

    __slots__ = ("answered", "messages", "queue_id", "request_id", "size", "timeout_ms", "topic")

    def __init__(
        self, request_id: int, topic: str, queue_id: int, messages: Sequence[OutgoingMessage], timeout_ms: int
    ) -> None:
        self.request_id = request_id
        self.topic = topic
        self.queue_id = queue_id
        self.messages = messages
        self.timeout_ms = timeout_ms
        self.size = sum([len(message.body) for message in messages]) + _MESSAGE_OVERHEAD * len(messages)
        self.answered: asyncio.Future[pb.SendResponse] = asyncio.get_running_loop().create_future()

    def put_into(self, request: pb.SendRequest) -> None:
        """Raises IllegalMessage for values that no field of protobuf holds, and no record."""
        try:
            request.request_id = self.request_id
            request.topic = self.topic
            request.queue_id = self.queue_id
            request.timeout_ms = self.timeout_ms
            messages_to_pb(request, self.messages)
        except (ValueError, TypeError) as error:
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, str(error)) from None


class SendStream:
    """One SendStream call. Any number of tasks may send."""

    def __init__(self, address: str, call: Any) -> None:
        self._address = address
        self._call = call
        self._ids = count(1)
        self._unsent: deque[_Outgoing] = deque()
        self._waiting: dict[int, _Outgoing] = {}
        self._failure: NoAnswer | None = None
        self._writer: asyncio.Task[None] | None = None  # gRPC takes one message after the other
        self._reader = asyncio.create_task(self._read_all())

    @property
    def broken(self) -> bool:
        """Whether it is of no more use."""
        return self._failure is not None

    async def send(
        self, topic: str, queue_id: int, messages: Sequence[OutgoingMessage], timeout_ms: int
    ) -> SendResult:
        """Send one batch and await its answer. Cancelling leaves the batch's fate unknown."""
        if self._failure is not None:
            raise NoAnswer(self._failure.message)
        outgoing = _Outgoing(next(self._ids), topic, queue_id, messages, timeout_ms)
        self._waiting[outgoing.request_id] = outgoing
        self._unsent.append(outgoing)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_all())
        try:
            response = await outgoing.answered
        finally:
            self._waiting.pop(outgoing.request_id, None)
        if response.HasField("status"):
            raise error_from_pb(response.status)
        return send_result_from_pb(response)

    def close(self) -> None:
        """End the call at once; who waits gets NoAnswer."""
        self._fail(NoAnswer(f"{self._address}: the stream was closed"))
        self._call.cancel()

    async def _write_all(self) -> None:
        try:
            while (request := self._gathered()) is not None:
                await answer_of(self._address, partial(self._call.write, request), self._call.cancelled)
        except NetworkFailure as failure:
            # The reader learns why the stream broke; whoever writes only that it did.
            self._fail(NoAnswer(failure.message))

    def _gathered(self) -> pb.SendRequest | None:
        """The next message; None: nobody waits for one."""
        message = pb.SendRequest()
        size = 0
        while self._unsent and (not size or size + self._unsent[0].size <= _MOST_TOGETHER):
            outgoing = self._unsent.popleft()
            if outgoing.answered.done():
                continue  # cancelled, or the stream is broken
            request = message.more.add() if size else message
            try:
                outgoing.put_into(request)
            except IllegalMessage as error:
                outgoing.answered.set_exception(error)
                if size:
                    del message.more[-1]
                else:
                    message.Clear()
                continue
            size += max(1, outgoing.size)
        return message if size else None

    async def _read_all(self) -> None:
        try:
            while True:
                message = await answer_of(self._address, self._call.read, self._call.cancelled)
                if message is grpc.aio.EOF:
                    raise NetworkFailure(f"{self._address}: the server ended the stream")
                for response in chain((message,), message.more):
                    outgoing = self._waiting.get(response.request_id)
                    if outgoing is not None and not outgoing.answered.done():
                        outgoing.answered.set_result(response)
        except NetworkFailure as failure:
            self._fail(NoAnswer(failure.message))

    def _fail(self, failure: NoAnswer) -> None:
        if self._failure is None:
            self._failure = failure
        for outgoing in self._waiting.values():
            if not outgoing.answered.done():
                outgoing.answered.set_exception(NoAnswer(failure.message))
