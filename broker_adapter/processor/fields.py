"""Fields of a request's header, read as what they are."""

from __future__ import annotations

from collections.abc import Mapping

from broker_adapter.errors import IllegalMessage, Status
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.longs import long_of

#: What SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE call the fields of SEND_MESSAGE.
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


def long_names(command: RemotingCommand) -> dict[str, str]:
    """Its fields, as SEND_MESSAGE names them."""
    found = command.fields
    return (
        {V2_NAMES.get(name, name): value for name, value in found.items()} if command.code in _V2 else found
    )


def text(fields: Mapping[str, str], name: str, default: str | None = None) -> str:
    """IllegalMessage (FIELD_OUT_OF_RANGE) if it is missing, and there is no default."""
    value = fields.get(name, default)
    if value is None:
        raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, f"the field {name} is missing")
    return value


def number(fields: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Of 64 bits. IllegalMessage (FIELD_OUT_OF_RANGE) likewise, and for what is none."""
    value = fields.get(name)
    if not value and default is not None:
        return default
    found = long_of(text(fields, name))
    if found is None:
        raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, f"the field {name} is no number of 64 bits")
    return found


def flag(fields: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """Clients write booleans as text, some of them as numbers."""
    value = fields.get(name)
    return default if value is None else value.lower() in ("true", "1")
