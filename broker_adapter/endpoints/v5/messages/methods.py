"""The methods of MessagingService, with their request and response types."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError, Message

from broker_adapter.endpoints.rejected import Code, Rejected
from broker_adapter.endpoints.v5.messages.message_in import MAX_PROPERTIES
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from broker_adapter.v2 import shape_pb2 as shapes
from dledger.infra.transport.channels import MAX_PAYLOAD_BYTES

#: Size below which parsing is cheaper than checking.
_LARGE_BYTES: Final = 64 << 10
#: Maximum number of messages regardless of settings. A message that can be stored has at least a topic, an id
#: and a body.
MAX_MESSAGES: Final = 65_536


def check_send_shape(request: bytes) -> None:
    """Check the number of messages and properties of a send before protobuf creates objects for them.

    Properties are a map, which protobuf fills entry by entry, so that 4 MiB of small properties block the
    event loop for a second. The shape (`proto/apache/rocketmq/v2/shape.proto`) declares them as a list of
    bytes, which is parsed in milliseconds. Raises Rejected if the number exceeds the maximum of all settings.
    """
    if len(request) < _LARGE_BYTES:
        return
    try:
        messages = shapes.SendMessageShape.FromString(request).messages
        if len(messages) > MAX_MESSAGES:
            text = f"{len(messages)} messages in a request, more than {MAX_MESSAGES}"
            raise Rejected(Code.BAD_REQUEST, text)
        most = max((_properties(message) for message in messages), default=0)
    except DecodeError as error:
        raise Rejected(Code.BAD_REQUEST, "the request is not a valid protobuf message") from error
    if most > MAX_PROPERTIES:
        text = f"{most} properties, more than {MAX_PROPERTIES}"
        raise Rejected(Code.MESSAGE_PROPERTIES_TOO_LARGE, text)


def _properties(message: bytes) -> int:
    """Return the number of property entries.

    Repeated names, which protobuf would merge, count several times.
    """
    return len(shapes.MessageShape.FromString(message).user_properties)


SERVICE_NAME: Final = "apache.rocketmq.v2.MessagingService"
TELEMETRY: Final = "Telemetry"
QUERY_ROUTE: Final = "QueryRoute"
RECEIVE_MESSAGE: Final = "ReceiveMessage"
SEND_MESSAGE: Final = "SendMessage"
ACK_MESSAGE: Final = "AckMessage"
END_TRANSACTION: Final = "EndTransaction"
CHANGE_INVISIBLE_DURATION: Final = "ChangeInvisibleDuration"


#: Maximum size of a request that waits for messages: a filter of 4,096 characters and some names. Thousands
#: of such requests may wait.
_MOST_WAITING_BYTES: Final = 32 << 10


class Method(NamedTuple):
    """A method.

    `max_bytes`: maximum size of a request. It is small for requests without bodies, because parsing 4 MiB of
    minimal fields would block the event loop for tenths of a second. `check_shape` raises Rejected for bytes
    that are too expensive to parse; if None, the fields are counted instead. `appends`: a frequent call that
    ends with an append.
    """

    request: type[Message]
    answer: Any  # the type of the response, which has a field `status`
    streams_answers: bool = False
    max_bytes: int = 256 << 10
    check_shape: Callable[[bytes], None] | None = None
    appends: bool = False

    def refusal(self, status: pb.Status, request: bytes) -> bytes:
        """Build a response that contains only a status."""
        made: Message = self.answer(status=status)
        if isinstance(made, calls.ChangeInvisibleDurationResponse):
            # Clients adopt any handle in the response, so return the old one.
            with suppress(DecodeError):
                made.receipt_handle = calls.ChangeInvisibleDurationRequest.FromString(request).receipt_handle
        return made.SerializeToString()


#: All methods except Telemetry, which is a long-lived stream.
METHODS: Final = {
    QUERY_ROUTE: Method(calls.QueryRouteRequest, calls.QueryRouteResponse),
    "Heartbeat": Method(calls.HeartbeatRequest, calls.HeartbeatResponse),
    SEND_MESSAGE: Method(
        calls.SendMessageRequest,
        calls.SendMessageResponse,
        max_bytes=MAX_PAYLOAD_BYTES,
        check_shape=check_send_shape,
        appends=True,
    ),
    "QueryAssignment": Method(calls.QueryAssignmentRequest, calls.QueryAssignmentResponse),
    RECEIVE_MESSAGE: Method(
        calls.ReceiveMessageRequest, calls.ReceiveMessageResponse, True, max_bytes=_MOST_WAITING_BYTES
    ),
    ACK_MESSAGE: Method(calls.AckMessageRequest, calls.AckMessageResponse, max_bytes=1 << 20, appends=True),
    "ForwardMessageToDeadLetterQueue": Method(
        calls.ForwardMessageToDeadLetterQueueRequest, calls.ForwardMessageToDeadLetterQueueResponse
    ),
    "PullMessage": Method(
        calls.PullMessageRequest, calls.PullMessageResponse, True, max_bytes=_MOST_WAITING_BYTES
    ),
    "UpdateOffset": Method(calls.UpdateOffsetRequest, calls.UpdateOffsetResponse),
    "GetOffset": Method(calls.GetOffsetRequest, calls.GetOffsetResponse),
    "QueryOffset": Method(calls.QueryOffsetRequest, calls.QueryOffsetResponse),
    END_TRANSACTION: Method(calls.EndTransactionRequest, calls.EndTransactionResponse),
    "NotifyClientTermination": Method(
        calls.NotifyClientTerminationRequest, calls.NotifyClientTerminationResponse
    ),
    CHANGE_INVISIBLE_DURATION: Method(
        calls.ChangeInvisibleDurationRequest, calls.ChangeInvisibleDurationResponse, appends=True
    ),
    "RecallMessage": Method(calls.RecallMessageRequest, calls.RecallMessageResponse),
    "SyncLiteSubscription": Method(calls.SyncLiteSubscriptionRequest, calls.SyncLiteSubscriptionResponse),
}

#: Methods that change nothing and have one response.
QUESTIONS: Final = frozenset({QUERY_ROUTE, "QueryAssignment", "GetOffset", "QueryOffset"})

#: Methods that are idempotent, or whose effect expires (a receive).
REPEATABLE: Final = frozenset(
    {
        QUERY_ROUTE,
        "QueryAssignment",
        "Heartbeat",
        "NotifyClientTermination",
        RECEIVE_MESSAGE,
        ACK_MESSAGE,
        "PullMessage",
        "UpdateOffset",
        "GetOffset",
        "QueryOffset",
        END_TRANSACTION,
        "SyncLiteSubscription",
    }
)
