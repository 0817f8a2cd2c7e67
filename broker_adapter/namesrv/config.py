"""Configuration of a NameServer: a TOML file, checked key by key, and what the command line says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from broker_adapter.namesrv.kv_config import KvLimits
from broker_adapter.namesrv.name_server import ServerLimits
from broker_adapter.namesrv.values import TableLimits
from dledger import Code, ConfigError
from dledger.platform import is_loopback, read_toml, validate

Positive = Annotated[int, Field(gt=0)]
Name = Annotated[str, Field(min_length=1, max_length=255)]
Address = Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]*):\d{1,5}$")]

DEFAULT_LISTEN = "127.0.0.1:9876"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ExpiryConfig(_Section):
    """Milliseconds. A broker may ask for another time than the default, within the bounds."""

    default_ms: Positive = 120_000
    """How long a registration made by a single call lasts, and how long the greatest term of a name is
    remembered."""
    min_ms: Positive = 10_000
    """Shortest time that a broker may ask for."""
    max_ms: Positive = 600_000
    """Longest time that a broker may ask for."""
    scan_ms: Positive = 5_000
    """How often expired registrations are looked for."""

    @model_validator(mode="after")
    def _ordered(self) -> ExpiryConfig:
        if not self.min_ms <= self.default_ms <= self.max_ms:
            raise ValueError("default_ms must be within min_ms and max_ms")
        return self


class LimitsConfig(_Section):
    """Past each of these a request is refused with a number."""

    max_broker_names: Positive = TableLimits().max_broker_names
    """Broker names. Past it: 781."""
    max_names_per_address: Positive = TableLimits().max_names_per_address
    """Broker names that one address brings up. Past it: 781."""
    max_nodes_per_name: Positive = TableLimits().max_nodes_per_name
    """Nodes of one broker name. Past it: 781."""
    max_topics: Positive = TableLimits().max_topics
    """Topics. Past it: 781."""
    max_sessions: Positive = ServerLimits().max_sessions
    """Connected brokers; one address alone has three quarters. Past it: 781."""
    max_watchers: Positive = ServerLimits().max_watchers
    """Clients that watch routes; one address alone has three quarters. Past it: 781."""
    max_watched_topics: Positive = ServerLimits().max_watched_topics
    """Topics that one watcher names. Past it: 781."""
    max_waiting_registrations: Positive = ServerLimits().max_waiting_registrations
    """Registrations under way. Past it: 780."""
    max_waiting_routes: Positive = ServerLimits().max_waiting_routes
    """Questions for routes under way. Past it: 780."""
    max_waiting_config: Positive = ServerLimits().max_waiting_config
    """Questions about settings under way. Past it: 780."""
    max_config_value_bytes: Positive = KvLimits().max_value_bytes
    """Bytes of one setting. Past it: 788."""
    max_config_entries: Positive = KvLimits().max_entries
    """Number of settings. Past it: 788."""
    max_config_bytes: Annotated[int, Field(gt=0, le=KvLimits().max_bytes)] = KvLimits().max_bytes
    """Bytes of all settings. All of a namespace goes into one answer. Past it: 788."""


class TlsConfig(_Section):
    """PEM files, read again when they change. Relative paths are relative to the configuration's file."""

    certificate: Path
    """The NameServer's certificate (PEM)."""
    key: Path
    """Its key (PEM)."""
    ca: Path
    """Whose certificates are trusted (PEM)."""
    client_auth: Literal["require", "none"] = "require"
    """`none`: clients and brokers show no certificate."""
    remoting_mode: Literal["enforcing", "permissive"] = "enforcing"
    """Of the remoting port: `permissive` serves TLS and plain text, as RocketMQ does by default; it needs
    client_auth = "none"."""
    http: bool = True
    """The status page speaks TLS, too. false: it stays in plain text."""
    broker_names: tuple[Name, ...] = ()
    """Names in certificates that may register brokers. Without it no broker registers."""
    admin_names: tuple[Name, ...] = ()
    """Names in certificates that may un-register others, wipe and set."""

    @field_validator("broker_names", "admin_names", mode="before")
    @classmethod
    def _to_tuple(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _names_need_certificates(self) -> TlsConfig:
        if self.client_auth == "none" and {"broker_names", "admin_names"} & self.model_fields_set:
            raise ValueError('names need client_auth = "require": else nobody shows a certificate')
        return self

    @model_validator(mode="after")
    def _certificates_need_tls(self) -> TlsConfig:
        if self.client_auth == "require" and self.remoting_mode == "permissive":
            raise ValueError('remoting_mode = "permissive" needs client_auth = "none"')
        return self

    @field_validator("certificate", "key", "ca", mode="before")
    @classmethod
    def _to_path(cls, value: object) -> object:
        return Path(value) if isinstance(value, str) and value else value


class LogConfig(_Section):
    """How the process writes its log lines (on stderr)."""

    format: Literal["text", "json"] = "text"
    """`json` for machines."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is written."""


class NameServerConfig(_Section):
    """One NameServer."""

    directory: Path
    """Directory of the settings; made if it is not there. Relative to the configuration's file."""
    listen: Address = DEFAULT_LISTEN
    """host:port to serve on."""
    remoting_listen: Address | Literal[""] = ""
    """host:port for RocketMQ's 4.x protocol, which clients expect at 9876. Empty: it is not spoken."""
    http_listen: Address | Literal[""] = ""
    """host:port of the status page and metrics. Empty: none."""
    http_allowed_hosts: tuple[str, ...] = ()
    """Names by which requests may call the status page, beside addresses, `localhost` and the host of
    `listen`."""
    allow_plaintext: bool = False
    """Serve in plain text beyond loopback."""
    tls: TlsConfig | None = None
    """Certificates. Without it: plain text, on loopback only."""
    expiry: ExpiryConfig = ExpiryConfig()
    """When registrations expire."""
    limits: LimitsConfig = LimitsConfig()
    """Limits."""
    log: LogConfig = LogConfig()
    """The process's own log lines."""

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
        if self.remoting_listen and not (self.tls and self.tls.remoting_mode == "enforcing"):
            plain.append(("remoting_listen", self.remoting_listen))
        if self.http_listen and not (self.tls and self.tls.http):
            plain.append(("http_listen", self.http_listen))
        for key, address in plain:
            if not self.allow_plaintext and not is_loopback(address):
                kept = "set tls.http = true"
                if key == "remoting_listen":
                    kept = 'set tls.remoting_mode = "enforcing"'
                way = kept if self.tls else "add a [tls] section (certificate, key, ca)"
                raise ConfigError(
                    f"{key} is {address}, beyond this machine, and would be in plain text: {way}, "
                    "or say allow_plaintext = true if the network itself can be trusted",
                    code=Code.PLAINTEXT_REFUSED,
                )

    def table_limits(self) -> TableLimits:
        limits, expiry = self.limits, self.expiry
        return TableLimits(
            limits.max_broker_names,
            limits.max_names_per_address,
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
