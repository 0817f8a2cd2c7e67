"""Runs jobs on a thread with a bounded queue. The work may lag, but only by a limited amount."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Condition, Thread
from typing import Protocol

Job = Callable[[], None]


class JobQueue(Protocol):
    """Runs jobs in order. After a job raises, no job runs, and `submit` and `drain` raise JobQueueFailed."""

    @property
    def pending(self) -> int:
        """Total weight of unfinished jobs."""

    def submit(self, job: Job, weight: int = 0) -> None:
        """Add a job. Wait while the total weight of the pending jobs exceeds the limit."""

    def drain(self) -> None:
        """Wait until all jobs are done."""

    def close(self) -> None:
        """Finish all submitted jobs, then end. Never raises an exception."""


class JobQueueFailed(RuntimeError):
    """Raised after a job has failed, with the job's exception as the cause, or after the queue was closed."""


class ThreadJobQueue:
    """A JobQueue on a daemon thread, so that a hanging disk cannot keep the process from exiting."""

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._jobs: deque[tuple[Job, int]] = deque()
        self._changed = Condition()
        self._pending = 0
        self._busy = False
        self._closed = False
        self._failure: BaseException | None = None
        self._thread: Thread | None = None

    @property
    def pending(self) -> int:
        return self._pending

    def submit(self, job: Job, weight: int = 0) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._pending <= self._limit or self._failure is not None)
            self._raise_failure()
            if self._closed:
                raise JobQueueFailed(f"{self._name} is closed")
            self._jobs.append((job, weight))
            self._pending += weight
            if self._thread is None:
                self._thread = Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def drain(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or not (self._jobs or self._busy))
            self._raise_failure()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise JobQueueFailed(f"{self._name} failed: {self._failure}") from self._failure

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closed)
                if not self._jobs:
                    return
                job, weight = self._jobs.popleft()
                self._busy = True
            failure: BaseException | None = None
            try:
                job()
            except BaseException as error:
                failure = error
            with self._changed:
                self._busy = False
                self._pending -= weight
                self._failure = failure
                if failure is not None:
                    self._jobs.clear()
                self._changed.notify_all()
            if failure is not None:
                return
