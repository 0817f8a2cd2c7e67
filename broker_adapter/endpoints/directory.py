"""The interface for looking up topics and groups, and helpers for their attributes."""

from __future__ import annotations

from typing import Protocol

from broker_adapter.api import GroupConfig, TopicConfig


class Directory(Protocol):
    """The replicated metadata as known to this node."""

    def topic(self, name: str) -> TopicConfig | None: ...

    def group(self, name: str) -> GroupConfig | None: ...

    def topic_or_default(self, name: str) -> TopicConfig:
        """Return the topic, or the configuration with which it would be created. Does not create the topic.

        Raises TopicRefused (TOPIC_UNKNOWN) or NotMaster.
        """

    def existing_topic(self, name: str) -> TopicConfig | None:
        """Return the topic on the master, or None if a send to it must wait for `ensure_topic`.

        Raises NotMaster.
        """

    async def ensure_topic(self, name: str, remote: str) -> TopicConfig:
        """Return the topic. If it does not exist, create it for the client at `remote` (host:port) if the
        settings permit this.

        Raises TopicRefused (TOPIC_UNKNOWN), NotMaster, Busy or PutIndeterminate.
        """

    async def topic_comes(self, name: str, seconds: float) -> bool:
        """Wait up to `seconds` for the topic. Return True if it exists."""


def message_type_of(config: TopicConfig) -> str:
    """Return RocketMQ's attribute message.type; "" for topics that accept all types."""
    return config.message_type


def is_orderly(config: GroupConfig | None) -> bool:
    """Return True if the group consumes each queue in order."""
    return config is not None and config.consume_orderly
