"""A view of the whole cluster, assembled from the status of each node."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dledger.status.encoding import node_status_to_json
from dledger.status.model import ElectionEvent, MemberAddress, NodeStatus

# The status of a node, or why it is not available.
NodeAnswer = NodeStatus | str

CACHE_SECONDS = 0.5
QUERY_SECONDS = 3.0
TERMS_SHOWN = 12

# Causes that start an election.
_TRIGGERS = frozenset({"transfer", "stream-lost", "leader-silent", "timeout", "start"})


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The responses of all nodes to one round of queries. `unix_ms`: the time of the queries."""

    asked: NodeStatus
    answers: Mapping[str, NodeAnswer]
    unix_ms: int

    @property
    def statuses(self) -> list[NodeStatus]:
        return [answer for answer in self.answers.values() if isinstance(answer, NodeStatus)]

    @property
    def leader(self) -> NodeStatus | None:
        """The node that claims to lead in the highest term. A deposed leader may not know yet that it was
        deposed."""
        return max((s for s in self.statuses if s.is_leader), key=lambda s: s.term, default=None)

    @property
    def term(self) -> int:
        return max(s.term for s in self.statuses)

    def lag_of(self, node_id: str) -> tuple[int, int] | None:
        """Return (entries, bytes) by which a node is behind the leader according to the leader, or None if
        unknown."""
        leader = self.leader
        if leader is None:
            return None
        if leader.node_id == node_id:
            return 0, 0
        for follower in leader.followers:
            if follower.node_id == node_id and follower.match_index >= 0:
                return follower.lag_entries, follower.lag_bytes
        return None

    def to_json(self) -> dict[str, Any]:
        leader = self.leader
        return {
            "cluster_id": self.asked.cluster_id,
            "group": self.asked.group,
            "asked_node_id": self.asked.node_id,
            "unix_ms": self.unix_ms,
            "term": self.term,
            "leader": None if leader is None else _leader_json(leader),
            "committed_index": max(s.committed_index for s in self.statuses),
            "committed_pos": max(s.committed_pos for s in self.statuses),
            "nodes": [self._node_json(member) for member in self._members()],
            "elections": elections_by_term(self.statuses),
        }

    def _members(self) -> list[MemberAddress]:
        members = {m.node_id: m for m in self.asked.members}
        for status in self.statuses:
            members.setdefault(
                status.node_id, MemberAddress(status.node_id, status.address, status.http_address)
            )
        for node_id in self.answers:
            members.setdefault(node_id, MemberAddress(node_id, ""))
        return [members[node_id] for node_id in sorted(members)]

    def _node_json(self, member: MemberAddress) -> dict[str, Any]:
        answer = self.answers.get(member.node_id, "not queried")
        status = answer if isinstance(answer, NodeStatus) else None
        lag = self.lag_of(member.node_id)
        leader = self.leader
        push = None
        if leader is not None:
            push = next((f for f in leader.followers if f.node_id == member.node_id), None)
        return {
            "node_id": member.node_id,
            "address": member.address,
            "http_address": member.http_address
            if status is None
            else status.http_address or member.http_address,
            "reachable": status is not None,
            "error": answer if isinstance(answer, str) else "",
            "lag_entries": None if lag is None else lag[0],
            "lag_bytes": None if lag is None else lag[1],
            "push_state": "" if push is None else push.push_state,
            "last_contact_ms": None if push is None else push.last_contact_ms,
            "status": None if status is None else node_status_to_json(status),
        }


def _leader_json(leader: NodeStatus) -> dict[str, Any]:
    return {
        "node_id": leader.node_id,
        "term": leader.term,
        "since_unix_ms": leader.leader_since_unix_ms,
        "address": leader.address,
        "http_address": leader.http_address,
        "transferring_to": leader.transferring_to,
    }


