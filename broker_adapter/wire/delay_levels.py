"""RocketMQ's delay levels (messageDelayLevel), their topic, and the properties that delay a message."""

from __future__ import annotations

#: The topic has one queue per level. The queue id is the level minus 1.
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
#: The property with the delay level of a message, which is at least 1.
DELAY_LEVEL = "DELAY"

#: The properties with the delivery time in ms since 1970. Older clients use the second one.
AT_MS = ("TIMER_DELIVER_MS", "__STARTDELIVERTIME")
AFTER_MS, AFTER_S = "TIMER_DELAY_MS", "TIMER_DELAY_SEC"
#: The time properties that RocketMQ removes from a message with a level.
TIMES = frozenset({"TIMER_DELIVER_MS", AFTER_MS, AFTER_S})
#: All properties that delay a message.
DELAYS = frozenset({DELAY_LEVEL, *AT_MS, AFTER_MS, AFTER_S})

_SECOND, _MINUTE, _HOUR = 1_000, 60_000, 3_600_000
#: Delays from level 1 on (ms).
LEVELS_MS = (
    *(s * _SECOND for s in (1, 5, 10, 30)),
    *(m * _MINUTE for m in (*range(1, 11), 20, 30)),
    _HOUR,
    2 * _HOUR,
)


def fitting_level(level: int) -> int:
    """Limit a level to the highest one, as RocketMQ does. 0 means no delay."""
    return max(0, min(level, len(LEVELS_MS)))


def level_ms(level: int) -> int:
    """Return the delay of a level; 0 means no delay."""
    return LEVELS_MS[fitting_level(level) - 1] if level > 0 else 0


def level_of(text: str | None) -> int:
    """Return the level in a message's property, or 0 if the property is missing or invalid."""
    is_number = text is not None and text.isascii() and text.isdecimal() and len(text) < 10
    return fitting_level(int(text)) if text and is_number else 0
