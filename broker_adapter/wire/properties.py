r"""The properties of a message: `name 0x01 value 0x02`, repeated, in UTF-8 (RocketMQ's MessageDecoder).

The last 0x02 may be missing, because some clients omit it. Records keep the original text, which is
parsed only when a property is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from broker_adapter.errors import IllegalMessage, Status

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
#: The record stores the length as a signed 16-bit number.
MAX_PROPERTIES_BYTES = 32_767

#: The tag, by which consumers filter.
TAGS = "TAGS"
#: The producer's keys, separated by blanks, under which the message can be found.
KEYS = "KEYS"
#: The producer's own message id.
UNIQ_KEY = "UNIQ_KEY"
#: The producer group of a half message.
PRODUCER_GROUP = "PGROUP"
#: The number of earlier deliveries of a message in a retry or dead-letter topic.
RECONSUME_TIME = "RECONSUME_TIME"


class PropertiesText(Mapping[str, str]):
    """Properties as text, in the form used in records. They are parsed on the first access.

    Text from clients and other brokers is kept unchanged, as in RocketMQ. Readers skip invalid properties.
    """

    __slots__ = ("_found", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._found: dict[str, str] | None = None

    def __getitem__(self, name: str) -> str:
        return self._split()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._split())

    def __len__(self) -> int:
        return len(self._split())

    def _split(self) -> dict[str, str]:
        if self._found is None:
            self._found = split_properties(self.text)
        return self._found


def properties_of(properties: Mapping[str, str]) -> Mapping[str, str]:
    """Return the same properties as a mapping whose methods run without Python code, if there is one."""
    return properties._split() if isinstance(properties, PropertiesText) else properties


def text_of(properties: Mapping[str, str]) -> str:
    """Return the properties as record text.

    Raises the errors of `join_properties`, except for a PropertiesText.
    """
    return properties.text if isinstance(properties, PropertiesText) else join_properties(properties)


def with_property(properties: Mapping[str, str], name: str, value: str) -> PropertiesText:
    """Append a property. The name and value are not checked, so the caller must know that they are valid."""
    text = text_of(properties)
    if text and not text.endswith(PROPERTY_SEPARATOR):  # some clients omit the last separator
        text += PROPERTY_SEPARATOR
    return PropertiesText(f"{text}{name}{NAME_VALUE_SEPARATOR}{value}{PROPERTY_SEPARATOR}")


def replaced(text: str, changes: Mapping[str, str], *, without: Collection[str] = ()) -> str:
    """Return the properties after replacing or adding some, and removing those named in `without`.

    The changes are not checked, so the caller must know that they are valid.
    """
    kept = []
    for item in text.split(PROPERTY_SEPARATOR):
        name, _, value = item.partition(NAME_VALUE_SEPARATOR)
        if name and value and name not in changes and name not in without:
            kept.append(item)
    kept += [f"{name}{NAME_VALUE_SEPARATOR}{value}" for name, value in changes.items()]
    return "".join(item + PROPERTY_SEPARATOR for item in kept)


def with_those_that_fit(properties: str, more: Mapping[str, str]) -> str:
    """Replace or add properties one by one, as long as they fit into a record."""
    for name, value in more.items():
        longer = replaced(properties, {name: value})
        if len(longer.encode()) <= MAX_PROPERTIES_BYTES:
            properties = longer
    return properties


def join_properties(properties: Mapping[str, str]) -> str:
    """Return the properties as record text, in the order of the mapping. If there are none, return "".

    Raises IllegalMessage with PROPERTIES_INVALID if a name or value is empty (readers would drop it),
    contains a separator, or is not Unicode, and with PROPERTIES_TOO_LONG if the text exceeds 32,767 bytes.
    """
    parts = []
    for name, value in properties.items():
        for what, text in (("name", name), ("value", value)):
            if not text:
                raise _invalid(f"property {name[:64]!r} has an empty {what}")
            if NAME_VALUE_SEPARATOR in text or PROPERTY_SEPARATOR in text:
                raise _invalid(f"property {name[:64]!r}: its {what} holds a separator (0x01 or 0x02)")
        parts.append(f"{name}{NAME_VALUE_SEPARATOR}{value}{PROPERTY_SEPARATOR}")
    joined = "".join(parts)
    encode_properties(joined)
    return joined


def split_properties(text: str) -> dict[str, str]:
    """Parse the properties in `text`. If a name occurs several times, the last value counts. Invalid
    properties are skipped.

    A property is invalid if it has no 0x01, or if its name or value is empty. A value extends from the first
    0x01 to the next 0x02, so it may contain another 0x01. Every text is accepted. RocketMQ 5 parses
    properties in the same way.
    """
    found = {}
    for item in text.split(PROPERTY_SEPARATOR):
        name, _, value = item.partition(NAME_VALUE_SEPARATOR)
        if name and value:
            found[name] = value
    return found


def encode_properties(text: str) -> bytes:
    """Return the text in UTF-8.

    Raises IllegalMessage (PROPERTIES_INVALID, _TOO_LONG) if no record can contain it.
    """
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise _invalid(f"the properties are not valid Unicode at character {error.start}") from None
    if len(raw) > MAX_PROPERTIES_BYTES:
        raise IllegalMessage(
            Status.PROPERTIES_TOO_LONG,
            f"the properties are {len(raw)} bytes long; the limit is {MAX_PROPERTIES_BYTES}",
        )
    return raw


def _invalid(problem: str) -> IllegalMessage:
    return IllegalMessage(Status.PROPERTIES_INVALID, problem)
