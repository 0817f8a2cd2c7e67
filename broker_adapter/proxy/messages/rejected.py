"""From errors to the status codes of RocketMQ 5's clients."""

from __future__ import annotations

from broker_adapter.errors import BrokerError, Busy, IllegalMessage, Status
from broker_adapter.proxy.v2 import definition_pb2 as pb

Code = pb.Code


class Rejected(Exception):
    """A call, or one entry of it, is answered with this code."""

    def __init__(self, code: Code, message: str) -> None:
        self.code = code
        self.message = message
        super().__init__(f"{Code.Name(code)}: {message}")


#: What says more about this node than about the call: another node, or the same one later, may well do it.
#: Handlers raise it, for whoever can ask elsewhere; all else they answer.
ELSEWHERE = frozenset({Status.NOT_MASTER, Status.SHUTTING_DOWN, Status.NOT_CONFIRMED, Status.OUTCOME_UNKNOWN})

_OK = Code.OK
_CODES = {
    Status.NOT_MASTER: Code.HA_NOT_AVAILABLE,
    Status.SHUTTING_DOWN: Code.HA_NOT_AVAILABLE,
    Status.NOT_CONNECTED: Code.HA_NOT_AVAILABLE,
    Status.NOT_CONFIRMED: Code.HA_NOT_AVAILABLE,
    Status.BEING_REPAIRED: Code.HA_NOT_AVAILABLE,
    Status.DISK_FULL: Code.HA_NOT_AVAILABLE,
    Status.OUTCOME_UNKNOWN: Code.MASTER_PERSISTENCE_TIMEOUT,
    Status.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    Status.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    Status.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
    Status.TOO_MANY_HELD_PULLS: Code.TOO_MANY_REQUESTS,
    Status.TOO_MANY_OFFSETS: Code.TOO_MANY_REQUESTS,
    Status.TOPIC_UNKNOWN: Code.TOPIC_NOT_FOUND,
    Status.QUEUE_UNKNOWN: Code.TOPIC_NOT_FOUND,
    Status.TOPIC_NOT_WRITABLE: Code.FORBIDDEN,
    Status.TOPIC_NOT_READABLE: Code.FORBIDDEN,
    Status.GROUP_NOT_ENABLED: Code.FORBIDDEN,
    Status.GROUP_HAS_MEMBERS: Code.FORBIDDEN,
    Status.TOPIC_RESERVED: Code.ILLEGAL_TOPIC,
    Status.TOPIC_NAME_INVALID: Code.ILLEGAL_TOPIC,
    Status.TOPIC_NAME_TOO_LONG: Code.ILLEGAL_TOPIC,
    Status.GROUP_NAME_INVALID: Code.ILLEGAL_CONSUMER_GROUP,
    Status.GROUP_UNKNOWN: Code.CONSUMER_GROUP_NOT_FOUND,
    Status.PROPERTIES_INVALID: Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
    Status.PROPERTIES_TOO_LONG: Code.MESSAGE_PROPERTIES_TOO_LARGE,
    Status.BODY_TOO_LARGE: Code.MESSAGE_BODY_TOO_LARGE,
    Status.MESSAGE_ID_INVALID: Code.ILLEGAL_MESSAGE_ID,
    Status.OFFSET_BELOW_MINIMUM: Code.ILLEGAL_OFFSET,
    Status.OFFSET_ABOVE_MAXIMUM: Code.ILLEGAL_OFFSET,
    Status.OFFSET_OUT_OF_RANGE: Code.ILLEGAL_OFFSET,
    Status.MESSAGE_NOT_FOUND: Code.MESSAGE_NOT_FOUND,
    Status.FIELD_OUT_OF_RANGE: Code.BAD_REQUEST,
    Status.REQUEST_MALFORMED: Code.BAD_REQUEST,
}


def status_of(error: BrokerError | Rejected, otherwise: Code = Code.INTERNAL_SERVER_ERROR) -> pb.Status:
    """What a client is told. `otherwise`: what the errors are that mean something in one call only.

    What is wrong with a call itself is never an error of the server, which clients would try again.
    """
    if isinstance(error, Rejected):
        return pb.Status(code=error.code, message=error.message)
    if isinstance(error, Busy):
        otherwise = Code.TOO_MANY_REQUESTS
    elif isinstance(error, IllegalMessage) and otherwise == Code.INTERNAL_SERVER_ERROR:
        otherwise = Code.BAD_REQUEST
    return pb.Status(code=_CODES.get(error.status, otherwise), message=f"{int(error.status)} {error.message}")


def ok() -> pb.Status:
    return pb.Status(code=_OK, message="OK")
