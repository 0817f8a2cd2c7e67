"""Maps errors to the status codes of RocketMQ 5 clients."""

from __future__ import annotations

from broker_adapter.errors import BrokerError, Busy, IllegalMessage, Status
from broker_adapter.v2 import definition_pb2 as pb

Code = pb.Code


class Rejected(Exception):
    """An exception that rejects a call, or one entry of a call, with a status code."""

    def __init__(self, code: Code, message: str) -> None:
        self.code = code
        self.message = message
        super().__init__(f"{Code.Name(code)}: {message}")


#: Errors of this node rather than of the call. Another node, or this node later, may succeed. Handlers raise
#: these errors so that the caller can try another node, and return all other errors to the client.
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
    Status.TOPIC_RESERVED: Code.ILLEGAL_TOPIC,
    Status.TOPIC_NAME_INVALID: Code.ILLEGAL_TOPIC,
    Status.TOPIC_NAME_TOO_LONG: Code.ILLEGAL_TOPIC,
    Status.GROUP_NAME_INVALID: Code.ILLEGAL_CONSUMER_GROUP,
    Status.GROUP_UNKNOWN: Code.CONSUMER_GROUP_NOT_FOUND,
    Status.PROPERTIES_INVALID: Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
    Status.PROPERTIES_TOO_LONG: Code.MESSAGE_PROPERTIES_TOO_LARGE,
    Status.BODY_TOO_LARGE: Code.MESSAGE_BODY_TOO_LARGE,
    Status.MESSAGE_ID_INVALID: Code.ILLEGAL_MESSAGE_ID,
    Status.SEND_ENDED: Code.PRECONDITION_FAILED,
    Status.OFFSET_BELOW_MINIMUM: Code.ILLEGAL_OFFSET,
    Status.OFFSET_ABOVE_MAXIMUM: Code.ILLEGAL_OFFSET,
    Status.OFFSET_OUT_OF_RANGE: Code.ILLEGAL_OFFSET,
    Status.MESSAGE_NOT_FOUND: Code.MESSAGE_NOT_FOUND,
    Status.FIELD_OUT_OF_RANGE: Code.BAD_REQUEST,
    Status.REQUEST_MALFORMED: Code.BAD_REQUEST,
}


def status_of(error: BrokerError | Rejected, otherwise: Code = Code.INTERNAL_SERVER_ERROR) -> pb.Status:
    """Return the status for the client. `otherwise`: the code for errors that are not mapped.

    An invalid call is never reported as a server error, because clients would retry it.
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
