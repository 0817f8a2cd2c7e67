"""`[program.settings.remoting]`: the port for clients of RocketMQ's remoting protocol (4.x)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from broker_adapter.config.rocketmq_v2 import Positive

_Address = Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):\d{1,5}$")]


class RemotingSettings(BaseModel):
    """Beyond a limit a request is answered with SYSTEM_BUSY, and a connection is closed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    listen: _Address | Literal[""] = ""
    """host:port, which clients expect at 10911. Empty: the protocol is not spoken."""
    vip_listen: _Address | Literal[""] = ""
    """host:port at which the same is spoken once more. Slaves of RocketMQ's own ask for topics at the port of
    their master less 2 (its VIP channel). Empty: nowhere."""
    advertise: _Address | Literal[""] = ""
    """host:port where clients reach this node. Default: the member's host, at this port."""
    tls_mode: Literal["permissive", "enforcing"] = "enforcing"
    """With a `[tls]` section: `permissive` serves TLS and plain text, as RocketMQ does by default. Clients
    may show a certificate, and operators have to, where nodes want one."""
    namesrv: tuple[_Address, ...] = ()
    """host:port of NameServers of RocketMQ's own, at which the node registers by this protocol."""
    client_tls: bool = False
    """With a `[tls]` section: what the node itself asks by this protocol, of NameServers and of a master, it
    asks over TLS, and shows its certificate."""
    max_connections: Positive = 4_096
    """Connections of clients."""
    max_connections_per_address: Positive = 1_024
    """Connections of clients from one address."""
    max_sends: Positive = 4_096
    """Sends, and changes of offsets, under way."""
    send_queue_wait_ms: Positive = 1_000
    """A send that has waited longer than this for its turn is refused: 808 (`waitTimeMillsInSendQueue`, there
    200)."""
    max_pulls: Positive = 10_000
    """Pulls under way, those that wait for messages included."""
    max_queries: Positive = 256
    """Of each kind under way: questions for messages and offsets, heartbeats, calls of administrators."""
    lock_live_ms: Positive = 60_000
    """A lock of a queue that its member does not renew: as long as this, no other member consumes the queue
    in order. Clients renew every 20 s, and believe a lock for 30 s."""

    @field_validator("namesrv", mode="before")
    @classmethod
    def _to_tuple(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _registers_what_it_serves(self) -> RemotingSettings:
        if self.namesrv and not self.listen:
            raise ValueError("namesrv needs listen: clients that are sent here would find nobody")
        return self

    def told_address(self, member_address: str) -> str:
        """host:port by which ids of messages name a node: where clients of this protocol reach it, if that
        is known before it listens."""
        if self.advertise:
            return self.advertise
        port = self.listen.rpartition(":")[2]
        return f"{member_address.rpartition(':')[0]}:{port}" if port not in ("", "0") else member_address
