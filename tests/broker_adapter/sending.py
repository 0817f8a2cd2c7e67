"""Sends to a broker in this process, as its endpoints do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from broker_adapter.api import OutgoingMessage, TopicConfig
from broker_adapter.metadata.writable_topics import TopicCreation
from broker_adapter.put.sender import PutResult, Send, SendApi


class SendingProgram(Protocol):
    """`BrokerProgram`, or what stands for it."""

    topic_creation: TopicCreation

    @property
    def sender(self) -> SendApi: ...


async def send_to(
    program: SendingProgram,
    topic: str,
    messages: OutgoingMessage | Sequence[OutgoingMessage],
    *,
    message_id: str = "",
    queue_id: int = -1,
    born_host: str = "",
    timeout_ms: int = 0,
    config: TopicConfig | None = None,
) -> PutResult:
    """A message, or a batch. The topic is created if there is none and the settings allow."""
    is_batch = not isinstance(messages, OutgoingMessage)
    batch = messages if not isinstance(messages, OutgoingMessage) else [messages]
    if config is None:
        config = await program.topic_creation.ensure(topic, born_host)
    return await program.sender.send_one(
        Send(config, batch, message_id, queue_id, born_host, timeout_ms, is_batch)
    )
