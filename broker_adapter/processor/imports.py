"""What comes from another broker with its queue offsets. The request codes are this project's own."""

from __future__ import annotations

from broker_adapter.api import ImportApi
from broker_adapter.errors import ResponseCode
from broker_adapter.processor import fields as read
from broker_adapter.processor.request import RemotingRequest
from broker_adapter.proxy.messages.context import CallContext
from broker_adapter.remoting.command import RemotingCommand


class ImportProcessor:
    def __init__(self, imports: ImportApi) -> None:
        self._imports = imports

    async def begin_queue(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        fields = request.fields
        topic, queue_id = read.text(fields, "topic"), read.number(fields, "queueId")
        await self._imports.begin_queue(topic, queue_id, read.number(fields, "offset"))
        return request.command.answer(ResponseCode.SUCCESS)

    async def store(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        count = await self._imports.store(request.command.body)
        return request.command.answer(ResponseCode.SUCCESS, fields={"stored": str(count)})

    async def read_queue(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        fields = request.fields
        topic, queue_id = read.text(fields, "topic"), read.number(fields, "queueId")
        found = await self._imports.read_queue(topic, queue_id, read.number(fields, "offset"))
        bounds = {"minOffset": str(found.min_offset), "maxOffset": str(found.max_offset)}
        body = b"".join(found.records)
        return request.command.answer(ResponseCode.SUCCESS, fields=bounds, body=body)
