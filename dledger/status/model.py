"""The model behind all forms of the status API (gRPC, HTTP/JSON, metrics, page)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: `NodeStatus.health` of a node that cannot lead, because its disk has no room for another data file.
DISK_FULL_HEALTH = "the disk is full"


@dataclass(frozen=True, slots=True)
class MemberAddress:
    """Where a member of the group listens."""

    node_id: str
    address: str  # gRPC, host:port
    http_address: str = ""  # status page and metrics; empty if unknown
    role: str = "voter"  # voter, leaving (a voter until the change under way is committed), or learner
    uid: int = 0  # as which member it was added; 0: one of the first members


@dataclass(frozen=True, slots=True)
class FollowerStatus:
    """The leader's view of one follower."""

    node_id: str
    connected: bool
    push_state: str  # COMPARE, APPEND, or DISCONNECTED
    match_index: int
    lag_entries: int
    lag_bytes: int
    inflight_bytes: int
    last_contact_ms: int  # since its last answer; -1: never
    owner_lag_bytes: int = -1  # backlog of the program that owns it; -1: not reported
    owner_unfit: bool = False  # the program that owns it asks not to be elected
    not_ready: str = ""  # of a learner: why it cannot become a voter now


@dataclass(frozen=True, slots=True)
class ElectionEvent:
    """A change of role, term or leader seen by this node. unix_ms is wall-clock time, for display."""

    unix_ms: int
    term: int
    role: str
    leader_id: str
    cause: str  # as in dledger.core.effects.RoleChanged


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Durable entries that can no longer be read, with the location and reason of the first fault."""

    first_index: int
    last_index: int
    file: str
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The status of a node. The fields correspond to NodeStatus in proto/dledger/v1/admin.proto."""

    cluster_id: str
    group: str
    node_id: str
    pid: int
    version: str
    address: str
    http_address: str
    role: str
    term: int
    role_epoch: int
    incarnation: int
    leader_id: str
    leader_address: str
    leader_since_unix_ms: int
    ledger_begin_index: int
    ledger_end_index: int
    ledger_end_term: int
    durable_index: int
    verified_index: int
    committed_index: int
    applied_index: int
    ledger_end_pos: int
    committed_pos: int
    flush_mode: str
    pending_bytes: int
    disk_used_bytes: int
    disk_free_bytes: int
    uptime_ms: int
    members: tuple[MemberAddress, ...] = ()
    followers: tuple[FollowerStatus, ...] = ()
    elections: tuple[ElectionEvent, ...] = ()
    limits_hit: dict[str, int] = field(default_factory=dict)
    health: str = "ok"
    transferring_to: str = ""
    sessions: int = 0
    damaged: tuple[DamagedRange, ...] = ()
    rejoining: str = ""
    needs_image: bool = False
    no_room: bool = False
    reserved_bytes: int = 0
    scrubbed_index: int = -1
    scrub_found: int = 0
    repaired: int = 0
    cluster_time_ms: int = 0
    clock_offset_ms: int = 0
    newest_image: int = -1
    data_file_size: int = 0
    disk: str = "ok"
    fsync_ms: int = 0
    repairing_index: int = -1
    writing_image: bool = False
    tls: str = "off"
    owner: dict[str, Any] = field(default_factory=dict)  # status of the program that owns the node
    rebuilding: str = ""  # what the rebuild of the sessions waits for after a start
    clocks: dict[str, int] = field(default_factory=dict)  # by member: ms ahead of cluster time
    clock_spread_ms: int = 0
    age_purge_step_ms: int = 0
    age_purge_pause_ms: int = 0
    membership_index: int = -1  # of the newest change of the members; -1: none
    membership_changes: bool = False  # a change of the members is under way
    uid: int = 0  # as which member it was added; 0: one of the first members; -1: not added yet
    directory: int = 0  # number of its directory

    def count_members(self, role: str) -> int:
        return sum(member.role == role for member in self.members)

    @property
    def is_leader(self) -> bool:
        return self.role == "LEADER"


_EQUAL_IN_A_GROUP = ("cluster_id", "group", "data_file_size", "flush_mode")


def why_foreign(new: NodeStatus, node_id: str, member: NodeStatus) -> str:
    """Return what tells a node from a new node `node_id` of the group of `member`; "" if nothing does."""
    differing = [name for name in _EQUAL_IN_A_GROUP if getattr(member, name) != getattr(new, name)]
    if new.node_id == node_id and not differing:
        return ""
    return ", ".join(f"{name} {getattr(new, name)!r:.300}" for name in ("node_id", *differing))
