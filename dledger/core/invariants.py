"""What must hold of a core after every step (docs/guarantees.md rule 8 and the Raft paper, section 5)."""

from __future__ import annotations

from dledger.core.node_state import NodeState
from dledger.core.values import Role

# Looked up once: an enum's member costs as much as the rest of a line, and this runs all the time.
_LEADER, _FOLLOWER = Role.LEADER, Role.FOLLOWER


def check_core(core: NodeState) -> None:
    """Raise AssertionError if the state contradicts itself. Cheap: it runs after every step."""
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
