"""Maps error responses to exceptions, which show whether the request may have been executed.

In responses from servers of this project, the remark starts with the number and name of the error. Other
servers send only a response code.
"""

from __future__ import annotations

import re
from typing import Final

from broker_adapter.errors import (
    BrokerError,
    PutIndeterminate,
    PutRefused,
    RemotingRefused,
    ResponseCode,
    Status,
    TopicRefused,
    error_for,
)
from broker_adapter.remoting.command import RemotingCommand

FLOW_CONTROL: Final = 215
_OWN = re.compile(r"(\d{3}) ([A-Z_]+): ")
_OF_CODE: Final = {
    ResponseCode.SYSTEM_BUSY: Status.TOO_MANY_CALLS,
    FLOW_CONTROL: Status.TOO_MANY_CALLS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Status.CODE_UNKNOWN,
    ResponseCode.MESSAGE_ILLEGAL: Status.REQUEST_MALFORMED,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: Status.REQUEST_MALFORMED,
    ResponseCode.SERVICE_NOT_AVAILABLE: Status.SHUTTING_DOWN,
    ResponseCode.NO_PERMISSION: Status.CHANGE_NOT_ALLOWED,
    ResponseCode.TOPIC_NOT_EXIST: Status.TOPIC_UNKNOWN,
    ResponseCode.QUERY_NOT_FOUND: Status.MESSAGE_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Status.GROUP_UNKNOWN,
}
#: A DLedger group of RocketMQ sends this code if the message is in its log but a majority has not
#: acknowledged it in time (older brokers), or if too many messages are pending.
_MAYBE_STORED = "[PC_SYNCHRONIZED]"


def error_of(answer: RemotingCommand, where: str) -> BrokerError:
    """Return the error for a response to any request except a send.

    Codes without a mapping become REQUEST_FAILED.
    """
    status = _own_status(answer) or _OF_CODE.get(answer.code, Status.REQUEST_FAILED)
    return error_for(status, _text(answer, where))


def send_error(answer: RemotingCommand, where: str) -> BrokerError:
    """Return the error for a response to a send.

    The error is OUTCOME_UNKNOWN unless the code means that the message was not stored.
    """
    own = _own_status(answer)
    if own is None and _MAYBE_STORED in (answer.remark or ""):
        own = Status.OUTCOME_UNKNOWN
    status = own or _OF_CODE.get(answer.code, Status.OUTCOME_UNKNOWN)
    if own is None and status is Status.CHANGE_NOT_ALLOWED:
        status = Status.TOPIC_NOT_WRITABLE
    if own is None and status is Status.MESSAGE_NOT_FOUND:
        status = Status.OUTCOME_UNKNOWN
    return error_for(status, _text(answer, where))


def retries_elsewhere(error: BrokerError) -> bool:
    """Return True if another broker might accept the message."""
    return isinstance(error, PutRefused | PutIndeterminate | TopicRefused | RemotingRefused)


def _own_status(answer: RemotingCommand) -> Status | None:
    match = _OWN.match(answer.remark or "")
    if match is None or match[2] not in Status.__members__:
        return None
    status = Status[match[2]]
    is_ours = int(match[1]) == status and status.response_code == answer.code
    return status if is_ours else None


def _text(answer: RemotingCommand, where: str) -> str:
    remark = answer.remark or "no reason given"
    return f"{where}: code {answer.code}: {_OWN.sub('', remark, count=1)[:500]}"
