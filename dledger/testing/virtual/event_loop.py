"""asyncio in virtual time: the event loop of one simulated process, or of the clients of the nodes.

It runs real coroutines unchanged. Their turns are turns of the process, so they stop while it is paused and
end when it dies. A turn may be late, and work for other threads runs in separate turns.
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import Context
from functools import partial
from math import ceil, inf
from random import Random
from typing import Any, TypeVar
from weakref import WeakSet

T = TypeVar("T")

_MOST_ITERATIONS = 10_000
#: Delays in ms of a turn, and of work on another thread.
_TURN_MS = (0, 0, 0, 0, 1)
_THREAD_MS = (0, 0, 1, 4)
_OTHERS_FIRST = 0.15


class _LoopHandle(asyncio.Handle):
    """A handle without its own context, because nothing in the simulator stores anything there."""

    def __init__(  # accepts the base class's arguments and omits the slow parts
        self, callback: Callable[..., object], args: Sequence[Any], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None

    def _run(self) -> None:
        try:
            self._callback(*self._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except Exception as error:
            self._loop.call_exception_handler({"message": f"in {self._callback}", "exception": error})


_open: WeakSet[VirtualLoop] = WeakSet()


def close_all() -> None:
    """Close all loops that are still open, for example after failed tests."""
    while _open:
        _open.pop().close()


class VirtualLoop(asyncio.AbstractEventLoop):
    """An event loop in virtual time.

    `after(ms, action)` schedules an action, `now_ms` is the monotonic clock. `when_idle` is called at the end
    of each turn, outside all coroutines; its exceptions reach the simulator. So do exceptions of work for
    other threads, unless `on_thread`, which runs that work, catches them.
    """

    def __init__(
        self,
        after: Callable[[int, Callable[[], None]], None],
        now_ms: Callable[[], int],
        rng: Random,
        *,
        when_idle: Callable[[], None] = lambda: None,
        on_thread: Callable[[Callable[[], None]], None] = lambda work: work(),
    ) -> None:
        _open.add(self)
        self.when_idle = when_idle
        self._after = after
        self._now_ms = now_ms
        self._rng = rng
        self._on_thread = on_thread
        self._ready: deque[asyncio.Handle] = deque()
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in order of creation
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timers_made = 0  # breaks ties
        self._alarm_at = inf  # time of the next clock callback
        self._turn_scheduled = False
        self._dead = False
        self._failure: BaseException | None = None

    # -- for the simulator

    def die(self) -> None:
        """Stop all activity. Tasks are kept in their state, so none of their `finally` blocks runs before
        `close`."""
        self._dead = True
        self._ready.clear()
        self._timers.clear()
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            if (
                inspect.iscoroutine(coroutine)
                and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED
            ):
                coroutine.close()  # it never started, so Python must not warn that it was never awaited

    def close(self) -> None:
        """Die, and run the remaining `finally` blocks of coroutines on this loop, where they can start
        nothing.

        Otherwise the garbage collector would run them, at an arbitrary time and in the turn of another loop.
        This could be in the next simulation, whose history would change. Must not be called in a turn of any
        loop.
        """
        self.die()
        _open.discard(self)
        while self._tasks:
            task, _ = self._tasks.popitem()
            coroutine = task.get_coro()
            if inspect.iscoroutine(coroutine):
                with suppress(Exception):  # the process is gone, so its errors are irrelevant
                    self.entered(coroutine.close)

    def tasks(self) -> list[asyncio.Task[Any]]:
        """Return the tasks that have not ended, oldest first."""
        return list(self._tasks)

    def fail(self, error: BaseException) -> None:
        """Report a finding, which is raised at the end of the turn, outside all coroutines."""
        if not self._dead and self._failure is None:
            self._failure = error

    def raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def entered(self, action: Callable[[], object]) -> None:
        """Call `action` like a callback of this loop. Must not be nested in a turn of another loop."""
        assert events._get_running_loop() is None, "turns do not nest"
        events._set_running_loop(self)
        try:
            action()
        finally:
            events._set_running_loop(None)

    # -- asyncio

    def time(self) -> float:
        return self._now_ms() / 1000

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._dead

    def is_closed(self) -> bool:
        return self._dead

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _LoopHandle(callback, args, self)
        if not self._dead:
            self._ready.append(handle)
            self._schedule_turn()
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers_made += 1
        heapq.heappush(self._timers, (when, self._timers_made, handle))
        self._set_alarm()
        return handle

    def _set_alarm(self) -> None:
        """Schedule a callback for the first timer, unless an earlier one is scheduled."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if timers and timers[0][0] < self._alarm_at:
            self._alarm_at = when = timers[0][0]
            self._after(max(0, self._ms_until(when)), partial(self._on_alarm, when))

    def _on_alarm(self, when: float) -> None:
        if self._dead or when != self._alarm_at:
            return  # superseded by an earlier one
        self._alarm_at = inf
        timers = self._timers
        while timers and self._ms_until(timers[0][0]) <= 0:
            self._ready.append(heapq.heappop(timers)[2])
        if self._ready:
            self._schedule_turn()
        self._set_alarm()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing, because the loop detects the cancellation when the timer is due."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run on a thread that starts after a delay."""
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:
                if not self._dead:
                    future.set_exception(error)
            else:
                future.set_result(result)

        def begin() -> None:
            if not future.cancelled() and not self._dead:
                self._on_thread(work)

        self._after(self._rng.choice(_THREAD_MS), begin)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report exceptions of callbacks and of tasks that are never awaited as findings. Futures that are
        never awaited are ignored, because their callers have given up."""
        future = context.get("future")
        if future is not None and not isinstance(future, asyncio.Task):
            return
        self.fail(context.get("exception") or AssertionError(context["message"]))

    # -- inside

    def _ms_until(self, when: float) -> int:
        return ceil(when * 1000 - self._now_ms() - 1e-6)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and isinstance(error := task.exception(), AssertionError):
            self.fail(error)  # a violation, even if the task's caller swallows it

    def _schedule_turn(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._after(self._rng.choice(_TURN_MS), self._turn)

    def _turn(self) -> None:
        self._turn_scheduled = False
        if events._get_running_loop() is self:
            self._run_ready()
        else:
            self.entered(self._run_ready)
        self.raise_failure()
        if not self._dead:
            self.when_idle()

    def _run_ready(self) -> None:
        """Run iterations of the loop. Others may have turns in between, as in a real loop."""
        ready = self._ready
        for _ in range(_MOST_ITERATIONS):
            for _ in range(len(ready)):
                if self._dead or not ready:
                    return
                handle = ready.popleft()
                if not handle.cancelled():
                    handle._run()
            if not ready:
                return
            if self._rng.random() < _OTHERS_FIRST:
                self._schedule_turn()
                return
        raise AssertionError(f"callbacks keep scheduling each other without end; the next one is {ready[0]}")


def virtual_loop(
    after: Callable[[int, Callable[[], None]], None],
    now_ms: Callable[[], int],
    rng: Random,
    *,
    when_idle: Callable[[], None] = lambda: None,
    on_thread: Callable[[Callable[[], None]], None] = lambda work: work(),
) -> VirtualLoop:
    """Create a VirtualLoop. It supports everything that coroutines need, but no sockets, signals or
    processes."""
    return VirtualLoop(  # type: ignore[abstract]
        after, now_ms, rng, when_idle=when_idle, on_thread=on_thread
    )
