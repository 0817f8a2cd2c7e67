"""A thread behind a bounded queue: work that may lag a little, but neither without end nor unnoticed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Condition, Thread
from typing import Protocol

Job = Callable[[], None]


class JobQueue(Protocol):
    """Does jobs in order. What a job raises, `submit` and `drain` raise from then on; no job follows it."""

    @property
    def pending(self) -> int:
        """Weight of what was submitted and is not done."""

    def submit(self, job: Job, weight: int = 0) -> None:
        """Waits while more than the limit is pending."""

    def drain(self) -> None:
        """Wait until everything is done."""

    def close(self) -> None:
        """Do what was submitted, then end. Raises nothing."""


class JobQueueFailed(RuntimeError):
    """A job raised, which is the cause of this."""


class ThreadJobQueue:
    """A JobQueue on a daemon thread: a disk may not answer, and a process must end all the same."""

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
