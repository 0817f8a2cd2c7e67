"""What may differ between the states of one running node before and after a step.

Invariants of a state cannot see that it moved backwards; these compare two, as LogCabin's `checkDelta` does
(https://github.com/logcabin/logcabin, Server/RaftConsensusInvariants.cc).
"""

from __future__ import annotations

from typing import NamedTuple

from dledger.testing.virtual.violation import Violation


class NodeState(NamedTuple):
    """One life of a node, between two steps. `begin_index`: its log begins after this entry.
    `committed_chain`: the chain checksum at the committed index, which stands for all that is before it; None
    where the log begins behind it."""

    term: int
    voted_for: str | None
    role_epoch: int
    committed_index: int
    applied_index: int
    begin_index: int
    durable_index: int
    committed_chain: int | None


#: Nothing of these is ever less than it was.
_ONLY_GROW = ("term", "role_epoch", "committed_index", "applied_index", "begin_index")


def check_step(
    node_id: str, old: NodeState, new: NodeState, *, cut_after: int | None, chain_before: int | None
) -> None:
    """Raises Violation. `cut_after`: the lowest entry behind which the step has cut the log; None: it has
    not. `chain_before`: the chain checksum that the log has now where it was committed before the step; None
    if it begins behind that."""
    for name in _ONLY_GROW:
        if name == "applied_index" and _is_forgotten(old, new):
            continue
        before, after = getattr(old, name), getattr(new, name)
        if after < before:
            raise Violation("nothing goes back", f"{name} of {node_id} from {before} to {after}")
    if new.term == old.term and old.voted_for not in (None, new.voted_for):
        raise Violation("one vote per term", f"{node_id} from {old.voted_for} to {new.voted_for}")
    least = old.durable_index if cut_after is None else min(old.durable_index, cut_after)
    if new.durable_index < least:
        raise Violation(
            "nothing goes back",
            f"durable_index of {node_id} from {old.durable_index} to {new.durable_index}, cut: {cut_after}",
        )
    if old.committed_chain is not None and chain_before not in (None, old.committed_chain):
        raise Violation(
            "committed is forever",
            f"{node_id} has another log up to {old.committed_index}, which it had committed",
        )
    if old.committed_chain is not None and chain_before is None and new.begin_index < old.committed_index:
        raise Violation("committed is forever", f"{node_id} has no entry {old.committed_index} any more")


def _is_forgotten(old: NodeState, new: NodeState) -> bool:
    """The log begins behind the entries that come next for the state, which an image will replace."""
    return new.applied_index == -1 and new.begin_index > old.applied_index
