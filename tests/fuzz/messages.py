"""Protobuf messages made from their descriptors: fields by what their names say, or the ends of types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_SIGNED = {FieldDescriptor.CPPTYPE_INT32: 31, FieldDescriptor.CPPTYPE_INT64: 63}
_UNSIGNED = {FieldDescriptor.CPPTYPE_UINT32: 32, FieldDescriptor.CPPTYPE_UINT64: 64}
_TEXTS = ("", "a", "x" * 255, "\0", "\u00e4\u2028", "../..", "a b", "-1", "%DLQ%g", "%RETRY%g", "x" * 40_000)
_MOST_DEPTH = 5
#: Below it, messages are whole: what is wrong with one is a field or two.
_NEARLY_VALID = 0.08
#: Bytes of a message, one of whose lists may be made long.
_SMALL = 200

#: Field name -> what servers under test know by it; none: valid messages mostly leave it out. A function is
#: asked each time, and a list is the whole of a repeated field.
Known = Mapping[str, Sequence[Any] | Callable[[Random], Any]]


def filled(
    message: Message,
    rng: Random,
    known: Known,
    *,
    wild: float = 0.2,
    most: int = 1000,
    depth: int = 0,
    within: str = "",
) -> Message:
    """`message`, with fields filled. `wild`: how probably a field has a value from the ends of its type,
    although there is one that servers know; the rest of the message is valid then. `most`: entries of a
    list. `within`: the field that holds the message; `known` may say "topic.name" as well as "name"."""
    if within:
        prefix = f"{within}."
        inner = {key.removeprefix(prefix): known[key] for key in known if key.startswith(prefix)}
        known = {**known, **inner}
    chosen = {oneof.name: rng.choice(oneof.fields).name for oneof in message.DESCRIPTOR.oneofs}
    for field in message.DESCRIPTOR.fields:
        if depth > _MOST_DEPTH or rng.random() < _left_out(field, known, wild):
            continue
        if field.containing_oneof is not None and chosen[field.containing_oneof.name] != field.name:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _fill_map(message, field, rng)
        elif field.is_repeated:
            _fill_list(message, field, rng, known, wild, most, depth)
        elif field.message_type is not None:
            filled(
                getattr(message, field.name),
                rng,
                known,
                wild=wild,
                most=most,
                depth=depth + 1,
                within=field.name,
            )
        else:
            setattr(message, field.name, _value(field, rng, known, wild))
    return message


def _left_out(field: FieldDescriptor, known: Known, wild: float) -> float:
    """How probably a field is not set."""
    if wild < _NEARLY_VALID:
        choice = known.get(field.name)
        if isinstance(choice, tuple) and not choice:
            return 0.9
        return 0.02 if choice is not None or field.message_type is not None else 0.3
    return 0.1 if field.name in known else 0.3


def _fill_map(message: Message, field: FieldDescriptor, rng: Random) -> None:
    key, value = field.message_type.fields
    entries = getattr(message, field.name)
    for _ in range(rng.choice((0, 1, 3, 3, 200))):
        if value.message_type is None:
            entries[_value(key, rng, {}, 1)] = _value(value, rng, {}, 1)


def _fill_list(
    message: Message, field: FieldDescriptor, rng: Random, known: Known, wild: float, most: int, depth: int
) -> None:
    entries = getattr(message, field.name)
    choice = known.get(field.name, ())
    is_plain = field.message_type is None and not callable(choice)
    lists = [one for one in choice if isinstance(one, list)] if is_plain else []
    if lists and rng.random() >= wild:
        entries.extend(rng.choice(lists))
        return
    count = rng.choice((1, 1, 1, 2)) if wild < _NEARLY_VALID else rng.choice((0, 1, 1, 1, 2, 3))
    if depth < 2 and rng.random() < wild / 5:
        count = rng.choice((100, most))
    single = min(count, 3)
    if field.message_type is None:
        entries.extend(_value(field, rng, known, wild) for _ in range(single))
    else:
        for _ in range(single):
            filled(entries.add(), rng, known, wild=wild, most=most, depth=depth + 1, within=field.name)
    if count > single and message.ByteSize() < _SMALL:
        entries.extend([entries[0]] * (count - single))


def _value(field: FieldDescriptor, rng: Random, known: Known, wild: float) -> Any:
    choice = known.get(field.name)
    if choice and rng.random() >= wild:
        value = choice(rng) if callable(choice) else rng.choice(choice)
        if isinstance(value, bytes if field.type == FieldDescriptor.TYPE_BYTES else _TYPES[field.cpp_type]):
            return value
    kind = field.cpp_type
    if kind in _SIGNED:
        top = 1 << _SIGNED[kind]
        return rng.choice((0, 0, 1, 1, 2, 7, 1000, -1, top - 1, -top, top >> 1, 1 << 30, 1 << 16))
    if kind in _UNSIGNED:
        top = 1 << _UNSIGNED[kind]
        return rng.choice((0, 0, 1, 1, 2, 7, 1000, top - 1, top >> 1, 1 << 16))
    if kind == FieldDescriptor.CPPTYPE_ENUM:  # open: numbers that nobody knows are kept
        return rng.choice(
            (*field.enum_type.values_by_number, *field.enum_type.values_by_number, 99, -1, (1 << 31) - 1)
        )
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return rng.choice((0.0, 1.5, -1.0, float("inf"), float("nan"), 1e30))
    text = rng.choice(_TEXTS)
    return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text


_TYPES: dict[int, type] = {
    FieldDescriptor.CPPTYPE_INT32: int,
    FieldDescriptor.CPPTYPE_INT64: int,
    FieldDescriptor.CPPTYPE_UINT32: int,
    FieldDescriptor.CPPTYPE_UINT64: int,
    FieldDescriptor.CPPTYPE_ENUM: int,
    FieldDescriptor.CPPTYPE_BOOL: bool,
    FieldDescriptor.CPPTYPE_DOUBLE: float,
    FieldDescriptor.CPPTYPE_FLOAT: float,
    FieldDescriptor.CPPTYPE_STRING: str,
}
