"""Processor for END_TRANSACTION, and checks of producers that have not sent it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from broker_adapter.delivery.api import DeliveryApi
from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.v4 import request as read
from broker_adapter.endpoints.v4.clients import RemotingClients
from broker_adapter.endpoints.v4.request import NamedHalf, RemotingRequest, client_transaction_id, named_half
from broker_adapter.errors import ReadFailed, ResponseCode, Status
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.scheduled.deferring import HalfName, OrphanedHalf, Resolution
from broker_adapter.wire.message import decode
from broker_adapter.wire.properties import PRODUCER_GROUP, UNIQ_KEY, split_properties
from broker_adapter.wire.sys_flag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK

_RESOLUTIONS = {TRANSACTION_COMMIT: Resolution.COMMIT, TRANSACTION_ROLLBACK: Resolution.ROLLBACK}
#: Maximum number of producers of a group, in addition to the sender, that are considered for a check. There
#: may be tens of thousands of producers and thousands of checks.
_MOST_CANDIDATES = 64


class TransactionProcessor:
    def __init__(self, delivery: DeliveryApi) -> None:
        self._delivery = delivery

    async def end_transaction(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        fields = request.fields
        half = named_half(fields)
        resolution = _RESOLUTIONS.get(read.number(fields, "commitOrRollback", 0), Resolution.UNKNOWN)
        try:
            topic, transaction_id = await self._found(half)
            await self._delivery.end_transaction(
                topic, transaction_id, resolution, producer_group=fields.get("producerGroup", "")
            )
        except ReadFailed as error:
            if error.status is not Status.TRANSACTION_UNKNOWN:
                raise
            return request.command.answer(ResponseCode.SYSTEM_ERROR, str(error))
        return request.command.answer(ResponseCode.SUCCESS)

    async def _found(self, half: NamedHalf) -> HalfName:
        if half.transaction_id:
            return HalfName(half.topic, half.transaction_id)
        found = await self._delivery.half_at(half.queue_offset, half.physical_offset)
        if found is None or half.topic not in ("", found.topic):
            text = f"no half message has the offsets {half.queue_offset} and {half.physical_offset}"
            raise ReadFailed(Status.TRANSACTION_UNKNOWN, text)
        return found


def ask_producer(
    clients: RemotingClients,
    half: OrphanedHalf,
    otherwise: Callable[[OrphanedHalf], None],
    may_end: Callable[[str, str], bool],
) -> None:
    """Send a transaction check to the producer of a half message, or to another producer of its group.

    Producers send heartbeats to every node. `may_end` returns True if an account may end transactions in a
    topic; other accounts must not see the message. If no such producer with a permitted account is connected
    to this node, `otherwise` is called.
    """
    message = decode(half.record, verify_body=False)
    properties = split_properties(message.properties)
    named = clients.producers.get(properties.get(PRODUCER_GROUP, ""), {})
    candidates = dict(islice(named.items(), _MOST_CANDIDATES))
    if half.client_id in named:
        candidates[half.client_id] = named[half.client_id]
    producers = {one: at for one, at in candidates.items() if may_end(clients.account(at), half.topic)}
    if not producers:
        otherwise(half)
        return
    others = sorted(producers)
    # If the original producer is no longer connected, each check goes to the next producer.
    client_id = half.client_id if half.client_id in producers else others[half.checks % len(others)]
    fields = {
        "tranStateTableOffset": str(message.queue_offset),
        "commitLogOffset": str(message.physical_offset),
        "msgId": properties.get(UNIQ_KEY, message.offset_id),
        "transactionId": client_transaction_id(half.transaction_id, half.topic),
        "offsetMsgId": message.offset_id,
    }
    command = RemotingCommand.oneway(RequestCode.CHECK_TRANSACTION_STATE, fields, half.record)
    producers[client_id].notify(command)
