"""What a program that owns a node in its process may do with it, beside serving it: see `OwnerFace`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from dledger.core.values import OwnerFitness, Role
from dledger.errors import Code, DLedgerError, Indeterminate, InvalidRequest, NotLeader
from dledger.logs import get_logger
from dledger.metrics import NodeMetrics
from dledger.node.async_shell import AsyncShell, monotonic_ms
from dledger.node.loop.readable import ReadableLog
from dledger.node.machine.applier import Applier
from dledger.node.owner_status import OwnerStatus
from dledger.node.role_events import RoleEvents, RoleListener
from dledger.node.setup.config import NodeConfig
from dledger.replica.owned_append import Fill
from dledger.replica.replica import Replica
from dledger.replica.shell import AppendOutcome
from dledger.rpc.serving import check_services
from dledger.rpc.transport.host import GrpcService

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_log = get_logger("node")

_STEP_ASIDE_S = 1.0


class _OwnedAppend:
    """One batch of the owner, until it is answered (dledger.rpc.ports.AppendToken)."""

    __slots__ = ("_metrics", "_open", "_started", "future")

    def __init__(self, open_appends: set[_OwnedAppend], metrics: NodeMetrics) -> None:
        self._open = open_appends
        self._metrics = metrics
        self._started = perf_counter()
        self.future: asyncio.Future[AppendOutcome] = asyncio.get_running_loop().create_future()

    def answer(self, outcome: AppendOutcome | DLedgerError) -> None:
        self._open.discard(self)
        if self.future.done():  # whoever waited has cancelled it
            return
        if isinstance(outcome, DLedgerError):
            self.future.set_exception(outcome)
        else:
            self._metrics.append_latency.observe(perf_counter() - self._started)
            self.future.set_result(outcome)


class OwnerFace:
    """The half of NodeServer that is for the program around it. On the node's event loop, and after `start`
    except where it says otherwise."""

    config: NodeConfig
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
        """Serve it, too, on the node's port. Before `start`; for services that need the node themselves.

        ConfigError if there is one of that name.
        """
        if self._is_started:
            raise RuntimeError("services are added before the node starts")
        services = (*self._services, service)
        check_services(services)
        self._services = services

    # -- appending ----------------------------------------------------------------------------------------

    def append_batch(
        self, sizes: Sequence[int], fill: Fill, *, expected: tuple[int, int], timeout_ms: int = 0
    ) -> asyncio.Future[AppendOutcome]:
        """Append a batch with bodies of `sizes` bytes, all of it or none.

        The batch is judged, then `fill` is called once with the places of its bodies and gives the bodies,
        which are copied before this returns. `expected` is the (term, role_epoch) of the leadership that the
        caller believes in. `fill` must not append. `timeout_ms` 0: as the configuration says.

        Raised, with nothing changed: NotLeader (ROLE_EPOCH_CHANGED if this node leads, but not as expected),
        Overloaded (LEADER_PENDING_FULL, DISK_FULL), InvalidRequest, all before `fill` is called; ValueError
        if the bodies are not of `sizes`; whatever `fill` raises.

        The future ends once it is known what became of the batch: the outcome, when it is committed;
        Indeterminate (WAIT_QUORUM_ACK_TIMEOUT, TERM_CHANGED, or INTERNAL_ERROR as the node stops): it may be,
        now or later; NotLeader: it was not stored, and never will be. Cancelling it takes nothing back.
        """
        if self._stopping:
            raise NotLeader("this node is stopping")
        limits = self.config.limits
        timeout_ms = min(timeout_ms or limits.append_timeout_ms, limits.max_append_timeout_ms)
        token = _OwnedAppend(self._open_appends, self.metrics)
        self._shell.append_batch(token, sizes, fill, expected, timeout_ms)
        self._open_appends.add(token)
        return token.future

    def _leave_appends_open(self) -> None:
        """The node stops: nobody is left waiting."""
        error = Indeterminate("the node is stopping", code=Code.INTERNAL_ERROR)
        for token in list(self._open_appends):
            token.answer(error)

    # -- keeping ------------------------------------------------------------------------------------------

    def keep_log_from(self, needed_from: Callable[[], int]) -> None:
        """While this node leads, the log is not purged beyond the position that `needed_from` gives. It is
        called on the loop, once for each look at what may be purged. Also before `start`."""
        self._needed_from = needed_from

    @property
    def wanted_begin_pos(self) -> int:
        """Where the log would begin by its retention if `keep_log_from` kept nothing; -1: where it does, or
        this node does not lead."""
        return self._replica.retainer.wanted_pos

    # -- roles --------------------------------------------------------------------------------------------

    def on_role(self, listener: RoleListener) -> None:
        """Call `listener` with every change of role, term or leader from now on, in order; and at once with
        the last one, if there was any. Also before `start`. What it raises is logged."""
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

    # -- handing over -------------------------------------------------------------------------------------

    def report_fitness(self, *, lag_bytes: int, fit: bool) -> None:
        """Say how much of the committed log this program has still to work off, and whether it could lead
        now. The leader learns it with the next answers, at the latest with those to a heartbeat. A node that
        is not fit is handed leadership only by name, or if there is no other."""
        if lag_bytes < 0:
            raise InvalidRequest(f"lag_bytes is {lag_bytes}")
        self._replica.owner = OwnerFitness(lag_bytes, fit)
        self._shell.look_at_ticks()

    async def hand_over(self) -> bool:
        """Leave leadership to the peer whose program is fit and has least to work off: less than this one, or
        anything if this one is not fit. A peer that has reported nothing is no choice. Returns when it leads.

        False: there is no such peer, or this node does not lead. DLedgerError: it was tried, and failed."""
        leadership = self._replica.core.leadership
        to = leadership.fittest_peer(self._replica.owner) if leadership is not None else None
        if to is None:
            return False
        await self._shell.transfer(to)
        return True

    # -- leaving ------------------------------------------------------------------------------------------

    async def step_aside(self) -> None:
        """Before the node stops: leave leadership, if it is here, to whichever peer is best. A second at
        most. If there is none, the followers elect one."""
        if self._replica.core.role is not Role.LEADER or len(self.config.members) == 1:
            return
        try:
            async with asyncio.timeout(_STEP_ASIDE_S):
                await self._shell.transfer(None)
        except (DLedgerError, TimeoutError) as error:
            # The push streams then break without GOODBYE, which the followers act upon at once.
            _log.info("leadership was not handed over", reason=str(error) or "time-out")

    # -- status -------------------------------------------------------------------------------------------

    def show_status(self, give: Callable[[], Mapping[str, Any]]) -> None:
        """Show what `give` returns, a JSON object, as `owner` in all forms of the status of this node. It is
        called on the loop, often. Also before `start`."""
        self._owner_status.give = give

    def add_metrics(self, collect: Callable[[], Iterable[Metric]]) -> None:
        """Add prometheus metrics, with names of the program's own, to those of the node. `collect` is called
        on the loop with every scrape. Also before `start`."""
        self._owner_status.collectors.append(collect)

    # -- positions ----------------------------------------------------------------------------------------

    @property
    def committed_index(self) -> int:
        """Highest index that this node knows to be committed; -1: none."""
        return self._replica.core.committed_index

    @property
    def committed_pos(self) -> int:
        """Position in bytes after the entry at committed_index."""
        return self._replica.committed_pos

    @property
    def applied_index(self) -> int:
        """Highest index that the state machine has applied; without one, that could be read here."""
        return self._applier.applied_index

    def cluster_time_ms(self) -> int:
        """The time that the log agrees on, in ms since the Unix epoch, as this node reckons it."""
        return self._replica.admission.state.clock.read(monotonic_ms(), self._replica.wall_ms())

    async def wait_committed(self, index: int, timeout_ms: int = 5000) -> None:
        """Until all up to `index` is committed, and stored on this node, so that it can be read here.
        ReadFailed after `timeout_ms` or when the node stops; Overloaded."""
        await self._readable.wait(index, timeout_ms)
