"""gRPC channel and server options shared by clients, peers and servers.

gRPC's defaults suit services behind load balancers: a channel whose peer died waits up to two minutes before
it reconnects, a call may be retried without the caller's knowledge, and channels to one address share a
connection. None of this suits a consensus group.
"""

from __future__ import annotations

import asyncio
import resource
from dataclasses import dataclass
from typing import TypeAlias

import grpc
import grpc.aio

from dledger.infra.transport import hung_up
from dledger.infra.transport.accepting import accepting_server

Options: TypeAlias = list[tuple[str, str | int]]

#: Maximum payload of one message, in bytes: bodies of a batch, or frames of a push or a read. 4 MiB for
#: users, plus space for data stored with their entries.
MAX_PAYLOAD_BYTES = (4 << 20) + (128 << 10)
#: Maximum size of a gRPC message: the payload and space for the fields around it (bytes).
MAX_MESSAGE_BYTES = MAX_PAYLOAD_BYTES + (128 << 10)

#: Delays before reconnecting (milliseconds); gRPC's own defaults are 1 s to 120 s.
RECONNECT_INITIAL_MS = 50
RECONNECT_MAX_MS = 200
#: Time limit of one connection attempt, despite its name in gRPC ("min_reconnect_backoff"): a busy peer needs
#: more than the pause between attempts, and a black hole must not block the channel for gRPC's 20 s.
CONNECT_TIMEOUT_MS = 1_000

#: A connection with active calls is pinged after this much silence, and closed without a timely answer. This
#: detects a suspended or partitioned peer on an idle stream.
KEEPALIVE_TIME_MS = 2_000
KEEPALIVE_TIMEOUT_MS = 2_000
#: The effective time limit: gRPC has a separate one for all pings, 60 s by default, which applies even if the
#: limit of keepalive is lower. It is doubled for busy machines; servers wait longer for their clients.
PING_TIMEOUT_MS = 4_000
SERVER_PING_TIMEOUT_MS = 10_000

#: This many consecutive early pings end a connection. A response, or a part of one, resets the count. A
#: connection that sends only pings would occupy gRPC's polling thread, which all connections share.
MAX_PING_STRIKES = 100

#: Active calls per connection. Further calls wait in the client until one of them ends.
MAX_CALLS_PER_CONNECTION = 8_192
#: Calls of all connections that have arrived while the event loop was busy, of 16 KiB each. gRPC cancels
#: further ones without an error number, whichever client they are from: at random up to twice the number, and
#: then all. Its own limit of 1,000 would let one connection cause the cancellation of calls of other clients
#: and of members.
MAX_PENDING_CALLS = 2 * MAX_CALLS_PER_CONNECTION
#: Default limit of connections per server. Further ones are closed as soon as they are accepted.
MAX_CONNECTIONS = 10_000
#: File descriptors for files of the log and the broker, the status port, and the reserve.
_OTHER_DESCRIPTORS = 720
#: A node with a broker listens on its own port, and on two for clients of RocketMQ 5.
_PORTS = 3
#: Time limit of the HTTP/2 handshake, including TLS. The connection is then closed; gRPC's default is 120 s.
HANDSHAKE_TIMEOUT_MS = 10_000

#: gRPC's bit for the compression algorithm "identity". Calls with any other algorithm are refused with
#: UNIMPLEMENTED before they are parsed.
_UNCOMPRESSED_ONLY = 1

#: Seconds without a call before a replaced channel is closed: a caller may be about to use it.
_IDLE_S = 5.0


def channel_options() -> Options:
    """Return the options of every channel that this project opens."""
    return [
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.initial_reconnect_backoff_ms", RECONNECT_INITIAL_MS),
        ("grpc.max_reconnect_backoff_ms", RECONNECT_MAX_MS),
        ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
        # Retry a name that did not resolve (its container is not running yet) soon, not after 30 s.
        ("grpc.dns_min_time_between_resolutions_ms", 1_000),
        ("grpc.service_config_disable_resolution", 1),
        # A retry inside gRPC would store an append twice.
        ("grpc.enable_retries", 0),
        # Channels to the same address must break independently: one connection per channel.
        ("grpc.use_local_subchannel_pool", 1),
        # Cluster traffic never uses the proxy of the environment.
        ("grpc.enable_http_proxy", 0),
        ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 0),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def server_options(max_connections: int = MAX_CONNECTIONS) -> Options:
    """Return the options of every server that this project starts."""
    return [
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        # Otherwise two servers could share one port, and the kernel would choose one for each connection.
        ("grpc.so_reuseport", 0),
        # The project's own clients ping often (see KEEPALIVE_TIME_MS), which gRPC would treat as abuse.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_TIME_MS // 4),
        ("grpc.http2.max_ping_strikes", MAX_PING_STRIKES),
        ("grpc.keepalive_time_ms", 5 * KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", 5 * KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", SERVER_PING_TIMEOUT_MS),
        ("grpc.max_concurrent_streams", MAX_CALLS_PER_CONNECTION),
        ("grpc.server.max_pending_requests", MAX_PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", 2 * MAX_PENDING_CALLS),
        ("grpc.max_allowed_incoming_connections", max_connections),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
        # A compressed message of 4 KiB can expand to 4 MiB, and thousands may arrive at the same time. No
        # client compresses.
        ("grpc.compression_enabled_algorithms_bitset", _UNCOMPRESSED_ONLY),
    ]


@dataclass(frozen=True, slots=True)
class ChannelSecurity:
    """TLS settings of a channel. `server_name` must be in the server's certificate; if it is "", the host of
    the address must be."""

    credentials: grpc.ChannelCredentials
    server_name: str = ""
    has_certificate: bool = False


def open_channel(address: str, security: ChannelSecurity | None = None) -> grpc.aio.Channel:
    """Open a channel to `address` ("host:port"), in plain text or with TLS. It connects when first used."""
    options = channel_options()
    # Without its scheme, gRPC would take "unix:1" for a socket of this machine, and "dns:1" for the host "1".
    target = f"dns:///{address}"
    if security is None:
        return grpc.aio.insecure_channel(target, options=options)
    if security.server_name:
        options.append(("grpc.ssl_target_name_override", security.server_name))
    return grpc.aio.secure_channel(target, security.credentials, options=options)


class CallCount:
    """Counts the active calls of a channel, so that a replaced channel can be closed after its last one."""

    def __init__(self) -> None:
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def acquire(self) -> None:
        self._count += 1
        self._idle.clear()

    def release(self) -> None:
        self._count -= 1
        if self._count == 0:
            self._idle.set()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    async def idle(self) -> None:
        """Wait until no call has been active for some seconds."""
        while True:
            await self._idle.wait()
            await asyncio.sleep(_IDLE_S)
            if not self._count:
                return


def connections_per_port() -> int:
    """Return the number of connections per port that leaves this process enough descriptors for everything
    else."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(16, (soft - _OTHER_DESCRIPTORS) // _PORTS)


def new_server(max_connections: int = MAX_CONNECTIONS) -> grpc.aio.Server:
    """Create a server with this project's options; the caller adds servicers and ports. It accepts fewer
    connections if the process has too few descriptors."""
    hung_up.install()
    return accepting_server(server_options(min(max_connections, connections_per_port())))
