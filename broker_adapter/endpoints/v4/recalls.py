"""RECALL_MESSAGE: cancels a delayed message by the handle in the response to its send."""

from __future__ import annotations

from broker_adapter.delivery.api import DeliveryApi
from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.directory import Directory
from broker_adapter.endpoints.v4 import request as read
from broker_adapter.endpoints.v4.request import RemotingRequest
from broker_adapter.errors import ResponseCode, Status, error_for
from broker_adapter.remoting.command import RemotingCommand


class RecallProcessor:
    """Recalls delayed messages on the master."""

    def __init__(self, delivery: DeliveryApi, directory: Directory) -> None:
        self._delivery = delivery
        self._directory = directory

    async def recall(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        """Recall a message. TopicRefused (TOPIC_UNKNOWN); ReadFailed (DELAYED_UNKNOWN)."""
        fields = request.fields
        topic, handle = read.text(fields, "topic"), read.text(fields, "recallHandle")
        if self._directory.topic(topic) is None:
            raise error_for(Status.TOPIC_UNKNOWN, f"topic {topic[:255]!r} does not exist")
        message_id = await self._delivery.recall(topic, handle)
        told = {"msgId": message_id, "MSG_REGION": "DefaultRegion"}
        return request.command.answer(ResponseCode.SUCCESS, fields=told)
