"""The configuration of a NameServer: a TOML file with validated keys, and overrides from the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from broker_adapter.namesrv.kv_config import KvLimits
from broker_adapter.namesrv.name_server import NameServerLimits
from broker_adapter.namesrv.values import TableLimits
from dledger import Code, ConfigError
from dledger.infra.files.config_faults import read_toml, validate
from dledger.node.setup.config import is_loopback

Positive = Annotated[int, Field(gt=0)]
Name = Annotated[str, Field(min_length=1, max_length=255)]
Address = Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]*):\d{1,5}$")]

DEFAULT_LISTEN = "127.0.0.1:9876"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ExpiryConfig(_Section):
    """The expiry of registrations, in milliseconds. A broker may request an expiry within the bounds."""

    default_ms: Positive = 120_000
    """Lifetime of a registration without a requested expiry.

    The highest term of a broker name is remembered for the same time after its master has gone.
    """
    min_ms: Positive = 10_000
    """Shortest expiry that a broker may request."""
    max_ms: Positive = 600_000
    """Longest expiry that a broker may request."""
    scan_ms: Positive = 5_000
    """Interval between checks for expired registrations."""

    @model_validator(mode="after")
    def _ordered(self) -> ExpiryConfig:
        if not self.min_ms <= self.default_ms <= self.max_ms:
            raise ValueError("default_ms must be between min_ms and max_ms")
        return self


class NameServerLimitsConfig(_Section):
    """Limits of a NameServer. Requests beyond a limit are refused with an error number."""

    max_broker_names: Positive = TableLimits().max_broker_names
    """Maximum number of broker names. Above it: error 781."""
    max_names_per_address: Positive = TableLimits().max_names_per_address
    """Maximum number of broker names first registered from one address. Above it: error 781."""
    max_nodes_per_name: Positive = TableLimits().max_nodes_per_name
    """Maximum number of nodes of one broker name. Above it: error 781."""
    max_topics: Positive = TableLimits().max_topics
    """Maximum number of topics. Above it: error 781."""
    max_sessions: Positive = NameServerLimits().max_sessions
    """Maximum number of registered broker names and nodes, shared by address. Above it: error 781."""
    max_watchers: Positive = NameServerLimits().max_watchers
    """Maximum number of connections that watch routes, shared by address. Above it, routes are returned but
    not watched.
    """
    max_watched_topics: Positive = NameServerLimits().max_watched_topics
    """Maximum number of topics that one connection watches. Above it, routes are returned but not watched.
    """
    max_waiting_registrations: Positive = NameServerLimits().max_waiting_registrations
    """Maximum number of concurrent registrations. Above it: SYSTEM_BUSY."""
    max_waiting_routes: Positive = NameServerLimits().max_waiting_routes
    """Maximum number of concurrent route requests. Above it: SYSTEM_BUSY."""
    max_waiting_config: Positive = NameServerLimits().max_waiting_config
    """Maximum number of concurrent requests for settings. Above it: SYSTEM_BUSY."""
    max_config_value_bytes: Positive = KvLimits().max_value_bytes
    """Maximum size of one setting in bytes. Above it: error 788."""
    max_config_entries: Positive = KvLimits().max_entries
    """Maximum number of settings. Above it: error 788."""
    max_config_bytes: Annotated[int, Field(gt=0, le=KvLimits().max_bytes)] = KvLimits().max_bytes
    """Maximum size of all settings in bytes: a whole namespace is sent in one response. Above it: error 788.
    """


class NameServerTlsConfig(_Section):
    """PEM files, reloaded when they change. Relative paths are relative to the configuration file."""

    certificate: Path
    """Certificate of the NameServer (PEM)."""
    key: Path
    """Private key of the certificate (PEM)."""
    ca: Path
    """Trusted certificate authorities (PEM)."""
    client_auth: Literal["require", "none"] = "require"
    """`none`: clients and brokers present no certificate."""
    remoting_mode: Literal["enforcing", "permissive"] = "enforcing"
    """TLS mode of `listen`. `permissive` accepts TLS and plain text, as RocketMQ does by default, and
    requires client_auth = "none".
    """
    http: bool = True
    """Serve the status page with TLS. false: in plain text."""
    broker_names: tuple[Name, ...] = ()
    """Certificate names that may register brokers. If empty, no broker can register."""
    admin_names: tuple[Name, ...] = ()
    """Certificate names that may unregister other brokers, wipe permissions and change settings."""

    @field_validator("broker_names", "admin_names", mode="before")
    @classmethod
    def _to_tuple(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _names_need_certificates(self) -> NameServerTlsConfig:
        if self.client_auth == "none" and {"broker_names", "admin_names"} & self.model_fields_set:
            raise ValueError(
                'names require client_auth = "require": otherwise callers present no certificate'
            )
        return self

    @model_validator(mode="after")
    def _certificates_need_tls(self) -> NameServerTlsConfig:
        if self.client_auth == "require" and self.remoting_mode == "permissive":
            raise ValueError('remoting_mode = "permissive" requires client_auth = "none"')
        return self

    @field_validator("certificate", "key", "ca", mode="before")
    @classmethod
    def _to_path(cls, value: object) -> object:
        return Path(value) if isinstance(value, str) and value else value


class NameServerLogConfig(_Section):
    """Format and level of log lines, which are written to stderr."""

    format: Literal["text", "json"] = "text"
    """`json` for machine-readable lines."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level of log lines to write."""


