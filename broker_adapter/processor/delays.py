"""When a message with these properties is due: RocketMQ's delay levels, and its timers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker_adapter.errors import IllegalMessage, Status
from broker_adapter.format.delay_levels import DELAY_LEVEL, fitting_level, level_ms

_SECOND = 1_000
#: The time of delivery, and names for it of older clients (ms since 1970).
_AT_MS = ("TIMER_DELIVER_MS", "__STARTDELIVERTIME")
_AFTER_MS, _AFTER_S = "TIMER_DELAY_MS", "TIMER_DELAY_SEC"
_MAX_DIGITS = 15
#: All properties that delay a message.
DELAYS = frozenset({DELAY_LEVEL, *_AT_MS, _AFTER_MS, _AFTER_S})


class Delay(NamedTuple):
    """`at_ms`: since 1970. `level`: that of RocketMQ which says so; 0: a time does."""

    at_ms: int
    level: int = 0


def delay_of(properties: Mapping[str, str], now_ms: int) -> Delay | None:
    """None: at once. IllegalMessage (FIELD_OUT_OF_RANGE) for what is no time."""
    if (after := properties.get(_AFTER_S)) is not None:
        return Delay(now_ms + _number(_AFTER_S, after) * _SECOND)
    if (after := properties.get(_AFTER_MS)) is not None:
        return Delay(now_ms + _number(_AFTER_MS, after))
    for name in _AT_MS:
        if (at := properties.get(name)) is not None:
            return Delay(max(1, _number(name, at)))
    text = properties.get(DELAY_LEVEL)
    if text is not None and (level := fitting_level(_number(DELAY_LEVEL, text))):
        return Delay(now_ms + level_ms(level), level)
    return None


def seconds_ms(text: str | None) -> int:
    """0 for what is no number: an unreadable wish is none."""
    return int(text) * _SECOND if text and text.isascii() and text.isdecimal() and len(text) < 10 else 0


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, f"property {name} {text[:32]!r} is no number")
    return int(text)
