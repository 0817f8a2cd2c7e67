"""Barriers that keep running consumers from undoing a reset of their group's offsets.

A reset leaves a barrier in the replicated state (`metadata.values.Barrier`). This module contains the state
that only the master knows, which is the clients that have passed a barrier and the offsets that each
connection received. After a failover, clients whose ids are in the barrier count as passed; all others have
to pass again.

- A client passes the barrier of a queue when it pulls at the stored offset, or at an offset that its
  connection received after the reset. Until then, its commits have no effect.
- The response to any other pull of such a client is the stored offset. Pulls that were waiting at the time of
  the reset may belong to an assignment that the client has left, in which case it drops the responses. Of the
  later pulls, two per connection receive this response, because the client may have abandoned the first. The
  third is a deliberate choice (a seek) and passes.
- Before its first effective commit, a client cannot commit an offset beyond the messages that it received, or
  that its filter skipped, after it passed. Otherwise a client that keeps its old position while it reads from
  the new one would undo the reset.
- Clients that are not members of the group, such as tools, are unaffected. So are broadcasting members, whose
  offsets are not stored on the broker.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Set
from enum import Enum
from typing import NamedTuple, Protocol, TypeVar

import structlog

from broker_adapter.errors import Busy, Status
from broker_adapter.metadata.commands import EndBarriers, is_member_id
from broker_adapter.metadata.proposals import Proposals
from broker_adapter.metadata.state import MetadataState
from broker_adapter.metadata.values import Barrier, Group

_log = structlog.get_logger(part="groups")
_V = TypeVar("_V")

#: A group without members for this time has no clients that could commit old offsets. During the first such
#: period of a new master, members may not have sent their first heartbeat: clients send one every 30 s.
SETTLE_S = 60.0
_SWEEP_S = 5.0
#: Time for a client to handle request 220: it drops its queues, waits for 10 s and queries its offset.
_NOTICE_S = 20.0
#: Maximum number of pulls per connection that are redirected if they arrived after the reset.
_MOVES = 2
#: Maximum number of clients and of connections tracked per queue, and of offsets per connection. A client
#: that is dropped from the table is redirected once more.
_MAX_REMEMBERED = 1_024
_MAX_GIVEN = 4


class ResetStyle(Enum):
    """How a client is notified of a reset."""

    #: Not a clustering member of the group: resets affect neither its pulls nor its commits.
    NONE = "none"
    #: By the response PULL_OFFSET_MOVED to a pull.
    BY_PULL = "by pull"
    #: By request 220: the C++ client keeps committing its old offset after PULL_OFFSET_MOVED.
    BY_NOTICE = "by notice"


class GroupClients(Protocol):
    """Interface to the group members that are connected to this node or another one."""

    def reset_style(self, group: str, client_id: str) -> ResetStyle: ...

    def groups(self) -> Set[str]:
        """Return all groups that have members."""

    def send_reset(self, group: str, client_id: str, topic: str, queue_id: int, offset: int) -> None:
        """Send request 220 for one queue to one client."""


class RemotingCaller(NamedTuple):
    """A client of the remoting protocol: its id, and the host:port of its connection."""

    client_id: str
    remote: str


class Pull(NamedTuple):
    """A pull at the barrier of its queue.

    `reset_index`: the queue's last reset at the time when the pull arrived.
    """

    topic: str
    queue_id: int
    offset: int
    group: str
    caller: RemotingCaller
    reset_index: int


class PullVerdict(NamedTuple):
    """Decision on a pull.

    `move_to`: offset to which the pull is redirected, or None to serve the pull. `is_notified`: the offset
    was sent to the client in a request.
    """

    move_to: int | None = None
    is_notified: bool = False


class CommitVerdict(NamedTuple):
    """Decision on a commit. `judged_at`: applied index at the time of the decision."""

    counts: bool
    judged_at: int
    client_id: str = ""


class _Connection:
    """Offsets that a connection received for one queue since a reset."""

    __slots__ = ("given", "moves", "noticed_s")

    def __init__(self) -> None:
        self.given: tuple[int, ...] = ()
        self.moves = 0
        self.noticed_s: float | None = None

    def give(self, offset: int) -> None:
        self.given = (*(given for given in self.given if given != offset), offset)[-_MAX_GIVEN:]


class _BarrierClients:
    """Clients at the barrier of one queue.

    `reached`: for each client that has passed, the offset after the last message that it received.
    """

    def __init__(self, reset_index: int) -> None:
        self.reset_index = reset_index
        self.reached: OrderedDict[str, int] = OrderedDict()
        self.connections: OrderedDict[str, _Connection] = OrderedDict()

    def connection(self, remote: str) -> _Connection:
        connection = self.connections.setdefault(remote, _Connection())
        _remember(self.connections, remote)
        return connection

    def pass_to(self, client_id: str, offset: int) -> None:
        self.reached[client_id] = max(offset, self.reached.get(client_id, offset))
        _remember(self.reached, client_id)


class ResetBarriers:
    """Decides on pulls and commits in groups that have barriers. Runs on the event loop.

    Implements `broker_adapter.role.broker_role.MasterService`.
    """

    def __init__(
        self,
        metadata: MetadataState,
        proposals: Proposals,
        clients: GroupClients,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._metadata = metadata
        self._proposals = proposals
        self._clients = clients
        self._monotonic_s = monotonic_s
        self._queues: dict[tuple[str, str, int], _BarrierClients] = {}  # by group, topic and queue id
        self._started_s: float | None = None  # None: this node is not the master
        self._member_seen_s: dict[str, float] = {}  # by group with barriers
        self._task: asyncio.Task[None] | None = None

    def start(self, term: int, role_epoch: int) -> None:
        self._queues.clear()
        self._member_seen_s.clear()
        self._started_s = self._monotonic_s()
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="reset-barriers")

    async def stop(self) -> None:
        self._started_s = None
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # -- pulls and queries --------------------------------------------------------------------------------

    def reset_index(self, group: str, topic: str, queue_id: int) -> int:
        """Return the index of the last reset of a queue, or -1 if the queue has no barrier."""
        barrier = self._barrier(self._metadata.group(group), topic, queue_id)
        return -1 if barrier is None else barrier.reset_index

    def judge_pull(self, pull: Pull) -> PullVerdict:
        """Decide whether to serve a pull or to redirect it to the stored offset.

        A node that is not the master redirects every client that has not committed since the reset, because
        only the master knows which other clients have passed.
        """
        group = self._metadata.group(pull.group)
        barrier = self._barrier(group, pull.topic, pull.queue_id)
        if group is None or barrier is None:
            return PullVerdict()
        client_id, remote = pull.caller
        style = self._clients.reset_style(pull.group, client_id)
        if style is ResetStyle.NONE or client_id in barrier.passed:
            return PullVerdict()
        stored = group.offsets.get((pull.topic, pull.queue_id), 0)
        if self._started_s is None:
            return PullVerdict(stored)
        queue = self._clients_at(pull.group, pull.topic, pull.queue_id, barrier)
        if client_id in queue.reached:
            return PullVerdict()
        connection = queue.connection(remote)
        if pull.offset == stored or pull.offset in connection.given:
            queue.pass_to(client_id, pull.offset)
            return PullVerdict()
        if style is ResetStyle.BY_NOTICE:
            if self._is_noticed(pull, connection, stored):
                return PullVerdict(stored, is_notified=True)
        elif pull.reset_index != barrier.reset_index or connection.moves < _MOVES:
            connection.give(stored)
            connection.moves += pull.reset_index == barrier.reset_index
            return PullVerdict(stored)
        queue.pass_to(client_id, pull.offset)
        return PullVerdict()

    def _is_noticed(self, pull: Pull, connection: _Connection, stored: int) -> bool:
        """Notify the client of the reset on its first pull.

        Return True while the client may still act on the notification.
        """
        now_s = self._monotonic_s()
        if connection.noticed_s is None:
            connection.noticed_s = now_s
            connection.give(stored)
            self._clients.send_reset(pull.group, pull.caller.client_id, pull.topic, pull.queue_id, stored)
        return now_s < connection.noticed_s + _NOTICE_S

    def served(self, pull: Pull, next_offset: int) -> None:
        """Record that a pull returned the messages before `next_offset`."""
        queue = self._queues.get((pull.group, pull.topic, pull.queue_id))
        if queue is not None and pull.caller.client_id in queue.reached:
            queue.pass_to(pull.caller.client_id, next_offset)

    def passed_over(self, pull: Pull, next_offset: int) -> None:
        """Record that a pull found no matching message before `next_offset`."""
        queue = self._queues.get((pull.group, pull.topic, pull.queue_id))
        # A pull from an offset beyond the received ones does not cover the messages in between.
        if queue is not None and pull.offset <= queue.reached.get(pull.caller.client_id, -1):
            queue.pass_to(pull.caller.client_id, next_offset)

    def offset_given(
        self, group: str, topic: str, queue_id: int, caller: RemotingCaller, offset: int, reset_index: int
    ) -> None:
        """Record the response to a query of the group's offset.

        `reset_index` must be read before the offset, so that an offset read before a reset is never
        attributed to the time after it.
        """
        barrier = self._barrier(self._metadata.group(group), topic, queue_id)
        if self._started_s is None or barrier is None or barrier.reset_index != reset_index:
            return
        if self._clients.reset_style(group, caller.client_id) is ResetStyle.NONE:
            return
        self._clients_at(group, topic, queue_id, barrier).connection(caller.remote).give(offset)

    # -- commits ------------------------------------------------------------------------------------------

    def judge_commit(
        self, group: str, topic: str, queue_id: int, offset: int, client_id: str
    ) -> CommitVerdict:
        """Decide whether a commit takes effect. `client_id` is empty if the client cannot be a member.

        Raises Busy (REBALANCING) while this master cannot know whether the client is a member.
        """
        judged_at = self._metadata.applied_index  # read first: later resets are not considered below
        known = self._metadata.group(group)
        barrier = self._barrier(known, topic, queue_id)
        if barrier is None or not client_id:
            return CommitVerdict(True, judged_at)
        if self._clients.reset_style(group, client_id) is ResetStyle.NONE:
            if self._started_s is not None and self._monotonic_s() < self._started_s + SETTLE_S:
                text = f"members of group {group} may not have reached this master yet: commit again later"
                raise Busy(Status.REBALANCING, text)
            return CommitVerdict(True, judged_at)
        if client_id in barrier.passed:
            return CommitVerdict(True, judged_at, client_id)
        queue = self._clients_at(group, topic, queue_id, barrier)
        counts = offset <= queue.reached.get(client_id, -1)
        return CommitVerdict(counts, judged_at, client_id if is_member_id(client_id) else "")

    # -- the end of barriers ------------------------------------------------------------------------------

    async def sweep(self) -> None:
        """Remove the barriers of groups that have had no members for SETTLE_S. Raises the errors of a
        proposal.
        """
        now_s = self._monotonic_s()
        groups = {group.name: group for group in self._metadata.groups() if group.barriers}
        self._member_seen_s = {name: self._member_seen_s.get(name, now_s) for name in groups}
        with_clients = self._clients.groups() if groups else set()
        for name in groups:
            if name in with_clients:
                self._member_seen_s[name] = now_s
        newest = {name: _newest(group.barriers.values()) for name, group in groups.items()}
        self._forget_old(groups)
        for name, seen_s in list(self._member_seen_s.items()):
            if now_s >= seen_s + SETTLE_S:
                (await self._proposals.propose(EndBarriers(name, newest[name]))).check()
                _log.info("removed the barriers of a group without members", group=name)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            try:
                await self.sweep()
            except Exception as error:  # the next sweep may succeed
                _log.info("removal of barriers postponed", reason=str(error))

    def _forget_old(self, groups: Mapping[str, Group]) -> None:
        """Discard the state of barriers that were removed."""
        for key in list(self._queues):
            name, topic, queue_id = key
            barrier = self._barrier(groups.get(name), topic, queue_id)
            if barrier is None or barrier.reset_index != self._queues[key].reset_index:
                del self._queues[key]

    # -- internal -----------------------------------------------------------------------------------------

    @staticmethod
    def _barrier(group: Group | None, topic: str, queue_id: int) -> Barrier | None:
        return None if group is None else group.barriers.get((topic, queue_id))

    def _clients_at(self, group: str, topic: str, queue_id: int, barrier: Barrier) -> _BarrierClients:
        key = group, topic, queue_id
        clients = self._queues.get(key)
        if clients is None or clients.reset_index != barrier.reset_index:
            clients = self._queues[key] = _BarrierClients(barrier.reset_index)
        return clients


def _newest(barriers: Iterable[Barrier]) -> int:
    return max(barrier.reset_index for barrier in barriers)


def _remember(table: OrderedDict[str, _V], name: str) -> None:
    """Move the name to the end of the table. If the table exceeds the limit, drop the oldest name."""
    table.move_to_end(name)
    if len(table) > _MAX_REMEMBERED:
        table.popitem(last=False)


class NoGroupClients:
    """Implements GroupClients on a node that has no clients of the remoting protocol."""

    def reset_style(self, group: str, client_id: str) -> ResetStyle:
        return ResetStyle.NONE

    def groups(self) -> Set[str]:
        return frozenset()

    def send_reset(self, group: str, client_id: str, topic: str, queue_id: int, offset: int) -> None:
        raise AssertionError("this node has no remoting clients")
