"""What a node tells of each of its steps, if it is given somebody to tell."""

from __future__ import annotations

from typing import Any, Protocol


class NodeTrace(Protocol):
    """Called on the node's event loop, in the step that makes the change and before anybody outside can see
    it. What it raises ends the node. Chains are 8 hex digits, indexes -1 for none."""

    def begin(self, node_id: str, incarnation: int) -> None:
        """Once, before all events."""

    def event(self, ev: str, e: str, fields: dict[str, Any]) -> None:
        """(raft, term_vote): term and vote are durable. (raft, vote): this node grants its vote; its own
        log's end is last_index, last_term, the candidate's is cand_last_index, cand_last_term. (raft,
        candidate | leader | follower). (raft, commit): up to lidx. (raft, accept): a batch of the program
        that owns the node is taken in this term. (raft, ack): an append that ends at lidx is about to be
        answered. (raft, apply): the state machine has applied lidx to last, what is internal among them
        passed over. (raft, load): it has taken over a state up to lidx. (store, recover): once, first.
        (store, append): entries lidx to last, of one term, go to the disk. (store, flush): durable up to
        lidx. (store, truncate): entries from lidx on are to go. (store, install | purge): the log begins
        after lidx."""
