"""TransactionProducer: a message that is seen if, and only if, a local transaction has succeeded."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from broker_adapter.client.core.values import (
    Message,
    MessageExt,
    SendResult,
    SendStatus,
    decode_messages,
)
from broker_adapter.client.producer import Producer
from broker_adapter.errors import BrokerError, IllegalMessage, Status
from broker_adapter.format.message_id import parse_offset_id
from broker_adapter.format.properties import PropertiesText, with_property
from broker_adapter.format.sys_flag import (
    TRANSACTION_COMMIT,
    TRANSACTION_NONE,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Executor

_log = logging.getLogger(__name__)


class LocalTransactionState(IntEnum):
    """How a local transaction ended. Of UNKNOWN the broker asks again later."""

    UNKNOWN = TRANSACTION_NONE
    COMMIT_MESSAGE = TRANSACTION_COMMIT
    ROLLBACK_MESSAGE = TRANSACTION_ROLLBACK


#: Runs the local transaction of a message.
Execute = Callable[[Message], LocalTransactionState | Awaitable[LocalTransactionState]]
#: Says how the local transaction of a message ended; also of one that another producer of the group has sent.
Check = Callable[[MessageExt], LocalTransactionState | Awaitable[LocalTransactionState]]


@dataclass(frozen=True, slots=True)
class TransactionSendResult:
    """`is_ended`: the broker knows `state`. If not, it asks the group later."""

    sent: SendResult
    state: LocalTransactionState
    is_ended: bool


class TransactionProducer(Producer):
    """RocketMQ's TransactionMQProducer. `execute` and `check`: functions run on threads, coroutine functions
    on the event loop; an exception counts as UNKNOWN."""

    def __init__(self, group: str, name_servers: Sequence[str] | str, check: Check, **options: Any) -> None:
        """`options`: those of `Producer`."""
        super().__init__(group, name_servers, **options)
        self._check = check

    async def start(self) -> None:
        await super().start()
        checks = Executor("transaction checks", running=8, waiting=1000)
        self._client.dispatch.register([RequestCode.CHECK_TRANSACTION_STATE], self._checked, checks)

    async def send_in_transaction(self, message: Message, execute: Execute) -> TransactionSendResult:
        """Send the message so that nobody sees it, run `execute`, and tell the broker how that ended.

        Errors as those of `send`; `execute` is not run then.
        """
        if message.delay_level:
            raise IllegalMessage(Status.REQUEST_MALFORMED, "a message of a transaction has no delay")
        outgoing = await self._encoded(message)
        properties = with_property(PropertiesText(outgoing.properties), "TRAN_MSG", "true")
        properties = with_property(properties, "PGROUP", self.group)
        half = outgoing._replace(
            properties=properties.text, sys_flag=outgoing.sys_flag | TRANSACTION_PREPARED
        )
        await self._greet(message.topic)
        sent = await self._send([message], half, None, None, None, None)
        state = LocalTransactionState.ROLLBACK_MESSAGE
        if sent.status is SendStatus.SEND_OK:
            state = await _state_of(execute, message)
        return TransactionSendResult(sent, state, await self._ended(sent, state))

    # -- inside

    async def _ended(self, sent: SendResult, state: LocalTransactionState) -> bool:
        if state is LocalTransactionState.UNKNOWN:
            return False
        try:
            request = _end_transaction(
                self.group,
                sent.queue.topic,
                state,
                offset=sent.queue_offset,
                physical_offset=parse_offset_id(sent.offset_message_ids[0]).physical_offset,
                message_id=sent.message_id,
                transaction_id=sent.transaction_id,
            )
            await self._client.call(await self._address(sent.queue), request)
        except BrokerError as error:
            _log.info("a transaction was not ended: message id %s, %s", sent.message_id, error)
            return False
        return True

    async def _checked(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        """A broker asks how a transaction ended."""
        (message,) = decode_messages(request.body, "")
        state = await _state_of(self._check, message)
        if state is LocalTransactionState.UNKNOWN:
            return
        end = _end_transaction(
            self.group,
            message.topic,
            state,
            offset=int(request.fields["tranStateTableOffset"]),
            physical_offset=int(request.fields["commitLogOffset"]),
            message_id=message.message_id,
            transaction_id=request.fields.get("transactionId", ""),
        )
        end.fields["fromTransactionCheck"] = "true"
        await connection.invoke(end, self._options.request_timeout_s)


async def _state_of(function: Callable[[Any], Any], argument: Message | MessageExt) -> LocalTransactionState:
    try:
        if inspect.iscoroutinefunction(function):
            return LocalTransactionState(await function(argument))
        return LocalTransactionState(await asyncio.to_thread(function, argument))
    except Exception:
        _log.exception("a local transaction failed")
        return LocalTransactionState.UNKNOWN


def _end_transaction(
    group: str,
    topic: str,
    state: LocalTransactionState,
    *,
    offset: int,
    physical_offset: int,
    message_id: str,
    transaction_id: str,
) -> RemotingCommand:
    """`offset`, `physical_offset`: of the half message."""
    fields = {
        "topic": topic,
        "producerGroup": group,
        "tranStateTableOffset": str(offset),
        "commitLogOffset": str(physical_offset),
        "commitOrRollback": str(int(state)),
        "fromTransactionCheck": "false",
        "msgId": message_id,
        "transactionId": transaction_id or message_id,
    }
    return RemotingCommand(RequestCode.END_TRANSACTION, fields)
