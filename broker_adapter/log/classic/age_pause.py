"""Pause the removal of old files after a step of the log's time (docs/guarantees.md rule 12).

After a step of more than an hour, a wrong clock may make messages look old. Removal by age then pauses for an
hour, which gives an operator time to correct the clock. `config/agePause.json` stores the step, and a
restarted process starts the hour again.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import structlog

from dledger.core.member_clocks import PAUSE_MS, PAUSING_STEP_MS
from dledger.infra.files.disk import Disk, read_file, replace_file

_log = structlog.get_logger(part="commitlog")
_FILE = "agePause.json"
# Assumed step if the file is unreadable.
_UNKNOWN_STEP_MS = PAUSING_STEP_MS + 1


class AgePause:
    """The pause of removal by age. One thread changes it; other threads may read it."""

    def __init__(self, disk: Disk, directory: Path, now_ms: int) -> None:
        """Load the stored pause. `now_ms`: monotonic time, here and in the other methods."""
        self._disk = disk
        self._path = directory / _FILE
        self._seen_ms = 0  # sum of the steps
        self._start_ms = now_ms
        self._is_stored = True  # the file agrees with `step_ms`
        # Length of the step that caused the pause; 0: no pause.
        self.step_ms = self._read()

    def update(self, steps_ms: int, now_ms: int) -> None:
        """Update the pause. `steps_ms`: total of the steps of the log's time in this process."""
        step_ms, self._seen_ms = steps_ms - self._seen_ms, steps_ms
        if step_ms > PAUSING_STEP_MS:
            _log.warning("removal by age pauses for an hour: the log's time made a step", step_ms=step_ms)
            self.step_ms, self._start_ms, self._is_stored = step_ms, now_ms, False
        elif self.step_ms and now_ms - self._start_ms >= PAUSE_MS:
            self.step_ms, self._is_stored = 0, False
        if not self._is_stored:
            self._save()

    def remaining_ms(self, now_ms: int) -> int:
        return max(0, self._start_ms + PAUSE_MS - now_ms) if self.step_ms else 0

    def _read(self) -> int:
        try:
            content = json.loads(read_file(self._disk, self._path))
            step_ms = content["stepMs"]
            return step_ms if type(step_ms) is int and step_ms > 0 else _UNKNOWN_STEP_MS
        except FileNotFoundError:
            return 0
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            _log.error(
                "removal by age pauses for an hour: cannot read the stored pause", reason=f"{error!r}"[:300]
            )
            return _UNKNOWN_STEP_MS

    def _save(self) -> None:
        try:
            directory = self._path.parent
            if self.step_ms:
                if not self._disk.exists(directory):
                    self._disk.mkdir(directory)
                    self._disk.sync_directory(directory.parent)
                replace_file(self._disk, self._path, json.dumps({"stepMs": self.step_ms}).encode())
            else:
                with suppress(FileNotFoundError):
                    self._disk.unlink(self._path)
                self._disk.sync_directory(directory)
            self._is_stored = True
        except OSError as error:  # retried by the next update
            _log.error("cannot store the pause of removal by age", reason=f"{error}")
