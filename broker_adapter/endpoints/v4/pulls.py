"""Processors for PULL_MESSAGE, and for queries that return single messages."""

from __future__ import annotations

import asyncio
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import structlog

from broker_adapter.api import BrokerApi, GetMessageResult, GetMessageStatus, QueueOffset
from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.filters.filters import filter_from
from broker_adapter.endpoints.rejected import Rejected
from broker_adapter.endpoints.v4 import request as read
from broker_adapter.endpoints.v4.request import RemotingRequest
from broker_adapter.endpoints.v5.calls.queue_calls import matching
from broker_adapter.errors import BrokerError, ResponseCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.wire.broker_ids import MASTER_ID
from broker_adapter.wire.message import decode
from broker_adapter.wire.properties import RECONSUME_TIME, split_properties
from broker_adapter.wire.sys_flag import BORN_HOST_V6, STORE_HOST_V6
from broker_adapter.wire.topic_names import DEAD_LETTER_PREFIX, RETRY_PREFIX

#: Bits of a pull's sysFlag.
COMMIT_OFFSET, SUSPEND, SUBSCRIPTION = 1, 2, 4
_MAX_MESSAGES = 1_024
_MAX_BYTES = 1 << 20
_MAX_SUSPEND_MS = 60_000
_PAUSE_S = 1.0
_PHYSICAL_OFFSET = struct.Struct(">q")
_SYS_FLAG_AT, _RECONSUME_AT, _V6_MORE = 36, 72, 12
_INT = struct.Struct(">i")

#: Minimum interval between commits from pulls, because push consumers send a commit with each pull, and each
#: commit is an append. It is RocketMQ's interval for saving offsets.
_COMMIT_PERIOD_S = 5.0
_MOST_COMMITTED_QUEUES = 65_536

_log = structlog.get_logger(part="remoting")

CheckRead: TypeAlias = Callable[[CallContext, str], None]

_CODES = {
    GetMessageStatus.FOUND: ResponseCode.SUCCESS,
    GetMessageStatus.NO_NEW_MESSAGE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.OFFSET_ILLEGAL: ResponseCode.PULL_OFFSET_MOVED,
}


class ReadRules(NamedTuple):
    """Rules for reads on this node.

    `is_master` returns True if this node is the master. `suggest` returns the id of the broker from which a
    consumer should read after a message at a physical offset. `check_read` raises BrokerError if the caller
    may not read the topic.
    """

    is_master: Callable[[], bool]
    suggest: Callable[[int], int]
    check_read: CheckRead


class PullCommits:
    """Limits commits of pulls to one per queue in five seconds. Skips commits that change nothing."""

    def __init__(self, broker: BrokerApi, now_s: Callable[[], float]) -> None:
        """`now_s`: a monotonic clock."""
        self._broker = broker
        self._now_s = now_s
        #: The last committed offset and the time of its commit, by group, topic and queue.
        self._last: OrderedDict[tuple[str, str, int], tuple[int, float]] = OrderedDict()

    async def commit(self, group: str, offset: QueueOffset, client_id: str) -> None:
        """Commit an offset for the client.

        Errors are only logged, because a pull succeeds even if its commit fails.
        """
        queue, now_s = (group, offset.topic, offset.queue_id), self._now_s()
        last, at_s = self._last.get(queue, (-1, -_COMMIT_PERIOD_S))
        if offset.offset == last or now_s < at_s + _COMMIT_PERIOD_S:
            return
        self._last[queue] = offset.offset, now_s
        self._last.move_to_end(queue)
        if len(self._last) > _MOST_COMMITTED_QUEUES:
            self._last.popitem(last=False)
        try:
            await self._broker.commit_offsets(group, [offset], client_id=client_id)
        except BrokerError as error:
            self._last.pop(queue, None)
            _log.debug("an offset of a pull was not committed", group=group, reason=str(error))


