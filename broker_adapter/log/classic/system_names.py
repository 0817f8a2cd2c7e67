"""Names that a RocketMQ broker reserves (TopicValidator, MixAll) and hides from users."""

from __future__ import annotations

from collections.abc import Iterable

from broker_adapter.api import PERM_INHERIT, TopicConfig
from broker_adapter.wire.topic_names import CHECK_MAX_TOPIC, is_system_topic_name, reply_topic

TIMER_TOPIC = "rmq_sys_wheel_timer"
REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"
_GROUPS = frozenset(
    {
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "__MONITOR_CONSUMER",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_PULL",
    }
)
_GROUP_PREFIXES = ("CID_RMQ_SYS_", "CID_DefaultHeartBeatSyncerTopic")


def user_topics(topics: Iterable[TopicConfig]) -> dict[str, TopicConfig]:
    """Return the topics of a broker's table that it did not create itself, by name.

    A broker also creates topics with PERM_INHERIT, named after the broker and its cluster, and the reply
    topic of its cluster. Other topics may end like a reply topic.
    """
    table = {one.name: one for one in topics}
    own = {name for name, one in table.items() if one.perm & PERM_INHERIT}
    own |= {reply_topic(name) for name in own if not is_system_topic_name(name)}
    return {name: one for name, one in table.items() if name not in own and not is_system_name(name)}


def is_system_name(topic: str) -> bool:
    """True for topics that every broker may create, except one that users read."""
    return topic != CHECK_MAX_TOPIC and is_system_topic_name(topic)


def is_system_group(group: str) -> bool:
    return group in _GROUPS or group.startswith(_GROUP_PREFIXES)
