"""Processors for POP over the remoting protocol, with the same delivery as for RocketMQ 5 clients.

The receipt of a message in RocketMQ, its property POP_CK, has eight words: start offset, pop time, invisible
time, revive queue, kind of topic, broker, queue, offset. In this project, the revive queue is a digest of the
pop's number, at least 2, which shows whether a message is pending under the pop. The offsets have the same
meaning as in RocketMQ, because a request that acknowledges many messages contains one bit per message,
counted from the start offset.

If the property does not fit, clients build the receipt from the fields of the response. The revive queue is
then 0, and the start offset is the pop's number. Clients also build it after a change of the invisible time.
The revive queue is then 1, and the time is the pop's number.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Final, NamedTuple

from zlib_ng.zlib_ng import crc32

from broker_adapter.delivery.api import AckStatus, Delivery, DeliveryApi, PeekApi
from broker_adapter.delivery_state.handles import parse_receipt, receipt_handle
from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.filters.filters import filter_from
from broker_adapter.endpoints.rejected import Rejected
from broker_adapter.endpoints.v4 import bodies
from broker_adapter.endpoints.v4 import request as read
from broker_adapter.endpoints.v4.pulls import with_times
from broker_adapter.endpoints.v4.request import RemotingRequest
from broker_adapter.errors import IllegalMessage, ReadFailed, ResponseCode, Status, TopicRefused
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.wire.message import decode
from broker_adapter.wire.properties import (
    MAX_PROPERTIES_BYTES,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    encode_properties,
)

POP_CK: Final = "POP_CK"
_SHORT = struct.Struct(">H")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_MAX_INT = (1 << 31) - 1
_WORDS = 8
_NUMBER_IS_FIRST, _NUMBER_IS_TIME, _FIRST_DIGEST = 0, 1, 2
_PLACES = ("start", "time", "", "revive", "", "", "queue", "offset")
#: RocketMQ's limits.
MAX_MESSAGES = 32
MAX_WAIT_MS = 60_000
_MIN_INVISIBLE_MS, _MAX_INVISIBLE_MS = 1_000, 43_200_000
#: The fields of a pop response. Clients also expect them in a peek response.
_OF_POPS = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": "0"}


class _Words(NamedTuple):
    """The words of a receipt that this project evaluates."""

    start: int
    time: int
    revive: int
    queue_id: int
    offset: int


class PopProcessor:
    """Pops and acknowledges messages on the master. `broker_name`: broker name of the queues."""

    def __init__(
        self,
        delivery: DeliveryApi,
        peeks: PeekApi,
        broker_name: str,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._delivery = delivery
        self._peeks = peeks
        self._broker_name = broker_name
        self._wall_ms = wall_ms

    async def pop(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """Pop messages from any queue of the topic, regardless of the queue in the request.

        The response is POLLING_TIMEOUT if no message arrives in time.
        """
        fields, command = request.fields, request.command
        group, topic = read.text(fields, "consumerGroup"), read.text(fields, "topic")
        try:
            wanted = filter_from(fields.get("exp", "*"), fields.get("expType", ""))
        except Rejected as error:
            return command.answer(ResponseCode.SUBSCRIPTION_PARSE_FAILED, error.message)
        invisible_ms = _invisible_ms(request)
        batch = await self._delivery.receive(
            group,
            topic,
            client_id=context.holder,
            wanted=wanted,
            max_messages=max(1, min(read.number(fields, "maxMsgNums", MAX_MESSAGES), MAX_MESSAGES)),
            invisible_ms=invisible_ms,
            wait_ms=max(0, min(read.number(fields, "pollTime", 0), MAX_WAIT_MS)),
            attempt_id=fields.get("attemptId", "")[:255],
            in_order=read.flag(fields, "order"),
            remote=context.remote,
        )
        with closing(batch):
            return self._pop_response(command, topic, batch, invisible_ms)

    def _pop_response(
        self, command: RemotingCommand, topic: str, deliveries: Sequence[Delivery], invisible_ms: int
    ) -> RemotingCommand:
        told = {
            "popTime": str(self._pop_time_ms(deliveries, invisible_ms)),
            "invisibleTime": str(invisible_ms),
            "reviveQid": str(_NUMBER_IS_FIRST),
            "restNum": "0",
        }
        if not deliveries:
            return command.answer(ResponseCode.POLLING_TIMEOUT, "no message in time", fields=told)
        pops = [_pop_of(topic, one) for one in deliveries]
        told |= _offsets(deliveries, pops)
        starts: dict[int, int] = {}
        for one in deliveries:
            starts[one.queue_id] = min(one.queue_offset, starts.get(one.queue_id, one.queue_offset))
        body = b"".join(
            self._record(one, pop, starts[one.queue_id], told)
            for one, pop in zip(deliveries, pops, strict=True)
        )
        return command.answer(ResponseCode.SUCCESS, fields=told, body=body)

    def _pop_time_ms(self, deliveries: Sequence[Delivery], invisible_ms: int) -> int:
        """Return the time of the pop, which is the later of cluster time and the time of this machine.

        A Java client drops a message without an acknowledgment if popTime + invisibleTime is in the past by
        its clock. Suppose that the clock of this machine is a day behind. If popTime were the time of this
        machine, clients would drop each message until it becomes a dead letter. The same would happen with
        cluster time while it catches up after a correction of the members' clocks. A popTime in the future
        does no harm.
        """
        if not deliveries:
            return max(self._delivery.now_ms(), self._wall_ms())
        return max(min(one.invisible_until_ms for one in deliveries) - invisible_ms, self._wall_ms())

    async def ack(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """Acknowledge a message. If the receipt has expired, the response is NO_MESSAGE."""
        group, topic = _names(request)
        handle = self._handle(request, group, topic)
        if handle and await self._delivery.ack(group, topic, [handle]) == [AckStatus.OK]:
            return request.command.answer(ResponseCode.SUCCESS)
        queue_id = read.number(request.fields, "queueId", -1)
        if handle is None and self._peeks.reset_index(group, topic, queue_id) >= 0:
            # The receipt contains only a digest of the pop, and the reset has removed the pop itself.
            return request.command.answer(ResponseCode.SUCCESS)
        return request.command.answer(ResponseCode.NO_MESSAGE, "the receipt is invalid or expired")

    async def ack_many(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """Acknowledge many messages.

        As in RocketMQ, the response is SUCCESS whatever the outcome for each message. It is NO_MESSAGE if the
        request names no message.
        """
        named = bodies.batch_acks(request.command.body)
        if not named:
            return request.command.answer(ResponseCode.NO_MESSAGE, "the request names no message")
        handles: dict[tuple[str, str], list[str]] = {}
        for ack in named:
            of_topic = handles.setdefault((ack.group, ack.topic), [])
            for offset in ack.offsets:
                words = _Words(ack.start, ack.time, ack.revive, ack.queue_id, offset)
                if handle := self._handle_of(words, ack.group, ack.topic):
                    of_topic.append(handle)
        for (group, topic), found in handles.items():
            await self._delivery.ack(group, topic, found)
        return request.command.answer(ResponseCode.SUCCESS)

    async def change_invisible(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """Change the invisible time. If the receipt has expired, the response is NO_MESSAGE."""
        group, topic = _names(request)
        invisible_ms = _invisible_ms(request)
        handle = self._handle(request, group, topic)
        if handle is None:
            return request.command.answer(ResponseCode.NO_MESSAGE, "the receipt is expired")
        try:
            renewed = await self._delivery.change_invisible(group, topic, handle, invisible_ms)
        except ReadFailed as error:
            if error.status is not Status.HANDLE_INVALID:
                raise
            return request.command.answer(ResponseCode.NO_MESSAGE, str(error))
        found = parse_receipt(topic, renewed)
        assert found is not None, "the handle was just created"
        told = {
            "popTime": str(found.pop),
            "invisibleTime": str(invisible_ms),
            "reviveQid": str(_NUMBER_IS_TIME),
        }
        return request.command.answer(ResponseCode.SUCCESS, fields=told)

    def _handle(self, request: RemotingRequest, group: str, topic: str) -> str | None:
        """Return the handle for the receipt in the request, or None if the receipt has expired.

        Raises IllegalMessage (FIELD_OUT_OF_RANGE).
        """
        words = read.text(request.fields, "extraInfo").split(" ")
        if len(words) < _WORDS:
            text = f"extraInfo has {len(words)} words, not {_WORDS}"
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, text)
        named = dict(zip(_PLACES, words, strict=False))
        numbers = (read.number(named, name) for name in _PLACES if name)
        return self._handle_of(_Words(*numbers), group, topic)

    def _handle_of(self, words: _Words, group: str, topic: str) -> str | None:
        pop = words.time if words.revive == _NUMBER_IS_TIME else words.start
        if words.revive >= _FIRST_DIGEST:
            found = self._peeks.newest_pop(group, topic, words.queue_id, words.offset)
            if found is None or _digest(found) != words.revive:
                return None
            pop = found
        try:
            return receipt_handle(topic, words.queue_id, words.offset, pop)
        except struct.error:
            text = "a number in the receipt is too large"
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, text) from None

    def _record(self, delivery: Delivery, pop: int, start: int, told: dict[str, str]) -> bytes:
        words = (
            start,
            told["popTime"],
            told["invisibleTime"],
            _digest(pop),
            0,
            self._broker_name,
            delivery.queue_id,
            delivery.queue_offset,
        )
        record = with_times(delivery.record, delivery.attempt - 1)
        return _with_receipt(record, " ".join(map(str, words)))


def _with_receipt(record: bytes, receipt: str) -> bytes:
    """Append the receipt property to a record.

    The properties are the last part of a record. If the property does not fit, clients build the receipt from
    the fields of the response.
    """
    before = decode(record, verify_body=False).properties
    items = (item for item in before.split(PROPERTY_SEPARATOR) if item)
    kept = [item for item in items if not item.startswith(POP_CK + NAME_VALUE_SEPARATOR)]
    kept.append(f"{POP_CK}{NAME_VALUE_SEPARATOR}{receipt}")
    properties = "".join(item + PROPERTY_SEPARATOR for item in kept).encode()
    if len(properties) > MAX_PROPERTIES_BYTES:
        return record
    end = len(record) - len(encode_properties(before)) - _SHORT.size
    made = record[_INT.size : end] + _SHORT.pack(len(properties)) + properties
    return _INT.pack(_INT.size + len(made)) + made


def _offsets(deliveries: Sequence[Delivery], pops: Iterable[int]) -> dict[str, str]:
    """Return RocketMQ's offset fields, which contain, for each queue, the first word of its receipts and the
    offsets.
    """
    starts: dict[int, int] = {}
    offsets: dict[int, list[str]] = {}
    for one, pop in zip(deliveries, pops, strict=True):
        starts.setdefault(one.queue_id, pop)
        offsets.setdefault(one.queue_id, []).append(str(one.queue_offset))
    return {
        "startOffsetInfo": ";".join(f"0 {queue} {start}" for queue, start in starts.items()),
        "msgOffsetInfo": ";".join(f"0 {queue} {','.join(found)}" for queue, found in offsets.items()),
    }


def _pop_of(topic: str, delivery: Delivery) -> int:
    found = parse_receipt(topic, delivery.handle)
    assert found is not None, "the handle was just created"
    return found.pop


def _names(request: RemotingRequest) -> tuple[str, str]:
    return read.text(request.fields, "consumerGroup"), read.text(request.fields, "topic")


def _digest(pop: int) -> int:
    """Return a digest of a pop's number, which is a positive Java `int`."""
    return _FIRST_DIGEST + crc32(_LONG.pack(pop)) % (_MAX_INT - _FIRST_DIGEST)


