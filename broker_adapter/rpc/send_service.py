"""BrokerService.Send and SendStream: batches in, validated; answers out, in order of completion."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import grpc.aio

from broker_adapter.api import BrokerApi, OutgoingMessage
from broker_adapter.errors import BrokerError, IllegalMessage, PutIndeterminate, Status
from broker_adapter.format.properties import PROPERTY_SEPARATOR
from broker_adapter.rpc.calls import (
    Context,
    Places,
    check_count,
    malformed,
    numbered,
    out_of_range,
    peer_host,
    stopping,
)
from broker_adapter.rpc.convert import messages_from_pb, send_result_to_pb, status_to_pb
from broker_adapter.rpc.limits import BrokerLimits
from broker_adapter.rpc.send_shape import send_request_of
from broker_adapter.v1 import broker_pb2 as pb
from dledger.platform import LARGE_BYTES, client_of, large_turns

#: So many answers travel in one message at most; each says some bytes of every message of its batch.
_MOST_ANSWERS = 16
_FEWER = "end some: one stream carries the sends of many tasks"


class SendService:
    """The sending part of BrokerService."""

    def __init__(self, api: BrokerApi, limits: BrokerLimits) -> None:
        self._api = api
        self._limits = limits
        self._places = Places("send streams", limits.max_send_streams, _FEWER)
        self._calls = Places("sends", limits.max_calls)
        self._streams: set[_SendStream] = set()
        self._sends: set[asyncio.Task[pb.SendResponse]] = set()
        self._stopping = False

    @property
    def open_streams(self) -> int:
        return self._places.taken

    async def drain(self, seconds: float) -> None:
        """Refuse what comes from now on, and give what is under way so long to be answered as it ends."""
        self._stopping = True
        if self._sends:
            await asyncio.wait(self._sends, timeout=seconds)

    def stop(self) -> None:
        """Answer everything that waits: the broker stops, and cannot say what becomes of it."""
        self._stopping = True
        for task in self._sends:
            task.cancel()
        for stream in self._streams:
            stream.stop()

    def parse(self, data: bytes) -> pb.SendRequest | bytes | None:
        """Of `send` and `send_stream`. None for bytes that are no request; what is large is read only when
        its turn of the event loop comes."""
        return data if len(data) >= LARGE_BYTES else send_request_of(data, self._limits)

    async def read(self, given: Any, caller: Hashable) -> Any:
        """What `parse` gave, or the end of a stream; large requests take turns, one of each caller."""
        if not isinstance(given, bytes):
            return given
        await large_turns().turn(caller)
        return send_request_of(given, self._limits)

    async def send(self, given: pb.SendRequest | bytes | None, context: Context) -> pb.SendResponse:
        request = await self.read(given, peer_host(context))
        if request is None:
            return refusal(0, malformed())
        try:
            if request.more:
                raise out_of_range("more than one batch: only over a stream")
            with self._calls.taking():
                return await asyncio.shield(self.start(request, peer_host(context)))
        except BrokerError as error:
            return refusal(request.request_id, error)

    async def send_stream(self, _: object, context: Context) -> None:
        try:
            if self._stopping:
                raise stopping()
            with self._places.taking(client_of(peer_host(context))):
                stream = _SendStream(self, self._limits)
                self._streams.add(stream)
                try:
                    await stream.run(context)
                finally:
                    self._streams.discard(stream)
        except BrokerError as error:
            # The first request is answered, so that the client sees a number; the end answers the rest.
            request = await self.read(await context.read(), context)
            request_id = request.request_id if isinstance(request, pb.SendRequest) else 0
            await context.write(refusal(request_id, error))

    def start(self, request: pb.SendRequest, born_host: str) -> asyncio.Task[pb.SendResponse]:
        """Begin a send. Its task ends with an answer, whatever happens to the caller."""
        task = asyncio.create_task(self._answer(request, born_host))
        self._sends.add(task)
        task.add_done_callback(self._sends.discard)
        return task

    async def _answer(self, request: pb.SendRequest, born_host: str) -> pb.SendResponse:
        limits = self._limits
        try:
            if self._stopping:
                raise stopping()
            check_counts(request, limits)
            messages = _messages_of(request)
            check_send(request, messages, limits)
            timeout_ms = min(request.timeout_ms or limits.send_timeout_ms, limits.max_send_timeout_ms)
            result = await self._api.send(
                request.topic,
                messages,
                queue_id=request.queue_id,
                born_host=born_host,
                timeout_ms=timeout_ms,
            )
        except asyncio.CancelledError:
            if not self._stopping:
                raise
            unknown = PutIndeterminate(Status.OUTCOME_UNKNOWN, "the broker is shutting down")
            return refusal(request.request_id, unknown)
        except Exception as error:
            return refusal(request.request_id, numbered(error, "Send"))
        return send_result_to_pb(request.request_id, result)


class _SendStream:
    """One client's stream of batches."""

    def __init__(self, service: SendService, limits: BrokerLimits) -> None:
        self._service = service
        # A request holds room until its answer is written: whoever reads no answers sends no more.
        self._room = asyncio.Semaphore(limits.max_unanswered_per_stream)
        self._answers: asyncio.Queue[pb.SendResponse | None] = asyncio.Queue()  # None: the last was put
        self._unanswered = 0
        self._takes_more = False  # the client understands answers that travel together
        self._ended = False
        self._reader: asyncio.Task[None] | None = None

    async def run(self, context: Context) -> None:
        """Read and answer until the client ends the stream, or `stop`."""
        self._reader = asyncio.create_task(self._read_all(context))
        try:
            while (answer := await self._answers.get()) is not None:
                if self._takes_more:
                    self._add_waiting_answers(answer)
                await context.write(answer)
                for _ in range(1 + len(answer.more)):
                    self._room.release()
        finally:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    def stop(self) -> None:
        """No more requests; the service has seen to it that those under way are answered."""
        if self._reader is not None:
            self._reader.cancel()
        self._end()

    async def _read_all(self, context: Context) -> None:
        born_host = peer_host(context)
        try:
            while not self._ended:
                await self._room.acquire()
                request = one = None  # or a stream that is idle kept its last one
                # The next one is read when this one has had its turn: a stream has one that waits.
                request = await self._service.read(await context.read(), self)
                if request is grpc.aio.EOF:
                    return
                if request is None:
                    self._answers.put_nowait(refusal(0, malformed()))
                    return
                self._start(request, born_host)
                for one in _added_to(request):
                    self._takes_more = True
                    await self._room.acquire()
                    self._start(one, born_host)
        finally:
            self._end()

    def _start(self, request: pb.SendRequest, born_host: str) -> None:
        self._unanswered += 1
        self._service.start(request, born_host).add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[pb.SendResponse]) -> None:
        self._unanswered -= 1
        if not task.cancelled():
            self._answers.put_nowait(task.result())
        if self._ended and not self._unanswered:
            self._answers.put_nowait(None)

    def _add_waiting_answers(self, answer: pb.SendResponse) -> None:
        while not self._answers.empty() and len(answer.more) < _MOST_ANSWERS:
            waiting = self._answers.get_nowait()
            if waiting is None:
                self._answers.put_nowait(None)  # behind it comes nothing
                return
            answer.more.append(waiting)

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            if not self._unanswered:
                self._answers.put_nowait(None)


