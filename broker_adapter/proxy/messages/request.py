"""One call of a client, from its bytes to its refusal."""

from __future__ import annotations

from google.protobuf.message import DecodeError, Message

from broker_adapter.errors import BrokerError
from broker_adapter.proxy.messages.methods import METHODS, QUESTIONS, REPEATABLE, SEND_MESSAGE
from broker_adapter.proxy.messages.rejected import Code, Rejected, status_of
from broker_adapter.proxy.v2 import definition_pb2 as pb
from broker_adapter.proxy.v2 import service_pb2 as calls
from dledger.platform import MAX_FIELDS, get_logger, has_too_many_fields

_log = get_logger("proxy")


class Request:
    """What a client asks for: a method by its name, and bytes. They may go to another node as they are;
    whoever looks into them has them checked and parsed, once. KeyError for a name that is no method's.
    """

    __slots__ = ("_is_checked", "_parsed", "data", "method", "name")

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self.data = data
        self.method = METHODS[name]
        self._is_checked = False
        self._parsed: Message | None = None

    def __len__(self) -> int:
        """In bytes."""
        return len(self.data)

    @property
    def appends(self) -> bool:
        """It ends with an append, and comes in great numbers."""
        return self.method.appends

    @property
    def streams_answers(self) -> bool:
        return self.method.streams_answers

    @property
    def ends_with_caller(self) -> bool:
        """Of a call with one answer: it changes nothing, so it is of no use when its caller has gone."""
        return self.name in QUESTIONS

    @property
    def is_read(self) -> bool:
        """Whether a node that is not the master may answer it too, of what is committed there."""
        return False

    @property
    def is_repeatable(self) -> bool:
        """Whether it may be sent again when nobody knows what became of it. A send may, if each of its
        messages has an id: under that it is stored once."""
        if self.name != SEND_MESSAGE:
            return self.name in REPEATABLE
        try:
            send = self.parsed()
        except Rejected:
            return False
        assert isinstance(send, calls.SendMessageRequest)
        return all(message.system_properties.message_id for message in send.messages)

    def encoded(self) -> bytes:
        """As another node is given it."""
        return self.data

    def check(self) -> None:
        """Rejected for what is too large, or too expensive to be parsed."""
        if self._is_checked:
            return
        method, data = self.method, self.data
        if len(data) > method.max_bytes:
            text = f"a request of {len(data)} bytes; {method.max_bytes} are allowed for {self.name}"
            raise Rejected(Code.PAYLOAD_TOO_LARGE, text)
        if method.check_shape is not None:
            method.check_shape(data)
        elif has_too_many_fields(method.request, data):
            text = f"a request of more than {MAX_FIELDS} fields: ask for less at once"
            raise Rejected(Code.PAYLOAD_TOO_LARGE, text)
        self._is_checked = True

    def parsed(self) -> Message:
        """Without fields that are not known here: parts of a request go into answers, some of them into each
        of thousands, and what no limit knows of went with them. Rejected, also (BAD_REQUEST) for bytes that
        are no message of the method."""
        if self._parsed is None:
            self.check()
            try:
                found = self.method.request.FromString(self.data)
            except DecodeError as error:
                raise Rejected(Code.BAD_REQUEST, "the bytes are no message of this protocol") from error
            found.DiscardUnknownFields()
            self._parsed = found
        return self._parsed

    def refusal(self, status: pb.Status) -> bytes:
        """An answer that says nothing but why there is none."""
        return self.method.refusal(status, self.data)

    def refused(self, error: Exception) -> bytes:
        """An error as the answer. Any that is not foreseen is a bug, met nobody knows where."""
        if isinstance(error, Rejected | BrokerError):
            return self.refusal(status_of(error))
        _log.error("a call failed", method=self.name, exc_info=error)
        text = f"internal error: {type(error).__name__}"
        return self.refusal(pb.Status(code=Code.INTERNAL_SERVER_ERROR, message=text))
