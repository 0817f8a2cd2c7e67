"""When a message with these properties is due: RocketMQ's delay levels, and its timers."""

from __future__ import annotations

from collections.abc import Mapping

from broker_adapter.errors import IllegalMessage, Status

_SECOND, _MINUTE, _HOUR = 1_000, 60_000, 3_600_000
#: RocketMQ's messageDelayLevel, from level 1 on (ms).
LEVELS_MS = (
    *(s * _SECOND for s in (1, 5, 10, 30)),
    *(m * _MINUTE for m in (*range(1, 11), 20, 30)),
    _HOUR,
    2 * _HOUR,
)
_LEVEL = "DELAY"
#: The time of delivery, and names for it of older clients (ms since 1970).
_AT_MS = ("TIMER_DELIVER_MS", "__STARTDELIVERTIME")
_AFTER_MS, _AFTER_S = "TIMER_DELAY_MS", "TIMER_DELAY_SEC"
_MAX_DIGITS = 15
#: All properties that delay a message.
DELAYS = frozenset({_LEVEL, *_AT_MS, _AFTER_MS, _AFTER_S})


def level_ms(level: int) -> int:
    """A level beyond the last one is the last one, as in RocketMQ; 0 for none."""
    return LEVELS_MS[min(level, len(LEVELS_MS)) - 1] if level > 0 else 0


def delivery_ms(properties: Mapping[str, str], now_ms: int) -> int | None:
    """ms since 1970; None: at once. IllegalMessage (FIELD_OUT_OF_RANGE) for what is no time."""
    if (after := properties.get(_AFTER_S)) is not None:
        return now_ms + _number(_AFTER_S, after) * _SECOND
    if (after := properties.get(_AFTER_MS)) is not None:
        return now_ms + _number(_AFTER_MS, after)
    for name in _AT_MS:
        if (at := properties.get(name)) is not None:
            return max(1, _number(name, at))
    if (level := properties.get(_LEVEL)) is not None and (after_ms := level_ms(_number(_LEVEL, level))):
        return now_ms + after_ms
    return None


def seconds_ms(text: str | None) -> int:
    """0 for what is no number: an unreadable wish is none."""
    return int(text) * _SECOND if text and text.isascii() and text.isdecimal() and len(text) < 10 else 0


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise IllegalMessage(Status.FIELD_OUT_OF_RANGE, f"property {name} {text[:32]!r} is no number")
    return int(text)
