"""RoleChangeHandler makes the broker's role follow the node's role, in order.

A LEADER event makes the broker master in five steps: change_to_slave ends the previous leadership, the
barrier entry is committed, the barrier is dispatched, the topic-queue table is recovered, change_to_master
returns. Then writes are accepted. Any other event makes the broker slave. The newest event supersedes the
current change: the handler immediately refuses writes, cancels the running call, and waits until that call
has ended. See docs/role-change.md.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog
import tenacity

from broker_adapter.role.adapter import BrokerAdapter, CallTimer, RoleSource, Timers
from broker_adapter.role.role_status import (
    HandlerStatus,
    RoleChangeMetrics,
    RoleStep,
    StepOutcome,
    StepRecord,
)
from dledger import DLedgerError, Role, RoleEvent
from dledger.node.setup.trace import NodeTrace

_log = structlog.get_logger(part="role_change")

# Timeout of one wait on the node; the handler repeats the wait when it expires.
_NODE_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class RoleChangeLimits:
    """Durations are in seconds."""

    patience_s: float = 3.0  # longer steps are reported, and leadership is offered to other nodes
    retry_first_s: float = 0.05  # after a call that raised; doubled after each failure
    retry_most_s: float = 1.0
    tries_before_hand_over: int = 3
    unfit_s: float = 30.0  # how long this node reports itself unfit after a failure
    fitness_period_s: float = 0.2
    stop_s: float = 5.0  # for change_to_slave in `stop`
    history: int = 64  # steps kept in the status

    def __post_init__(self) -> None:
        for name in ("patience_s", "retry_first_s", "retry_most_s", "unfit_s", "fitness_period_s", "stop_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0")
        if self.tries_before_hand_over < 1 or self.history < 1:
            raise ValueError("tries_before_hand_over and history must be at least 1")


class _Superseded(Exception):
    """Raised when a newer event has arrived or the handler is stopping."""


class CallCancelled(Exception):
    """Raised when a call of the adapter was canceled by anything other than the handler."""


class RoleChangeHandler:
    """Makes an adapter master or slave when the node's role changes.

    Call `start` once and `stop` once, on one event loop.
    """

    def __init__(
        self,
        source: RoleSource,
        adapter: BrokerAdapter,
        *,
        limits: RoleChangeLimits | None = None,
        timers: Timers | None = None,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        trace: NodeTrace | None = None,
    ) -> None:
        """Create a handler for one adapter.

        `timers` replaces the event loop's clock and timers. `trace` receives an event of kind `role` for
        every change: elected, barrier_committed, dispatched, master_ready, demoted, slave, role_wait.
        """
        self.metrics = RoleChangeMetrics()
        self._source = source
        self._adapter = adapter
        self._limits = limits or RoleChangeLimits()
        self._given_timers = timers
        self._wall_ms = wall_ms
        self._trace = trace
        self._newest: RoleEvent | None = None
        self._elected_at = 0.0  # arrival of the newest event
        self._step = RoleStep.IDLE
        self._since = 0.0
        self._writable = False
        # True if the last change was a change_to_slave that returned. Initially False, because the adapter's
        # state is unknown.
        self._is_slave = False
        self._task: asyncio.Task[None] | None = None
        self._handing_over: asyncio.Task[None] | None = None
        self._limit: CallTimer | None = None
        self._fitness: CallTimer | None = None
        self._stopping = False
        self._lag_bytes = 0
        self._fitness_known = True
        self._failed_at: float | None = None
        self._last_failure = ""
        self._last_switch_unix_ms = 0
        self._elected_to_writable_ms = -1
        self._history: deque[StepRecord] = deque(maxlen=self._limits.history)

    # -- public methods ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Refuse writes, then follow the node's role, starting with the current one. The node must be
        running.
        """
        loop = asyncio.get_running_loop()
        self._timers: Timers = self._given_timers or loop
        self._newer: asyncio.Future[None] = loop.create_future()
        self._since = self._timers.time()
        self._fence()
        self._task = asyncio.create_task(self._run(), name="role-change")
        self._task.add_done_callback(self._on_task_ended)
        self._report_fitness_regularly()
        self._source.on_role(self.role_changed)

    def role_changed(self, event: RoleEvent) -> None:
        """Handle a role event of the node. Ignores repeated and stale events.

        After any other event, writes are refused when this method returns, even if a call is running.
        """
        newest = self._newest
        if self._stopping or event == newest:
            return
        if newest is not None and (event.role_epoch, event.term) < (newest.role_epoch, newest.term):
            self.metrics.stale_events += 1
            _log.warning("stale role event ignored", role=event.role.value, term=event.term)
            return
        self._newest = event
        self._elected_at = self._timers.time()
        self._fence()
        if newest is not None and newest.role is Role.LEADER and newest.role_epoch != event.role_epoch:
            self._trace_event("demoted", newest)
        if event.role is Role.LEADER:
            self._trace_event("elected", event, barrier=event.barrier_index)
        self._supersede()

    async def stop(self) -> None:
        """Refuse writes immediately, change to slave, then end. Gives up after `stop_s`."""
        task = self._task
        if task is None or self._stopping:
            return
        self._stopping = True
        self._fence()
        self._supersede()
        self._report_fitness()
        time_is_up = self._timers.call_later(self._limits.stop_s, task.cancel)
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
            for timer in (time_is_up, self._limit, self._fitness):
                if timer is not None:
                    timer.cancel()
            if self._handing_over is not None:
                self._handing_over.cancel()
        if not self._is_slave and self._newest is not None:
            _log.error("stopped before the change to slave completed", at=self._step.value)
        self._enter(RoleStep.STOPPED)

    @property
    def is_fit(self) -> bool:
        """True if this node may become leader, that is, if it is not stopping and the adapter has not failed
        within the last `unfit_s`.
        """
        failed_at = self._failed_at
        recently = failed_at is not None and self._timers.time() - failed_at < self._limits.unfit_s
        return not recently and not self._stopping

    @property
    def status(self) -> HandlerStatus:
        event, at_rest = self._newest, self._step.is_rest
        return HandlerStatus(
            step=self._step,
            role=event.role.value if event else "",
            term=event.term if event else -1,
            role_epoch=event.role_epoch if event else -1,
            leader_id=(event.leader_id or "") if event else "",
            barrier_index=event.barrier_index if event else -1,
            writable=self._writable,
            waits_for="" if at_rest else self._waits_for(),
            waiting_ms=0 if at_rest else self._ms_since(self._since),
            fit=self.is_fit,
            dispatch_behind_bytes=self._lag_bytes,
            failures=self.metrics.failures.total(),
            last_failure=self._last_failure,
            last_switch_unix_ms=self._last_switch_unix_ms,
            elected_to_writable_ms=self._elected_to_writable_ms,
            history=tuple(self._history),
        )

    # -- event loop task ---------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._stopping:
            event, self._newer = self._newest, asyncio.get_running_loop().create_future()
            try:
                if event is None:
                    await self._newer
                elif event.role is Role.LEADER:
                    await self._lead(event)
                else:
                    await self._become_slave(event, event.leader_id)
                await self._newer
            except _Superseded:
                self.metrics.superseded += 1
        self._newer = asyncio.get_running_loop().create_future()
        if self._newest is not None and not self._is_slave:
            await self._become_slave(self._newest, None)

    def _on_task_ended(self, task: asyncio.Task[None]) -> None:
        """Handle the end of the handler's task.

        If the task failed, this node can never become master again. It then refuses writes, and transfers
        every leadership that it receives to another node.
        """
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the role change handler failed", exc_info=error)
            self._fence()
            self._failed_at = math.inf
            self._last_failure = f"{self._step.value}: {type(error).__name__}: {error}"
            self._report_fitness()
            self._hand_over_repeatedly()

    def _hand_over_repeatedly(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
        self._limit = self._timers.call_later(self._limits.patience_s, self._hand_over_repeatedly)
        self._seek_successor()

    async def _lead(self, event: RoleEvent) -> None:
        if not self._is_slave:
            await self._become_slave(event, None)
        barrier = event.barrier_index
        await self._carry_out(event, RoleStep.WAITING_FOR_COMMIT, lambda: self._committed(barrier))
        self._trace_progress("barrier_committed", event)
        await self._carry_out(
            event, RoleStep.WAITING_FOR_DISPATCH, lambda: self._adapter.wait_dispatched(barrier)
        )
        self._trace_progress("dispatched", event)
        await self._carry_out(event, RoleStep.RECOVERING, self._adapter.recover_topic_queue_table)
        self._is_slave = False
        await self._carry_out(
            event,
            RoleStep.CHANGING_TO_MASTER,
            lambda: self._adapter.change_to_master(event.term, event.role_epoch),
            then=lambda: self._accept_writes(event),
        )
        took_s = self._timers.time() - self._elected_at
        self.metrics.elected_to_writable.observe(took_s)
        self._elected_to_writable_ms = round(took_s * 1000)
        self._switched(RoleStep.MASTER)

    async def _become_slave(self, event: RoleEvent, leader_id: str | None) -> None:
        await self._carry_out(
            event,
            RoleStep.CHANGING_TO_SLAVE,
            lambda: self._adapter.change_to_slave(event.term, event.role_epoch, leader_id),
        )
        self._is_slave = True
        self._trace_event("slave", event)
        if event.role is not Role.LEADER or self._stopping:
            self._switched(RoleStep.SLAVE)

    async def _committed(self, index: int) -> None:
        if self._source.committed_index < index:
            await self._source.wait_committed(index, timeout=_NODE_WAIT_S)

    def _accept_writes(self, event: RoleEvent) -> None:
        assert event is self._newest and not self._stopping, "checked in the same step"
        try:
            self._adapter.accept_writes(event.term, event.role_epoch)
        except Exception:
            self._fence()
            raise
        self._writable = True
        self._trace_progress("master_ready", event)

    def _fence(self) -> None:
        self._writable = False
        try:
            self._adapter.refuse_writes()
        except Exception as error:  # must not reach the node's event loop; change_to_slave follows
            self._failed(self._step, error)

    def _supersede(self) -> None:
        if not self._newer.done():
            self._newer.set_result(None)

    # -- single steps ------------------------------------------------------------------------------------

    async def _carry_out(
        self,
        event: RoleEvent,
        step: RoleStep,
        call: Callable[[], Awaitable[None] | None],
        *,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Repeat a call until it returns.

        `then` runs in the same event loop step as the check that no newer event has arrived. Raises
        _Superseded if one has.
        """
        back_off = tenacity.wait_exponential(self._limits.retry_first_s, self._limits.retry_most_s)
        self._enter(step)

        async def attempt() -> None:
            await self._supersedable(call)
            then()

        def is_not_yet(error: BaseException | None) -> bool:
            return step.is_wait and isinstance(error, TimeoutError | DLedgerError)

        def pause(state: tenacity.RetryCallState) -> float:
            return self._limits.retry_first_s if is_not_yet(_error_of(state)) else back_off(state)

        def failed(state: tenacity.RetryCallState) -> None:
            error = _error_of(state)
            if is_not_yet(error):
                return
            assert isinstance(error, Exception)
            self._failed(step, error)
            if state.attempt_number >= self._limits.tries_before_hand_over:
                self._seek_successor()

        retrying = tenacity.AsyncRetrying(
            sleep=self._pause,
            wait=pause,
            retry=tenacity.retry_if_exception(_is_failure),
            before_sleep=failed,
        )
        try:
            await retrying(attempt)
        except _Superseded:
            self._record(step, StepOutcome.SUPERSEDED, event)
            raise
        self._record(step, StepOutcome.DONE, event)

    async def _supersedable(self, call: Callable[[], Awaitable[None] | None]) -> None:
        """Run a call and wait until it ends. A newer event cancels it.

        Returns in the same event loop step as the check that no newer event has arrived.
        """
        if self._newer.done():
            raise _Superseded
        returned = call()
        if returned is None:
            return
        task = asyncio.ensure_future(returned)
        try:
            await asyncio.wait({task, self._newer}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                # The call may end late or ignore the cancellation. Wait for it anyway, because concurrent
                # calls would undo each other's changes.
                task.cancel()
                self._enter(RoleStep.ENDING_CALL)
                await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()  # stop_s has expired and writes are refused
            raise
        error = None if task.cancelled() else task.exception()
        if self._newer.done():
            raise _Superseded from error
        if task.cancelled():
            raise CallCancelled("a call of the adapter was cancelled by something other than its handler")
        if error is not None:
            raise error

    async def _pause(self, seconds: float) -> None:
        """Wait before a retry. A newer event ends the wait."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self._timers.call_later(seconds, lambda: over.set_result(None))
        try:
            await asyncio.wait({over, self._newer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
        if self._newer.done():
            raise _Superseded

    # -- time limits, failures, fitness ------------------------------------------------------------------

    def _enter(self, step: RoleStep) -> None:
        now = self._timers.time()
        if not self._step.is_rest:
            self.metrics.seconds[self._step] += now - self._since
        self._step, self._since = step, now
        if self._limit is not None:
            self._limit.cancel()
        self._limit = None
        if not step.is_rest:
            self._limit = self._timers.call_later(self._limits.patience_s, self._on_step_overdue)

    def _on_step_overdue(self) -> None:
        """Report a step that exceeds `patience_s`, and offer leadership to a fitter node.

        Repeated periodically.
        """
        self._limit = self._timers.call_later(self._limits.patience_s, self._on_step_overdue)
        self.metrics.overdue[self._step] += 1
        if not self._step.is_wait:
            self._failed_at = self._timers.time()  # the adapter hangs or keeps raising
        self._report_fitness()
        if self._newest is not None:
            self._record(self._step, StepOutcome.OVERDUE, self._newest, self._waits_for())
            self._trace_progress("role_wait", self._newest, text=self._waits_for())
        self._seek_successor()

    def _failed(self, step: RoleStep, error: Exception) -> None:
        self.metrics.failures[step] += 1
        self._failed_at = self._timers.time()
        self._last_failure = f"{step.value}: {type(error).__name__}: {error}"
        self._report_fitness()
        if self._newest is not None:
            self._record(step, StepOutcome.FAILED, self._newest, self._last_failure)

    def _report_fitness_regularly(self) -> None:
        self._fitness = self._timers.call_later(self._limits.fitness_period_s, self._report_fitness_regularly)
        self._report_fitness()

    def _report_fitness(self) -> None:
        try:
            self._lag_bytes = max(0, self._adapter.dispatch_behind_bytes)
            self._source.report_fitness(lag_bytes=self._lag_bytes, fit=self.is_fit)
        except Exception as error:  # the leader keeps the last report
            if self._fitness_known:
                _log.error("cannot report fitness to the leader", exc_info=error)
            self._fitness_known = False
        else:
            self._fitness_known = True

    def _seek_successor(self) -> None:
        """Transfer leadership to a fitter node if there is one.

        The change of role continues during the transfer.
        """
        event = self._newest
        if event is None or event.role is not Role.LEADER or self._stopping or self._writable:
            return
        if self._handing_over is None or self._handing_over.done():
            self._handing_over = asyncio.create_task(self._hand_over(event))

    async def _hand_over(self, event: RoleEvent) -> None:
        done, reason = False, "no node is fitter"
        try:
            done = await self._source.hand_over()
        except Exception as error:  # a failed transfer does not stop the change of role
            reason = f"{type(error).__name__}: {error}"
        self.metrics.hand_overs["done" if done else "failed"] += 1
        _log.warning(
            "leadership transfer requested", done=done, term=event.term, reason="" if done else reason
        )

    # -- status and trace --------------------------------------------------------------------------------

    def _switched(self, role: RoleStep) -> None:
        self._enter(role)
        self._last_switch_unix_ms = self._wall_ms()
        self.metrics.switches[role] += 1
        if self._newest is not None:
            detail = f"writable after {self._elected_to_writable_ms} ms" if role is RoleStep.MASTER else ""
            self._record(role, StepOutcome.DONE, self._newest, detail)

    def _record(self, step: RoleStep, outcome: StepOutcome, event: RoleEvent, detail: str = "") -> None:
        record = StepRecord(
            self._wall_ms(),
            event.role.value,
            event.term,
            event.role_epoch,
            step,
            outcome,
            self._ms_since(self._since),
            detail,
        )
        self._history.append(record)
        log = _log.info if outcome in (StepOutcome.DONE, StepOutcome.SUPERSEDED) else _log.warning
        log("role change", **record._asdict())

    def _trace_event(self, e: str, event: RoleEvent, **fields: int | str) -> None:
        if self._trace is not None:
            record = {"term": event.term, "role_epoch": event.role_epoch, **fields}
            self._trace.event("role", e, record)

    def _trace_progress(self, e: str, event: RoleEvent, **fields: int | str) -> None:
        """Trace an event with the current committed and applied (`reput`) index and the barrier."""
        self._trace_event(
            e,
            event,
            committed=self._source.committed_index,
            reput=self._source.applied_index,
            target=event.barrier_index,
            barrier=event.barrier_index,
            **fields,
        )

    def _waits_for(self) -> str:
        """Describe what the current step waits for, and its progress."""
        barrier = self._newest.barrier_index if self._newest else -1
        match self._step:
            case RoleStep.WAITING_FOR_COMMIT:
                return f"commit of {barrier}; committed up to {self._source.committed_index}"
            case RoleStep.WAITING_FOR_DISPATCH:
                return (
                    f"dispatch up to {barrier}; applied up to {self._source.applied_index}, "
                    f"dispatch_behind_bytes {self._lag_bytes}"
                )
            case RoleStep.ENDING_CALL:
                return "end of a cancelled call of the adapter"
            case step:
                return f"the adapter: {step.value}"

    def _ms_since(self, then: float) -> int:
        return round((self._timers.time() - then) * 1000)


def _is_failure(error: BaseException) -> bool:
    return isinstance(error, Exception) and not isinstance(error, _Superseded)


def _error_of(state: tenacity.RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome is not None else None
