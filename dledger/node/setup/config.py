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

from dledger.addresses import host_of
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
    """Time between two heartbeats of the leader."""
    election_min_ms: Positive = 1000
    """Lower bound of the random election time-out; also the bound of check-quorum. At least two
    `heartbeat_ms`."""
    election_max_ms: Positive = 2000
    """Upper bound of the random election time-out. Greater than `election_min_ms`."""
    transfer_timeout_ms: Positive = 1000
    """How long a transfer of leadership may keep appends away before it is given up."""
    preferred_check_ms: Positive = 1000
    """How often the leader looks whether a node of `preferred_leaders` can take over."""
    tick_ms: Positive = 20
    """Resolution of the timers."""
    checkpoint_ms: Positive = 3000
    """How often the checkpoint is written."""
    flush_interval_ms: Positive = 500
    """ASYNC_FLUSH only: time between two flushes."""
    fsync_stall_ms: Positive | None = None
    """A leader one sync of which takes so long steps down, if the disks of the others work. Default: two
    `election_max_ms`."""
    commit_stall_ms: Positive | None = None
    """A leader that has something to commit and commits nothing for so long steps down, if the others
    have nothing to store. At least `election_max_ms`; default: five of them. Raise it where a push
    (`limits.max_push_bytes`) takes longer on its way."""
    loop_stall_ms: NotNegative = 20_000
    """A process whose event loop has not turned for so long ends with exit code 70 and a trace in its
    log. 0: never."""

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
    """Largest body of an entry. Past it: 610."""
    max_batch_bytes: Annotated[int, Field(gt=0, le=MAX_PAYLOAD_BYTES)] | None = None
    """Largest batch, with 48 bytes for each entry. Past it: 611. Default: 4 MiB + 128 KiB, or what a data
    file holds."""
    max_batch_entries: Positive = 4096
    """Entries of a batch. Past it: 611."""
    max_append_streams: Positive = 1024
    """Append streams open at the node; one address alone has three quarters. Past it: 612."""
    max_read_streams: Positive = 256
    """Read streams open at the node; one address alone has three quarters. Past it: 612."""
    max_waiting_reads: Positive = 4096
    """Linearizable reads that wait for their confirmation. Past it: 613."""
    max_unanswered_per_stream: Positive = 1024
    """Unanswered appends of one stream. Past it: 503."""
    max_calls: Positive = 16_384
    """Calls and streams of clients under way, of all methods together. Past it: 612."""
    max_connections: Annotated[int, Field(ge=16)] = MAX_CONNECTIONS
    """Connections of clients and members to the gRPC port. Past it: closed as soon as accepted."""
    max_pending_bytes: Positive = 64 << 20
    """Bytes accepted and not committed, or waiting for disk space to be prepared. Past it: 503."""
    max_pending_appends: Positive = 65_536
    """Appends accepted and not committed. Past it: 503."""
    max_push_bytes: Annotated[int, Field(gt=0, le=MAX_PAYLOAD_BYTES)] = 1 << 20
    """Bytes of one push to a follower. A larger batch travels alone."""
    max_inflight_bytes: Positive = 16 << 20
    """Bytes pushed to one follower and not acknowledged. Past it the leader waits."""
    tail_cache_bytes: Positive = 64 << 20
    """Newest entries kept in memory. Older ones are read from the disk."""
    append_timeout_ms: Positive = 5000
    """How long an append that names no time-out may take. Past it: 502, in doubt."""
    max_append_timeout_ms: Positive = 60_000
    """How long an append may take, whatever it names."""
    read_timeout_ms: Positive = 5000
    """How long a linearizable read waits for its confirmation. Past it: 622."""
    read_chunk_bytes: Annotated[int, Field(gt=0, le=MAX_PAYLOAD_BYTES)] = 512 << 10
    """Bytes in one message of a read stream. A larger entry travels alone."""
    catch_up_bytes_per_second: NotNegative = 256 << 20
    """Pace at which each follower that is far behind is caught up. 0: no limit."""
    catch_up_yields: bool = True
    """Slow catch-up down while clients append, so that appends take at most 1.65 times as long. false: as
    fast as it goes."""
    repair_bytes_per_second: NotNegative = 64 << 20
    """Pace at which damaged data files are written anew. 0: no limit."""
    disk_reserve_bytes: NotNegative | None = None
    """Space that appends of clients leave free. Past it: 415. Default: a data file, its index, and up to
    64 MiB."""

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
    """Entries older than this may go, e.g. `"7d"`. Default: no limit."""
    max_bytes: Positive | None = None
    """Entries beyond so many bytes may go. Default: no limit."""
    min_free_bytes: Positive | None = None
    """When less is free on the leader's file system, the oldest entries may go, no more than is missing.
    Default: no limit."""
    hold_bytes: NotNegative = 1 << 30
    """A follower further behind than this no longer holds purging back."""
    check_interval: Duration = "10s"
    """How often the leader looks for something to purge."""

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

    bytes_per_second: NotNegative = 4 << 20
    """Pace of the background scrub. 0: only `dledger scrub` scrubs."""
    pause: Duration = "1d"
    """Time between two rounds over the whole log."""


