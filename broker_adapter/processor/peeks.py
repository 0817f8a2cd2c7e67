"""What a group would be given by POP: looked at, waited for, and how many wait.

As RocketMQ's PeekMessageProcessor, NotificationProcessor and PollingInfoProcessor answer. Nothing changes.
"""

from __future__ import annotations

from broker_adapter.errors import ReadFailed, ResponseCode, Status, TopicRefused
from broker_adapter.pop.api import PeekApi
from broker_adapter.processor import fields as read
from broker_adapter.processor.pops import MAX_MESSAGES, MAX_WAIT_MS
from broker_adapter.processor.pulls import with_times
from broker_adapter.processor.request import RemotingRequest
from broker_adapter.proxy.messages.context import CallContext
from broker_adapter.remoting.command import RemotingCommand

#: Fields of an answer to a pop; clients read each of them of an answer to a peek.
_OF_POPS = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": "0"}


class PeekProcessor:
    """On the master."""

    def __init__(self, peeks: PeekApi) -> None:
        self._peeks = peeks

    async def peek(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """Messages of the queue that is named, of all if it is negative. PULL_NOT_FOUND: there are none."""
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
        """Whether a pop would be given something, as soon as that is so or `pollTime` is over: of any queue,
        as pops are, whichever is named."""
        fields = request.fields
        told = {"hasMsg": "false", "pollingFull": "false"}
        try:
            has_some = await self._peeks.wait_for_message(
                read.text(fields, "consumerGroup"),
                read.text(fields, "topic"),
                wait_ms=max(0, min(read.number(fields, "pollTime", 0), MAX_WAIT_MS)),
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
