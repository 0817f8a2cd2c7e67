"""On a real node: a topic made by use goes, and one with a message in it does not."""

from __future__ import annotations

from pathlib import Path

from broker_adapter.api import OutgoingMessage, TopicConfig
from tests.broker_adapter.cluster import brokers
from tests.broker_adapter.sending import send_to
from tests.node.local import until


async def test_a_topic_made_by_use_expires_unless_it_holds_a_message_or_is_an_administrators(
    tmp_path: Path,
) -> None:
    async with brokers(tmp_path, 1, settings={"auto_create_expire_ms": 1_000}) as cluster:
        program = await cluster.master()
        broker, topics = program.broker, program.metadata
        await broker.put_topic(TopicConfig("ours"))
        await send_to(program, "full", [OutgoingMessage(b"kept")])
        await program.topic_creation.ensure("empty", "10.0.0.1:1")
        await program.topic_creation.make("%DLQ%gone")
        await until(lambda: program.topic_expiry.expired == 2)
        for _ in range(2):
            await program.topic_expiry.sweep()
        assert set(topics.topics) == {"ours", "full"}
        sent = await send_to(program, "empty", [OutgoingMessage(b"again")])
        assert sent.queue_offset == 0 and topics.topic("empty") is not None