def _invisible_ms(request: RemotingRequest) -> int:
    return max(_MIN_INVISIBLE_MS, min(read.number(request.fields, "invisibleTime"), _MAX_INVISIBLE_MS))


class PeekProcessor:
    """Processors for requests that concern messages and pops but do not pop: peek, wait, count waiting pops.

    They follow RocketMQ's PeekMessageProcessor, NotificationProcessor and PollingInfoProcessor.
    """

    def __init__(self, peeks: PeekApi) -> None:
        self._peeks = peeks

    async def peek(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """Return messages of a queue, or of all queues if its id is negative.

        The response is PULL_NOT_FOUND if there are no messages.
        """
        fields, command = request.fields, request.command
        most = max(1, min(read.number(fields, "maxMsgNums", MAX_MESSAGES), MAX_MESSAGES))
        try:
            found = await self._peeks.peek(
                read.text(fields, "consumerGroup"),
                read.text(fields, "topic"),
                queue_id=read.number(fields, "queueId", -1),
                max_messages=most,
                remote=context.remote,
            )
        except TopicRefused as error:
            if error.status is not Status.QUEUE_UNKNOWN:
                raise
            return command.answer(ResponseCode.INVALID_PARAMETER, str(error))
        if not found:
            return command.answer(ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE", fields=_OF_POPS)
        body = b"".join(with_times(one.record, one.attempts) for one in found)
        return command.answer(ResponseCode.SUCCESS, "FOUND", fields=_OF_POPS, body=body)

    async def notify(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """Wait up to `pollTime` until a pop would return a message of any queue of the topic."""
        fields = request.fields
        told = {"hasMsg": "false", "pollingFull": "false"}
        try:
            has_some = await self._peeks.wait_for_message(
                read.text(fields, "consumerGroup"),
                read.text(fields, "topic"),
                wait_ms=max(0, min(read.number(fields, "pollTime", 0), MAX_WAIT_MS)),
                in_order=read.flag(fields, "order"),
                remote=context.remote,
            )
            told["hasMsg"] = str(has_some).lower()
        except ReadFailed as error:
            if error.status is not Status.TOO_MANY_HELD_PULLS:
                raise
            told["pollingFull"] = "true"
        return request.command.answer(ResponseCode.SUCCESS, fields=told)

    async def count_waiting(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        fields = request.fields
        group, topic = read.text(fields, "consumerGroup"), read.text(fields, "topic")
        count = self._peeks.waiting_receives(group, topic)
        return request.command.answer(ResponseCode.SUCCESS, fields={"pollingNum": str(count)})
