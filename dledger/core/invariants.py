"""Invariants of a core, checked after every step (docs/guarantees.md rule 8; Raft paper, section 5)."""

from __future__ import annotations

from dledger.core.core_state import CoreState
from dledger.core.values import Role

# Cached: accessing an enum member costs as much as the rest of a line, and this runs after every step.
_LEADER, _FOLLOWER = Role.LEADER, Role.FOLLOWER


def check_core(core: CoreState) -> None:
    """Raise AssertionError if the state is inconsistent. Must stay cheap."""
    log = core.log
    begin, end, committed = log.base.index, log.end_index, core.committed_index
    assert begin <= committed <= end, (committed, log)
    assert begin <= log.durable_index <= end, log
    assert begin <= log.verified_index <= end, log
    assert log.end_term <= core.hard_state.term, f"an entry of term {log.end_term} in term {core.term}"
    if core.role is _LEADER:
        assert core.leads and core.leader_id == core.node_id
        assert core.hard_state.voted_for == core.node_id and core.shortcut is None
    else:
        assert not core.leads and core.leader_id != core.node_id
        assert committed <= log.verified_index, (committed, log)
    if core.shortcut is not None:
        assert core.role is _FOLLOWER
