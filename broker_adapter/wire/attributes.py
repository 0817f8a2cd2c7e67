"""Attributes of topics and groups, and changes to them.

Sources: RocketMQ's TopicAttributes, SubscriptionGroupAttributes and AttributeUtil.

A change is a list of `+name=value` (set) and `-name` (remove). Attributes that are not in the list keep their
values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Set
from typing import NamedTuple

from broker_adapter.errors import IllegalMessage, Status

MESSAGE_TYPE = "message.type"
#: RocketMQ's name for the type of a topic that accepts messages of every type.
UNSPECIFIED = "UNSPECIFIED"
_MAX_SHOWN = 64
_LONG_MAX = (1 << 63) - 1
_NUMBER = re.compile(r"-?[0-9]{1,19}\Z")

#: Sorted pairs of name and value.
Attributes = tuple[tuple[str, str], ...]


class _Rule(NamedTuple):
    """The rule for an attribute.

    `is_valid` checks a value. `is_changeable`: the value may change after the topic or group was created.
    """

    is_valid: Callable[[str], bool]
    is_changeable: bool = True


def _one_of(*values: str) -> Callable[[str], bool]:
    return frozenset(values).__contains__


def _within(minimum: int, maximum: int) -> Callable[[str], bool]:
    def is_valid(text: str) -> bool:
        return _NUMBER.match(text) is not None and minimum <= int(text) <= maximum

    return is_valid


_TOPIC_RULES: Mapping[str, _Rule] = {
    MESSAGE_TYPE: _Rule(_one_of(UNSPECIFIED, "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "PRIORITY")),
    "queue.type": _Rule(_one_of("SimpleCQ", "BatchCQ"), is_changeable=False),
    # COMPACTION would keep the newest message of each key. This project does not support it.
    "cleanup.policy": _Rule(_one_of("DELETE"), is_changeable=False),
    "reserve.time": _Rule(_within(-1, _LONG_MAX)),
}
_GROUP_RULES: Mapping[str, _Rule] = {"priority.factor": _Rule(_within(0, 100))}


def parse_changes(text: str) -> dict[str, str]:
    """Parse `+name=value,-name` into {"+name": "value", "-name": ""}.

    Raises IllegalMessage (FIELD_OUT_OF_RANGE).
    """
    changes: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        key, separator, value = (word.strip() for word in part.partition("="))
        if not key.startswith("+" if separator else "-"):
            raise _illegal(f"attribute change {part[:_MAX_SHOWN]!r} is neither +name=value nor -name")
        if key in changes:
            raise _illegal(f"attribute {key[:_MAX_SHOWN]!r} appears twice")
        changes[key] = value
    return changes


def change_topic_attributes(before: Attributes | None, changes: Mapping[str, str]) -> Attributes:
    """Return the attributes after a change.

    `before`: None for a new topic. Raises IllegalMessage (FIELD_OUT_OF_RANGE).
    """
    return _changed(_TOPIC_RULES, before, changes)


def change_group_attributes(before: Attributes | None, changes: Mapping[str, str]) -> Attributes:
    """Return the attributes of a group after a change. See `change_topic_attributes`."""
    return _changed(_GROUP_RULES, before, changes)


def known_topic_attributes(pairs: Iterable[tuple[str, object]]) -> Attributes:
    """Return the attributes in a RocketMQ table that RocketMQ defines for topics, without message.type."""
    return _known(_TOPIC_RULES.keys() - {MESSAGE_TYPE}, pairs)


def known_group_attributes(pairs: Iterable[tuple[str, object]]) -> Attributes:
    """Return the attributes in a RocketMQ table that RocketMQ defines for groups."""
    return _known(_GROUP_RULES.keys(), pairs)


def _known(names: Set[str], pairs: Iterable[tuple[str, object]]) -> Attributes:
    return tuple(sorted((name, str(value)) for name, value in pairs if name in names))


def _changed(rules: Mapping[str, _Rule], before: Attributes | None, changes: Mapping[str, str]) -> Attributes:
    found = dict(before or ())
    if len({key[1:] for key in changes}) != len(changes):
        raise _illegal("the change both sets and removes an attribute")
    for key, value in changes.items():
        sign, name = key[:1], key[1:]
        rule = rules.get(name)
        if sign not in ("+", "-") or rule is None:
            raise _illegal(f"attribute {key[:_MAX_SHOWN]!r} is unknown: valid are {', '.join(sorted(rules))}")
        if sign == "-":
            if name not in found:
                raise _illegal(f"attribute {name} is not set and cannot be removed")
            del found[name]
            continue
        if name == MESSAGE_TYPE:
            value = value.upper()
        if not rule.is_valid(value):
            raise _illegal(f"attribute {name} does not allow the value {value[:_MAX_SHOWN]!r}")
        if before is not None and not rule.is_changeable and found.get(name) != value:
            raise _illegal(f"attribute {name} cannot be changed after the topic was created")
        found[name] = value
    return tuple(sorted(found.items()))


def _illegal(problem: str) -> IllegalMessage:
    return IllegalMessage(Status.FIELD_OUT_OF_RANGE, problem)
