"""Configuration of one node: a TOML file, validated key by key.

Every error names the key, says what is wrong, and what would be right. Identity that must never change
(flush mode, data file size) is in the node's directory, not here.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from dledger.core.values import Timing
from dledger.errors import Code, ConfigError, StorageError
from dledger.node.setup.config_faults import read_toml, validate
from dledger.replica.retention import RetentionPolicy
from dledger.rpc.ports import ServiceLimits
from dledger.rpc.transport.channels import MAX_CONNECTIONS, MAX_PAYLOAD_BYTES
from dledger.store.disk import Disk
from dledger.store.format.batch import max_batch_size
from dledger.store.format.layout import DEFAULT_DATA_FILE_SIZE
from dledger.store.identity import load_identity

Positive = Annotated[int, Field(gt=0)]
NotNegative = Annotated[int, Field(ge=0)]
Duration = Annotated[str, Field(pattern=r"^[1-9]\d*(ms|s|m|h|d)$")]
Name = Annotated[str, Field(min_length=1, max_length=255)]
Address = Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]*):\d{1,5}$")]


#: Of one entry: a message of 4 MiB, and what is stored with it.
DEFAULT_BODY_BYTES = (4 << 20) + (64 << 10)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TimingConfig(_Section):
    """Milliseconds. Elections time out at random between the two bounds; heartbeats are well below."""

    heartbeat_ms: Positive = 150
    election_min_ms: Positive = 1000
    election_max_ms: Positive = 2000
    transfer_timeout_ms: Positive = 1000
    preferred_check_ms: Positive = 1000
    tick_ms: Positive = 20
    checkpoint_ms: Positive = 3000
    flush_interval_ms: Positive = 500  # ASYNC_FLUSH only
    # A leader whose disk stalls for so long steps down, if those of the others work; two election_max_ms.
    fsync_stall_ms: Positive | None = None
    # A leader that has something to commit and commits nothing for so long steps down; five election_max_ms.
    commit_stall_ms: Positive | None = None
    # A process whose event loop has not turned for so long ends, with exit code 70; 0: never.
    loop_stall_ms: NotNegative = 20_000

    @model_validator(mode="after")
    def _ordered(self) -> TimingConfig:
        if self.heartbeat_ms * 2 > self.election_min_ms:
            raise ValueError("election_min_ms must be at least two heartbeat_ms")
        if self.election_min_ms >= self.election_max_ms:
            raise ValueError("election_max_ms must be greater than election_min_ms")
        if self.commit_stall_ms is not None and self.commit_stall_ms < self.election_max_ms:
            raise ValueError("commit_stall_ms must be at least election_max_ms")
        return self

    def core(self) -> Timing:
        return Timing(
            heartbeat_ms=self.heartbeat_ms,
            election_min_ms=self.election_min_ms,
            election_max_ms=self.election_max_ms,
            transfer_timeout_ms=self.transfer_timeout_ms,
            preferred_check_ms=self.preferred_check_ms,
            fsync_stall_ms=self.fsync_stall_ms or 2 * self.election_max_ms,
            commit_stall_ms=self.commit_stall_ms or 5 * self.election_max_ms,
        )


class LimitsConfig(_Section):
    """Past each of these a request is refused with a numbered error, or waits its turn."""

    max_body_bytes: Positive = DEFAULT_BODY_BYTES
    # None: MAX_PAYLOAD_BYTES, or what a data file of the directory holds if that is less.
    max_batch_bytes: Annotated[int, Field(gt=0, le=MAX_PAYLOAD_BYTES)] | None = None
    max_batch_entries: Positive = 4096
    max_append_streams: Positive = 1024
    max_read_streams: Positive = 256
    max_waiting_reads: Positive = 4096
    max_unanswered_per_stream: Positive = 1024
    max_calls: Positive = 16_384  # of clients, under way at once
    max_connections: Annotated[int, Field(ge=16)] = MAX_CONNECTIONS  # of clients and members
    max_pending_bytes: Positive = 64 << 20
    max_pending_appends: Positive = 65_536
    max_push_bytes: Annotated[int, Field(gt=0, le=MAX_PAYLOAD_BYTES)] = 1 << 20  # a larger batch goes alone
    max_inflight_bytes: Positive = 16 << 20
    tail_cache_bytes: Positive = 64 << 20
    append_timeout_ms: Positive = 5000
    max_append_timeout_ms: Positive = 60_000
    read_timeout_ms: Positive = 5000
    read_chunk_bytes: Annotated[int, Field(gt=0, le=MAX_PAYLOAD_BYTES)] = 512 << 10
    catch_up_bytes_per_second: NotNegative = 256 << 20  # to each follower that is far behind; 0: no limit
    catch_up_yields: bool = True  # while clients append, in favour of what their appends take
    repair_bytes_per_second: NotNegative = 64 << 20  # of damaged data files; 0: no limit
    disk_reserve_bytes: NotNegative | None = None  # kept free; a data file, its index and up to 64 MiB more

    def batch_bytes(self, data_file_size: int) -> int:
        """The limit of a batch in a directory with such data files, each of which holds whole batches.
        ConfigError if it was set to more than a file holds."""
        largest = max_batch_size(data_file_size)
        if self.max_batch_bytes is None:
            return min(MAX_PAYLOAD_BYTES, largest)
        if self.max_batch_bytes > largest:
            raise ConfigError(
                f"limits.max_batch_bytes is {self.max_batch_bytes}; "
                f"data files of {data_file_size} bytes hold batches of at most {largest}"
            )
        return self.max_batch_bytes

    def service(self, data_file_size: int) -> ServiceLimits:
        return ServiceLimits(
            max_body_bytes=self.max_body_bytes,
            max_batch_bytes=self.batch_bytes(data_file_size),
            max_batch_entries=self.max_batch_entries,
            max_append_streams=self.max_append_streams,
            max_read_streams=self.max_read_streams,
            max_unanswered_per_stream=self.max_unanswered_per_stream,
            max_calls=self.max_calls,
            max_connections=self.max_connections,
            append_timeout_ms=self.append_timeout_ms,
            max_append_timeout_ms=self.max_append_timeout_ms,
            read_chunk_bytes=self.read_chunk_bytes,
        )


class RetentionConfig(_Section):
    """What may be forgotten: entries older than max_age, more than max_bytes, and what is in the way of
    min_free_bytes on the leader's disk. None of them: nothing is."""

    max_age: Duration | None = None
    max_bytes: Positive | None = None
    min_free_bytes: Positive | None = None
    hold_bytes: NotNegative = 1 << 30  # a follower further behind than this does not hold purging back
    check_interval: Duration = "10s"

    def policy(self) -> RetentionPolicy:
        return RetentionPolicy(
            max_age_ms=None if self.max_age is None else duration_ms(self.max_age),
            max_bytes=self.max_bytes,
            min_free_bytes=self.min_free_bytes,
            hold_bytes=self.hold_bytes,
            check_ms=duration_ms(self.check_interval),
        )


