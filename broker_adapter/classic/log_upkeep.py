"""What a CommitLog needs beside its writer: the next file ahead, a checkpoint at times, old files removed.

One thread, since each of these may take seconds on a slow disk, and none of them may delay an append.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from broker_adapter.classic.commit_log_files import CommitLogFiles
from broker_adapter.classic.log_retention import Decision, RetentionPolicy, check_policy, decide
from broker_adapter.errors import BrokerError, Status, error_for
from dledger.platform import get_logger

_log = get_logger("commitlog")


class UpkeepOptions(NamedTuple):
    """Durations in seconds. `clean_s`: RocketMQ's cleanResourceInterval."""

    look_s: float = 0.2
    clean_s: float = 10.0
    checkpoint_s: float = 10.0


class LogUpkeep:
    """`start` and `stop` on the event loop; `look` is what its thread does again and again."""

    def __init__(
        self,
        log: CommitLogFiles,
        policy: RetentionPolicy,
        options: UpkeepOptions | None = None,
        *,
        keep_from: Callable[[], int],
        on_purged: Callable[[int], None] = lambda begin: None,
        on_fatal: Callable[[BrokerError], None] = lambda error: None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`keep_from`: an offset that is needed still; on any thread. `on_purged` (the log's new begin) and
        `on_fatal` are called on the event loop. ConfigError for a policy that is none."""
        check_policy(policy)
        self._log = log
        self._policy = policy
        self._options = UpkeepOptions() if options is None else options
        self._keep_from = keep_from
        self._on_purged = on_purged
        self._on_fatal = on_fatal
        self._now_s = now_s
        self._cleaned_s = self._saved_s = now_s()
        self._saved_at = log.flushed_offset
        self._asked = threading.Event()
        self._wanted = threading.Event()
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="commitlog-upkeep", daemon=True)
        #: The last look found no room for another file.
        self.is_full = False
        self.last_decision = Decision(0, "")

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        self._stopping = True
        self._wanted.set()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)

    def clean_now(self) -> None:
        """An operator's wish: old files go at this hour, too."""
        self._asked.set()
        self._wanted.set()

    def look(self) -> None:
        """LOG_FAILED, after which nobody looks again."""
        now_s = self._now_s()
        full = not self._log.prepare()
        if full != self.is_full:
            self.is_full = full
            tell = _log.warning if full else _log.info
            tell("no room for another file of the CommitLog" if full else "there is room again")
        asked = self._asked.is_set()
        self._asked.clear()
        if asked or full or abs(now_s - self._cleaned_s) >= self._options.clean_s:
            self._cleaned_s = now_s
            self._clean(now_s, asked)
        if abs(now_s - self._saved_s) >= self._options.checkpoint_s:
            self._saved_s = now_s
            if self._saved_at != self._log.flushed_offset:
                self._saved_at = self._log.flushed_offset
                self._log.save_checkpoint()

    def _clean(self, now_s: float, asked: bool) -> None:
        used, usable = self._log.disk_bytes()
        decision = decide(
            self._policy,
            self._log.old_files(),
            self._log.file_size,
            now_ms=int(now_s * 1000),
            hour=time.localtime(now_s).tm_hour,
            used=used,
            usable=usable,
            keep_from=self._keep_from(),
            asked=asked,
        )
        if decision.refusal != self._log.refusal:
            self._log.refusal = decision.refusal
            if decision.refusal:
                _log.error("producers are refused: the disk is nearly full", reason=decision.refusal)
            else:
                _log.info("producers are not refused any more")
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
                self.look()
                self._wanted.wait(self._options.look_s)
                self._wanted.clear()
        except BrokerError as error:
            if error.status is not Status.SHUTTING_DOWN:
                self._hand_over(self._on_fatal, error)
        except Exception as error:  # half a file may be there, and nobody knows of it
            text = f"upkeep of the CommitLog: {type(error).__name__}: {error}"
            self._hand_over(self._on_fatal, error_for(Status.LOG_FAILED, text))

    def _hand_over(self, call: Callable[..., None], *args: object) -> None:
        if self._loop is None:  # `look` without a thread
            call(*args)
            return
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            self._stopping = True  # the loop is closed: nobody waits any more
