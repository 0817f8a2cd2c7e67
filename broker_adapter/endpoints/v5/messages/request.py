"""Requests of clients: their bytes, their parsed form, and error responses to them."""

from __future__ import annotations

from google.protobuf.message import DecodeError, Message

from broker_adapter.endpoints.rejected import Code, Rejected, status_of
from broker_adapter.endpoints.v5.messages.methods import METHODS, QUESTIONS, REPEATABLE, SEND_MESSAGE
from broker_adapter.errors import BrokerError
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from dledger.infra.logs import get_logger
from dledger.infra.transport.field_count import MAX_FIELDS, has_too_many_fields

_log = get_logger("proxy")


class Request:
    """A request: a method name and bytes.

    A node may forward the bytes, unchanged, to another node. They are checked and parsed once, on first use.
    The constructor raises KeyError for an unknown method name.
    """

    __slots__ = ("_is_checked", "_parsed", "data", "method", "name")

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self.data = data
        self.method = METHODS[name]
        self._is_checked = False
        self._parsed: Message | None = None

    def __len__(self) -> int:
        """Return the size in bytes."""
        return len(self.data)

    @property
    def appends(self) -> bool:
        """Return True for a frequent call that ends with an append."""
        return self.method.appends

    @property
    def is_send(self) -> bool:
        """Return True for a send, which may be a member of a list."""
        return self.name == SEND_MESSAGE

    @property
    def streams_answers(self) -> bool:
        return self.method.streams_answers

    @property
    def ends_with_caller(self) -> bool:
        """Return True if the call has one response and changes nothing, so that it can be canceled with its
        caller.
        """
        return self.name in QUESTIONS

    @property
    def is_read(self) -> bool:
        """Return True if a node other than the master may answer the request from committed data."""
        return False

    @property
    def is_admin_query(self) -> bool:
        """Return True if the request reads topics, groups or progress, of which a slave has a copy."""
        return False

    @property
    def is_repeatable(self) -> bool:
        """Return True if the request may be sent again after an unknown outcome.

        A send is repeatable if each of its messages has an id, because a message is stored only once under
        its id.
        """
        if not self.is_send:
            return self.name in REPEATABLE
        try:
            send = self.parsed()
        except Rejected:
            return False
        assert isinstance(send, calls.SendMessageRequest)
        return all(message.system_properties.message_id for message in send.messages)

    def encoded(self) -> bytes:
        """Return the bytes to forward to another node."""
        return self.data

    def check(self) -> None:
        """Check the size of the request and the cost of parsing it. Raises Rejected."""
        if self._is_checked:
            return
        method, data = self.method, self.data
        if len(data) > method.max_bytes:
            text = f"the request has {len(data)} bytes; the limit for {self.name} is {method.max_bytes}"
            raise Rejected(Code.PAYLOAD_TOO_LARGE, text)
        if method.check_shape is not None:
            method.check_shape(data)
        elif has_too_many_fields(method.request, data):
            text = f"the request has more than {MAX_FIELDS} fields: split it"
            raise Rejected(Code.PAYLOAD_TOO_LARGE, text)
        self._is_checked = True

    def parsed(self) -> Message:
        """Parse the request and drop unknown fields.

        Parts of a request are copied into responses, some into thousands of responses, and unknown fields in
        them would have no size limit. Raises Rejected, with BAD_REQUEST for invalid bytes.
        """
        if self._parsed is None:
            self.check()
            try:
                found = self.method.request.FromString(self.data)
            except DecodeError as error:
                raise Rejected(Code.BAD_REQUEST, "the request is not a valid protobuf message") from error
            found.DiscardUnknownFields()
            self._parsed = found
        return self._parsed

    def refusal(self, status: pb.Status) -> bytes:
        """Build a response that contains only a status."""
        return self.method.refusal(status, self.data)

    def refused(self, error: Exception) -> bytes:
        """Return an error as a response.

        An unexpected error is a bug. It is logged and reported as an internal error.
        """
        if isinstance(error, Rejected | BrokerError):
            return self.refusal(status_of(error))
        _log.error("a call failed", method=self.name, exc_info=error)
        text = f"internal error: {type(error).__name__}"
        return self.refusal(pb.Status(code=Code.INTERNAL_SERVER_ERROR, message=text))