class LogConfig(_Section):
    """How the node writes its own log lines (on stderr)."""

    format: Literal["text", "json"] = "text"
    """`json` for machines."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is written."""


class TlsConfig(_Section):
    """PEM files, read again when they change. Relative paths are relative to the configuration's file."""

    certificate: Path
    """The node's certificate (PEM)."""
    key: Path
    """Its key (PEM). Refused (630) if every user may write it."""
    ca: Path
    """Whose certificates are trusted (PEM)."""
    client_auth: Literal["require", "none"] = "require"
    """`none`: anybody may connect, and then also speak as a member unless the cluster has a secret."""
    http_client_auth: Literal["require", "none"] = "none"
    """`require`: the status port asks for certificates of `ca`, too."""
    peer_names: dict[Name, Name] = Field(default_factory=dict)
    """What a member's certificate must name, by node id. Default: the node id, or the host if no other
    member has it."""
    admin_names: tuple[Name, ...] = ()
    """Names in certificates that may transfer, purge, scrub and back up, beside those of the members.
    Needs `client_auth = "require"`."""

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

    factory: Annotated[str, Field(min_length=1)]
    """`MODULE:FACTORY` of the program that lives on the node. A broker:
    `broker_adapter.server.program:broker`."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the program. Those of a broker are below."""


class NodeConfig(_Section):
    """One node."""

    directory: Path
    """The node's directory. Relative to the configuration's file."""
    node_id: Name
    """This node, one of `members`."""
    cluster_id: Name
    """Any text, the same on all nodes. Keeps clusters apart that meet by mistake."""
    group: Name = "default"
    """Name of the log, the same on all nodes."""
    members: dict[Name, Address] = Field(min_length=1)
    """host:port of each member by node id. Clients are told these addresses. The ids are fixed once the
    node has voted or stored an entry."""
    http_members: dict[Name, Address] = Field(default_factory=dict)
    """host:port of the status pages of members by node id. Lets the pages link to each other."""
    peer_addresses: dict[Name, Address] = Field(default_factory=dict)
    """host:port by node id at which this node reaches other members, if not at those in `members`: a
    network of their own."""
    listen: Address | Literal[""] = ""
    """host:port to serve on. Default: this node's address in `members`."""
    http_listen: Address | Literal[""] = ""
    """host:port of the status page, probes and metrics. Empty: none."""
    http_allowed_hosts: tuple[Name, ...] = ()
    """Names by which requests may call the status port (`Host`), beside addresses, `localhost`, the
    machine's own name and the hosts of members. `".example.com"`: that name and all below it; `"*"`: any.
    Others get 421, against DNS rebinding."""
    http_tls: bool = True
    """With `[tls]`: the status port speaks TLS. false: it stays in plain text."""
    allow_plaintext: bool = False
    """Without `[tls]`: listen, and talk to members, beyond loopback all the same."""
    cluster_secret_file: Path | None = None
    """The secret by which members know each other; one line, or two while it changes. Needed beyond
    loopback without mutual TLS. Relative to the configuration's file."""
    preferred_leaders: tuple[Name, ...] = ()
    """Leadership moves to the first of these that is alive and caught up. Never blocks an election."""
    keep_cpus_awake: bool = True
    """Keep CPUs awake while there is work in flight, if the process may ask for it
    (`/dev/cpu_dma_latency`)."""
    tls: TlsConfig | None = None
    """Certificates. Without it: plain text, on loopback only."""
    timing: TimingConfig = TimingConfig()
    """Time-outs and intervals."""
    limits: LimitsConfig = LimitsConfig()
    """Limits. See [limits](../limits.md)."""
    retention: RetentionConfig = RetentionConfig()
    """What may be forgotten. Without it nothing is."""
    scrub: ScrubConfig = ScrubConfig()
    """Reading all that is stored, to find damage."""
    log: LogConfig = LogConfig()
    """The node's own log lines."""
    program: ProgramConfig | None = None
    """What lives on the node, as a broker does."""

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
    host = host_of(address)
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
