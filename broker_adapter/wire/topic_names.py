"""Valid names of topics and groups (RocketMQ 5's TopicValidator)."""

from __future__ import annotations

import re

from broker_adapter.errors import IllegalMessage, Status
from broker_adapter.wire.delay_levels import SCHEDULE_TOPIC

RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
#: The topics where RocketMQ's brokers store half messages and the ends of transactions.
HALF_TOPIC, OP_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
#: The group whose offsets in these two topics record the progress of the checks.
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
#: The topic of half messages whose producers never answered a check. Users may read it.
CHECK_MAX_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
#: Topics to which only the broker writes; clients cannot send to them (TopicValidator).
UNSENDABLE_TOPICS = frozenset(
    {SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC, CHECK_MAX_TOPIC, "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"}
)
#: Topics that RocketMQ's brokers reserve (TopicValidator), in addition to those that start with the prefix.
_SYSTEM_TOPICS = UNSENDABLE_TOPICS | {
    "TBW102",
    "BenchmarkTest",
    "CHECKPOINT_TOPIC",
    "RMQ_SYS_TRACE_TOPIC",
    "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
    "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
}
_SYSTEM_PREFIX = "rmq_sys_"
MAX_TOPIC_LENGTH = 127
#: Maximum length of retry and dead-letter topics, whose names combine a group and a topic.
MAX_DERIVED_TOPIC_LENGTH = 255
#: Maximum length of a group, so that the name of its retry topic is valid.
MAX_GROUP_LENGTH = MAX_DERIVED_TOPIC_LENGTH - len(RETRY_PREFIX)


def reply_topic(cluster: str) -> str:
    """Return the topic to which replies are sent. RocketMQ stores them there; this project only uses its
    route.
    """
    return f"{cluster}_REPLY_TOPIC"


# \Z, because $ would accept a trailing line feed.
_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+\Z")


def is_system_topic_name(name: str) -> bool:
    return name in _SYSTEM_TOPICS or name.startswith(_SYSTEM_PREFIX)


def check_topic_name(name: str) -> None:
    """Check a topic name. Raises IllegalMessage with TOPIC_NAME_INVALID or TOPIC_NAME_TOO_LONG.

    A name consists of ASCII letters, digits and ``% | _ -``. It has at most 127 characters, or 255 in retry
    and dead-letter topics.
    """
    if not isinstance(name, str) or not name:
        problem = "is empty" if name == "" else f"must be str, not {type(name).__name__}"
        raise IllegalMessage(Status.TOPIC_NAME_INVALID, f"the topic name {problem}")
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
            f"topic {name[:limit]!r}... has {len(name)} characters; the limit is {limit}",
        )


def is_group_name(name: str) -> bool:
    return len(name) <= MAX_GROUP_LENGTH and _ALLOWED.match(name) is not None


def check_group_name(name: str) -> None:
    """Check a group name. Raises IllegalMessage (GROUP_NAME_INVALID)."""
    if not isinstance(name, str):
        problem = f"must be str, not {type(name).__name__}"
    elif len(name) > MAX_GROUP_LENGTH:
        problem = f"{name[:MAX_GROUP_LENGTH]!r}... has {len(name)} characters, more than {MAX_GROUP_LENGTH}"
    elif _ALLOWED.match(name) is None:
        problem = f"{name!r}: letters, digits and % | _ - are allowed, at least one"
    else:
        return
    raise IllegalMessage(Status.GROUP_NAME_INVALID, f"group {problem}")
