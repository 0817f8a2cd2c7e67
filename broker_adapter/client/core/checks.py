"""Checks of the values that a program passes to a client."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import MISSING, fields
from typing import Any

from broker_adapter.errors import IllegalMessage, Status


def check_fields(options: Any, *, may_be_zero: Collection[str] = ()) -> None:
    """Check the fields of a dataclass: each value needs the type of its default, and a number is above 0.

    Raises TypeError and ValueError. Fields with the default None are not checked.
    """
    for field in fields(options):
        default: Any = field.default if field.default_factory is MISSING else field.default_factory()
        value = getattr(options, field.name)
        if default is None:
            continue
        kinds = (int, float) if isinstance(default, float) else (type(default),)
        if not isinstance(value, kinds) or isinstance(value, bool) is not isinstance(default, bool):
            raise TypeError(
                f"{field.name} must be of type {type(default).__name__}, not {type(value).__name__}"
            )
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and not (value > 0 or (value == 0 and field.name in may_be_zero)):
            raise ValueError(f"{field.name} must be above 0, not {value}")


def check_type(name: str, value: object, kind: type) -> None:
    """Raise IllegalMessage (REQUEST_MALFORMED) unless `value` is of type `kind`."""
    if not isinstance(value, kind):
        raise IllegalMessage(
            Status.REQUEST_MALFORMED, f"{name} must be {kind.__name__}, not {type(value).__name__}"
        )


def check_callable(name: str, value: object) -> None:
    """Raise IllegalMessage (REQUEST_MALFORMED) unless `value` can be called."""
    if not callable(value):
        raise IllegalMessage(Status.REQUEST_MALFORMED, f"the {name} {value!r:.100} cannot be called")


def check_timeout(seconds: float) -> None:
    """Raise IllegalMessage (FIELD_OUT_OF_RANGE) unless `seconds` is a number above 0."""
    if not isinstance(seconds, int | float) or not seconds > 0:
        text = f"timeout must be a number of seconds above 0, not {seconds!r:.100}"
        raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, text)


def check_offset(offset: int) -> None:
    """Raise IllegalMessage (FIELD_OUT_OF_RANGE) for a negative offset, which brokers read as another one."""
    check_type("an offset", offset, int)
    if offset < 0:
        raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, f"the offset {offset} is negative")
