"""`[program.settings.rocketmq_v2]`: the service for clients of RocketMQ 5."""

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
        raise ValueError("the path of a file has to be absolute")
    return path


_File = Annotated[Path, BeforeValidator(_to_path), AfterValidator(_absolute)]


class ClientServiceSettings(BaseModel):
    """Times in ms. Beyond a limit: TOO_MANY_REQUESTS, never a queue."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    enabled: bool = True
    """Serve clients of RocketMQ 5."""
    advertise: dict[str, _Address] = Field(default_factory=dict)
    """host:port by node id, where clients reach the nodes if not at their addresses in `members`. The
    same on all nodes."""
    listen: _Address | Literal[""] = ""
    """host:port for clients alone, in plain text, beside the node's port. Empty: none."""
    tls_listen: _Address | Literal[""] = ""
    """host:port for clients alone, with TLS. Empty: none."""
    tls_certificate: _File | None = None
    """Certificate of that port (PEM). Default: that of the node's `[tls]`."""
    tls_key: _File | None = None
    """Its key (PEM)."""
    tls_ca: _File | None = None
    """Whose signature the certificate bears (PEM). Default: its own."""
    tls_advertise: dict[str, _Address] = Field(default_factory=dict)
    """As `advertise`, for clients that have come over TLS. Default: the members' hosts, at this port."""
    access_control: _File | None = None
    """File of accounts and their rights, TOML or JSON; see [accounts](#file-of-accounts). Default:
    everybody may do everything."""
    max_clients: Positive = 10_000
    """Streams of telemetry; every client holds one to each node that it knows."""
    max_calls: Positive = 4_096
    """Calls under way."""
    max_waiting_receives: Positive = 10_000
    """Receives that wait for messages; one address alone has three quarters."""
    max_request_bytes: Positive = 64 << 20
    """Bytes of large requests under way."""
    max_forwarded_bytes: Positive = 64 << 20
    """Bytes of calls on their way to the master, and of answers not passed on."""
    max_hold_ms: Positive = 10_000
    """How long a call without a deadline waits for a master."""
    max_batch_messages: Positive = 1_024
    """Messages of one receive."""
    min_polling_ms: Annotated[int, Field(ge=0)] = 5_000
    """A receive waits at least so long, never past its deadline."""
    max_polling_ms: Positive = 20_000
    """A receive waits at most so long."""
    min_invisible_ms: Positive = 10_000
    """Shortest invisible time that a consumer may ask for."""
    max_invisible_ms: Positive = 12 * 3_600_000
    """Longest invisible time that a consumer may ask for."""
    min_retry_ms: Annotated[int, Field(ge=0)] = 1_000
    """A message that a consumer gives back is not delivered again sooner."""

    @model_validator(mode="after")
    def _tls_is_whole(self) -> ClientServiceSettings:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate needs tls_key, and tls_key tls_certificate")
        if self.tls_ca is not None and self.tls_certificate is None:
            raise ValueError("tls_ca is of no use without tls_certificate")
        return self

    @model_validator(mode="after")
    def _ordered(self) -> ClientServiceSettings:
        for least, most in (("min_polling_ms", "max_polling_ms"), ("min_invisible_ms", "max_invisible_ms")):
            if getattr(self, least) > getattr(self, most):
                raise ValueError(f"{least} is above {most}")
        return self
