"""Interface for tracing the steps of a node."""

from __future__ import annotations

from typing import Any, Protocol


class NodeTrace(Protocol):
    """A receiver of trace events.

    The methods are called on the node's event loop, in the step that makes a change and before other nodes or
    clients can observe it. An exception stops the node. Chains are 8 hex digits; index -1 means none.
    """

    def begin(self, node_id: str, incarnation: int) -> None:
        """Start the trace. Called once, before all events."""

    def event(self, ev: str, e: str, fields: dict[str, Any]) -> None:
        """Record an event.

        - (raft, term_vote): term and vote are durable.
        - (raft, vote): this node grants its vote; its own log ends at last_index, last_term, the
          candidate's log at cand_last_index, cand_last_term.
        - (raft, candidate | leader | follower): the role has changed.
        - (raft, commit): committed up to lidx.
        - (raft, configuration): these members are in force from now on, by entry lidx. Names are separated by
          commas, and each of the uids is a name, a colon, and the uid.
        - (raft, configuration_undone): entry lidx was removed, so its configuration is not in force any more.
        - (raft, configuration_committed): the configuration of entry lidx is committed.
        - (raft, accept): a batch of the program that owns the node is accepted in this term.
        - (raft, ack): the caller of an append that ends at lidx is about to receive the result.
        - (raft, apply): the state machine has applied lidx to last, without the internal entries among them.
        - (raft, load): it has loaded a state up to lidx.
        - (store, recover): once, first. uid: as which member the node was added; -1: not yet.
        - (store, append): entries lidx to last, of one term, are passed to the disk.
        - (store, flush): durable up to lidx.
        - (store, truncate): entries from lidx on will be deleted.
        - (store, install | purge): the log starts after lidx.
        """
