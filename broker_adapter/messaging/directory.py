"""What the service needs to know of topics and groups, and what of their attributes it asks for."""

from __future__ import annotations

from typing import Protocol

from broker_adapter.api import GroupConfig, TopicConfig


class Directory(Protocol):
    """The replicated metadata, as far as this node has it."""

    def topic(self, name: str) -> TopicConfig | None: ...

    def group(self, name: str) -> GroupConfig | None: ...

    async def ensure_topic(self, name: str) -> TopicConfig:
        """The topic, created if the settings allow. TopicRefused (TOPIC_UNKNOWN), NotMaster,
        PutIndeterminate."""


def message_type_of(config: TopicConfig) -> str:
    """RocketMQ's attribute message.type; "" for topics that take messages of all types."""
    return config.message_type


def is_orderly(config: GroupConfig | None) -> bool:
    """Whether the group consumes each queue in order."""
    return config is not None and config.consume_orderly
