"""RoleChangeHandler: the broker's role follows the node's, in order, and never outlives it.

A LEADER event makes a master in five steps: what the leaderships before have left is ended (change_to_slave),
the barrier is committed, it is dispatched, the topic-queue table is recovered, change_to_master; then writes
are accepted. Any other event makes a slave. The newest event supersedes what is under way: writes are refused
in the very step in which it arrives, the call under way is cancelled, and nothing else begins before that
call has ended. See docs/role-change.md.
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

from broker_adapter.role.adapter import BrokerAdapter, RoleSource, Timer, Timers
from broker_adapter.role.role_status import HandlerStatus, Outcome, RoleChangeMetrics, Step, StepRecord
from dledger import DLedgerError, Role, RoleEvent
from dledger.platform import NodeTrace

_log = structlog.get_logger(part="role_change")

#: So long the node is asked to wait in one call; when it gives up it is asked again.
_NODE_WAIT_MS = 60_000


@dataclass(frozen=True, slots=True)
class RoleChangeLimits:
    """In seconds, unless it is a count."""

    patience_s: float = 3.0  # a step that takes longer is reported, again and again, and others may take over
    retry_first_s: float = 0.05  # after a call that raised; doubled each time
    retry_most_s: float = 1.0
    tries_before_hand_over: int = 3
    unfit_s: float = 30.0  # so long after a failure leadership is not given to this node
    fitness_period_s: float = 0.2
    stop_s: float = 5.0  # for change_to_slave when the handler is stopped
    history: int = 64  # steps remembered

    def __post_init__(self) -> None:
        for name in ("patience_s", "retry_first_s", "retry_most_s", "unfit_s", "fitness_period_s", "stop_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0")
        if self.tries_before_hand_over < 1 or self.history < 1:
            raise ValueError("tries_before_hand_over and history must be at least 1")


class _Superseded(Exception):
    """A newer event is there, or the handler is to stop."""


class CallCancelled(Exception):
    """An adapter's call ended as cancelled, though nobody had cancelled it."""


