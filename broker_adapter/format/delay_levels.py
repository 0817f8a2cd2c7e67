"""RocketMQ's delay levels (messageDelayLevel), and the topic in which messages wait for them."""

from __future__ import annotations

#: It has a queue for each level, whose id is the level less 1.
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
#: The property of a message that names its level, from 1 on.
DELAY_LEVEL = "DELAY"

_SECOND, _MINUTE, _HOUR = 1_000, 60_000, 3_600_000
#: From level 1 on (ms).
LEVELS_MS = (
    *(s * _SECOND for s in (1, 5, 10, 30)),
    *(m * _MINUTE for m in (*range(1, 11), 20, 30)),
    _HOUR,
    2 * _HOUR,
)


def fitting_level(level: int) -> int:
    """A level beyond the last one is the last one, as in RocketMQ; 0 for none."""
    return max(0, min(level, len(LEVELS_MS)))


def level_ms(level: int) -> int:
    """0 for none."""
    return LEVELS_MS[fitting_level(level) - 1] if level > 0 else 0


def level_of(text: str | None) -> int:
    """Of the property; 0 for none, and for what is no level."""
    is_number = text is not None and text.isascii() and text.isdecimal() and len(text) < 10
    return fitting_level(int(text)) if text and is_number else 0
