"""What a topic may be called (RocketMQ 5's TopicValidator)."""

from __future__ import annotations

import re

from broker_adapter.errors import IllegalMessage, Status

RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
#: Where RocketMQ's brokers keep halves of transactions, and what says that one has ended.
HALF_TOPIC, OP_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
#: The group that has the offsets up to which both were looked at.
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
#: Half messages whose producers never answered: users may read it.
CHECK_MAX_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
MAX_TOPIC_LENGTH = 127
#: Of retry and dead-letter topics, whose names are made of a group's and a topic's.
MAX_DERIVED_TOPIC_LENGTH = 255

# \Z and not $, which would let a line feed through at the end.
_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+\Z")


def check_topic_name(name: str) -> None:
    """IllegalMessage with TOPIC_NAME_INVALID or TOPIC_NAME_TOO_LONG, unless a topic may be called so.

    Allowed are letters and digits of ASCII and ``% | _ -``; at most 127, in retry and dead-letter topics 255.
    """
    if not name:
        raise IllegalMessage(Status.TOPIC_NAME_INVALID, "the name of the topic is empty")
    if _ALLOWED.match(name) is None:
        raise IllegalMessage(
            Status.TOPIC_NAME_INVALID,
            f"topic {name[:MAX_DERIVED_TOPIC_LENGTH]!r}: only letters, digits and % | _ - are allowed",
        )
    derived = name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
    limit = MAX_DERIVED_TOPIC_LENGTH if derived else MAX_TOPIC_LENGTH
    if len(name) > limit:
        raise IllegalMessage(
            Status.TOPIC_NAME_TOO_LONG,
            f"topic {name[:limit]!r}... has {len(name)} characters, more than {limit}",
        )
