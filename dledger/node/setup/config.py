"""Configuration of one node: a TOML file, validated key by key.

Every error names the key, the fault and the valid values. Properties that must never change (flush mode, data
file size) are stored in the node's directory, not in this file.
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
from dledger.infra.addresses import host_of
from dledger.infra.files.config_faults import read_toml, validate
from dledger.infra.files.disk import Disk
from dledger.infra.transport.channels import MAX_CONNECTIONS, MAX_PAYLOAD_BYTES
from dledger.replica.admission import AppendLimits
from dledger.replica.retention import RetentionLimits
from dledger.rpc.ports import ServiceLimits
from dledger.store.format.batch import max_batch_size
from dledger.store.format.layout import DEFAULT_DATA_FILE_SIZE
from dledger.store.identity import load_identity

Positive = Annotated[int, Field(gt=0)]
NotNegative = Annotated[int, Field(ge=0)]
Duration = Annotated[str, Field(pattern=r"^[1-9]\d*(ms|s|m|h|d)$")]
Name = Annotated[str, Field(min_length=1, max_length=255)]
Address = Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]*):\d{1,5}$")]


#: For one entry: a message of 4 MiB and its stored properties.
DEFAULT_BODY_BYTES = (4 << 20) + (64 << 10)


class _ConfigSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TimingConfig(_ConfigSection):
    """Times in milliseconds. Election timeouts are random between the two bounds; heartbeats are much more
    frequent.
    """

    heartbeat_ms: Positive = 150
    """Time between two heartbeats of the leader."""
    election_min_ms: Positive = 1000
    """Lower bound of the random election time-out; also the bound of check-quorum. At least two
    `heartbeat_ms`."""
    election_max_ms: Positive = 2000
    """Upper bound of the random election time-out. Greater than `election_min_ms`."""
    silence_ms: NotNegative | None = None
    """A follower requests pre-votes early if its leader is silent for this time, or for twice the longest
    pause between two of its messages in the last minute, if that is longer. Without effect from
    `election_min_ms` on. 0: off. Default: three tenths of `election_min_ms`, at least two `heartbeat_ms`.
    """
    transfer_timeout_ms: Positive = 1000
    """Maximum time that a leadership transfer may block appends before it is aborted."""
    preferred_check_ms: Positive = 1000
    """How often the leader checks whether a node of `preferred_leaders` can take over."""
    tick_ms: Positive = 20
    """Resolution of the timers."""
    checkpoint_ms: Positive = 3000
    """How often the checkpoint is written."""
    flush_interval_ms: Positive = 500
    """ASYNC_FLUSH only: time between two flushes."""
    fsync_stall_ms: Positive | None = None
    """A leader whose sync takes this long steps down, if the disks of the others work. Default: two
    `election_max_ms`.
    """
    commit_stall_ms: Positive | None = None
    """A leader with uncommitted entries that commits nothing for this time steps down, if the others have
    nothing left to store. At least `election_max_ms`; default: five times that. Raise it where a push
    (`limits.max_push_bytes`) takes longer on the network.
    """
    loop_stall_ms: NotNegative = 20_000
    """A process whose event loop has not run for this time exits with code 70 and a trace in its log. 0:
    never.
    """

    @model_validator(mode="after")
    def _ordered(self) -> TimingConfig:
        if self.heartbeat_ms * 2 > self.election_min_ms:
            raise ValueError("election_min_ms must be at least two heartbeat_ms")
        if self.election_min_ms >= self.election_max_ms:
            raise ValueError("election_max_ms must be greater than election_min_ms")
        if self.commit_stall_ms is not None and self.commit_stall_ms < self.election_max_ms:
            raise ValueError("commit_stall_ms must be at least election_max_ms")
        return self

    @property
    def _silence_ms(self) -> int:
        if self.silence_ms is not None:
            return self.silence_ms
        return max(self.election_min_ms * 3 // 10, 2 * self.heartbeat_ms)

    def core(self) -> Timing:
        return Timing(
            heartbeat_ms=self.heartbeat_ms,
            election_min_ms=self.election_min_ms,
            election_max_ms=self.election_max_ms,
            silence_ms=self._silence_ms,
            transfer_timeout_ms=self.transfer_timeout_ms,
            preferred_check_ms=self.preferred_check_ms,
            fsync_stall_ms=self.fsync_stall_ms or 2 * self.election_max_ms,
            commit_stall_ms=self.commit_stall_ms or 5 * self.election_max_ms,
        )


class LimitsConfig(_ConfigSection):
    """Requests beyond a limit are refused with a numbered error, or wait."""

    max_body_bytes: Positive = DEFAULT_BODY_BYTES
    """Largest body of an entry. Beyond it: 610."""
    max_batch_bytes: Annotated[int, Field(gt=0, le=MAX_PAYLOAD_BYTES)] | None = None
    """Largest batch, including 48 bytes per entry. Beyond it: 611. Default: 4 MiB + 128 KiB, or the
    capacity of a data file.
    """
    max_batch_entries: Positive = 16_384
    """Entries per batch. Beyond it: 611."""
    max_append_streams: Positive = 1024
    """Append streams open at the node, shared fairly among addresses. Beyond it: 612."""
    max_read_streams: Positive = 256
    """Read streams open at the node, shared fairly among addresses. Beyond it: 612."""
    max_waiting_reads: Positive = 4096
    """Linearizable reads that wait for their confirmation. Beyond it: 613."""
    max_unanswered_per_stream: Positive = 1024
    """Unanswered appends of one stream. Beyond it: 503."""
    max_calls: Positive = 16_384
    """Client calls and streams in progress, of all methods, shared fairly among addresses. Beyond it: 612."""
    max_connections: Annotated[int, Field(ge=16)] = MAX_CONNECTIONS
    """Connections of clients and members to the gRPC port. Beyond it: closed when accepted."""
    max_pending_bytes: Positive = 64 << 20
    """Bytes accepted but not committed, or waiting for disk space to be prepared. Addresses share those of
    clients. Beyond it: 503.
    """
    max_pending_appends: Positive = 65_536
    """Appends accepted but not committed. Addresses share those of clients. Beyond it: 503."""
    max_push_bytes: Annotated[int, Field(gt=0, le=MAX_PAYLOAD_BYTES)] = 1 << 20
    """Bytes of one push to a follower. A larger batch is sent alone."""
    max_inflight_bytes: Positive = 16 << 20
    """Bytes pushed to one follower and not acknowledged. Beyond it the leader waits."""
    tail_cache_bytes: Positive = 64 << 20
    """Newest entries kept in memory. Older ones are read from disk."""
    append_timeout_ms: Positive = 5000
    """Time limit of an append that names none. Beyond it: 502, in doubt."""
    max_append_timeout_ms: Positive = 60_000
    """Upper bound of the time limit that an append may name."""
    read_timeout_ms: Positive = 5000
    """Time limit for the confirmation of a linearizable read. Beyond it: 622."""
    read_chunk_bytes: Annotated[int, Field(gt=0, le=MAX_PAYLOAD_BYTES)] = 512 << 10
    """Bytes in one message of a read stream. A larger entry is sent alone."""
    catch_up_bytes_per_second: NotNegative = 256 << 20
    """Catch-up rate for each follower that is far behind. 0: no limit."""
    catch_up_yields: bool = True
    """Slow catch-up down while clients append, so that appends take at most 1.65 times as long. false: no
    slowdown.
    """
    repair_bytes_per_second: NotNegative = 64 << 20
    """Rate at which damaged data files are rewritten. 0: no limit."""
    disk_reserve_bytes: NotNegative | None = None
    """Free space that client appends must leave. Beyond it: 415. Default: a data file, its index, and up to
    64 MiB.
    """

    def batch_bytes(self, data_file_size: int) -> int:
        """Return the batch limit for data files of this size, because a batch must fit into one file.

        Raises ConfigError if the configured limit exceeds the capacity of a file.
        """
        largest = max_batch_size(data_file_size)
        if self.max_batch_bytes is None:
            return min(MAX_PAYLOAD_BYTES, largest)
        if self.max_batch_bytes > largest:
            raise ConfigError(
                f"limits.max_batch_bytes is {self.max_batch_bytes}; "
                f"data files of {data_file_size} bytes hold batches of at most {largest}"
            )
        return self.max_batch_bytes

    def appends(self, max_batch_bytes: int) -> AppendLimits:
        return AppendLimits(
            max_body_bytes=self.max_body_bytes,
            max_batch_bytes=max_batch_bytes,
            max_batch_entries=self.max_batch_entries,
            max_pending_bytes=self.max_pending_bytes,
            max_pending_appends=self.max_pending_appends,
        )

    def service(self, data_file_size: int) -> ServiceLimits:
        return ServiceLimits(
            max_body_bytes=self.max_body_bytes,
            max_batch_bytes=self.batch_bytes(data_file_size),
            max_batch_entries=self.max_batch_entries,
            max_pending_bytes=self.max_pending_bytes,
            max_pending_appends=self.max_pending_appends,
            max_append_streams=self.max_append_streams,
            max_read_streams=self.max_read_streams,
            max_unanswered_per_stream=self.max_unanswered_per_stream,
            max_calls=self.max_calls,
            max_connections=self.max_connections,
            append_timeout_ms=self.append_timeout_ms,
            max_append_timeout_ms=self.max_append_timeout_ms,
            read_chunk_bytes=self.read_chunk_bytes,
        )


class RetentionConfig(_ConfigSection):
    """Entries may be purged when they are older than max_age, beyond max_bytes, or when less than
    min_free_bytes is free on the leader's disk. If no limit is set, entries are never purged.
    """

    max_age: Duration | None = None
    """Entries older than this may be purged, e.g. `"7d"`. Default: no limit."""
    max_bytes: Positive | None = None
    """Entries beyond this size may be purged. Default: no limit."""
    min_free_bytes: Positive | None = None
    """When less is free on the leader's file system, the oldest entries may be purged. Default:
    no limit.
    """
    hold_bytes: NotNegative = 1 << 30
    """A follower further behind than this no longer holds purging back."""
    check_interval: Duration = "10s"
    """How often the leader checks for entries to purge."""

    def policy(self) -> RetentionLimits:
        return RetentionLimits(
            max_age_ms=None if self.max_age is None else duration_ms(self.max_age),
            max_bytes=self.max_bytes,
            min_free_bytes=self.min_free_bytes,
            hold_bytes=self.hold_bytes,
            check_ms=duration_ms(self.check_interval),
        )


class ScrubConfig(_ConfigSection):
    """Repeated reading of the whole log, to find damage while other members can still repair it."""

    bytes_per_second: NotNegative = 4 << 20
    """Rate of the background scrub. 0: only `dledger scrub` scrubs."""
    pause: Duration = "1d"
    """Time between two rounds over the whole log."""


class LogConfig(_ConfigSection):
    """How the node writes its own log lines (on stderr)."""

    format: Literal["text", "json"] = "text"
    """`json`: one JSON object per line."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level of log lines to write."""