def _added_to(request: pb.SendRequest) -> Iterator[pb.SendRequest]:
    for one in request.more:
        yield one
        yield from _added_to(one)


def _messages_of(request: pb.SendRequest) -> list[OutgoingMessage]:
    try:
        return messages_from_pb(request)
    except ValueError as error:
        raise out_of_range(str(error)) from None


def refusal(request_id: int, error: BrokerError) -> pb.SendResponse:
    return pb.SendResponse(request_id=request_id, status=status_to_pb(error))


def check_counts(request: pb.SendRequest, limits: BrokerLimits) -> None:
    """Before anything is made of a batch: 4 MiB hold two million empty messages, or properties of one."""
    columns, most = request.columns, limits.max_batch_messages
    check_count("messages in a batch", max(len(request.messages), len(columns.bodies)), most)
    flags, times = max(len(columns.flags), len(columns.sys_flags)), len(columns.born_timestamps)
    check_count("entries in a column", max(len(columns.properties), flags, times), most)
    properties = [text.count(PROPERTY_SEPARATOR) for text in columns.properties]
    in_rows = [len(message.properties) for message in request.messages]
    most = max([*properties, *in_rows], default=0)
    check_count("properties of a message", most, limits.max_properties)
    check_count("properties in a batch", sum(in_rows), limits.max_batch_properties)


def check_send(request: pb.SendRequest, messages: Sequence[OutgoingMessage], limits: BrokerLimits) -> None:
    """What this layer knows of a batch; topic, names and sizes of messages are the broker's to judge."""
    if request.queue_id < -1:
        raise out_of_range(f"queue_id {request.queue_id}: -1 or more")
    if request.messages and request.HasField("columns"):
        raise out_of_range("messages as rows and in columns")
    if not messages:
        raise out_of_range("a batch without messages")
    sizes = [len(message.body) for message in messages]
    born_timestamps = [message.born_timestamp for message in messages]
    if min(born_timestamps, default=0) < 0:
        raise out_of_range(f"born_timestamp {min(born_timestamps)} is negative")
    if sum(sizes) > limits.max_batch_bytes:
        raise IllegalMessage(
            Status.BODY_TOO_LARGE, f"a batch of {sum(sizes)} bytes; at most {limits.max_batch_bytes}"
        )
