"""What one broker's gRPC service lets clients ask of it."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dledger.platform import MAX_PAYLOAD_BYTES


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """Limits of the service. Beyond one of them: TOO_MANY_CALLS or FIELD_OUT_OF_RANGE, never a queue."""

    #: Messages in one batch, and the bytes of their bodies.
    max_batch_messages: int = 4096
    max_batch_bytes: int = MAX_PAYLOAD_BYTES
    #: Properties of one message; RocketMQ's limit is one of their bytes, which the broker checks.
    max_properties: int = 1024
    #: Of all messages of a batch, or of batches that travel together, unless they come in columns: 10 ms to
    #: read them.
    max_batch_properties: int = 32_768
    send_timeout_ms: int = 3_000
    max_send_timeout_ms: int = 60_000
    max_send_streams: int = 1024
    #: Batches of one stream that are not answered yet; more are not read.
    max_unanswered_per_stream: int = 256

    pull_messages: int = 32
    max_pull_messages: int = 4096
    pull_bytes: int = 1 << 20
    max_pull_bytes: int = MAX_PAYLOAD_BYTES - (1 << 18)
    max_wait_ms: int = 30_000
    #: Pulls that wait for a message, and streams of messages, in all.
    max_waiting_pulls: int = 10_000
    max_pull_streams: int = 1024
    max_tags: int = 64
    #: Answers of unary calls, of 64 KiB or more each, that their callers have not taken.
    max_answer_bytes: int = 64 << 20

    query_messages: int = 32
    max_query_messages: int = 256
    max_offsets: int = 4096
    max_topics_of_member: int = 256
    min_lease_ms: int = 1_000
    max_lease_ms: int = 600_000
    #: All calls that are neither sends nor waiting pulls.
    max_calls: int = 1024

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(f"{field.name} is at least 1")
        for name in ("max_batch_bytes", "max_pull_bytes"):
            if getattr(self, name) > MAX_PAYLOAD_BYTES:
                raise ValueError(f"{name} is at most {MAX_PAYLOAD_BYTES}: no message holds more")
