"""The methods of MessagingService: what goes in, what comes out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError, Message

from broker_adapter.proxy.messages.request_shapes import check_send_shape
from broker_adapter.proxy.v2 import definition_pb2 as pb
from broker_adapter.proxy.v2 import service_pb2 as calls
from dledger.platform import MAX_PAYLOAD_BYTES

SERVICE_NAME: Final = "apache.rocketmq.v2.MessagingService"
TELEMETRY: Final = "Telemetry"
QUERY_ROUTE: Final = "QueryRoute"
RECEIVE_MESSAGE: Final = "ReceiveMessage"
SEND_MESSAGE: Final = "SendMessage"
ACK_MESSAGE: Final = "AckMessage"
END_TRANSACTION: Final = "EndTransaction"
CHANGE_INVISIBLE_DURATION: Final = "ChangeInvisibleDuration"


#: Of a request that waits for messages: 4,096 characters of a filter and some names. Thousands may wait.
_MOST_WAITING_BYTES: Final = 32 << 10


class Method(NamedTuple):
    """`max_bytes`: of a request. What has no bodies in it is small; 4 MiB of the smallest fields that there
    are take the event loop tenths of a second, only to be read. `check_shape`: raises Rejected for bytes that
    are too expensive to parse; None: fields are counted. `appends`: it ends with an append, and comes in
    great numbers."""

    request: type[Message]
    answer: Any  # its type; every one has a field `status`
    streams_answers: bool = False
    max_bytes: int = 256 << 10
    check_shape: Callable[[bytes], None] | None = None
    appends: bool = False

    def refusal(self, status: pb.Status, request: bytes) -> bytes:
        """An answer that says nothing but why there is none."""
        made: Message = self.answer(status=status)
        if isinstance(made, calls.ChangeInvisibleDurationResponse):
            # Clients take over whatever handle is in the answer: so it is the old one.
            with suppress(DecodeError):
                made.receipt_handle = calls.ChangeInvisibleDurationRequest.FromString(request).receipt_handle
        return made.SerializeToString()


#: All but Telemetry, which is no call but a conversation.
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

#: Those that change nothing, and have one answer.
QUESTIONS: Final = frozenset({QUERY_ROUTE, "QueryAssignment", "GetOffset", "QueryOffset"})

#: Done twice they change nothing more than done once, or what they leave behind expires (a receive).
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
