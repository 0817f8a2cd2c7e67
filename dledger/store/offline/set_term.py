"""Lowers a term in which no node can continue, because it is near the end of the range or so far ahead that
peers reject it.

A term never decreases automatically, because a vote is a promise for one term. An operator may lower it only
if no other node can still rely on such a promise. This requires three conditions. All nodes of the cluster
are stopped, so no vote or response is in flight. All nodes get the same new term. The new term is above the
term of every stored entry, so no leader can be elected in a term in which an earlier leader has stored
entries.

Raising the term of one stopped node is always safe: a node does the same when it receives a later term. It is
needed if the cluster is further ahead than a node accepts from its peers.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from dledger.core.values import MAX_INCARNATION, MAX_TERM, HardState
from dledger.errors import Code, InvalidRequest, StorageError
from dledger.infra.files.disk import Disk, OsDisk
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.layout import NodePaths
from dledger.store.state_files import write_hard_state


class TermReport(NamedTuple):
    """The term of one stopped node."""

    cluster_id: str
    node_id: str
    term: int
    voted_for: str | None
    last_index: int
    last_term: int  # the greatest term of an entry that the node has, or is known to have had

    @property
    def least(self) -> int:
        """The lowest term that this node allows. The maximum over all nodes is the lowest for the cluster."""
        return self.last_term + 1


def check_range(state: HardState, directory: Path) -> None:
    """Raise StorageError TERM_REFUSED if a node cannot continue from the stored term or incarnation."""
    if state.term > MAX_TERM or state.barred_term > MAX_TERM:
        raise StorageError(
            f"{directory} is in term {max(state.term, state.barred_term)}, above the maximum {MAX_TERM}: "
            "a peer sent a term that elections cannot produce. Stop all nodes, then see `dledger "
            "set-term --help`",
            code=Code.TERM_REFUSED,
        )
    if state.incarnation >= MAX_INCARNATION:
        raise StorageError(
            f"{directory} is in incarnation {state.incarnation}, the highest possible: remove the "
            "directory and start the node with --rejoin",
            code=Code.TERM_REFUSED,
        )


def report_term(directory: Path, *, disk: Disk | None = None) -> TermReport:
    """Report the term of a stopped node. Raises the errors of DiskLogStore.open, such as DIRECTORY_LOCKED
    while the node runs."""
    store = DiskLogStore.open(directory, disk=disk)
    try:
        return _report(store)
    finally:
        store.close()


def set_term(directory: Path, to: int, *, disk: Disk | None = None) -> TermReport:
    """Durably set the node's term to `to` and clear its vote. Returns the previous state.

    Raises InvalidRequest if `to` is out of range or not above the term of the stored entries, and the errors
    of DiskLogStore.open. Setting the current term again changes nothing, so the operation can be repeated.
    """
    disk = disk or OsDisk()
    store = DiskLogStore.open(directory, disk=disk)
    try:
        report, state = _report(store), store.hard_state
        if to == report.term and state.barred_term <= to:
            return report
        if not report.least <= to <= MAX_TERM:
            raise InvalidRequest(
                f"{report.node_id} stores entries from term {report.last_term}: choose a term from "
                f"{report.least} to {MAX_TERM}, not {to}"
            )
        # A node barred from voting up to an unreachable term may vote again from the next term on.
        new = replace(state, term=to, voted_for=None, barred_term=min(state.barred_term, to))
        # The store never lowers a term itself: replace its file while holding its lock.
        write_hard_state(disk, NodePaths(directory).hard_state, new)
        return report
    finally:
        store.close()


def _report(store: DiskLogStore) -> TermReport:
    identity, state = store.identity, store.hard_state
    last_term = max(store.tail.term, store.base.term, state.floor_term, 0)
    return TermReport(
        identity.cluster_id, identity.node_id, state.term, state.voted_for, store.end_index, last_term
    )
