"""Limits, times and credentials of a client."""

from __future__ import annotations

from dataclasses import dataclass

from broker_adapter.client.core.checks import check_fields
from broker_adapter.remoting.signing import Credentials
from broker_adapter.wire.compression import CompressionType

_MAY_BE_ZERO = ("avoid_broker_s", "least_body_bytes", "compress_above_bytes")


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The options of one client.

    Names follow those of RocketMQ's ClientConfig if it has the option. Time-outs are in seconds. Other
    units are part of the names.
    """

    timeout: float = 10.0  # for a call, including all attempts
    request_timeout: float = 3.0  # for one attempt: the response of one server
    connect_timeout: float = 3.0
    poll_name_server_s: float = 30.0  # interval of route refreshes
    heartbeat_broker_s: float = 30.0
    avoid_broker_s: float = 5.0  # time to avoid a broker after a failure, if other brokers have queues
    max_connections: int = 256
    max_topics: int = 4096  # maximum number of cached routes
    max_in_flight: int = 1024  # maximum number of requests in flight; further ones wait
    max_in_flight_bytes: int = 64 << 20  # of the bodies of all requests in flight
    max_body_bytes: int = 4 << 20  # of a message before compression, or of a batch
    least_body_bytes: int = 1  # RocketMQ's brokers cannot handle empty bodies
    compress_above_bytes: int = 4096  # RocketMQ's compressMsgBodyOverHowmuch
    #: RocketMQ's compressType. LZ4 and ZSTD require `dledger[compression]`. Consumers read all types.
    compress_type: CompressionType = CompressionType.ZLIB
    default_topic_queues: int = 4  # of an automatically created topic
    credentials: Credentials | None = None  # sign every request

    def __post_init__(self) -> None:
        """Raises TypeError for a value of another type, and ValueError for a number that is not positive."""
        check_fields(self, may_be_zero=_MAY_BE_ZERO)
        if not isinstance(self.credentials, Credentials | None):
            raise TypeError(f"credentials must be of type Credentials, not {type(self.credentials).__name__}")