class TlsConfig(_ConfigSection):
    """PEM files, reloaded when they change. Relative paths are relative to the configuration file."""

    certificate: Path
    """The node's certificate (PEM)."""
    key: Path
    """Its key (PEM). Refused (630) if every user may write it."""
    ca: Path
    """Certificate authorities to trust (PEM)."""
    client_auth: Literal["require", "none"] = "require"
    """`none`: clients need no certificate. Any client can then speak as a member unless the cluster has a
    secret.
    """
    http_client_auth: Literal["require", "none"] = "none"
    """`require`: the status port also requires a certificate issued by `ca`."""
    peer_names: dict[Name, Name] = Field(default_factory=dict)
    """Name required in a member's certificate, by node id. Default: the node id, or the host if no other
    member has it.
    """
    admin_names: tuple[Name, ...] = ()
    """Names in certificates that may transfer, purge, scrub and back up, in addition to those of the
    members. Requires `client_auth = "require"`.
    """

    @field_validator("admin_names", mode="before")
    @classmethod
    def _to_tuple(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _names_need_certificates(self) -> TlsConfig:
        if "admin_names" in self.model_fields_set and self.client_auth == "none":
            raise ValueError(
                'admin_names requires client_auth = "require": otherwise callers present no certificate'
            )
        return self

    @field_validator("certificate", "key", "ca", mode="before")
    @classmethod
    def _to_path(cls, value: object) -> object:
        return Path(value) if isinstance(value, str) and value else value

    def below(self, folder: Path) -> TlsConfig:
        paths = {key: folder / getattr(self, key) for key in ("certificate", "key", "ca")}
        return self.model_copy(update=paths)


class ProgramConfig(_ConfigSection):
    """The program that runs on the node (`dledger.node.program`). The program defines its settings."""

    factory: Annotated[str, Field(min_length=1)]
    """`MODULE:FACTORY` of the program. For a broker: `broker_adapter.server.program:broker`."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the program. The settings of a broker are below."""


class NodeConfig(_ConfigSection):
    """Configuration of one node."""

    directory: Path
    """The node's directory. Relative to the configuration file."""
    node_id: Name
    """This node, one of `members`."""
    cluster_id: Name
    """Any text, the same on all nodes. Nodes reject messages of other clusters."""
    group: Name = "default"
    """Name of the log, the same on all nodes."""
    members: dict[Name, Address] = Field(min_length=1)
    """host:port of each member by node id, as used by clients. The ids are fixed once the node has voted or
    stored an entry.
    """
    http_members: dict[Name, Address] = Field(default_factory=dict)
    """host:port of the status pages of members by node id. The pages use it to link to each other."""
    peer_addresses: dict[Name, Address] = Field(default_factory=dict)
    """host:port by node id at which this node reaches other members, if they differ from `members`: a
    separate network.
    """
    listen: Address | Literal[""] = ""
    """host:port to serve on. Default: this node's address in `members`."""
    http_listen: Address | Literal[""] = ""
    """host:port of the status page, probes and metrics. If empty, they are not served."""
    http_allowed_hosts: tuple[Name, ...] = ()
    """Host names accepted by the status port (`Host`), in addition to addresses, `localhost`, the machine's
    own name and the hosts of members. `".example.com"`: that name and its subdomains; `"*"`: any. Others
    get 421, which prevents DNS rebinding.
    """
    http_tls: bool = True
    """With `[tls]`: the status port uses TLS. false: plain text."""
    allow_plaintext: bool = False
    """Without `[tls]`: allow listening, and connections to members, beyond loopback."""
    cluster_secret_file: Path | None = None
    """The secret that authenticates members; one line, or two during a change. Required beyond loopback
    without mutual TLS. Relative to the configuration file.
    """
    preferred_leaders: tuple[Name, ...] = ()
    """Leadership moves to the first of these that is alive and caught up. Never blocks an election."""
    keep_cpus_awake: bool = True
    """Keep CPUs awake while work is in progress, if the process has access to `/dev/cpu_dma_latency`."""
    tls: TlsConfig | None = None
    """Certificates. Without it: plain text, on loopback only."""
    timing: TimingConfig = TimingConfig()
    """Time-outs and intervals."""
    limits: LimitsConfig = LimitsConfig()
    """Limits. See [limits](../limits.md)."""
    retention: RetentionConfig = RetentionConfig()
    """Entries that may be purged. Without it, entries stay forever."""
    scrub: ScrubConfig = ScrubConfig()
    """Background scrub for damaged entries."""
    log: LogConfig = LogConfig()
    """The node's own log lines."""
    program: ProgramConfig | None = None
    """The program on the node, for example a broker."""

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
        members = ", ".join(sorted(self.members))
        if self.node_id not in self.members:
            raise ValueError(f"node_id {self.node_id!r} is not one of the members: {members}")
        for key, names in (
            ("preferred_leaders", self.preferred_leaders),
            ("http_members", tuple(self.http_members)),
            ("peer_addresses", tuple(self.peer_addresses)),
            ("tls.peer_names", tuple(self.tls.peer_names) if self.tls else ()),
        ):
            for name in names:
                if name not in self.members:
                    raise ValueError(f"{key} names {name!r}, which is not one of the members: {members}")
        addresses = list(self.members.values())
        if len(set(addresses)) != len(addresses):
            raise ValueError("two members have the same address")
        return self

    @property
    def address(self) -> str:
        """Address at which others reach this node."""
        return self.members[self.node_id]

    def peer_address(self, node_id: str) -> str:
        """Address at which this node reaches another member."""
        return self.peer_addresses.get(node_id, self.members[node_id])

    def batch_bytes(self, disk: Disk | None = None) -> int:
        """The batch limit in this node's directory.

        If the directory is missing or damaged, which is reported at startup, this is the limit for the
        largest data files. Raises ConfigError.
        """
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
        """Host names accepted by this node's status port."""
        addresses = (*self.members.values(), *self.http_members.values())
        return {address.rpartition(":")[0] for address in addresses}.union(self.http_allowed_hosts)

    @property
    def has_http_tls(self) -> bool:
        return self.tls is not None and self.http_tls

    @property
    def is_reachable(self) -> bool:
        """Return True if clients of other machines, or with certificates, reach the port of this node."""
        has_certificates = self.tls is not None and self.tls.client_auth == "require"
        return has_certificates or not all(is_loopback(address) for _, address in self._peer_keys({}))

    def refuse_plaintext(self, others: Mapping[str, str] | None = None) -> None:
        """Refuse configurations with plain text beyond this machine, and those in which clients could
        impersonate members.

        `others`: addresses of members that the file need not name. Raises ConfigError (PLAINTEXT_REFUSED).
        """
        members = {**self.members, **(others or {})}
        peers = self._peer_keys(members)
        if self.allow_plaintext or self.tls is not None:
            self._refuse_strangers(peers, is_alone=len(members) == 1)
        if self.allow_plaintext:
            return
        plain = peers if self.tls is None else []
        if self.http_listen and not self.has_http_tls:
            plain.append(("http_listen", self.http_listen))
        for key, address in plain:
            if not is_loopback(address):
                way = "set http_tls = true" if self.tls else "add a [tls] section (certificate, key, ca)"
                raise ConfigError(
                    f"{key} is {address}, which is reachable from other machines in plain text: {way}, "
                    "or set allow_plaintext = true if the network is trusted",
                    code=Code.PLAINTEXT_REFUSED,
                )

    def _peer_keys(self, members: Mapping[str, str]) -> list[tuple[str, str]]:
        """Return the addresses between nodes, with their keys in the file."""
        peers = [("listen", self.listen_address)]
        peers += [(f"members.{node}", address) for node, address in {**self.members, **members}.items()]
        peers += [(f"peer_addresses.{node}", address) for node, address in self.peer_addresses.items()]
        return peers

    def _refuse_strangers(self, peers: Sequence[tuple[str, str]], *, is_alone: bool) -> None:
        """Require that members authenticate by certificate or by the cluster's secret."""
        if is_alone or self.cluster_secret_file is not None:
            return
        if self.tls is not None and self.tls.client_auth == "require":
            return
        for key, address in peers:
            if not is_loopback(address):
                way = "add a [tls] section" if self.tls is None else 'set tls.client_auth = "require"'
                raise ConfigError(
                    f"{key} is {address}, which is reachable from other machines, and any client of that "
                    "port could pose as a member: set cluster_secret_file (`dledger init --new-secret` "
                    f"creates it, all nodes need a copy), or {way}",
                    code=Code.PLAINTEXT_REFUSED,
                )


def duration_ms(text: str) -> int:
    """Parse "500ms", "10s", "15m", "12h" or "7d". Raises ConfigError, which names the units."""
    match = re.fullmatch(r"([1-9]\d*)(ms|s|m|h|d)", text)
    if match is None:
        raise ConfigError(f"{text!r} is not a duration: use a number followed by ms, s, m, h or d")
    return int(match[1]) * {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}[match[2]]


def is_loopback(address: str) -> bool:
    """Return True if host:port is certainly local. Names are not resolved, because resolution may change."""
    host = host_of(address)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def load_config(path: Path | str) -> NodeConfig:
    """Load the configuration from a TOML file. Raises ConfigError, which names the file, the key and valid
    values."""
    path = Path(path)
    config = parse_config(read_toml(path), where=str(path))
    if not config.directory.is_absolute():  # relative to the file, not to the working directory
        config = config.model_copy(update={"directory": path.parent / config.directory})
    if config.tls is not None:
        config = config.model_copy(update={"tls": config.tls.below(path.parent)})
    if config.cluster_secret_file is not None:
        secret = path.parent / config.cluster_secret_file
        config = config.model_copy(update={"cluster_secret_file": secret})
    return config


def parse_config(content: Mapping[str, Any], where: str = "configuration") -> NodeConfig:
    """Validate a configuration. Raises ConfigError, which names each wrong key and valid values."""
    return validate(NodeConfig, content, where)
