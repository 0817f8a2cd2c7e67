"""END_TRANSACTION, and the question to a producer that has not sent it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import NamedTuple

from broker_adapter.errors import IllegalMessage, ReadFailed, ResponseCode, Status
from broker_adapter.format.message import decode
from broker_adapter.format.properties import UNIQ_KEY, split_properties
from broker_adapter.format.sys_flag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from broker_adapter.pop.api import DeliveryApi, OrphanedHalf, Resolution
from broker_adapter.pop.handles import half_handle
from broker_adapter.processor import fields as read
from broker_adapter.processor.clients import RemotingClients
from broker_adapter.processor.request import RemotingRequest
from broker_adapter.proxy.messages.context import CallContext
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand

_RESOLUTIONS = {TRANSACTION_COMMIT: Resolution.COMMIT, TRANSACTION_ROLLBACK: Resolution.ROLLBACK}
_PRODUCER_GROUP = "PGROUP"
#: Producers of a group that are looked at for a question, beside the one that has sent the message: there may
#: be tens of thousands, and thousands of questions.
_MOST_CANDIDATES = 64
#: Between the id of a transaction here and its topic, which clients of 4.9 do not name: no topic has it.
_AT = "@"


def told_id(transaction_id: str, topic: str) -> str:
    """What a producer is told, and says again when it ends its transaction."""
    return f"{transaction_id}{_AT}{topic}"


class Named(NamedTuple):
    """A transaction, as the request to end it names it."""

    topic: str
    transaction_id: str


def named(fields: Mapping[str, str]) -> Named:
    """By what this broker has told; by the place of the half and by its topic, if a broker of RocketMQ has
    stored it (clients from 5 on name the topic). IllegalMessage (MESSAGE_ID_INVALID)."""
    told = read.text(fields, "transactionId")
    transaction_id, at, topic = told.partition(_AT)
    if at:
        return Named(topic, transaction_id)
    topic = fields.get("topic", "")
    offset = read.number(fields, "tranStateTableOffset", -1)
    physical = read.number(fields, "commitLogOffset", -1)
    if topic and min(offset, physical) >= 0:
        return Named(topic, half_handle(topic, offset, physical))
    raise IllegalMessage(Status.MESSAGE_ID_INVALID, f"transaction {told[:255]!r} is none of this broker's")


class TransactionProcessor:
    def __init__(self, delivery: DeliveryApi) -> None:
        self._delivery = delivery

    async def end(self, request: RemotingRequest, context: CallContext) -> RemotingCommand:
        fields = request.fields
        topic, transaction_id = named(fields)
        resolution = _RESOLUTIONS.get(read.number(fields, "commitOrRollback", 0), Resolution.UNKNOWN)
        try:
            await self._delivery.end_transaction(topic, transaction_id, resolution)
        except ReadFailed as error:
            if error.status is not Status.TRANSACTION_UNKNOWN:
                raise
            return request.command.answer(ResponseCode.SYSTEM_ERROR, str(error))
        return request.command.answer(ResponseCode.SUCCESS)


def ask_producer(
    clients: RemotingClients,
    half: OrphanedHalf,
    otherwise: Callable[[OrphanedHalf], None],
    may_end: Callable[[str, str], bool],
) -> None:
    """The producer that has sent it, or another one of its group; `otherwise` if none is connected here:
    producers tell every node of themselves. `may_end`: whether an account may end transactions in a topic;
    who may not is not shown the message."""
    message = decode(half.record, verify_body=False)
    properties = split_properties(message.properties)
    named = clients.producers.get(properties.get(_PRODUCER_GROUP, ""), {})
    candidates = dict(islice(named.items(), _MOST_CANDIDATES))
    if half.client_id in named:
        candidates[half.client_id] = named[half.client_id]
    producers = {one: at for one, at in candidates.items() if may_end(clients.account(at), half.topic)}
    if not producers:
        otherwise(half)
        return
    others = sorted(producers)
    # Each check asks the next one, if that it was is not there any more.
    client_id = half.client_id if half.client_id in producers else others[half.checks % len(others)]
    fields = {
        "tranStateTableOffset": str(message.queue_offset),
        "commitLogOffset": str(message.physical_offset),
        "msgId": properties.get(UNIQ_KEY, message.offset_id),
        "transactionId": told_id(half.transaction_id, half.topic),
        "offsetMsgId": message.offset_id,
    }
    command = RemotingCommand.oneway(RequestCode.CHECK_TRANSACTION_STATE, fields, half.record)
    producers[client_id].notify(command)
