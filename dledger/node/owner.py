"""The API for the program that owns a node in its process: see `OwnerApi`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from dledger.core.values import OwnerFitness, Role
from dledger.errors import Code, DLedgerError, Indeterminate, InvalidRequest, NotLeader
from dledger.infra.logs import get_logger
from dledger.infra.loops.readable import ReadableLog
from dledger.infra.transport.host import GrpcService
from dledger.metrics import NodeMetrics
from dledger.node.async_shell import AsyncShell, monotonic_ms
from dledger.node.machine.applier import Applier
from dledger.node.owner_status import OwnerStatus
from dledger.node.role_events import RoleEvents, RoleListener
from dledger.node.setup.config import NodeConfig
from dledger.node.setup.member_book import MemberBook
from dledger.replica.owned_append import Fill
from dledger.replica.replica import Replica
from dledger.replica.shell import AppendOutcome
from dledger.rpc.serving import check_services

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_log = get_logger("node")

_STEP_ASIDE_S = 1.0


class _OwnedAppend:
    """One append by the owner that is not answered yet (dledger.rpc.ports.AppendToken)."""

    __slots__ = ("_metrics", "_open", "_started", "future")

    def __init__(self, open_appends: set[_OwnedAppend], metrics: NodeMetrics) -> None:
        self._open = open_appends
        self._metrics = metrics
        self._started = perf_counter()
        self.future: asyncio.Future[AppendOutcome] = asyncio.get_running_loop().create_future()

    def answer(self, outcome: AppendOutcome | DLedgerError) -> None:
        self._open.discard(self)
        if self.future.done():  # cancelled by the caller
            return
        if isinstance(outcome, DLedgerError):
            self.future.set_exception(outcome)
        else:
            self._metrics.append_latency.observe(perf_counter() - self._started)
            self.future.set_result(outcome)


class OwnerApi:
    """The part of NodeServer for the program around it.

    Call all methods on the node's event loop, and after `start` unless they say otherwise.
    """

    config: NodeConfig
    members: MemberBook
    metrics: NodeMetrics
    _replica: Replica
    _shell: AsyncShell
    _readable: ReadableLog
    _applier: Applier
    _stopping: bool
    _services: tuple[GrpcService, ...]

    def __init__(self) -> None:
        self._is_started = False
        self._role_events = RoleEvents()
        self._owner_status = OwnerStatus()
        self._open_appends: set[_OwnedAppend] = set()
        self._needed_from: Callable[[], int] | None = None

    # -- serving ------------------------------------------------------------------------------------------

    def add_service(self, service: GrpcService) -> None:
        """Serve another service on the node's port, for a service that needs the node object. Call before
        `start`.

        Raises ConfigError if a service of that name exists.
        """
        if self._is_started:
            raise RuntimeError("services must be added before the node starts")
        services = (*self._services, service)
        check_services(services)
        self._services = services

    # -- appending ----------------------------------------------------------------------------------------

    def append_batch(
        self, sizes: Sequence[int], fill: Fill, *, expected: tuple[int, int], timeout: float | None = None
    ) -> asyncio.Future[AppendOutcome]:
        """Append a batch with bodies of `sizes` bytes: either all of its entries or none.

        The batch is checked. Then `fill` is called once with the positions of the bodies and returns the
        bodies, which are copied before this method returns. `expected` is the (term, role_epoch) in which the
        caller believes that it leads. `fill` must not append. `timeout`: seconds; None: the configured
        time-out.

        Raises, without a change: NotLeader (ROLE_EPOCH_CHANGED if this node leads, but not as expected),
        Overloaded (LEADER_PENDING_FULL, DISK_FULL) and InvalidRequest, all before `fill` is called;
        ValueError if the bodies do not match `sizes`; exceptions of `fill`.

        The future receives the outcome once the batch is committed. It fails with Indeterminate
        (WAIT_QUORUM_ACK_TIMEOUT, TERM_CHANGED, or INTERNAL_ERROR while the node stops) if the batch may be
        committed, now or later, and with NotLeader if it was not stored and never will be. Cancelling the
        future does not revoke the append.
        """
        if self._stopping:
            raise NotLeader("this node is stopping")
        limits = self.config.limits
        timeout_ms = limits.append_timeout_ms if timeout is None else max(1, round(timeout * 1000))
        token = _OwnedAppend(self._open_appends, self.metrics)
        self._shell.append_batch(token, sizes, fill, expected, min(timeout_ms, limits.max_append_timeout_ms))
        self._open_appends.add(token)
        return token.future

    def _fail_open_appends(self) -> None:
        """Fail the open appends with Indeterminate when the node stops."""
        error = Indeterminate("the node is stopping", code=Code.INTERNAL_ERROR)
        for token in list(self._open_appends):
            token.answer(error)

    # -- retention ----------------------------------------------------------------------------------------

    def keep_log_from(self, needed_from: Callable[[], int]) -> None:
        """Keep the log from the position that `needed_from` returns, while this node leads.

        `needed_from` is called on the loop, once per retention check. May be called before `start`.
        """
        self._needed_from = needed_from

    @property
    def wanted_begin_pos(self) -> int:
        """Position at which retention would start the log if `keep_log_from` retained nothing.

        -1 if that is the current start, or if this node does not lead.
        """
        return self._replica.retainer.wanted_pos

    # -- roles --------------------------------------------------------------------------------------------

    def on_role(self, listener: RoleListener) -> None:
        """Call `listener` with every future change of role, term or leader, in order.

        If there was an earlier change, the listener immediately receives the last one. Exceptions of the
        listener are logged. May be called before `start`.
        """
        self._role_events.listen(listener)

    @property
    def term(self) -> int:
        return self._replica.core.term

    @property
    def role_epoch(self) -> int:
        return self._replica.core.role_epoch

    @property
    def leader_id(self) -> str | None:
        return self._replica.core.leader_id

    # -- handover -----------------------------------------------------------------------------------------

    def report_fitness(self, *, lag_bytes: int, fit: bool) -> None:
        """Report the number of bytes of the committed log that this program has not applied yet, and whether
        it could lead.

        The next response to the leader contains this report, at the latest the response to the next
        heartbeat. A transfer goes to an unfit node only if the request names it, or if there is no other
        candidate. Elections do not consider fitness.
        """
        if lag_bytes < 0:
            raise InvalidRequest(f"lag_bytes is {lag_bytes}; it must not be negative")
        self._replica.owner = OwnerFitness(lag_bytes, fit)
        self._shell.reschedule_tick()

    async def hand_over(self) -> bool:
        """Transfer leadership to the fit peer whose program has the least backlog, and return once it
        leads.

        The backlog must be less than this program's, unless this node is unfit. A peer that has not reported
        its fitness is not a candidate. Returns False if there is no such peer or this node does not lead.
        Raises DLedgerError if the transfer failed.
        """
        leadership = self._replica.core.leadership
        to = (
            leadership.handing_over.peer_with_least_backlog(self._replica.owner)
            if leadership is not None
            else None
        )
        if to is None:
            return False
        await self._shell.transfer(to)
        return True

    # -- stopping -----------------------------------------------------------------------------------------

    async def step_aside(self) -> None:
        """If this node leads, transfer leadership to the best peer before the node stops.

        Takes at most a second. If there is no peer, the followers elect a leader.
        """
        if self._replica.core.role is not Role.LEADER or len(self.members) == 1:
            return
        try:
            async with asyncio.timeout(_STEP_ASIDE_S):
                await self._shell.transfer(None)
        except (DLedgerError, TimeoutError) as error:
            # The push streams then break without GOODBYE, and the followers react immediately.
            _log.info("leadership was not handed over", reason=str(error) or "time-out")

    # -- status -------------------------------------------------------------------------------------------

    def show_status(self, give: Callable[[], Mapping[str, Any]]) -> None:
        """Show the JSON object that `give` returns as `owner` in every form of this node's status.

        `give` is called on the loop, often. May be called before `start`.
        """
        self._owner_status.give = give

    def add_metrics(self, collect: Callable[[], Iterable[Metric]]) -> None:
        """Add the program's Prometheus metrics to the node's metrics. All names must be distinct.

        `collect` is called on the loop with every scrape. May be called before `start`.
        """
        self._owner_status.collectors.append(collect)

    # -- positions ----------------------------------------------------------------------------------------

    @property
    def committed_index(self) -> int:
        """Highest index that this node knows to be committed; -1 if there is none."""
        return self._replica.core.committed_index

    @property
    def committed_pos(self) -> int:
        """Position in bytes after the entry at committed_index."""
        return self._replica.committed_pos

    @property
    def applied_index(self) -> int:
        """Highest index applied by the state machine; without one, the highest readable index."""
        return self._applier.applied_index

    def cluster_time_ms(self) -> int:
        """Cluster time in ms since the Unix epoch, as counted by this node."""
        return self._replica.admission.state.clock.read(monotonic_ms(), self._replica.wall_ms())

    @property
    def steps_ms(self) -> int:
        """Sum of all steps of cluster time so far, in ms."""
        return self._replica.admission.state.clock.steps_ms

    async def wait_committed(self, index: int, timeout: float = 5.0) -> None:
        """Wait until all entries up to `index` are committed and stored on this node, so that it can read
        them.

        Raises ReadFailed after `timeout` seconds or when the node stops, and Overloaded.
        """
        await self._readable.wait(index, round(timeout * 1000))
