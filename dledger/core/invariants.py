"""What must hold of a core after every step (design rule 8 and the Raft paper, section 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dledger.core.values import Role

if TYPE_CHECKING:
    from dledger.core.raft import RaftCore


def check_core(core: RaftCore) -> None:
    """Raise AssertionError if the state contradicts itself. Cheap: it runs after every step."""
    log = core.log
    assert log.begin_index - 1 <= core.committed_index <= log.end_index, (core.committed_index, log)
    assert log.base.index <= log.durable_index <= log.end_index, log
    assert log.base.index <= log.verified_index <= log.end_index, log
    assert log.end_term <= core.term, f"an entry of term {log.end_term} in term {core.term}"
    if core.role is Role.LEADER:
        assert core.leadership is not None and core.leader_id == core.node_id
        assert core.hard_state.voted_for == core.node_id and core.shortcut is None
    else:
        assert core.leadership is None and core.leader_id != core.node_id
        assert core.committed_index <= log.verified_index, (core.committed_index, log)
    if core.shortcut is not None:
        assert core.role is Role.FOLLOWER
