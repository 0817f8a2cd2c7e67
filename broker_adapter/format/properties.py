r"""The properties of a message: `name 0x01 value 0x02`, repeated, in UTF-8 (RocketMQ's MessageDecoder).

The last 0x02 may be missing: some clients leave it out. Records keep the text as it came; it is taken apart
only when a property is asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from broker_adapter.errors import IllegalMessage, Status

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
#: The length is a signed number of 16 bits in the record.
MAX_PROPERTIES_BYTES = 32_767

#: The tag, by which consumers filter.
TAGS = "TAGS"
#: The producer's keys, separated by blanks, under which the message can be found.
KEYS = "KEYS"
#: The producer's own id of the message.
UNIQ_KEY = "UNIQ_KEY"


class PropertiesText(Mapping[str, str]):
    """Properties in the form that records hold: joined once, and taken apart when one is asked for.

    Text of others is taken as it is, as RocketMQ's brokers do: what is no property in it, readers pass over.
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


def text_of(properties: Mapping[str, str]) -> str:
    """The properties as a record has them. Errors as those of `join_properties`, but for text of others."""
    return properties.text if isinstance(properties, PropertiesText) else join_properties(properties)


def with_property(properties: Mapping[str, str], name: str, value: str) -> PropertiesText:
    """One property more, behind the others. Name and value are the program's own, and not checked."""
    text = text_of(properties)
    if text and not text.endswith(PROPERTY_SEPARATOR):  # some clients leave the last one out
        text += PROPERTY_SEPARATOR
    return PropertiesText(f"{text}{name}{NAME_VALUE_SEPARATOR}{value}{PROPERTY_SEPARATOR}")


def replaced(text: str, changes: Mapping[str, str], *, without: Collection[str] = ()) -> str:
    """Properties with others in place of those that have their names, and without those of some names. What
    changes is the program's own, and not checked."""
    kept = []
    for item in text.split(PROPERTY_SEPARATOR):
        name, _, value = item.partition(NAME_VALUE_SEPARATOR)
        if name and value and name not in changes and name not in without:
            kept.append(item)
    kept += [f"{name}{NAME_VALUE_SEPARATOR}{value}" for name, value in changes.items()]
    return "".join(item + PROPERTY_SEPARATOR for item in kept)


def join_properties(properties: Mapping[str, str]) -> str:
    """The properties as a record has them, in the order of the mapping; "" for none.

    IllegalMessage with PROPERTIES_INVALID for an empty name or value (readers would drop it), for a name or
    value that holds a separator, and for text that is not Unicode; with PROPERTIES_TOO_LONG beyond 32,767
    bytes.
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
    """The properties in `text`. Of properties with one name the last counts; what is none is passed over.

    That is: what has no 0x01, or nothing before or after it. A value reaches from the first 0x01 to the next
    0x02, so it may hold another 0x01. As RocketMQ 5 reads it; there is no text that it refuses.
    """
    found = {}
    for item in text.split(PROPERTY_SEPARATOR):
        name, _, value = item.partition(NAME_VALUE_SEPARATOR)
        if name and value:
            found[name] = value
    return found


def encode_properties(text: str) -> bytes:
    """The text in UTF-8. IllegalMessage (PROPERTIES_INVALID, _TOO_LONG) if no record can hold it."""
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise _invalid(f"not Unicode at character {error.start}") from None
    if len(raw) > MAX_PROPERTIES_BYTES:
        raise IllegalMessage(
            Status.PROPERTIES_TOO_LONG,
            f"the properties take {len(raw)} bytes, more than {MAX_PROPERTIES_BYTES}",
        )
    return raw


def _invalid(problem: str) -> IllegalMessage:
    return IllegalMessage(Status.PROPERTIES_INVALID, problem)
