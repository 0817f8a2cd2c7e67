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


def check_offset(offset: int) -> None:
    """Raise IllegalMessage (FIELD_OUT_OF_RANGE) for a negative offset, which brokers read as another one."""
    if offset < 0:
        raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, f"the offset {offset} is negative")