class ScrubConfig(_Section):
    """Reading all that is stored, again and again, to find damage while others can still repair it."""

    bytes_per_second: NotNegative = 4 << 20  # 0: only when somebody asks for it
    pause: Duration = "1d"  # between two rounds over the whole log


class LogConfig(_Section):
    """How the node writes its own log lines (on stderr)."""

    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "info"


class TlsConfig(_Section):
    """PEM files, read again when they change. Relative paths are relative to the configuration's file."""

    certificate: Path
    key: Path
    ca: Path
    client_auth: Literal["require", "none"] = "require"
    http_client_auth: Literal["require", "none"] = "none"
    peer_names: dict[Name, Name] = Field(default_factory=dict)
    # Names in certificates that may transfer, purge, scrub and back up, beside those of the members.
    admin_names: tuple[Name, ...] = ()

    @field_validator("admin_names", mode="before")
    @classmethod
    def _to_tuple(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _names_need_certificates(self) -> TlsConfig:
        if "admin_names" in self.model_fields_set and self.client_auth == "none":
            raise ValueError('admin_names needs client_auth = "require": else nobody shows a certificate')
        return self

    @field_validator("certificate", "key", "ca", mode="before")
    @classmethod
    def _to_path(cls, value: object) -> object:
        return Path(value) if isinstance(value, str) and value else value

    def below(self, folder: Path) -> TlsConfig:
        paths = {key: folder / getattr(self, key) for key in ("certificate", "key", "ca")}
        return self.model_copy(update=paths)


class ProgramConfig(_Section):
    """What lives on the node (`dledger.node.program`). The settings are the program's own affair."""

    factory: Annotated[str, Field(min_length=1)]  # MODULE:FACTORY
    settings: dict[str, Any] = Field(default_factory=dict)


class NodeConfig(_Section):
    """One node. `listen` and `http_listen` are host:port; empty `http_listen`: no status page."""

    directory: Path
    node_id: Name
    cluster_id: Name
    group: Name = "default"
    members: dict[Name, Address] = Field(min_length=1)
    http_members: dict[Name, Address] = Field(default_factory=dict)
    # Where this node reaches other members, if not at what clients are told: a network of their own.
    peer_addresses: dict[Name, Address] = Field(default_factory=dict)
    listen: Address | Literal[""] = ""  # "": this node's address in members
    http_listen: Address | Literal[""] = ""
    # Names by which requests may call the status port, beside addresses, localhost and names of members.
    http_allowed_hosts: tuple[Name, ...] = ()
    http_tls: bool = True  # with [tls]; false: the status page stays in plain text
    allow_plaintext: bool = False  # beyond loopback
    # What members show each other, beside certificates or in their place: one secret, or two, a line each.
    cluster_secret_file: Path | None = None
    preferred_leaders: tuple[Name, ...] = ()
    keep_cpus_awake: bool = True  # while there is work in flight, if this process may ask for it
    tls: TlsConfig | None = None
    timing: TimingConfig = TimingConfig()
    limits: LimitsConfig = LimitsConfig()
    retention: RetentionConfig = RetentionConfig()
    scrub: ScrubConfig = ScrubConfig()
    log: LogConfig = LogConfig()
    program: ProgramConfig | None = None

    @field_validator("directory", "cluster_secret_file", mode="before")
    @classmethod
    def _to_path(cls, value: object) -> object:
        return Path(value) if isinstance(value, str) and value else value

    @field_validator("preferred_leaders", "http_allowed_hosts", mode="before")
    @classmethod
    def _to_tuple(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _members_agree(self) -> NodeConfig:
        known = ", ".join(sorted(self.members))
        if self.node_id not in self.members:
            raise ValueError(f"node_id {self.node_id!r} is not one of the members: {known}")
        for key, names in (
            ("preferred_leaders", self.preferred_leaders),
            ("http_members", tuple(self.http_members)),
            ("peer_addresses", tuple(self.peer_addresses)),
            ("tls.peer_names", tuple(self.tls.peer_names) if self.tls else ()),
        ):
            for name in names:
                if name not in self.members:
                    raise ValueError(f"{key} names {name!r}, which is not one of the members: {known}")
        addresses = list(self.members.values())
        if len(set(addresses)) != len(addresses):
            raise ValueError("two members have the same address")
        return self

    @property
    def address(self) -> str:
        """Where others reach this node."""
        return self.members[self.node_id]

    def peer_address(self, node_id: str) -> str:
        """Where this node reaches another member."""
        return self.peer_addresses.get(node_id, self.members[node_id])

    def batch_bytes(self, disk: Disk | None = None) -> int:
        """The limit of a batch in this node's directory. Without one (it is lost), or with a damaged one
        (the start says so), that of the largest data files. ConfigError."""
        try:
            size = load_identity(self.directory, disk=disk).data_file_size
        except StorageError:
            size = DEFAULT_DATA_FILE_SIZE
        return self.limits.batch_bytes(size)

    @property
    def listen_address(self) -> str:
        return self.listen or self.address

    @property
    def http_hosts(self) -> set[str]:
        """Names by which this node's status port may be called."""
        addresses = (*self.members.values(), *self.http_members.values())
        return {address.rpartition(":")[0] for address in addresses}.union(self.http_allowed_hosts)

    @property
    def has_http_tls(self) -> bool:
        return self.tls is not None and self.http_tls

    def refuse_plaintext(self) -> None:
        """ConfigError (PLAINTEXT_REFUSED) if anything would travel unencrypted beyond this machine, or if
        whoever reaches this node from beyond could speak as a member of it."""
        peers = [("listen", self.listen_address)]
        peers += [(f"members.{node}", address) for node, address in self.members.items()]
        peers += [(f"peer_addresses.{node}", address) for node, address in self.peer_addresses.items()]
        if self.allow_plaintext or self.tls is not None:
            self._refuse_strangers(peers)
        if self.allow_plaintext:
            return
        plain = peers if self.tls is None else []
        if self.http_listen and not self.has_http_tls:
            plain.append(("http_listen", self.http_listen))
        for key, address in plain:
            if not is_loopback(address):
                way = "set http_tls = true" if self.tls else "add a [tls] section (certificate, key, ca)"
                raise ConfigError(
                    f"{key} is {address}, beyond this machine, and would be in plain text: {way}, "
                    "or say allow_plaintext = true if the network itself can be trusted",
                    code=Code.PLAINTEXT_REFUSED,
                )

    def _refuse_strangers(self, peers: Sequence[tuple[str, str]]) -> None:
        """Members are known by certificate or by the cluster's secret."""
        if len(self.members) == 1 or self.cluster_secret_file is not None:
            return
        if self.tls is not None and self.tls.client_auth == "require":
            return
        for key, address in peers:
            if not is_loopback(address):
                way = "add a [tls] section" if self.tls is None else 'set tls.client_auth = "require"'
                raise ConfigError(
                    f"{key} is {address}, beyond this machine, and whoever reaches a port there could speak "
                    "as a member: name a cluster_secret_file (`dledger init --new-secret` makes it, all "
                    f"nodes get a copy), or {way}",
                    code=Code.PLAINTEXT_REFUSED,
                )


def duration_ms(text: str) -> int:
    """Of "500ms", "10s", "15m", "12h", "7d". ConfigError names the units."""
    match = re.fullmatch(r"([1-9]\d*)(ms|s|m|h|d)", text)
    if match is None:
        raise ConfigError(f"{text!r} is no duration: a number and one of ms, s, m, h, d")
    return int(match[1]) * {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}[match[2]]


def is_loopback(address: str) -> bool:
    """Whether host:port surely stays on this machine. Names are not looked up: what they mean may change."""
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def load_config(path: Path | str) -> NodeConfig:
    """The configuration in a TOML file. ConfigError names the file, the key and what is valid."""
    path = Path(path)
    config = parse_config(read_toml(path), where=str(path))
    if not config.directory.is_absolute():  # relative to the file, not to wherever the node was started
        config = config.model_copy(update={"directory": path.parent / config.directory})
    if config.tls is not None:
        config = config.model_copy(update={"tls": config.tls.below(path.parent)})
    if config.cluster_secret_file is not None:
        secret = path.parent / config.cluster_secret_file
        config = config.model_copy(update={"cluster_secret_file": secret})
    return config


def parse_config(content: Mapping[str, Any], where: str = "configuration") -> NodeConfig:
    """The configuration in a mapping. ConfigError names each wrong key and what is valid."""
    return validate(NodeConfig, content, where)
