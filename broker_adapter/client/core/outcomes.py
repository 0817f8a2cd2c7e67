"""What an answer that is no success means: which error of ours, and whether something may have been done.

Our own servers put number and name of their error in front of the remark; others say a response code only.
"""

from __future__ import annotations

import re
from typing import Final

from broker_adapter.errors import (
    RESPONSE_CODE,
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
    ResponseCode.SERVICE_NOT_AVAILABLE: Status.SHUTTING_DOWN,
    ResponseCode.NO_PERMISSION: Status.CHANGE_NOT_ALLOWED,
    ResponseCode.TOPIC_NOT_EXIST: Status.TOPIC_UNKNOWN,
    ResponseCode.QUERY_NOT_FOUND: Status.MESSAGE_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Status.GROUP_UNKNOWN,
}
#: A DLedger group of RocketMQ says so when the message is in its log and the majority has not answered in
#: time (older brokers), or when too much is pending.
_MAYBE_STORED = "[PC_SYNCHRONIZED]"


def error_of(answer: RemotingCommand, where: str) -> BrokerError:
    """Of any request but sends. An error without a meaning of its own is REQUEST_FAILED."""
    status = _own_status(answer) or _OF_CODE.get(answer.code, Status.REQUEST_FAILED)
    return error_for(status, _text(answer, where))


def send_error(answer: RemotingCommand, where: str) -> BrokerError:
    """Of a send. What no code says to be refused may be stored: OUTCOME_UNKNOWN."""
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
    """Whether another broker may take what this one did not. The message itself is not wrong."""
    return isinstance(error, PutRefused | PutIndeterminate | TopicRefused | RemotingRefused)


def _own_status(answer: RemotingCommand) -> Status | None:
    found = _OWN.match(answer.remark or "")
    if found is None or found[2] not in Status.__members__:
        return None
    status = Status[found[2]]
    is_ours = int(found[1]) == status and RESPONSE_CODE[status] == answer.code
    return status if is_ours else None


def _text(answer: RemotingCommand, where: str) -> str:
    remark = answer.remark or "no reason given"
    return f"{where}: code {answer.code}: {_OWN.sub('', remark, count=1)[:500]}"
