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
    #: host:port by node id, where clients reach the nodes if not at their addresses in `members`. The same on
    #: all nodes: routes must not depend on who is asked.
    advertise: dict[str, _Address] = Field(default_factory=dict)
    #: host:port for clients alone, beside the node's port: in plain text, and with TLS. "": none.
    listen: _Address | Literal[""] = ""
    tls_listen: _Address | Literal[""] = ""
    #: Of the port with TLS: PEM files, read again when they change. None: those of the node's [tls].
    tls_certificate: _File | None = None
    tls_key: _File | None = None
    #: Whose signature the certificate bears; None: its own.
    tls_ca: _File | None = None
    #: As `advertise`, for clients that have come over TLS. Without it: at the members' hosts, at this port.
    tls_advertise: dict[str, _Address] = Field(default_factory=dict)
    #: Accounts of clients and what they may do: a TOML or JSON file. None: everybody may do everything.
    access_control: _File | None = None
    #: Streams of telemetry; every client holds one to each node that it knows.
    max_clients: Positive = 10_000
    #: Calls under way, and of these such as wait for messages.
    max_calls: Positive = 4_096
    max_waiting_receives: Positive = 10_000
    #: Of requests under way that are large.
    max_request_bytes: Positive = 64 << 20
    #: Of calls that are on their way to the master: requests not answered, and answers not passed on.
    max_forwarded_bytes: Positive = 64 << 20
    #: How long a call without a deadline waits for a master.
    max_hold_ms: Positive = 10_000
    max_batch_messages: Positive = 1_024
    #: A receive is held at least and at most so long, whatever the client asks for; never past its deadline.
    min_polling_ms: Annotated[int, Field(ge=0)] = 5_000
    max_polling_ms: Positive = 20_000
    #: What a consumer may ask for, for how long nobody else of its group gets a message.
    min_invisible_ms: Positive = 10_000
    max_invisible_ms: Positive = 12 * 3_600_000
    #: A message that a consumer gives back is not delivered again sooner: some clients ask for no pause.
    min_retry_ms: Annotated[int, Field(ge=0)] = 1_000

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