class NameServerConfig(_Section):
    """Configuration of one NameServer."""

    directory: Path
    """Directory for settings, created if missing. Relative to the configuration file."""
    listen: Address = DEFAULT_LISTEN
    """host:port for brokers, clients and tools, in RocketMQ's remoting protocol."""
    routes: Literal["failover", "single"] = "failover"
    """`failover`: routes contain a write-only broker name for each member of a replicated log, so that
    clients of RocketMQ 4 switch to another member immediately after a failure. `single`: routes contain only
    the broker name, as RocketMQ's do.
    """
    http_listen: Address | Literal[""] = ""
    """host:port of the status page and metrics. Empty: disabled."""
    http_allowed_hosts: tuple[str, ...] = ()
    """Additional host names accepted in requests to the status page. Addresses, `localhost` and the host of
    `listen` are always accepted.
    """
    allow_plaintext: bool = False
    """Allow plain text on addresses other than loopback."""
    tls: NameServerTlsConfig | None = None
    """Certificates. Without this section: plain text, on loopback only."""
    expiry: ExpiryConfig = ExpiryConfig()
    """Expiry of registrations."""
    limits: NameServerLimitsConfig = NameServerLimitsConfig()
    """Limits."""
    log: NameServerLogConfig = NameServerLogConfig()
    """Log lines of this process."""

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
        """Host names accepted by the status page."""
        return {self.listen.rpartition(":")[0], *self.http_allowed_hosts}

    def refuse_plaintext(self) -> None:
        """Raise ConfigError (PLAINTEXT_REFUSED) if plain text could be sent to other machines."""
        plain = []
        if not (self.tls and self.tls.remoting_mode == "enforcing"):
            plain.append(("listen", self.listen))
        if self.http_listen and not (self.tls and self.tls.http):
            plain.append(("http_listen", self.http_listen))
        for key, address in plain:
            if not self.allow_plaintext and not is_loopback(address):
                way = "set tls.http = true"
                if key == "listen":
                    way = 'set tls.remoting_mode = "enforcing"'
                fix = way if self.tls else "add a [tls] section (certificate, key, ca)"
                raise ConfigError(
                    f"{key} is {address}, which is reachable from other machines in plain text: {fix}, "
                    "or set allow_plaintext = true if the network itself can be trusted",
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

    def server_limits(self) -> NameServerLimits:
        return NameServerLimits._make(getattr(self.limits, name) for name in NameServerLimits._fields)

    def kv_limits(self) -> KvLimits:
        limits = self.limits
        return KvLimits(limits.max_config_value_bytes, limits.max_config_entries, limits.max_config_bytes)


def load_config(path: Path | None, overrides: Mapping[str, Any]) -> NameServerConfig:
    """Read a TOML file, if given, and apply overrides of single keys.

    Paths in the file are relative to the file, and paths in `overrides` are relative to the working
    directory. Raises ConfigError with the file, the key and the valid values.
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
    """Resolve relative paths against the folder of the file.

    Does not change values of invalid types, which validation reports.
    """

    def located(value: object) -> object:
        return str(folder / value) if isinstance(value, str) and value else value

    changed = {key: located(value) if key == "directory" else value for key, value in content.items()}
    if isinstance(tls := changed.get("tls"), Mapping):
        names = ("certificate", "key", "ca")
        changed["tls"] = {key: located(value) if key in names else value for key, value in tls.items()}
    return changed
