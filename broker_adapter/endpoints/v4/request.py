"""Remoting requests: their fields, and the form in which nodes forward them to the master."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from broker_adapter.endpoints.v5.messages.request import Request
from broker_adapter.errors import BrokerError, IllegalMessage, ResponseCode, Status
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import PREFIX, RemotingCommand, encode
from broker_adapter.wire.longs import long_of
from broker_adapter.wire.topic_names import RETRY_PREFIX
from dledger.infra.logs import get_logger

_log = get_logger("processor")

#: The method name of remoting requests between nodes.
REMOTING: Final = "Remoting"
_LENGTH_BYTES = PREFIX.size // 2
_MAX_SUSPEND_MS = 600_000
_HAS_UNIQ_KEY = "UNIQ_KEY\x01"

#: The short field names of SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE, mapped to the names in SEND_MESSAGE.
V2_NAMES = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
    "n": "brokerName",
}
_V2 = (
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
)
#: Separates a transaction id from the topic, which clients of 4.9 do not send. Topic names cannot contain it.
_AT = "@"


class Repetition(Enum):
    """Whether a request may be sent to another master when its outcome at the first master is unknown."""

    SAFE = 1
    #: A send, which is safe with a message id, because a message is stored once under its id.
    WITH_ID = 2
    #: A request that makes a change each time and has no id.
    UNSAFE = 3


class RequestKind(NamedTuple):
    """The rules by which nodes forward a request to the master.

    `is_read`: any node with the data may answer. `is_admin_query`: reads topics, groups or progress, of which
    a slave has a copy. `ends_with_caller`: canceled when the caller disconnects, because the request changes
    nothing or waits for messages. `appends`: a send. `wait_field`: name of the field with the time (ms) for
    which the broker may wait, in addition to `timeout_s`.
    """

    repetition: Repetition = Repetition.SAFE
    is_read: bool = False
    is_admin_query: bool = False
    ends_with_caller: bool = False
    appends: bool = False
    timeout_s: float = 5.0
    wait_field: str = ""


#: Default client timeout. A client that gets no answer within 3 s sends the message again.
_SEND_S = 3.0
CHANGE: Final = RequestKind()
CHANGE_WITHOUT_ID: Final = RequestKind(Repetition.UNSAFE)
SEND: Final = RequestKind(Repetition.WITH_ID, appends=True, timeout_s=_SEND_S)
REPLY: Final = RequestKind(timeout_s=_SEND_S)
PULL: Final = RequestKind(is_read=True, ends_with_caller=True, wait_field="suspendTimeoutMillis")
POP: Final = RequestKind(ends_with_caller=True, wait_field="pollTime")
PEEK: Final = RequestKind(ends_with_caller=True)
READ: Final = RequestKind(is_read=True, ends_with_caller=True)
ADMIN_QUERY: Final = RequestKind(is_admin_query=True, ends_with_caller=True)


class RemotingRequest(Request):
    """A remoting request.

    Its response is a frame in bytes, whose header has the same encoding as the header of the request.
    """

    __slots__ = ("command", "kind")

    def __init__(self, command: RemotingCommand, kind: RequestKind = CHANGE) -> None:
        self.name = REMOTING
        self.command = command
        self.kind = kind

    def __len__(self) -> int:
        return len(self.command.body) + sum(len(n) + len(v) for n, v in self.command.fields.items())

    @property
    def appends(self) -> bool:
        return self.kind.appends

    @property
    def is_send(self) -> bool:
        return self.kind is SEND

    @property
    def is_read(self) -> bool:
        return self.kind.is_read

    @property
    def is_admin_query(self) -> bool:
        return self.kind.is_admin_query

    @property
    def streams_answers(self) -> bool:
        return False

    @property
    def ends_with_caller(self) -> bool:
        return self.kind.ends_with_caller

    @property
    def is_repeatable(self) -> bool:
        if self.kind.repetition is not Repetition.WITH_ID:
            return self.kind.repetition is Repetition.SAFE
        # A batch has its own id in this project. Retry topics have no duplicate check.
        fields = self.command.fields
        is_retry = (fields.get("b") or fields.get("topic") or "").startswith(RETRY_PREFIX)
        return not is_retry and _HAS_UNIQ_KEY in (fields.get("i") or fields.get("properties") or "")

    @property
    def timeout_s(self) -> float:
        """Return the client's timeout in seconds, which requests do not contain."""
        if not self.kind.wait_field:
            return self.kind.timeout_s
        wait_ms = number(self.command.fields, self.kind.wait_field, 0)
        return min(max(0, wait_ms), _MAX_SUSPEND_MS) / 1000 + self.kind.timeout_s

    def encoded(self) -> bytes:
        return encode(self.command)[_LENGTH_BYTES:]

    def refused(self, error: Exception) -> bytes:
        if isinstance(error, BrokerError):
            return encode(self.command.answer(error.response_code, str(error)))
        _log.error("a request failed", code=self.command.code, exc_info=error)
        return encode(self.command.answer(ResponseCode.SYSTEM_ERROR, "internal error; see the server log"))

    @property
    def fields(self) -> dict[str, str]:
        """Return the fields under their long names."""
        return long_names(self.command)


