"""POP over the remoting protocol: messages one by one, by the engine that serves clients of RocketMQ 5, too.

RocketMQ's receipt of a message, its property POP_CK, is eight words: start offset, time of the pop,
invisible time, revive queue, kind of topic, broker, queue, offset. Here the revive queue is a digest of the
pop's number, from 2 on: it shows whether a message is pending under that pop. The offsets are true: a client
that acknowledges many messages at once sends a bit for each, counted from the start offset.

Where there is no room for the property, clients make the receipt of the answer's fields: the revive queue is
0 then, and the start offset the pop's number. After a change of the invisible time they make it, too: the
revive queue is 1 then, and the time the pop's number.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from zlib_ng.zlib_ng import crc32

from broker_adapter.errors import IllegalMessage, ReadFailed, ResponseCode, Status
from broker_adapter.format.message import decode
from broker_adapter.format.properties import (
    MAX_PROPERTIES_BYTES,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    encode_properties,
)
from broker_adapter.pop.api import AckStatus, Delivery, DeliveryApi, PeekApi
from broker_adapter.pop.handles import parse_receipt, receipt_handle
from broker_adapter.processor import bodies
from broker_adapter.processor import fields as read
from broker_adapter.processor.pulls import with_times
from broker_adapter.processor.request import RemotingRequest
from broker_adapter.proxy.messages.context import CallContext
from broker_adapter.proxy.messages.directory import Directory, is_orderly
from broker_adapter.proxy.messages.filters import filter_from
from broker_adapter.proxy.messages.rejected import Rejected
from broker_adapter.remoting.command import RemotingCommand

POP_CK: Final = "POP_CK"
_SHORT = struct.Struct(">H")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_MAX_INT = (1 << 31) - 1
_WORDS = 8
_NUMBER_IS_FIRST, _NUMBER_IS_TIME, _FIRST_DIGEST = 0, 1, 2
_PLACES = ("start", "time", "", "revive", "", "", "queue", "offset")
#: RocketMQ's bounds.
MAX_MESSAGES = 32
MAX_WAIT_MS = 60_000
_MIN_INVISIBLE_MS, _MAX_INVISIBLE_MS = 1_000, 43_200_000


class _Words(NamedTuple):
    """Of a receipt, those that count."""

    start: int
    time: int
    revive: int
    queue_id: int
    offset: int


class PopProcessor:
    """On the master. `broker_name`: under which queues are read."""

    def __init__(self, delivery: DeliveryApi, peeks: PeekApi, directory: Directory, broker_name: str) -> None:
        self._delivery = delivery
        self._peeks = peeks
        self._directory = directory
        self._broker_name = broker_name

    async def pop(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """Of any queue of the topic, whichever is named. POLLING_TIMEOUT if none came in time."""
        fields, command = request.fields, request.command
        group, topic = read.text(fields, "consumerGroup"), read.text(fields, "topic")
        if read.flag(fields, "order") and not is_orderly(self._directory.group(group)):
            text = f"an ordered pop needs consumeMessageOrderly of the group {group[:255]}"
            raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, text)
        try:
            wanted = filter_from(fields.get("exp", "*"), is_sql=fields.get("expType") == "SQL92")
        except Rejected as error:
            return command.answer(ResponseCode.SUBSCRIPTION_PARSE_FAILED, error.message)
        invisible_ms = _invisible_ms(request)
        deliveries = await self._delivery.receive(
            group,
            topic,
            client_id=context.holder,
            wanted=wanted,
            max_messages=max(1, min(read.number(fields, "maxMsgNums", MAX_MESSAGES), MAX_MESSAGES)),
            invisible_ms=invisible_ms,
            wait_ms=max(0, min(read.number(fields, "pollTime", 0), MAX_WAIT_MS)),
            attempt_id=fields.get("attemptId", "")[:255],
            remote=context.remote,
        )
        told = {
            "popTime": str(_now_ms()),
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

    async def ack(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """NO_MESSAGE for a receipt that is over."""
        group, topic = _names(request)
        handle = self._handle(request, group, topic)
        if handle and await self._delivery.ack(group, topic, [handle]) == [AckStatus.OK]:
            return request.command.answer(ResponseCode.SUCCESS)
        return request.command.answer(ResponseCode.NO_MESSAGE, "the receipt is none, or over")

    async def ack_many(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """SUCCESS whatever became of each, as in RocketMQ; NO_MESSAGE if none is named."""
        named = bodies.batch_acks(request.command.body)
        if not named:
            return request.command.answer(ResponseCode.NO_MESSAGE, "no message is named")
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
        """Likewise."""
        group, topic = _names(request)
        invisible_ms = _invisible_ms(request)
        handle = self._handle(request, group, topic)
        if handle is None:
            return request.command.answer(ResponseCode.NO_MESSAGE, "the receipt is over")
        try:
            renewed = await self._delivery.change_invisible(group, topic, handle, invisible_ms)
        except ReadFailed as error:
            if error.status is not Status.HANDLE_INVALID:
                raise
            return request.command.answer(ResponseCode.NO_MESSAGE, str(error))
        found = parse_receipt(topic, renewed)
        assert found is not None, "it was just made"
        told = {
            "popTime": str(found.pop),
            "invisibleTime": str(invisible_ms),
            "reviveQid": str(_NUMBER_IS_TIME),
        }
        return request.command.answer(ResponseCode.SUCCESS, fields=told)

    def _handle(self, request: RemotingRequest, group: str, topic: str) -> str | None:
        """Of the message whose receipt is in the request; None if that is over. IllegalMessage
        (FIELD_OUT_OF_RANGE)."""
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
            text = "a number of a receipt is too large"
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
    """Properties are what a record ends with. Where there is no room for one more, clients make the receipt
    of the answer's fields."""
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
    """As RocketMQ writes them: for each queue the first word of its receipts, and the offsets."""
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
    assert found is not None, "it was just made"
    return found.pop


def _names(request: RemotingRequest) -> tuple[str, str]:
    return read.text(request.fields, "consumerGroup"), read.text(request.fields, "topic")


def _digest(pop: int) -> int:
    """Of a pop's number; a positive `int` of Java."""
    return _FIRST_DIGEST + crc32(_LONG.pack(pop)) % (_MAX_INT - _FIRST_DIGEST)


def _invisible_ms(request: RemotingRequest) -> int:
    return max(_MIN_INVISIBLE_MS, min(read.number(request.fields, "invisibleTime"), _MAX_INVISIBLE_MS))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
