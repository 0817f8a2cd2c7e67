"""Status of a replica, as values."""

from __future__ import annotations

from dataclasses import dataclass

from dledger.core.values import HardState, OwnerFitness, Role
from dledger.replica.parts import ReplicaParts


@dataclass(frozen=True, slots=True)
class FollowerView:
    """The leader's view of one follower; bytes are positions in the log."""

    node_id: str
    push_state: str
    match_index: int
    lag_entries: int
    lag_bytes: int
    inflight_bytes: int
    last_contact_ms: int
    owner: OwnerFitness | None
    not_ready: str  # of a learner: why it cannot become a voter


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
    clocks: dict[str, int]  # by member: how far its wall clock is ahead of cluster time
    age_purge_step_ms: int
    age_purge_pause_ms: int
    rejoining: str  # pending condition; empty for a full member
    rebuilding: str  # pending work of the session rebuild; empty once done
    followers: tuple[FollowerView, ...]
    limits_hit: dict[str, int]


def rejoining_text(state: HardState, missing: tuple[str, ...], end_index: int) -> str:
    """Describe the pending steps of a rejoining node. Returns an empty text for a full member."""
    if state.rejoining and missing:
        return f"waiting for {', '.join(missing)} to report the end of the log"
    if state.rejoining:
        return f"all members have reported; catching up, stored up to {end_index}"
    if state.is_barred:
        return f"caught up; counts from the first term after {state.barred_term}"
    return ""


def status_of(replica: ReplicaParts) -> ReplicaStatus:
    core, admission, wall_ms = replica.core, replica.admission, replica.wall_ms()
    clock, keeper = admission.state.clock, replica.clock_keeper
    time_ms = clock.read(core.now_ms, wall_ms)
    return ReplicaStatus(
        role=core.role,
        term=core.term,
        role_epoch=core.role_epoch,
        incarnation=core.hard_state.incarnation,
        leader_id=core.leader_id,
        ledger_begin_index=core.log.begin_index,
        ledger_end_index=core.log.end_index,
        ledger_end_term=core.log.end_term,
        durable_index=core.log.durable_index,
        verified_index=core.log.verified_index,
        committed_index=core.committed_index,
        ledger_end_pos=replica.log_tail.pos,
        committed_pos=replica.committed_pos,
        pending_bytes=admission.pending_bytes,
        sessions=len(admission.sessions),
        transferring_to=core.transferring_to,
        followers=_follower_views(replica),
        limits_hit=dict(admission.limits_hit),
        needs_image=admission.state.needs_image,
        newest_image=admission.state.newest_image,
        cluster_time_ms=time_ms,
        clock_offset_ms=clock.offset_ms(core.now_ms, wall_ms),
        clocks={member: clock_ms - time_ms for member, clock_ms in keeper.walls(core.now_ms).items()},
        age_purge_step_ms=keeper.age_purge_step_ms,
        age_purge_pause_ms=keeper.pause_left_ms(core.now_ms),
        rebuilding=replica.rebuilding.text(),
        rejoining=rejoining_text(core.hard_state, core.rejoining.missing, core.log.end_index),
    )


def _follower_views(replica: ReplicaParts) -> tuple[FollowerView, ...]:
    core, learners = replica.core, replica.core.membership.learners
    leadership = core.leadership
    if leadership is None:
        return ()
    return tuple(
        FollowerView(
            node_id=p.peer,
            push_state=p.state.value,
            match_index=p.match_index,
            lag_entries=core.log.end_index - p.match_index,
            lag_bytes=replica.log_tail.pos - replica.pos_after(p.match_index),
            inflight_bytes=p.inflight_bytes,
            last_contact_ms=core.now_ms - p.last_contact_ms,
            owner=p.owner,
            not_ready=leadership.why_not_ready(p.peer) if p.peer in learners else "",
        )
        for p in leadership.progress.values()
    )
