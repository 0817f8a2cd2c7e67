"""Runs jobs on a thread with a bounded queue. The work may lag, but only by a limited amount."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Condition, Event, Thread
from typing import Any, Final, Protocol

Job = Callable[[], None]
#: Work on a list of items, which may be longer than one that was gathered.
GatheredWork = Callable[[list[Any]], None]

#: The thread waits this long, in seconds, for more items, because each call of the work has a fixed cost.
_GATHER_S: Final = 0.05
_GATHERED: Final = 256


class JobQueue(Protocol):
    """Runs jobs in order. After a job raises, no job runs, and `submit` and `drain` raise JobQueueFailed."""

    @property
    def pending(self) -> int:
        """Total weight of unfinished jobs."""

    def submit(self, job: Job, weight: int = 0) -> None:
        """Add a job. Wait while the total weight of the pending jobs exceeds the limit."""

    def gather(self, work: GatheredWork, items: Sequence[Any], weight: int) -> None:
        """Add a job that runs `work` on the items, which have this weight together, like `submit`.

        It may start later, with the items of further calls, unless another job waits for it.
        """

    def wait(self, timeout_s: float) -> bool:
        """Wait until the jobs so far are done. Return False after `timeout_s`."""

    def drain(self) -> None:
        """Wait until all jobs are done."""

    def close(self) -> None:
        """Finish all submitted jobs, then end. Never raises an exception."""


class JobQueueFailed(RuntimeError):
    """Raised after a job has failed, with the job's exception as the cause, or after the queue was closed."""


@dataclass(slots=True)
class _Queued:
    """A job, or gathered items for `work`."""

    job: Job
    weight: int
    work: GatheredWork | None = None
    items: list[Any] | None = None


class ThreadJobQueue:
    """A JobQueue on a daemon thread, so that a hanging disk cannot keep the process from exiting."""

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._jobs: deque[_Queued] = deque()
        self._changed = Condition()
        self._pending = 0
        self._drains = 0
        self._busy = False
        self._closed = False
        self._failure: BaseException | None = None
        self._thread: Thread | None = None

    @property
    def pending(self) -> int:
        return self._pending

    def submit(self, job: Job, weight: int = 0) -> None:
        with self._changed:
            self._wait_for_room()
            self._add(_Queued(job, weight))

    def gather(self, work: GatheredWork, items: Sequence[Any], weight: int) -> None:
        with self._changed:
            self._wait_for_room()
            last = self._jobs[-1] if self._jobs else None
            if last is None or last.items is None or last.work != work or last.weight >= _GATHERED:
                gathered = list(items)
                self._add(_Queued(partial(work, gathered), weight, work, gathered))
                return
            last.items += items
            last.weight += weight
            self._pending += weight
            if last.weight >= _GATHERED:
                self._changed.notify_all()

    def wait(self, timeout_s: float) -> bool:
        if not self._pending:
            return True
        is_done = Event()
        self.submit(is_done.set)
        return is_done.wait(timeout_s)

    def drain(self) -> None:
        with self._changed:
            self._drains += 1
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: self._failure is not None or not (self._jobs or self._busy))
            finally:
                self._drains -= 1
            self._raise_failure()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _wait_for_room(self) -> None:
        self._changed.wait_for(lambda: self._pending <= self._limit or self._failure is not None)
        self._raise_failure()
        if self._closed:
            raise JobQueueFailed(f"{self._name} is closed")

    def _add(self, queued: _Queued) -> None:
        self._jobs.append(queued)
        self._pending += queued.weight
        if self._thread is None:
            self._thread = Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise JobQueueFailed(f"{self._name} failed: {self._failure}") from self._failure

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closed)
                if not self._jobs:
                    return
                if self._jobs[0].items is not None:
                    self._changed.wait_for(self._is_gathered, timeout=_GATHER_S)
                queued = self._jobs.popleft()
                self._busy = True
            failure: BaseException | None = None
            try:
                queued.job()
            except BaseException as error:
                failure = error
            with self._changed:
                self._busy = False
                self._pending -= queued.weight
                self._failure = failure
                if failure is not None:
                    self._jobs.clear()
                self._changed.notify_all()
            if failure is not None:
                return

    def _is_gathered(self) -> bool:
        """Return True if the first job must not wait for more items."""
        is_awaited = len(self._jobs) > 1 or self._drains > 0 or self._closed
        return is_awaited or self._pending > self._limit or self._jobs[0].weight >= _GATHERED
