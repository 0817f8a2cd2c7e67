"""What a replica says of itself, as values."""

from __future__ import annotations

from dataclasses import dataclass

from dledger.core.values import HardState, Role


@dataclass(frozen=True, slots=True)
class FollowerView:
    """What the leader knows of one follower; bytes are of the data stream."""

    node_id: str
    push_state: str
    match_index: int
    lag_entries: int
    lag_bytes: int
    inflight_bytes: int
    last_contact_ms: int


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    role: Role
    term: int
    role_epoch: int
    incarnation: int
    leader_id: str | None
    ledger_begin_index: int
    ledger_end_index: int
    ledger_end_term: int
    durable_index: int
    verified_index: int
    committed_index: int
    ledger_end_pos: int
    committed_pos: int
    pending_bytes: int
    sessions: int
    transferring_to: str | None
    needs_image: bool
    newest_image: int
    cluster_time_ms: int
    clock_offset_ms: int
    rejoining: str  # what it waits for; empty: it is a full member
    followers: tuple[FollowerView, ...]
    limits_hit: dict[str, int]


def rejoining_text(state: HardState, missing: tuple[str, ...], end_index: int) -> str:
    """What a node that lost (the end of) its log still waits for, in words; empty if it is a full member."""
    if state.rejoining and missing:
        return f"waiting for {', '.join(missing)} to say how far the log reaches"
    if state.rejoining:
        return f"all members have answered; catching up, stored up to {end_index}"
    if state.is_barred:
        return f"caught up; counts in the first term after {state.barred_term}"
    return ""