# -- fields -----------------------------------------------------------------------------------------------


def long_names(command: RemotingCommand) -> dict[str, str]:
    """Return the fields under the names of SEND_MESSAGE."""
    found = command.fields
    return (
        {V2_NAMES.get(name, name): value for name, value in found.items()} if command.code in _V2 else found
    )


def text(fields: Mapping[str, str], name: str, default: str | None = None) -> str:
    """Return a field.

    Raises IllegalMessage (FIELD_OUT_OF_RANGE) if the field is missing and `default` is None.
    """
    value = fields.get(name, default)
    if value is None:
        raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, f"field {name} is missing")
    return value


def number(fields: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Return a field with a 64-bit number.

    Raises IllegalMessage (FIELD_OUT_OF_RANGE) if the field is invalid, or if it is missing and has no
    default.
    """
    value = fields.get(name)
    if not value and default is not None:
        return default
    found = long_of(text(fields, name))
    if found is None:
        raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, f"field {name} is not a 64-bit number")
    return found


def small_number(fields: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Return a field with a 32-bit number. Raises IllegalMessage (FIELD_OUT_OF_RANGE)."""
    found = number(fields, name, default)
    if not -(1 << 31) <= found < 1 << 31:
        raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, f"field {name} is not a 32-bit number")
    return found


def flag(fields: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """Return a Boolean field. Most clients write Booleans as text, some as numbers."""
    value = fields.get(name)
    return default if value is None else value.lower() in ("true", "1")


def client_transaction_id(transaction_id: str, topic: str) -> str:
    """Return the transaction id for the producer, which sends it back to end the transaction."""
    return f"{transaction_id}{_AT}{topic}"


class NamedHalf(NamedTuple):
    """The half message that a request to end a transaction identifies.

    `transaction_id` identifies it; if that is "", the offsets do. `topic` is "" if the request names no
    topic.
    """

    topic: str
    transaction_id: str
    queue_offset: int = -1
    physical_offset: int = -1


def named_half(fields: Mapping[str, str]) -> NamedHalf:
    """Return the half message that a request names.

    Only transaction ids of this broker are used. For other ids, such as a message id, the offsets identify
    the half message, as in RocketMQ. Clients of RocketMQ 5 name the topic. Raises IllegalMessage
    (MESSAGE_ID_INVALID).
    """
    told = text(fields, "transactionId", "")
    transaction_id, at, topic = told.partition(_AT)
    if at:
        return NamedHalf(topic, transaction_id)
    offset = number(fields, "tranStateTableOffset", -1)
    physical = number(fields, "commitLogOffset", -1)
    if min(offset, physical) >= 0:
        return NamedHalf(fields.get("topic", ""), "", offset, physical)
    raise IllegalMessage(
        Status.MESSAGE_ID_INVALID, f"transaction {told[:255]!r} was not issued by this broker"
    )
