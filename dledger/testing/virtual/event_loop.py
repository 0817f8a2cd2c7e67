"""asyncio in virtual time: the event loop of one simulated process, or of the clients around them.

Real coroutines run on it, unchanged. Their turns are turns of the process, so that they stop while it is
paused and end when it dies; a turn may come late, and work for other threads is done in turns of its own.
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
#: How late a turn comes, and how long work on another thread takes, in ms.
_TURN_MS = (0, 0, 0, 0, 1)
_THREAD_MS = (0, 0, 1, 4)
_OTHERS_FIRST = 0.15


class _Handle(asyncio.Handle):
    """Without a context of its own: nothing that runs in the simulator keeps anything there."""

    def __init__(  # it takes what the base class takes, and leaves out what is slow
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
    """Close the loops that nobody closed, as those of tests that failed."""
    while _open:
        _open.pop().close()


class VirtualLoop(asyncio.AbstractEventLoop):
    """`after(ms, action)` runs an action later, `now_ms` is the monotonic clock. `when_idle` is called at the
    end of each turn, outside of all coroutines: what it raises goes to the simulator. So does what the work
    of other threads raises, unless `on_thread`, which is given that work, catches it."""

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
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in the order in which they were made
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timers_made = 0  # breaks ties
        self._alarm_at = inf  # the clock calls at this time
        self._turn_asked = False
        self._dead = False
        self._failure: BaseException | None = None

    # -- for the simulator

    def die(self) -> None:
        """Nothing happens here any more. Tasks are kept as they are: no `finally` of theirs runs before
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
                coroutine.close()  # it has not begun, and nobody forgot it

    def close(self) -> None:
        """Die, and run what is left of the coroutines: each `finally`, on this loop, where it starts nothing.

        The garbage collector would run them, too, but whenever it comes by and on whichever loop has its turn
        then: the next simulation's, whose history would be another one. Not in a turn of any loop.
        """
        self.die()
        _open.discard(self)
        while self._tasks:
            task, _ = self._tasks.popitem()
            coroutine = task.get_coro()
            if inspect.iscoroutine(coroutine):
                with suppress(Exception):  # of a process that is gone: nobody is there to see it
                    self.entered(coroutine.close)

    def tasks(self) -> list[asyncio.Task[Any]]:
        """Those that have not ended, the oldest first."""
        return list(self._tasks)

    def fail(self, error: BaseException) -> None:
        """A finding: it is raised at the end of the turn, outside of all coroutines."""
        if not self._dead and self._failure is None:
            self._failure = error

    def raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def entered(self, action: Callable[[], object]) -> None:
        """Call something as if it were a callback of this loop. One does not nest in another's."""
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
        handle = _Handle(callback, args, self)
        if not self._dead:
            self._ready.append(handle)
            self._ask_for_turn()
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
        """For the first timer, unless the clock will call before."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if timers and timers[0][0] < self._alarm_at:
            self._alarm_at = when = timers[0][0]
            self._after(max(0, self._ms_until(when)), partial(self._on_alarm, when))

    def _on_alarm(self, when: float) -> None:
        if self._dead or when != self._alarm_at:
            return  # there was an earlier one
        self._alarm_at = inf
        timers = self._timers
        while timers and self._ms_until(timers[0][0]) <= 0:
            self._ready.append(heapq.heappop(timers)[2])
        if self._ready:
            self._ask_for_turn()
        self._set_alarm()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is found out when it is due."""

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
        """On a thread that gets round to it a little later."""
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
        """What a callback raises, or a task that nobody asks, is a finding. A future that nobody asks any
        more is none: whoever did has given up."""
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
            self.fail(error)  # a violation, whoever might have swallowed it

    def _ask_for_turn(self) -> None:
        if not self._turn_asked:
            self._turn_asked = True
            self._after(self._rng.choice(_TURN_MS), self._turn)

    def _turn(self) -> None:
        self._turn_asked = False
        if events._get_running_loop() is self:
            self._run_ready()
        else:
            self.entered(self._run_ready)
        self.raise_failure()
        if not self._dead:
            self.when_idle()

    def _run_ready(self) -> None:
        """Iterations of the loop. Between two of them others may have their turns, as in a real one."""
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
                self._ask_for_turn()
                return
        raise AssertionError(f"no end of callbacks; the next one is {ready[0]}")


def virtual_loop(
    after: Callable[[int, Callable[[], None]], None],
    now_ms: Callable[[], int],
    rng: Random,
    *,
    when_idle: Callable[[], None] = lambda: None,
    on_thread: Callable[[Callable[[], None]], None] = lambda work: work(),
) -> VirtualLoop:
    """A VirtualLoop. It has what coroutines need; sockets, signals and processes it has not."""
    return VirtualLoop(  # type: ignore[abstract]
        after, now_ms, rng, when_idle=when_idle, on_thread=on_thread
    )
