"""Background upkeep of a CommitLog: creates the next file, writes checkpoints, removes old files.

A separate thread runs it, because each step may take seconds on a slow disk and must not delay appends.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from broker_adapter.errors import BrokerError, Status, error_for
from broker_adapter.log.classic.age_pause import AgePause
from broker_adapter.log.classic.commit_log_files import CommitLogFiles
from broker_adapter.log.classic.log_retention import (
    CurrentTimes,
    Decision,
    DiskRetentionPolicy,
    check_policy,
    decide,
)
from dledger.infra.logs import get_logger

_log = get_logger("commitlog")


class UpkeepOptions(NamedTuple):
    """Intervals in seconds. `clean_s`: RocketMQ's cleanResourceInterval."""

    interval_s: float = 0.2
    clean_s: float = 10.0
    checkpoint_s: float = 10.0


class UpkeepClocks(NamedTuple):
    """Clocks, callable from any thread.

    `log_ms`: clock of store timestamps. `steps_ms`: total of that clock's steps in this process.
    """

    log_ms: Callable[[], int]
    steps_ms: Callable[[], int]
    wall_ms: Callable[[], int]
    monotonic_ms: Callable[[], int]


class LogUpkeep:
    """The upkeep thread.

    Call `start` and `stop` on the event loop. The thread calls `run_once` periodically.
    """

    def __init__(
        self,
        log: CommitLogFiles,
        policy: DiskRetentionPolicy,
        options: UpkeepOptions | None = None,
        *,
        clocks: UpkeepClocks,
        pause: AgePause,
        keep_from: Callable[[], int],
        on_purged: Callable[[int], None] = lambda begin: None,
        on_fatal: Callable[[BrokerError], None] = lambda error: None,
    ) -> None:
        """Create the upkeep of a log.

        `keep_from` returns the first offset that is still needed, and is called on the upkeep thread.
        `on_purged` receives the new start of the log. `on_purged` and `on_fatal` are called on the event
        loop. Raises ConfigError for an invalid policy.
        """
        check_policy(policy)
        self._log = log
        self._policy = policy
        self._options = UpkeepOptions() if options is None else options
        self._keep_from = keep_from
        self._on_purged = on_purged
        self._on_fatal = on_fatal
        self._clocks = clocks
        self._pause = pause
        self._cleaned_ms = self._saved_ms = clocks.monotonic_ms()
        self._saved_at = log.flushed_offset
        self._clean_requested = threading.Event()
        self._wake_up = threading.Event()
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="commitlog-upkeep", daemon=True)
        # True if the last run found no space for another file.
        self.is_full = False
        self.last_decision = Decision(0, "")
        self.runs = 0  # number of completed `run_once` calls

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        self._stopping = True
        self._wake_up.set()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)

    def clean_now(self) -> None:
        """Remove old files now, at an operator's request."""
        self._clean_requested.set()
        self._wake_up.set()

    def run_once(self) -> None:
        """Do the work that is due. The error LOG_FAILED ends the thread."""
        now_ms = self._clocks.monotonic_ms()
        full = not self._log.prepare()
        if full != self.is_full:
            self.is_full = full
            log = _log.warning if full else _log.info
            log(
                "no disk space for another file of the CommitLog" if full else "disk space is available again"
            )
        is_requested = self._clean_requested.is_set()
        self._clean_requested.clear()
        log_ms = self._clocks.log_ms()  # read first: reading may step the clock, which starts the pause
        self._pause.update(self._clocks.steps_ms(), now_ms)
        if is_requested or full or now_ms - self._cleaned_ms >= 1000 * self._options.clean_s:
            self._cleaned_ms = now_ms
            self._clean(log_ms, is_requested)
        if now_ms - self._saved_ms >= 1000 * self._options.checkpoint_s:
            self._saved_ms = now_ms
            if self._saved_at != self._log.flushed_offset:
                self._saved_at = self._log.flushed_offset
                self._log.save_checkpoint()
        self.runs += 1

    def _clean(self, log_ms: int, is_requested: bool) -> None:
        wall_ms = self._clocks.wall_ms()
        hour = time.localtime(wall_ms / 1000).tm_hour
        used, usable = self._log.disk_bytes()
        decision = decide(
            self._policy,
            self._log.old_files(),
            self._log.file_size,
            now=CurrentTimes(log_ms, wall_ms, hour, does_age_count=not self._pause.step_ms),
            used=used,
            usable=usable,
            keep_from=self._keep_from(),
            is_requested=is_requested,
        )
        if decision.refusal != self._log.refusal:
            self._log.refusal = decision.refusal
            if decision.refusal:
                _log.error("refusing sends: the disk is nearly full", reason=decision.refusal)
            else:
                _log.info("accepting sends again")
        self.last_decision = decision
        before = self._log.begin_offset
        if decision.purge_below > before:
            self._log.purge_below(decision.purge_below)
            begin = self._log.begin_offset
            _log.info("files removed", begin_offset=begin, bytes=begin - before, reason=decision.reason)
            self._hand_over(self._on_purged, begin)

    def _run(self) -> None:
        try:
            while not self._stopping:
                self.run_once()
                self._wake_up.wait(self._options.interval_s)
                self._wake_up.clear()
        except BrokerError as error:
            if error.status is not Status.SHUTTING_DOWN:
                self._hand_over(self._on_fatal, error)
        except Exception as error:  # a partial file may exist
            text = f"upkeep of the CommitLog: {type(error).__name__}: {error}"
            self._hand_over(self._on_fatal, error_for(Status.LOG_FAILED, text))

    def _hand_over(self, call: Callable[..., None], *args: object) -> None:
        if self._loop is None:  # called without a thread
            call(*args)
            return
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            self._stopping = True  # the loop is closed
