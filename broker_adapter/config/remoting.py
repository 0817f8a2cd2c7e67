"""`[program.settings.remoting]`: the port for clients of RocketMQ's remoting protocol (4.x)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from broker_adapter.config.rocketmq_v2 import Positive

#: Distance of the send-only port from the port for all requests.
SEND_PORT_OFFSET = 10
Address = Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):\d{1,5}$")]


class RemotingSettings(BaseModel):
    """Settings of the remoting port. Above a limit, requests fail with SYSTEM_BUSY, and connections are
    closed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    listen: Address | Literal[""] = ""
    """host:port of the remoting port, which clients expect at 10911. Empty: disabled."""
    vip_listen: Address | Literal[""] = ""
    """host:port of an additional port with the same service. RocketMQ's slaves query topics at their master's
    port minus 2 (its VIP channel). If empty, there is no such port.
    """
    send_listen: Address | Literal[""] = ""
    """host:port of the send-only port of a replicated broker, for the member's write-only broker name. Empty:
    the host and port of `listen`, with 10 added to the port. With `vip_listen`, the port minus 2 is served,
    too.
    """
    send_advertise: Address | Literal[""] = ""
    """host:port at which clients reach the send-only port. Default: the advertised host with this port."""
    advertise: Address | Literal[""] = ""
    """host:port at which clients reach this node. Default: the member's host with this port."""
    tls_mode: Literal["permissive", "enforcing"] = "enforcing"
    """TLS mode with a `[tls]` section. `permissive` accepts TLS and plain text, as RocketMQ does by default.
    """
    client_auth: Literal["require", "none"] | None = None
    """Certificates of clients on TLS connections. `require`: the handshake fails without a certificate issued
    by the node's `ca`; needs tls_mode = "enforcing". `none`: clients may present a certificate, as in
    RocketMQ by default; operators must present one if the nodes require certificates. Default: `require` if
    certificates identify operators (`tls.client_auth = "require"`, no `rocketmq_v2.access_control`) and
    tls_mode is `enforcing`; otherwise `none`.
    """
    client_tls: bool = True
    """With a `[tls]` section: use TLS and the node's certificate for connections to NameServers and to a
    master. false: plain text, as RocketMQ does by default.
    """
    max_connections: Positive = 4_096
    """Maximum number of client connections."""
    max_connections_per_address: Positive = 1_024
    """Maximum number of client connections from one address."""
    max_sends: Positive = 4_096
    """Maximum number of concurrent sends, and separately of ends of transactions, offset changes and
    acknowledgements, shared by address. Beyond it: 801.
    """
    send_queue_wait_ms: Positive = 1_000
    """Maximum waiting time of a send in the queue, after which it is refused: 808
    (`waitTimeMillsInSendQueue`, 200 in RocketMQ).
    """
    max_pulls: Positive = 10_000
    """Maximum number of concurrent pulls, including those waiting for messages, shared by address. Beyond it:
    801.
    """
    max_queries: Positive = 256
    """Maximum number of concurrent requests of each other kind, and of waiting ones, shared by address:
    queries of messages and offsets, heartbeats, calls of administrators. Beyond it: 801.
    """
    max_request_bytes: Positive = 64 << 20
    """Maximum total memory in bytes of large requests (64 KiB or more) in progress, separately of smaller
    sends, and separately of all others, with their headers, shared by address. Beyond it: 801.
    """
    lock_live_ms: Positive = 60_000
    """Lifetime of a queue lock without renewal, during which no other member consumes the queue in order.
    Clients renew every 20 s and treat a lock as valid for 30 s.
    """

    @model_validator(mode="after")
    def _certificates_need_tls(self) -> RemotingSettings:
        if self.client_auth == "require" and self.tls_mode == "permissive":
            raise ValueError('client_auth = "require" needs tls_mode = "enforcing"')
        return self

    def requires_certificates(self, *, certificates_decide: bool) -> bool:
        """Return True if clients need a certificate.

        `certificates_decide`: certificates determine which clients are operators.
        """
        if self.client_auth is None:
            return certificates_decide and self.tls_mode == "enforcing"
        return self.client_auth == "require"

    @property
    def send_only_listen(self) -> str:
        """host:port of the send-only port."""
        if self.send_listen or not self.listen:
            return self.send_listen
        host, _, port = self.listen.rpartition(":")
        return f"{host}:{int(port) + SEND_PORT_OFFSET if int(port) else 0}"

    def message_id_address(self, member_address: str) -> str:
        """Return the host:port for message ids: the address at which clients reach the node, as far as it is
        known before the node listens on its port.
        """
        if self.advertise:
            return self.advertise
        port = self.listen.rpartition(":")[2]
        return f"{member_address.rpartition(':')[0]}:{port}" if port not in ("", "0") else member_address
