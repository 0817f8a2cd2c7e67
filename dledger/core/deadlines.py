"""Computes when the core next needs a tick, so that an idle node does not tick many times a second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dledger.core.quorum import committed_by

if TYPE_CHECKING:
    from dledger.core.leadership import Leadership
    from dledger.core.raft import RaftCore

_NEVER = 1 << 62


def next_tick_ms(core: RaftCore) -> int:
    """Return the first time at which a Tick has an effect, assuming no other event and no fsync before it.

    A result of `core.now_ms` or less means that ticks are needed at the normal rate.
    """
    if core.hard_state.rejoining:
        return core.now_ms
    due = _NEVER
    if (request_ms := core.rejoining.next_request_ms) is not None:
        due = request_ms
    if core.successor_awaited:
        due = min(due, core.successor_awaited.due_ms)
    if core.leadership:
        return min(due, _of_leader(core, core.leadership))
    if not core.may_campaign:
        if core.leader_id is not None:
            due = min(due, core.election_deadline_ms)
        return core.now_ms if core.shortcut or core.candidacy or core.standing else due
    if core.shortcut:
        return min(due, core.shortcut.next_ms)
    if core.candidacy:
        return min(due, core.candidacy.deadline_ms)
    if (silence_due_ms := core.silence_due_ms) is not None:
        due = min(due, silence_due_ms)
    return min(due, max(core.election_deadline_ms, core.stall_guard.candidate_from_ms))


def _of_leader(core: RaftCore, leadership: Leadership) -> int:
    progress = leadership.progress
    if leadership.departing or any(p.awaits_new_term for p in progress.values()):
        return core.now_ms
    contacts = {peer: p.last_contact_ms for peer, p in progress.items()} | {core.node_id: _NEVER}
    dues = [
        leadership.next_heartbeat_ms,
        leadership.handing_over.next_check_ms,
        # Check-quorum: the last majority contact is valid until then.
        committed_by(core.membership, contacts) + core.timing.election_min_ms,
        *(p.probe_due_ms for p in progress.values() if p.probe_due_ms is not None),
    ]
    if leadership.handing_over.running:
        dues.append(leadership.handing_over.running.deadline_ms)
    return min(dues)