class PullProcessor:
    def __init__(self, broker: BrokerApi, rules: ReadRules) -> None:
        self._broker = broker
        self._rules = rules
        self._commits = PullCommits(broker, time.monotonic)

    async def pull(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        fields, command = request.fields, request.command
        sys_flag = read.number(fields, "sysFlag", 0)
        try:
            wanted = filter_from(fields.get("subscription", "*"), fields.get("expressionType", ""))
        except Rejected as error:
            return command.answer(ResponseCode.SUBSCRIPTION_PARSE_FAILED, error.message)
        suspend_ms = read.number(fields, "suspendTimeoutMillis", 0) if sys_flag & SUSPEND else 0
        if sys_flag & COMMIT_OFFSET and self._rules.is_master():
            await self._commit(fields, context.client_id)
        result = await self._broker.pull(
            read.text(fields, "topic"),
            read.number(fields, "queueId"),
            max(0, read.number(fields, "queueOffset")),
            max_messages=max(1, min(read.number(fields, "maxMsgNums", 32), _MAX_MESSAGES)),
            max_bytes=max(1, min(read.number(fields, "maxMsgBytes", _MAX_BYTES), _MAX_BYTES)),
            tags=tuple(sorted(wanted.tags)),
            wait_ms=max(0, min(suspend_ms, _MAX_SUSPEND_MS)),
            group=read.text(fields, "consumerGroup", ""),
            client_id=context.client_id,
            remote=context.remote,
        )
        if wanted.matches is not None and result.records:
            work = partial(matching, result, wanted)
            records, next_offset = await self._broker.filter(work, context.remote)
            status = GetMessageStatus.FOUND if records else GetMessageStatus.NO_MATCHED_MESSAGE
            result = result._replace(status=status, records=records, next_offset=next_offset)
        if result.status is GetMessageStatus.OFFSET_ILLEGAL and not self._rules.is_master():
            offset = max(0, read.number(fields, "queueOffset"))
            return await self._not_here(command, result, offset, suspend_ms)
        suggested = MASTER_ID
        if result.records:
            suggested = self._rules.suggest(_PHYSICAL_OFFSET.unpack_from(result.records[-1], 28)[0])
        return _pull_response(command, result, suggested)

    async def _commit(self, fields: Mapping[str, str], client_id: str) -> None:
        """Commit the offset in a pull before the pull registers its reader.

        After a reset, commits have no effect until a later pull.
        """
        committed = read.number(fields, "commitOffset", 0)
        if committed > 0:
            queue = read.text(fields, "topic"), read.number(fields, "queueId")
            group = read.text(fields, "consumerGroup", "")
            await self._commits.commit(group, QueueOffset(*queue, committed), client_id)

    async def _not_here(
        self, command: RemotingCommand, result: GetMessageResult, offset: int, suspend_ms: int
    ) -> RemotingCommand:
        """Respond to a pull from an offset that this slave does not have.

        A slave that lags, or whose queue starts at a higher offset, must not report the bounds of its own
        queue. Otherwise consumers would move back, or skip messages that exist on the master. The response is
        delayed briefly, because no event signals that the slave has caught up.
        """
        await asyncio.sleep(min(suspend_ms / 1000, _PAUSE_S))
        here = result._replace(status=GetMessageStatus.NO_NEW_MESSAGE, next_offset=offset, records=[])
        return _pull_response(command, here, MASTER_ID)

    async def view(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """Return the message at the physical offset that a message id contains."""
        record = await self._broker.message_at(read.number(request.fields, "offset"), remote=context.remote)
        self._rules.check_read(context, decode(record, verify_body=False).topic)
        return request.command.answer(ResponseCode.SUCCESS, body=body_of([record]))

    async def query(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """Query messages by a key or by UNIQ_KEY. Both are in the same index."""
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


def _pull_response(command: RemotingCommand, result: GetMessageResult, suggested: int) -> RemotingCommand:
    fields = {
        "suggestWhichBrokerId": str(suggested),
        "nextBeginOffset": str(result.next_offset),
        "minOffset": str(result.min_offset),
        "maxOffset": str(result.max_offset),
    }
    code = _CODES[result.status]
    return command.answer(code, result.status.name, fields=fields, body=body_of(result.records))


def body_of(records: Sequence[bytes]) -> bytes:
    """Concatenate stored records. In messages that were sent back, set the retry count."""
    return b"".join(_with_retry_counts(records))


def _with_retry_counts(records: Iterable[bytes]) -> Iterable[bytes]:
    marker = RECONSUME_TIME.encode() + b"\x01"
    for record in records:
        yield with_reconsume_times(record) if marker in record else record


def with_reconsume_times(record: bytes) -> bytes:
    """Return the record with its retry count set.

    Records of this project contain the count as a property, and the field is 0. In other topics the property
    is ignored, because a copy of a retried message is a new message.
    """
    message = decode(record, verify_body=False)
    if message.reconsume_times or not message.topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
        return record
    times = split_properties(message.properties).get(RECONSUME_TIME, "")
    if not (times.isascii() and times.isdecimal() and len(times) < 10):
        return record
    return with_times(record, int(times))


def with_times(record: bytes, times: int) -> bytes:
    """Return the record with its reconsume count field set."""
    (sys_flag,) = _INT.unpack_from(record, _SYS_FLAG_AT)
    at = _RECONSUME_AT + _V6_MORE * (bool(sys_flag & BORN_HOST_V6) + bool(sys_flag & STORE_HOST_V6))
    return record[:at] + _INT.pack(times) + record[at + _INT.size :]


def reconsume_times(record: bytes) -> int:
    """Return how many times the message was sent back."""
    message = decode(record, verify_body=False)
    times = split_properties(message.properties).get(RECONSUME_TIME, "")
    is_number = times.isascii() and times.isdecimal() and len(times) < 10
    if not message.topic.startswith(RETRY_PREFIX):
        return 0
    return int(times) if is_number else max(0, message.reconsume_times)
