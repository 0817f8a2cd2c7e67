"""Probes with which load balancers decide whether this node should receive a kind of traffic.

Every result is the belief of *this node*. No lease is used, so a partitioned leader reports "leader" until
check-quorum makes it step down, and for a moment two nodes may both claim to lead. That is safe, because a
deposed leader never acknowledges an append. The client only has to retry.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger.status.model import NodeStatus

# A node's lag as (entries, bytes), or why it is unknown.
Lag = tuple[int, int] | str


@dataclass(frozen=True, slots=True)
class LagBound:
    """The maximum lag of a replica; None: no limit."""

    entries: int | None = None
    bytes: int | None = None

    @property
    def is_limited(self) -> bool:
        return self.entries is not None or self.bytes is not None


@dataclass(frozen=True, slots=True)
class ProbeResult:
    ok: bool
    reason: str

    @property
    def http_status(self) -> int:
        return 200 if self.ok else 503


def probe_leader(status: NodeStatus) -> ProbeResult:
    if status.is_leader:
        return ProbeResult(True, f"leader in term {status.term}")
    if status.leader_id:
        return ProbeResult(False, f"role is {status.role}; the leader is {status.leader_id}")
    return ProbeResult(False, f"role is {status.role}; no leader is known")


def probe_replica(status: NodeStatus) -> ProbeResult:
    """Check that the node is a follower that knows its leader. `probe_lag` checks its lag."""
    if status.role != "FOLLOWER":
        return ProbeResult(False, f"role is {status.role}")
    if not status.leader_id:
        return ProbeResult(False, "no leader is known")
    return ProbeResult(True, f"follower of {status.leader_id} in term {status.term}")


def probe_lag(lag: Lag, bound: LagBound) -> ProbeResult:
    if isinstance(lag, str):
        return ProbeResult(False, lag)
    entries, size = lag
    if bound.entries is not None and entries > bound.entries:
        return ProbeResult(False, f"{entries} entries behind, more than {bound.entries}")
    if bound.bytes is not None and size > bound.bytes:
        return ProbeResult(False, f"{size} bytes behind, more than {bound.bytes}")
    return ProbeResult(True, f"{entries} entries and {size} bytes behind")


def probe_health(status: NodeStatus) -> ProbeResult:
    if status.health != "ok":
        return ProbeResult(False, status.health)
    if not status.leader_id:
        return ProbeResult(False, "no leader is known")
    return ProbeResult(True, "ok")
