"""Limits and times of a client, and who it is."""

from __future__ import annotations

from dataclasses import dataclass

from broker_adapter.remoting.signing import Credentials


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Of one client. Names as in RocketMQ's ClientConfig where it has them; seconds, bytes, counts."""

    timeout_s: float = 10.0  # of a call with all its attempts
    request_timeout_s: float = 3.0  # of one attempt: the answer of one server
    connect_timeout_s: float = 3.0
    poll_name_server_s: float = 30.0  # routes are asked for again
    heartbeat_broker_s: float = 30.0
    avoid_broker_s: float = 5.0  # after it failed, as long as others have queues
    max_connections: int = 256
    max_topics: int = 4096  # whose routes are kept
    max_in_flight: int = 1024  # requests; further ones wait
    max_in_flight_bytes: int = 64 << 20  # of bodies of requests in flight
    max_body_bytes: int = 4 << 20  # of a message, before compression; of a batch
    least_body_bytes: int = 1  # brokers of RocketMQ fail at empty bodies
    compress_above_bytes: int = 4096  # RocketMQ's compressMsgBodyOverHowmuch
    default_topic_queues: int = 4  # of a topic that is created by use
    credentials: Credentials | None = None  # every request is signed with them
