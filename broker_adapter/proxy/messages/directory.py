"""What the service needs to know of topics and groups, and what of their attributes it asks for."""

from __future__ import annotations

from typing import Protocol

from broker_adapter.api import GroupConfig, TopicConfig


class Directory(Protocol):
    """The replicated metadata, as far as this node has it."""

    def topic(self, name: str) -> TopicConfig | None: ...

    def group(self, name: str) -> GroupConfig | None: ...

    def topic_or_default(self, name: str) -> TopicConfig:
        """The topic, or what it would be if it came into being now: nothing is created. TopicRefused
        (TOPIC_UNKNOWN), NotMaster."""

    async def ensure_topic(self, name: str, remote: str) -> TopicConfig:
        """The topic, created for the client at `remote` (host:port) if the settings allow. TopicRefused
        (TOPIC_UNKNOWN), NotMaster, Busy, PutIndeterminate."""

    async def topic_comes(self, name: str, seconds: float) -> bool:
        """Whether there is such a topic within this time."""


def message_type_of(config: TopicConfig) -> str:
    """RocketMQ's attribute message.type; "" for topics that take messages of all types."""
    return config.message_type


def is_orderly(config: GroupConfig | None) -> bool:
    """Whether the group consumes each queue in order."""
    return config is not None and config.consume_orderly
