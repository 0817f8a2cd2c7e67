"""Configuration of a NameServer: a TOML file, checked key by key, and what the command line says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from broker_adapter.namesrv.kv_config import KvLimits
from broker_adapter.namesrv.name_server import ServerLimits
from broker_adapter.namesrv.values import TableLimits
from dledger import Code, ConfigError, is_loopback, read_toml, validate

Positive = Annotated[int, Field(gt=0)]
Name = Annotated[str, Field(min_length=1, max_length=255)]
Address = Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]*):\d{1,5}$")]

DEFAULT_LISTEN = "127.0.0.1:9876"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ExpiryConfig(_Section):
    """Milliseconds. A broker may ask for another time than the default, within the bounds."""

    default_ms: Positive = 120_000
    min_ms: Positive = 10_000
    max_ms: Positive = 600_000
    scan_ms: Positive = 5_000

    @model_validator(mode="after")
    def _ordered(self) -> ExpiryConfig:
        if not self.min_ms <= self.default_ms <= self.max_ms:
            raise ValueError("default_ms must be within min_ms and max_ms")
        return self


class LimitsConfig(_Section):
    """Past each of these a request is refused with a number."""

    max_broker_names: Positive = TableLimits().max_broker_names
    max_nodes_per_name: Positive = TableLimits().max_nodes_per_name
    max_topics: Positive = TableLimits().max_topics
    max_sessions: Positive = ServerLimits().max_sessions
    max_watchers: Positive = ServerLimits().max_watchers
    max_watched_topics: Positive = ServerLimits().max_watched_topics
    max_waiting_registrations: Positive = ServerLimits().max_waiting_registrations
    max_waiting_routes: Positive = ServerLimits().max_waiting_routes
    max_waiting_config: Positive = ServerLimits().max_waiting_config
    max_config_value_bytes: Positive = KvLimits().max_value_bytes
    max_config_entries: Positive = KvLimits().max_entries
    # All of a namespace goes into one answer.
    max_config_bytes: Annotated[int, Field(gt=0, le=KvLimits().max_bytes)] = KvLimits().max_bytes


class TlsConfig(_Section):
    """PEM files, read again when they change. Relative paths are relative to the configuration's file."""

    certificate: Path
    key: Path
    ca: Path
    client_auth: Literal["require", "none"] = "require"
    http: bool = True  # false: the status page stays in plain text
    broker_names: tuple[Name, ...] = ()  # in certificates that may register
    admin_names: tuple[Name, ...] = ()  # ... that may un-register others, wipe and set, as brokers may

    @field_validator("broker_names", "admin_names", mode="before")
    @classmethod
    def _to_tuple(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _names_need_certificates(self) -> TlsConfig:
        if self.client_auth == "none" and {"broker_names", "admin_names"} & self.model_fields_set:
            raise ValueError('names need client_auth = "require": else nobody shows a certificate')
        return self

    @field_validator("certificate", "key", "ca", mode="before")
    @classmethod
    def _to_path(cls, value: object) -> object:
        return Path(value) if isinstance(value, str) and value else value


class LogConfig(_Section):
    """How the process writes its log lines (on stderr)."""

    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "info"


class NameServerConfig(_Section):
    """One NameServer. `listen` and `http_listen` are host:port; empty `http_listen`: no status page."""

    directory: Path  # of the settings; made if it is not there
    listen: Address = DEFAULT_LISTEN
    http_listen: Address | Literal[""] = ""
    # Names by which requests may call the status page, beside addresses, localhost and those of `listen`.
    http_allowed_hosts: tuple[str, ...] = ()
    allow_plaintext: bool = False  # beyond loopback
    tls: TlsConfig | None = None
    expiry: ExpiryConfig = ExpiryConfig()
    limits: LimitsConfig = LimitsConfig()
    log: LogConfig = LogConfig()

    @field_validator("directory", mode="before")
    @classmethod
    def _to_path(cls, value: object) -> object:
        return Path(value) if isinstance(value, str) and value else value

    @field_validator("http_allowed_hosts", mode="before")
    @classmethod
    def _to_tuple(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @property
    def http_hosts(self) -> set[str]:
        """Names by which the status page may be called."""
        return {self.listen.rpartition(":")[0], *self.http_allowed_hosts}

    def refuse_plaintext(self) -> None:
        """ConfigError (PLAINTEXT_REFUSED) if anything would travel unencrypted beyond this machine."""
        plain = [] if self.tls else [("listen", self.listen)]
        if self.http_listen and not (self.tls and self.tls.http):
            plain.append(("http_listen", self.http_listen))
        for key, address in plain:
            if not self.allow_plaintext and not is_loopback(address):
                way = "set tls.http = true" if self.tls else "add a [tls] section (certificate, key, ca)"
                raise ConfigError(
                    f"{key} is {address}, beyond this machine, and would be in plain text: {way}, "
                    "or say allow_plaintext = true if the network itself can be trusted",
                    code=Code.PLAINTEXT_REFUSED,
                )

    def table_limits(self) -> TableLimits:
        limits, expiry = self.limits, self.expiry
        return TableLimits(
            limits.max_broker_names,
            limits.max_nodes_per_name,
            limits.max_topics,
            expiry.min_ms,
            expiry.default_ms,
            expiry.max_ms,
        )

    def server_limits(self) -> ServerLimits:
        return ServerLimits._make(getattr(self.limits, name) for name in ServerLimits._fields)

    def kv_limits(self) -> KvLimits:
        limits = self.limits
        return KvLimits(limits.max_config_value_bytes, limits.max_config_entries, limits.max_config_bytes)


def load_config(path: Path | None, overrides: Mapping[str, Any]) -> NameServerConfig:
    """A TOML file, if any, with single keys replaced. ConfigError names the file, the key and what is valid.

    Paths in the file are relative to it, those of `overrides` to the working directory.
    """
    content = {} if path is None else read_toml(path)
    if path is not None:
        content = _from_folder(content, path.parent)
    for key, value in overrides.items():
        if isinstance(value, Mapping) and isinstance(content.get(key), Mapping):
            content[key] = {**content[key], **value}
        else:
            content[key] = value
    return validate(NameServerConfig, content, "command line" if path is None else str(path))


def _from_folder(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    """With its paths made independent of where the process runs; what is no path is left for the checks."""

    def located(value: object) -> object:
        return str(folder / value) if isinstance(value, str) and value else value

    changed = {key: located(value) if key == "directory" else value for key, value in content.items()}
    if isinstance(tls := changed.get("tls"), Mapping):
        names = ("certificate", "key", "ca")
        changed["tls"] = {key: located(value) if key in names else value for key, value in tls.items()}
    return changed
