"""The way back from a term that nobody can go on from: near the end of its range, or out of reach for peers.

A term never falls automatically, because a vote is a promise for one term. It may be lowered by hand if that
forgets no promise that anybody can still rely on: all nodes of the cluster are stopped, so no vote or answer
is on its way; all get the same new term; and it is above the term of every entry that any of them stores, so
no leader of a forgotten term has left an entry that a second leader of the same term could contradict.

Raising the term of one stopped node is always safe: it is what the node does when it hears of a later term.
It is needed where the cluster is further ahead than a node believes its peers.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from dledger.core.values import MAX_INCARNATION, MAX_TERM, HardState
from dledger.errors import Code, InvalidRequest, StorageError
from dledger.store.disk import Disk, OsDisk
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.layout import NodePaths
from dledger.store.state_files import write_hard_state


class TermReport(NamedTuple):
    """Of one stopped node."""

    cluster_id: str
    node_id: str
    term: int
    voted_for: str | None
    last_index: int
    last_term: int  # the greatest term of an entry that it has, or is known to have had

    @property
    def least(self) -> int:
        """The least term that this node allows. The greatest of all nodes' is the least for the cluster."""
        return self.last_term + 1


def check_range(state: HardState, directory: Path) -> None:
    """StorageError (TERM_REFUSED) if a node cannot go on from what is stored there."""
    if state.term > MAX_TERM or state.barred_term > MAX_TERM:
        raise StorageError(
            f"{directory} is in term {max(state.term, state.barred_term)}, above {MAX_TERM}: a peer has sent "
            "what no election leads to. Stop all nodes, then see `dledger set-term --help`",
            code=Code.TERM_REFUSED,
        )
    if state.incarnation >= MAX_INCARNATION:
        raise StorageError(
            f"{directory} is in incarnation {state.incarnation}, the last one: remove the directory, and "
            "start the node with --rejoin",
            code=Code.TERM_REFUSED,
        )


def report_term(directory: Path, *, disk: Disk | None = None) -> TermReport:
    """Errors as DiskLogStore.open; DIRECTORY_LOCKED while the node runs. Nothing is changed."""
    store = DiskLogStore.open(directory, disk=disk)
    try:
        return _report(store)
    finally:
        store.close()


def set_term(directory: Path, to: int, *, disk: Disk | None = None) -> TermReport:
    """Make `to` the node's term, without a vote, durably. What it was before.

    InvalidRequest if `to` is not above the term of its entries, or out of range; errors as DiskLogStore.open.
    Setting the term that it is in already changes nothing, so it can be repeated.
    """
    disk = disk or OsDisk()
    store = DiskLogStore.open(directory, disk=disk)
    try:
        found, state = _report(store), store.hard_state
        if to == found.term and state.barred_term <= to:
            return found
        if not found.least <= to <= MAX_TERM:
            raise InvalidRequest(
                f"{found.node_id} stores entries of term {found.last_term}: its term can be set to "
                f"{found.least}..{MAX_TERM}, not to {to}"
            )
        # A node that may not vote before a term that nobody had heard of may from the next one on.
        new = replace(state, term=to, voted_for=None, barred_term=min(state.barred_term, to))
        # The store itself never lowers a term: its lock is held, its file is replaced.
        write_hard_state(disk, NodePaths(directory).hard_state, new)
        return found
    finally:
        store.close()


def _report(store: DiskLogStore) -> TermReport:
    identity, state = store.identity, store.hard_state
    last_term = max(store.tail.term, store.base.term, state.floor_term, 0)
    return TermReport(
        identity.cluster_id, identity.node_id, state.term, state.voted_for, store.end_index, last_term
    )