class RoleChangeHandler:
    """Makes an adapter master or slave as a node's role changes. `start` once, `stop` once, on one loop."""

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
        """`timers`: another monotonic clock than the event loop's. `trace`: is told of every change, as
        events of kind `role`: elected, barrier_committed, dispatched, master_ready, demoted, slave,
        role_wait.
        """
        self.metrics = RoleChangeMetrics()
        self._source = source
        self._adapter = adapter
        self._limits = limits or RoleChangeLimits()
        self._given_timers = timers
        self._wall_ms = wall_ms
        self._trace = trace
        self._newest: RoleEvent | None = None
        self._elected_at = 0.0  # when the newest event came
        self._step = Step.IDLE
        self._since = 0.0
        self._writable = False
        # Whether the last change was a change_to_slave that returned; nobody knows what was before us.
        self._is_slave = False
        self._task: asyncio.Task[None] | None = None
        self._handing_over: asyncio.Task[None] | None = None
        self._limit: Timer | None = None
        self._fitness: Timer | None = None
        self._stopping = False
        self._lag_bytes = 0
        self._fitness_known = True
        self._failed_at: float | None = None
        self._last_failure = ""
        self._last_switch_unix_ms = 0
        self._elected_to_writable_ms = -1
        self._history: deque[StepRecord] = deque(maxlen=self._limits.history)

    # -- for its owner ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Refuse writes, then follow the node's role from the present one on. The node was started before."""
        loop = asyncio.get_running_loop()
        self._timers: Timers = self._given_timers or loop
        self._newer: asyncio.Future[None] = loop.create_future()
        self._since = self._timers.time()
        self._fence()
        self._task = asyncio.create_task(self._run(), name="role-change")
        self._task.add_done_callback(self._ended)
        self._report_fitness_regularly()
        self._source.on_role(self.role_changed)

    def role_changed(self, event: RoleEvent) -> None:
        """The node's listener. Writes are refused when this returns, whatever the adapter is at."""
        newest = self._newest
        if self._stopping or event == newest:
            return
        if newest is not None and (event.role_epoch, event.term) < (newest.role_epoch, newest.term):
            self.metrics.stale_events += 1
            _log.warning("a role event of the past", role=event.role.value, term=event.term)
            return
        self._newest = event
        self._elected_at = self._timers.time()
        self._fence()
        if newest is not None and newest.role is Role.LEADER and newest.role_epoch != event.role_epoch:
            self._tell("demoted", newest)
        if event.role is Role.LEADER:
            self._tell("elected", event, barrier=event.barrier_index)
        self._supersede()

    async def stop(self) -> None:
        """Refuse writes at once, change to slave, end. After `stop_s` it ends without having got there."""
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
            _log.error("stopped without having become slave", at=self._step.value)
        self._enter(Step.STOPPED)

    @property
    def is_fit(self) -> bool:
        """Whether leadership may be given to this node: nothing of the adapter failed for `unfit_s`."""
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

    # -- following events ---------------------------------------------------------------------------------

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

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Without the task nobody becomes master here any more: writes are refused, and leadership is for
        somebody else, whenever this node gets it."""
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the role change handler ended by an error of its own", exc_info=error)
            self._fence()
            self._failed_at = math.inf
            self._last_failure = f"{self._step.value}: {type(error).__name__}: {error}"
            self._report_fitness()
            self._give_leadership_away()

    def _give_leadership_away(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
        self._limit = self._timers.call_later(self._limits.patience_s, self._give_leadership_away)
        self._seek_successor()

    async def _lead(self, event: RoleEvent) -> None:
        if not self._is_slave:
            await self._become_slave(event, None)
        barrier = event.barrier_index
        await self._carry_out(event, Step.WAITING_FOR_COMMIT, lambda: self._committed(barrier))
        self._tell_progress("barrier_committed", event)
        await self._carry_out(
            event, Step.WAITING_FOR_DISPATCH, lambda: self._adapter.wait_dispatched(barrier)
        )
        self._tell_progress("dispatched", event)
        await self._carry_out(event, Step.RECOVERING, self._adapter.recover_topic_queue_table)
        self._is_slave = False
        await self._carry_out(
            event,
            Step.CHANGING_TO_MASTER,
            lambda: self._adapter.change_to_master(event.term, event.role_epoch),
            then=lambda: self._accept_writes(event),
        )
        took_s = self._timers.time() - self._elected_at
        self.metrics.elected_to_writable.observe(took_s)
        self._elected_to_writable_ms = round(took_s * 1000)
        self._switched(Step.MASTER)

    async def _become_slave(self, event: RoleEvent, leader_id: str | None) -> None:
        await self._carry_out(
            event,
            Step.CHANGING_TO_SLAVE,
            lambda: self._adapter.change_to_slave(event.term, event.role_epoch, leader_id),
        )
        self._is_slave = True
        self._tell("slave", event)
        if event.role is not Role.LEADER or self._stopping:
            self._switched(Step.SLAVE)

    async def _committed(self, index: int) -> None:
        if self._source.committed_index < index:
            await self._source.wait_committed(index, timeout_ms=_NODE_WAIT_MS)

    def _accept_writes(self, event: RoleEvent) -> None:
        assert event is self._newest and not self._stopping, "checked in the same step"
        try:
            self._adapter.accept_writes(event.term, event.role_epoch)
        except Exception:
            self._fence()
            raise
        self._writable = True
        self._tell_progress("master_ready", event)

    def _fence(self) -> None:
        self._writable = False
        try:
            self._adapter.refuse_writes()
        except Exception as error:  # the node's loop must not suffer, and change_to_slave comes next
            self._failed(self._step, error)

    def _supersede(self) -> None:
        if not self._newer.done():
            self._newer.set_result(None)

    # -- one step -----------------------------------------------------------------------------------------

    async def _carry_out(
        self,
        event: RoleEvent,
        step: Step,
        call: Callable[[], Awaitable[None] | None],
        *,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """One call, repeated until it returns; `then` follows in one step with the check that no newer event
        is there. _Superseded if there is one."""
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
            self._record(step, Outcome.SUPERSEDED, event)
            raise
        self._record(step, Outcome.DONE, event)

    async def _supersedable(self, call: Callable[[], Awaitable[None] | None]) -> None:
        """Make a call and wait for its end; a newer event cancels it. Returns in one step with the check
        that there is none."""
        if self._newer.done():
            raise _Superseded
        returned = call()
        if returned is None:
            return
        task = asyncio.ensure_future(returned)
        try:
            await asyncio.wait({task, self._newer}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                # It may take its time to end, or not heed it; but two calls at once would undo each other.
                task.cancel()
                self._enter(Step.ENDING_CALL)
                await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()  # the time to stop is up: nobody waits any longer, and writes are refused
            raise
        error = None if task.cancelled() else task.exception()
        if self._newer.done():
            raise _Superseded from error
        if task.cancelled():
            raise CallCancelled("a call of the adapter ended as cancelled")
        if error is not None:
            raise error

    async def _pause(self, seconds: float) -> None:
        """Back-off, ended by a newer event."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self._timers.call_later(seconds, lambda: over.set_result(None))
        try:
            await asyncio.wait({over, self._newer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
        if self._newer.done():
            raise _Superseded

    # -- time limits, failures, fitness -------------------------------------------------------------------

    def _enter(self, step: Step) -> None:
        now = self._timers.time()
        if not self._step.is_rest:
            self.metrics.seconds[self._step] += now - self._since
        self._step, self._since = step, now
        if self._limit is not None:
            self._limit.cancel()
        self._limit = None
        if not step.is_rest:
            self._limit = self._timers.call_later(self._limits.patience_s, self._takes_long)

    def _takes_long(self) -> None:
        """Report, and again after the same time; give leadership away if somebody else is better off."""
        self._limit = self._timers.call_later(self._limits.patience_s, self._takes_long)
        self.metrics.overdue[self._step] += 1
        if not self._step.is_wait:
            self._failed_at = self._timers.time()  # the adapter hangs, or always raises
        self._report_fitness()
        if self._newest is not None:
            self._record(self._step, Outcome.OVERDUE, self._newest, self._waits_for())
            self._tell_progress("role_wait", self._newest, text=self._waits_for())
        self._seek_successor()

    def _failed(self, step: Step, error: Exception) -> None:
        self.metrics.failures[step] += 1
        self._failed_at = self._timers.time()
        self._last_failure = f"{step.value}: {type(error).__name__}: {error}"
        self._report_fitness()
        if self._newest is not None:
            self._record(step, Outcome.FAILED, self._newest, self._last_failure)

    def _report_fitness_regularly(self) -> None:
        self._fitness = self._timers.call_later(self._limits.fitness_period_s, self._report_fitness_regularly)
        self._report_fitness()

    def _report_fitness(self) -> None:
        try:
            self._lag_bytes = max(0, self._adapter.dispatch_behind_bytes)
            self._source.report_fitness(lag_bytes=self._lag_bytes, fit=self.is_fit)
        except Exception as error:  # the leader keeps what it knew of us
            if self._fitness_known:
                _log.error("fitness could not be reported", exc_info=error)
            self._fitness_known = False
        else:
            self._fitness_known = True

    def _seek_successor(self) -> None:
        """Let the node hand leadership over to somebody fitter, if there is one, beside what goes on here."""
        event = self._newest
        if event is None or event.role is not Role.LEADER or self._stopping or self._writable:
            return
        if self._handing_over is None or self._handing_over.done():
            self._handing_over = asyncio.create_task(self._hand_over(event))

    async def _hand_over(self, event: RoleEvent) -> None:
        done, reason = False, "nobody is fitter"
        try:
            done = await self._source.hand_over()
        except Exception as error:  # it is only asked for; what goes on here goes on
            reason = f"{type(error).__name__}: {error}"
        self.metrics.hand_overs["done" if done else "failed"] += 1
        _log.warning("asked for a hand-over", done=done, term=event.term, reason="" if done else reason)

    # -- what is shown ------------------------------------------------------------------------------------

    def _switched(self, role: Step) -> None:
        self._enter(role)
        self._last_switch_unix_ms = self._wall_ms()
        self.metrics.switches[role] += 1
        if self._newest is not None:
            detail = f"writable after {self._elected_to_writable_ms} ms" if role is Step.MASTER else ""
            self._record(role, Outcome.DONE, self._newest, detail)

    def _record(self, step: Step, outcome: Outcome, event: RoleEvent, detail: str = "") -> None:
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
        tell = _log.info if outcome in (Outcome.DONE, Outcome.SUPERSEDED) else _log.warning
        tell("role change", **record._asdict())

    def _tell(self, e: str, event: RoleEvent, **fields: int | str) -> None:
        if self._trace is not None:
            told = {"term": event.term, "role_epoch": event.role_epoch, **fields}
            self._trace.event("role", e, told)

    def _tell_progress(self, e: str, event: RoleEvent, **fields: int | str) -> None:
        """With what is committed and applied (`reput`) in this moment, and what has to be."""
        self._tell(
            e,
            event,
            committed=self._source.committed_index,
            reput=self._source.applied_index,
            target=event.barrier_index,
            barrier=event.barrier_index,
            **fields,
        )

    def _waits_for(self) -> str:
        """What the present step waits for, and how far that is."""
        barrier = self._newest.barrier_index if self._newest else -1
        match self._step:
            case Step.WAITING_FOR_COMMIT:
                return f"commit of {barrier}; committed up to {self._source.committed_index}"
            case Step.WAITING_FOR_DISPATCH:
                return (
                    f"dispatch up to {barrier}; applied up to {self._source.applied_index}, "
                    f"dispatch_behind_bytes {self._lag_bytes}"
                )
            case Step.ENDING_CALL:
                return "a cancelled call of the adapter to end"
            case step:
                return f"the adapter: {step.value}"

    def _ms_since(self, then: float) -> int:
        return round((self._timers.time() - then) * 1000)


def _is_failure(error: BaseException) -> bool:
    return isinstance(error, Exception) and not isinstance(error, _Superseded)


def _error_of(state: tenacity.RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome is not None else None