def elections_by_term(statuses: list[NodeStatus]) -> list[dict[str, Any]]:
    """Group the events of all nodes by term, the newest term first.

    Nodes observe the same election at different times and in different roles. Events that are grouped by term
    explain an election, which a flat list would not.
    """
    by_term: dict[int, list[tuple[str, ElectionEvent]]] = {}
    for status in statuses:
        for event in status.elections:
            by_term.setdefault(event.term, []).append((status.node_id, event))
    newest = sorted(by_term, reverse=True)[:TERMS_SHOWN]
    return [_term_json(term, sorted(by_term[term], key=lambda item: item[1].unix_ms)) for term in newest]


def _term_json(term: int, events: list[tuple[str, ElectionEvent]]) -> dict[str, Any]:
    won = next((item for item in events if item[1].cause == "won"), None)
    lost_by = next((node_id for node_id, event in events if event.cause == "quorum-lost"), "")
    leader_id = won[0] if won else next((e.leader_id for _, e in events if e.leader_id), lost_by)
    trigger = _trigger(events, won)
    return {
        "term": term,
        "leader_id": leader_id,
        "unix_ms": (won or events[0])[1].unix_ms,
        "cause": "" if trigger is None else trigger[1].cause,
        "cause_node_id": "" if trigger is None else trigger[0],
        "lost_by": lost_by,
        "events": [
            {
                "node_id": node_id,
                "unix_ms": e.unix_ms,
                "role": e.role,
                "leader_id": e.leader_id,
                "cause": e.cause,
            }
            for node_id, e in events
        ],
    }


def _trigger(
    events: list[tuple[str, ElectionEvent]], won: tuple[str, ElectionEvent] | None
) -> tuple[str, ElectionEvent] | None:
    """Return the event that started the term: the last trigger of the winner before it won.

    Only events of the winner are used, because the clocks of two nodes are not comparable, and because a
    timeout of another node in this term may belong to the end of the term. If the winner did not respond, the
    first trigger of any node is used.
    """
    if won is None:
        return next((item for item in events if item[1].cause in _TRIGGERS), None)
    own = [
        e
        for node_id, e in events
        if node_id == won[0] and e.cause in _TRIGGERS and e.unix_ms <= won[1].unix_ms
    ]
    return (won[0], own[-1]) if own else None


class ClusterCache:
    """Queries the cluster at most once per CACHE_SECONDS, regardless of the number of callers.

    The query runs as a separate task, so that a caller that disconnects does not cancel it for the others.
    """

    def __init__(
        self,
        node_status: Callable[[], NodeStatus],
        cluster_status: Callable[[], Awaitable[dict[str, NodeAnswer]]],
    ) -> None:
        self._node_status = node_status
        self._cluster_status = cluster_status
        self._query: asyncio.Task[ClusterView] | None = None
        self._view: ClusterView | None = None
        self._fresh_until = 0.0

    async def view(self) -> ClusterView:
        """Return the latest view. Raises TimeoutError if the source exceeds its own deadline."""
        if self._view is not None and asyncio.get_running_loop().time() < self._fresh_until:
            return self._view
        if self._query is None or self._query.done():
            self._query = asyncio.create_task(self._query_nodes())
            # If all callers are gone, retrieve the exception, so that it is not reported as lost.
            self._query.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._query)

    async def close(self) -> None:
        if self._query is not None:
            self._query.cancel()
            await asyncio.gather(self._query, return_exceptions=True)

    async def _query_nodes(self) -> ClusterView:
        unix_ms = time.time_ns() // 1_000_000
        async with asyncio.timeout(QUERY_SECONDS):
            answers = dict(await self._cluster_status())
        # A node's own status is always newer than its status received through others.
        own = self._node_status()
        for node_id, answer in answers.items():
            # A learner that was promoted to a cluster of its own remains in the list of members, and leads in
            # a later term than all of them.
            if isinstance(answer, NodeStatus) and answer.cluster_id != own.cluster_id:
                answers[node_id] = f"it is a node of cluster {answer.cluster_id!r}"
        answers[own.node_id] = own
        self._view = ClusterView(own, answers, unix_ms)
        self._fresh_until = asyncio.get_running_loop().time() + CACHE_SECONDS
        return self._view
