"""PULL_MESSAGE, and questions for single messages."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from broker_adapter.api import BrokerApi, PullResult, PullStatus
from broker_adapter.errors import ResponseCode
from broker_adapter.format.broker_ids import MASTER_ID
from broker_adapter.format.message import decode
from broker_adapter.format.properties import split_properties
from broker_adapter.format.sys_flag import BORN_HOST_V6, STORE_HOST_V6
from broker_adapter.format.topic_names import RETRY_PREFIX
from broker_adapter.processor import fields as read
from broker_adapter.processor.request import RemotingRequest
from broker_adapter.processor.sends import RECONSUME_TIME
from broker_adapter.proxy.calls.queue_calls import matching
from broker_adapter.proxy.messages.context import CallContext
from broker_adapter.proxy.messages.filters import filter_from
from broker_adapter.proxy.messages.rejected import Rejected
from broker_adapter.remoting.command import RemotingCommand

#: Bits of a pull's sysFlag. That of its commit offset is passed over: clients commit by a request of their
#: own, too, and each commit is an append.
SUSPEND, SUBSCRIPTION = 2, 4
_MAX_MESSAGES = 1_024
_MAX_BYTES = 1 << 20
_MAX_SUSPEND_MS = 60_000
_PAUSE_S = 1.0
_PHYSICAL_OFFSET = struct.Struct(">q")
_SYS_FLAG_AT, _RECONSUME_AT, _V6_MORE = 36, 72, 12
_INT = struct.Struct(">i")

CheckRead: TypeAlias = Callable[[CallContext, str], None]

_CODES = {
    PullStatus.FOUND: ResponseCode.SUCCESS,
    PullStatus.NO_NEW_MESSAGE: ResponseCode.PULL_NOT_FOUND,
    PullStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    PullStatus.OFFSET_ILLEGAL: ResponseCode.PULL_OFFSET_MOVED,
}


class ReadRules(NamedTuple):
    """`is_master`: whether this node is. `suggest`: the id of the broker at which a consumer had better go on
    whose last message is at a physical offset."""

    is_master: Callable[[], bool]
    suggest: Callable[[int], int]


class PullProcessor:
    def __init__(self, broker: BrokerApi, check_read: CheckRead, rules: ReadRules) -> None:
        """`check_read`: raises BrokerError for a topic that the caller may not read."""
        self._broker = broker
        self._check_read = check_read
        self._rules = rules

    async def pull(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        fields, command = request.fields, request.command
        sys_flag = read.number(fields, "sysFlag", 0)
        try:
            wanted = filter_from(
                fields.get("subscription", "*"), is_sql=fields.get("expressionType") == "SQL92"
            )
        except Rejected as error:
            return command.answer(ResponseCode.SUBSCRIPTION_PARSE_FAILED, error.message)
        suspend_ms = read.number(fields, "suspendTimeoutMillis", 0) if sys_flag & SUSPEND else 0
        result = await self._broker.pull(
            read.text(fields, "topic"),
            read.number(fields, "queueId"),
            max(0, read.number(fields, "queueOffset")),
            max_messages=max(1, min(read.number(fields, "maxMsgNums", 32), _MAX_MESSAGES)),
            max_bytes=max(1, min(read.number(fields, "maxMsgBytes", _MAX_BYTES), _MAX_BYTES)),
            tags=tuple(sorted(wanted.tags)),
            wait_ms=max(0, min(suspend_ms, _MAX_SUSPEND_MS)),
            group=read.text(fields, "consumerGroup", ""),
            remote=context.remote,
        )
        if wanted.matches is not None and result.records:
            work = partial(matching, result, wanted)
            records, next_offset = await self._broker.filter(work, context.remote)
            status = PullStatus.FOUND if records else PullStatus.NO_MATCHED_MESSAGE
            result = result._replace(status=status, records=records, next_offset=next_offset)
        if result.status is PullStatus.OFFSET_ILLEGAL and not self._rules.is_master():
            offset = max(0, read.number(fields, "queueOffset"))
            return await self._not_here(command, result, offset, suspend_ms)
        suggested = MASTER_ID
        if result.records:
            suggested = self._rules.suggest(_PHYSICAL_OFFSET.unpack_from(result.records[-1], 28)[0])
        return _answer(command, result, suggested)

    async def _not_here(
        self, command: RemotingCommand, result: PullResult, offset: int, suspend_ms: int
    ) -> RemotingCommand:
        """A slave that has not got so far, or begins later, says nothing of the queue's ends: consumers would
        go back, or leave messages out, that the master has. Nothing tells when that is over, so the client
        waits for a moment."""
        await asyncio.sleep(min(suspend_ms / 1000, _PAUSE_S))
        here = result._replace(status=PullStatus.NO_NEW_MESSAGE, next_offset=offset, records=[])
        return _answer(command, here, MASTER_ID)

    async def view(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """By the physical offset in a message id."""
        record = await self._broker.message_at(read.number(request.fields, "offset"), remote=context.remote)
        self._check_read(context, decode(record, verify_body=False).topic)
        return request.command.answer(ResponseCode.SUCCESS, body=body_of([record]))

    async def query(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """By a key, or by UNIQ_KEY: both are in one index."""
        fields = request.fields
        records = await self._broker.query(
            read.text(fields, "topic"),
            read.text(fields, "key"),
            begin_ms=max(0, read.number(fields, "beginTimestamp", 0)),
            end_ms=read.number(fields, "endTimestamp", (1 << 63) - 1),
            max_messages=max(1, min(read.number(fields, "maxNum", 32), _MAX_MESSAGES)),
            remote=context.remote,
        )
        told = {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}
        if not records:
            text = "can not find message, maybe time range not correct"
            return request.command.answer(ResponseCode.QUERY_NOT_FOUND, text, fields=told)
        return request.command.answer(ResponseCode.SUCCESS, fields=told, body=body_of(records))


def _answer(command: RemotingCommand, result: PullResult, suggested: int) -> RemotingCommand:
    fields = {
        "suggestWhichBrokerId": str(suggested),
        "nextBeginOffset": str(result.next_offset),
        "minOffset": str(result.min_offset),
        "maxOffset": str(result.max_offset),
    }
    code = _CODES[result.status]
    return command.answer(code, result.status.name, fields=fields, body=body_of(result.records))


def body_of(records: Sequence[bytes]) -> bytes:
    """Records one behind the other, as they are in the log; those that were sent back say how often."""
    return b"".join(_told(records))


def _told(records: Iterable[bytes]) -> Iterable[bytes]:
    marker = RECONSUME_TIME.encode() + b"\x01"
    for record in records:
        yield with_reconsume_times(record) if marker in record else record


def with_reconsume_times(record: bytes) -> bytes:
    """How often a message was sent back is a property of it; the log's own field for it is 0, unless another
    broker has stored it."""
    message = decode(record, verify_body=False)
    if message.reconsume_times:
        return record
    times = split_properties(message.properties).get(RECONSUME_TIME, "")
    if not (times.isascii() and times.isdecimal() and len(times) < 10):
        return record
    return with_times(record, int(times))


def with_times(record: bytes, times: int) -> bytes:
    """With this in the record's own field for how often it was consumed before."""
    (sys_flag,) = _INT.unpack_from(record, _SYS_FLAG_AT)
    at = _RECONSUME_AT + _V6_MORE * (bool(sys_flag & BORN_HOST_V6) + bool(sys_flag & STORE_HOST_V6))
    return record[:at] + _INT.pack(times) + record[at + _INT.size :]


def reconsume_times(record: bytes) -> int:
    """How often it was sent back."""
    message = decode(record, verify_body=False)
    times = split_properties(message.properties).get(RECONSUME_TIME, "")
    is_number = times.isascii() and times.isdecimal() and len(times) < 10
    if not message.topic.startswith(RETRY_PREFIX):
        return 0
    return int(times) if is_number else max(0, message.reconsume_times)
