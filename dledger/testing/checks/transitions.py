"""Checks of the transition between the states of a running node before and after a step.

Invariants of a single state cannot detect that it moved backwards. These checks compare two states, like
LogCabin's `checkDelta` (https://github.com/logcabin/logcabin, Server/RaftConsensusInvariants.cc).
"""

from __future__ import annotations

from typing import NamedTuple

from dledger.testing.virtual.violation import Violation


class ObservedState(NamedTuple):
    """State of one process of a node between two steps. `begin_index`: the log starts after this entry.
    `committed_chain`: chain checksum at the committed index, which covers everything before it; None if the
    log starts after that index."""

    term: int
    voted_for: str | None
    role_epoch: int
    committed_index: int
    applied_index: int
    begin_index: int
    durable_index: int
    committed_chain: int | None
    needs_image: bool


#: Fields that never decrease.
_ONLY_GROW = ("term", "role_epoch", "committed_index", "applied_index", "begin_index")


def check_step(
    node_id: str, old: ObservedState, new: ObservedState, *, cut_after: int | None, chain_before: int | None
) -> None:
    """Check a step. `cut_after`: the lowest index after which the step truncated the log; None if it did not
    truncate. `chain_before`: current chain checksum at the previous committed index; None if the log starts
    after it. Raises Violation."""
    for name in _ONLY_GROW:
        if name == "applied_index" and _is_forgotten(old, new):
            continue
        before, after = getattr(old, name), getattr(new, name)
        if after < before:
            raise Violation("nothing goes back", f"{name} of {node_id} decreased from {before} to {after}")
    if new.term == old.term and old.voted_for not in (None, new.voted_for):
        raise Violation(
            "one vote per term",
            f"{node_id} changed its vote from {old.voted_for} to {new.voted_for} within a term",
        )
    least = old.durable_index if cut_after is None else min(old.durable_index, cut_after)
    if new.durable_index < least:
        raise Violation(
            "nothing goes back",
            f"durable_index of {node_id} decreased from {old.durable_index} to {new.durable_index}; the "
            f"log was cut after {cut_after}",
        )
    if old.committed_chain is not None and chain_before not in (None, old.committed_chain):
        raise Violation(
            "committed is forever",
            f"the log of {node_id} up to {old.committed_index} has changed although it was committed",
        )
    if old.committed_chain is not None and chain_before is None and new.begin_index < old.committed_index:
        raise Violation(
            "committed is forever", f"{node_id} has lost the committed entry {old.committed_index}"
        )


def _is_forgotten(old: ObservedState, new: ObservedState) -> bool:
    """Return True if an image will replace the state: the log starts after the next entry to apply, or has
    damaged entries that all other members have purged."""
    return new.applied_index == -1 and (new.begin_index > old.applied_index or new.needs_image)
