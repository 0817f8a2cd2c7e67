"""Yes or no for load balancers: may traffic of this kind go to this node?

Every answer is what *this node believes*. No lease is used anywhere, so a leader that was just cut off
answers "leader" until check-quorum tells it otherwise, and for a moment two nodes may both say so. That is
harmless for safety: an append on a deposed leader is never acknowledged. It only costs the client a retry.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger.status.model import NodeStatus

# What is known of a node's lag: (entries, bytes), or why it is not known.
Lag = tuple[int, int] | str


@dataclass(frozen=True, slots=True)
class LagBound:
    """The most that a replica may be behind; None: no bound."""

    entries: int | None = None
    bytes: int | None = None

    @property
    def given(self) -> bool:
        return self.entries is not None or self.bytes is not None


@dataclass(frozen=True, slots=True)
class Verdict:
    ok: bool
    reason: str

    @property
    def http_status(self) -> int:
        return 200 if self.ok else 503


def leader_verdict(status: NodeStatus) -> Verdict:
    if status.is_leader:
        return Verdict(True, f"leader in term {status.term}")
    if status.leader_id:
        return Verdict(False, f"role is {status.role}; the leader is {status.leader_id}")
    return Verdict(False, f"role is {status.role}; no leader is known")


def replica_verdict(status: NodeStatus) -> Verdict:
    """A follower that knows its leader. Its lag is judged apart, by lag_verdict."""
    if status.role != "FOLLOWER":
        return Verdict(False, f"role is {status.role}")
    if not status.leader_id:
        return Verdict(False, "no leader is known")
    return Verdict(True, f"follower of {status.leader_id} in term {status.term}")


def lag_verdict(lag: Lag, bound: LagBound) -> Verdict:
    if isinstance(lag, str):
        return Verdict(False, lag)
    entries, size = lag
    if bound.entries is not None and entries > bound.entries:
        return Verdict(False, f"{entries} entries behind, more than {bound.entries}")
    if bound.bytes is not None and size > bound.bytes:
        return Verdict(False, f"{size} bytes behind, more than {bound.bytes}")
    return Verdict(True, f"{entries} entries and {size} bytes behind")


def health_verdict(status: NodeStatus) -> Verdict:
    if status.health != "ok":
        return Verdict(False, status.health)
    if not status.leader_id:
        return Verdict(False, "no leader is known")
    return Verdict(True, "ok")
