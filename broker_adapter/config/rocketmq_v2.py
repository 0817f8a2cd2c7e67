"""`[program.settings.rocketmq_v2]`: the service for RocketMQ 5 clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(gt=0)]
_Address = Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):\d{1,5}$")]


def _to_path(value: object) -> object:
    return Path(value) if isinstance(value, str) and value else value


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("the path must be absolute")
    return path


_File = Annotated[Path, BeforeValidator(_to_path), AfterValidator(_absolute)]


class ClientServiceSettings(BaseModel):
    """Settings of the service. Times in ms. Above a limit, calls fail with TOO_MANY_REQUESTS
    without waiting.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    enabled: bool = True
    """Serve RocketMQ 5 clients."""
    advertise: dict[str, _Address] = Field(default_factory=dict)
    """host:port by node id at which clients reach the nodes, if different from `members`. Must be equal on
    all nodes.
    """
    advertise_requested: bool = False
    """Routes contain the endpoints that the client sends with its request, which it has connected to, instead
    of the addresses in `members`, `advertise` and `tls_advertise`. For ports that are mapped to others, like
    `useEndpointPortFromRequest` of RocketMQ's proxy. Must be equal on all nodes.
    """
    listen: _Address | Literal[""] = ""
    """host:port of an additional plain-text port for clients. If empty, there is no such port."""
    tls_listen: _Address | Literal[""] = ""
    """host:port of an additional TLS port for clients. If empty, there is no such port."""
    tls_certificate: _File | None = None
    """Certificate of the TLS port (PEM). Default: the node's `[tls]` certificate."""
    tls_key: _File | None = None
    """Private key of the certificate (PEM)."""
    tls_ca: _File | None = None
    """CA of the certificate (PEM). Default: self-signed."""
    tls_advertise: dict[str, _Address] = Field(default_factory=dict)
    """Like `advertise`, for TLS clients. Default: the members' hosts with this port."""
    access_control: _File | None = None
    """File of accounts and their rights, TOML or JSON; see [accounts](#file-of-accounts). Default: no access
    control.
    """
    max_clients: Positive = 10_000
    """Maximum number of telemetry streams, shared by address. Every client has one to each node that it
    knows.
    """
    max_calls: Positive = 4_096
    """Maximum number of concurrent calls, shared by address. Beyond it: TOO_MANY_REQUESTS."""
    max_waiting_receives: Positive = 10_000
    """Maximum number of receives waiting for messages, shared by address."""
    max_request_bytes: Positive = 64 << 20
    """Maximum total size in bytes of large requests (64 KiB or more) in progress, of large PullMessage
    responses, and of requests of 4 KiB or more that wait for messages; each shared by address. Beyond it:
    TOO_MANY_REQUESTS.
    """
    max_forwarded_bytes: Positive = 64 << 20
    """Maximum total size in bytes of calls forwarded to the master, shared by address, and of their unsent
    responses.
    """
    max_hold_ms: Positive = 10_000
    """Maximum time that a call without a deadline waits for a master."""
    max_batch_messages: Positive = 1_024
    """Maximum number of messages of one receive."""
    min_polling_ms: Annotated[int, Field(ge=0)] = 5_000
    """Minimum waiting time of a receive, within its deadline."""
    max_polling_ms: Positive = 20_000
    """Maximum waiting time of a receive."""
    min_invisible_ms: Positive = 10_000
    """Minimum invisible time that a consumer may request."""
    max_invisible_ms: Positive = 12 * 3_600_000
    """Maximum invisible time that a consumer may request."""
    min_retry_ms: Annotated[int, Field(ge=0)] = 1_000
    """Minimum redelivery delay of a message that a consumer returns."""

    @model_validator(mode="after")
    def _tls_is_whole(self) -> ClientServiceSettings:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key must be set together")
        if self.tls_ca is not None and self.tls_certificate is None:
            raise ValueError("tls_ca requires tls_certificate")
        return self

    @model_validator(mode="after")
    def _ordered(self) -> ClientServiceSettings:
        for least, most in (("min_polling_ms", "max_polling_ms"), ("min_invisible_ms", "max_invisible_ms")):
            if getattr(self, least) > getattr(self, most):
                raise ValueError(f"{least} must not exceed {most}")
        return self
