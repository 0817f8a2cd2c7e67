"""Names that a broker of RocketMQ keeps for itself (TopicValidator, MixAll): users see nothing of them."""

from __future__ import annotations

from broker_adapter.api import TopicConfig
from broker_adapter.format.delay_levels import SCHEDULE_TOPIC
from broker_adapter.format.topic_names import HALF_TOPIC, OP_TOPIC

TIMER_TOPIC = "rmq_sys_wheel_timer"
REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"
_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "BenchmarkTest",
        "OFFSET_MOVED_EVENT",
        "SELF_TEST_TOPIC",
        "TBW102",
    }
)
_PREFIX = "rmq_sys_"
_REPLY_SUFFIX = "_REPLY_TOPIC"
_PERM_INHERIT = 1
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
_GROUP_PREFIXES = ("CID_RMQ_SYS_", "CID_SYS_", "CID_DefaultHeartBeatSyncerTopic")


def is_system_topic(config: TopicConfig) -> bool:
    """Whether the broker has made it: those that are called like broker and cluster let others inherit."""
    return is_system_name(config.name) or bool(config.perm & _PERM_INHERIT)


def is_system_name(topic: str) -> bool:
    return topic in _TOPICS or topic.startswith(_PREFIX) or topic.endswith(_REPLY_SUFFIX)


def is_system_group(group: str) -> bool:
    return group in _GROUPS or group.startswith(_GROUP_PREFIXES)
