"""The producer for messages that become visible if and only if a local transaction succeeds."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from broker_adapter.client.core.checks import check_callable, check_type
from broker_adapter.client.core.values import (
    Message,
    MessageExt,
    SendResult,
    SendStatus,
    decode_one,
)
from broker_adapter.client.options import ClientOptions
from broker_adapter.client.producer import OnAttempt, Producer
from broker_adapter.client.program_calls import call_program
from broker_adapter.errors import BrokerError, IllegalMessage, Status
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Executor
from broker_adapter.wire.message_id import parse_offset_id
from broker_adapter.wire.properties import PropertiesText, with_property
from broker_adapter.wire.sys_flag import (
    TRANSACTION_COMMIT,
    TRANSACTION_NONE,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)

_log = logging.getLogger(__name__)


class LocalTransactionState(IntEnum):
    """The outcome of a local transaction. After UNKNOWN, the broker checks again later."""

    UNKNOWN = TRANSACTION_NONE
    COMMIT_MESSAGE = TRANSACTION_COMMIT
    ROLLBACK_MESSAGE = TRANSACTION_ROLLBACK


#: Runs the local transaction of a message.
Execute = Callable[[Message], LocalTransactionState | Awaitable[LocalTransactionState]]
#: Returns the outcome of the local transaction of a message. The message may be from another producer of the
#: group.
Check = Callable[[MessageExt], LocalTransactionState | Awaitable[LocalTransactionState]]


@dataclass(frozen=True, slots=True)
class TransactionSendResult:
    """The result of a transactional send.

    `is_ended`: the broker has received `state`. Otherwise the broker checks the transaction later.
    """

    sent: SendResult
    state: LocalTransactionState
    is_ended: bool


#: Properties that delay a message. A half message cannot be delayed.
_DELAYS = frozenset({"DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"})


class TransactionProducer(Producer):
    """RocketMQ's TransactionMQProducer.

    `execute` and `check` may be functions, which run on threads, or coroutine functions. An exception counts
    as UNKNOWN.
    """

    def __init__(
        self,
        group: str,
        name_servers: Sequence[str] | str,
        check: Check,
        *,
        options: ClientOptions | None = None,
        tls: ssl.SSLContext | None = None,
        create_topics: bool = True,
        on_attempt: OnAttempt | None = None,
    ) -> None:
        """Takes the options of `Producer`. Raises IllegalMessage if `check` cannot be called."""
        check_callable("check", check)
        super().__init__(
            group, name_servers, options=options, tls=tls, create_topics=create_topics, on_attempt=on_attempt
        )
        self._check = check

    async def start(self) -> None:
        await super().start()
        checks = Executor("transaction checks", running=8, waiting=1000)
        self._client.dispatch.register([RequestCode.CHECK_TRANSACTION_STATE], self._on_check, checks)

    async def send_in_transaction(self, message: Message, execute: Execute) -> TransactionSendResult:
        """Send a half message, run `execute`, and send its outcome to the broker.

        If the send fails, raises its error and does not run `execute`.
        """
        check_type("a message", message, Message)
        if message.delay_level or not _DELAYS.isdisjoint(message.properties):
            raise IllegalMessage(Status.REQUEST_MALFORMED, "a transactional message cannot have a delay")
        check_callable("execute function", execute)
        outgoing = await self._encoded(message)
        properties = with_property(PropertiesText(outgoing.properties), "TRAN_MSG", "true")
        properties = with_property(properties, "PGROUP", self.group)
        half = outgoing._replace(
            properties=properties.text, sys_flag=outgoing.sys_flag | TRANSACTION_PREPARED
        )
        await self._register(message.topic)
        sent = await self._send([message], half, None, None, None, None)
        state = LocalTransactionState.ROLLBACK_MESSAGE
        if sent.status is SendStatus.SEND_OK:
            state = await _state_of(execute, message)
        return TransactionSendResult(sent, state, await self._send_outcome(sent, state))

    # -- internal

    async def _send_outcome(self, sent: SendResult, state: LocalTransactionState) -> bool:
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
            _log.info("the outcome of a transaction was not sent: message id %s, %s", sent.message_id, error)
            return False
        return True

    async def _on_check(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        """Handle a broker's transaction check."""
        message = decode_one(request.body, "")
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
        await connection.invoke(end, self._options.request_timeout)


async def _state_of(function: Callable[[Any], Any], argument: Message | MessageExt) -> LocalTransactionState:
    try:
        return LocalTransactionState(await call_program(function, argument))
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
    """Build END_TRANSACTION. `offset` and `physical_offset` locate the half message."""
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
