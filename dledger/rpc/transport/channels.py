"""gRPC channel and server options shared by clients, peers and servers.

gRPC's defaults are made for services behind balancers: a channel whose peer died waits up to two minutes
before it connects again, a call may be retried behind the caller's back, and channels to one address share
a connection. A consensus group wants none of these.
"""

from __future__ import annotations

import asyncio
import resource
from dataclasses import dataclass
from typing import TypeAlias

import grpc
import grpc.aio

from dledger.rpc.transport import hung_up
from dledger.rpc.transport.accepting import accepting_server

Options: TypeAlias = list[tuple[str, str | int]]

#: Greatest payload of one message: bodies of a batch, frames of a push or of a read (bytes). 4 MiB for users,
#: and room for what is stored with them.
MAX_PAYLOAD_BYTES = (4 << 20) + (128 << 10)
#: Greatest gRPC message: the payload and room for the fields around it (bytes).
MAX_MESSAGE_BYTES = MAX_PAYLOAD_BYTES + (128 << 10)

#: A peer that came back is tried again this soon (milliseconds); gRPC's own defaults are 1 s to 120 s.
RECONNECT_INITIAL_MS = 50
RECONNECT_MAX_MS = 200
#: Bounds one attempt to connect, despite its name in gRPC ("min_reconnect_backoff"): a busy peer needs more
#: than the pause between attempts, a black hole must not hold the channel for gRPC's 20 s.
CONNECT_TIMEOUT_MS = 1_000

#: A connection with calls on it is pinged after this much silence, and given up when no answer comes in time.
#: This is how a paused or cut-off peer is noticed on a stream that has nothing to say.
KEEPALIVE_TIME_MS = 2_000
KEEPALIVE_TIMEOUT_MS = 2_000
#: The time limit that counts: gRPC has one for any ping, 60 s unless told, and it holds even where that of
#: keepalive is less. A busy machine gets twice as long; servers wait longer for their clients.
PING_TIMEOUT_MS = 4_000
SERVER_PING_TIMEOUT_MS = 10_000

#: So many pings that come too early in a row end a connection. An answer, or a part of one, begins the row
#: anew. One connection that sends nothing but pings takes gRPC's polling thread, on which all others wait.
MAX_PING_STRIKES = 100

#: Calls under way on one connection. Further ones wait in the client until one of these has ended.
MAX_CALLS_PER_CONNECTION = 8_192
#: Connections of one server, unless told otherwise. Further ones are closed as soon as they are accepted.
MAX_CONNECTIONS = 10_000
#: File descriptors for files of the log and the broker, the status port, and the reserve.
_OTHER_DESCRIPTORS = 720
#: A node with a broker listens on its own port, and on two for clients of RocketMQ 5.
_PORTS = 3
#: A connection that is no HTTP/2 connection by then (TLS included) is closed; gRPC's own default is 120 s.
HANDSHAKE_TIMEOUT_MS = 10_000
#: A stream that has to begin with a message, and has not by then, is answered with a number and ended.
FIRST_MESSAGE_TIMEOUT_S = 10.0
#: So many streams may be waited for at once: of members, and of clients that are going to be refused.
MAX_FIRST_MESSAGES = 64

#: gRPC's bit of the algorithm "identity". Calls with any other are refused with UNIMPLEMENTED, unread.
_UNCOMPRESSED_ONLY = 1

#: Whoever was handed a channel a moment ago may be about to use it.
_SURELY_IDLE_S = 5.0


def channel_options() -> Options:
    """Options of every channel that this project opens."""
    return [
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.initial_reconnect_backoff_ms", RECONNECT_INITIAL_MS),
        ("grpc.max_reconnect_backoff_ms", RECONNECT_MAX_MS),
        ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
        # A name that did not resolve (its container is not up yet) is asked for again soon, not after 30 s.
        ("grpc.dns_min_time_between_resolutions_ms", 1_000),
        ("grpc.service_config_disable_resolution", 1),
        # A retry inside gRPC would store an append twice.
        ("grpc.enable_retries", 0),
        # Channels to the same address must break independently: one connection per channel.
        ("grpc.use_local_subchannel_pool", 1),
        # Cluster traffic never goes through the proxy of the environment.
        ("grpc.enable_http_proxy", 0),
        ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 0),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def server_options(max_connections: int = MAX_CONNECTIONS) -> Options:
    """Options of every server that this project starts."""
    return [
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        # Two servers on one port must be an error, not a lottery.
        ("grpc.so_reuseport", 0),
        # Our own clients ping often (see KEEPALIVE_TIME_MS), which gRPC would call abuse of two strikes.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_TIME_MS // 4),
        ("grpc.http2.max_ping_strikes", MAX_PING_STRIKES),
        ("grpc.keepalive_time_ms", 5 * KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", 5 * KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", SERVER_PING_TIMEOUT_MS),
        ("grpc.max_concurrent_streams", MAX_CALLS_PER_CONNECTION),
        ("grpc.max_allowed_incoming_connections", max_connections),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
        # 4 KiB inflate to a message of 4 MiB, thousands of which come in a moment. No client compresses.
        ("grpc.compression_enabled_algorithms_bitset", _UNCOMPRESSED_ONLY),
    ]


@dataclass(frozen=True, slots=True)
class ChannelSecurity:
    """TLS of a channel. `server_name` must be in the server's certificate; "": the host of the address."""

    credentials: grpc.ChannelCredentials
    server_name: str = ""
    has_certificate: bool = False


def open_channel(address: str, security: ChannelSecurity | None = None) -> grpc.aio.Channel:
    """A channel to `address` ("host:port"), in plain text or with TLS. It connects when first used."""
    options = channel_options()
    if security is None:
        return grpc.aio.insecure_channel(address, options=options)
    if security.server_name:
        options.append(("grpc.ssl_target_name_override", security.server_name))
    return grpc.aio.secure_channel(address, security.credentials, options=options)


class CallCount:
    """Calls under way on a channel that may be replaced: the old one is closed when its last has ended."""

    def __init__(self) -> None:
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self) -> None:
        self._count += 1
        self._idle.clear()

    def end(self) -> None:
        self._count -= 1
        if self._count == 0:
            self._idle.set()

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *_: object) -> None:
        self.end()

    async def idle(self) -> None:
        """Wait until no call is under way, some seconds after the last has ended."""
        while True:
            await self._idle.wait()
            await asyncio.sleep(_SURELY_IDLE_S)
            if not self._count:
                return


def connections_per_port() -> int:
    """How many connections leave this process enough descriptors for everything else."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(16, (soft - _OTHER_DESCRIPTORS) // _PORTS)


def new_server(max_connections: int = MAX_CONNECTIONS) -> grpc.aio.Server:
    """A server with this project's options; the caller adds servicers and ports. It takes fewer connections
    if the process may not have so many descriptors."""
    hung_up.install()
    return accepting_server(server_options(min(max_connections, connections_per_port())))
