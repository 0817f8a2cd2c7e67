"""What a slave may say to its master, report by report. Pure.

RocketMQ believes every 8 bytes (its issue 1155): random ones acknowledge what no slave has.
"""

from __future__ import annotations

from typing import Final

from broker_adapter.errors import HaRefused, Status
from broker_adapter.ha.handshake import MOST_TAIL_BYTES, Introduction, LogRange
from broker_adapter.ha.transfers import first_report

#: Reports beyond those that frames are answered with: at first, and for each second.
_FREE_REPORTS: Final = 1_000
_REPORTS_PER_S: Final = 10
#: For each frame: RocketMQ's slave reports once, and once more when it has read all that came.
_REPORTS_PER_FRAME: Final = 4


class SlaveProgress:
    """`start`: where the log begins for this slave, None before it has said what it has. `sent`: the offset
    behind what was sent. `acked`: all before it is stored there; -1: nothing is known."""

    def __init__(self, now: float) -> None:
        """`now`: seconds of any clock that does not go back, here and below."""
        self.start: int | None = None
        self.sent = 0
        self.acked = -1
        self._first = -1
        self._frames = 0
        self._reports = 0
        self._begun = now

    def begin(self, start: int, acked: int) -> None:
        """Both ends have agreed by handshake. `acked`: what the slave has."""
        self.start = self.sent = start
        self.acked = self._first = acked

    def sent_frame(self, size: int) -> None:
        self.sent += size
        self._frames += 1

    def report(self, offset: int, now: float, log: LogRange, last_file: int) -> bool:
        """Whether it acknowledges more than before. HaRefused (HA_REPORT_REFUSED, HA_GAP) for a report that
        no slave of this master gives. `log`, `last_file`: what the master has now."""
        self._reports += 1
        free = _FREE_REPORTS + _REPORTS_PER_S * (now - self._begun)
        if self._reports > free + _REPORTS_PER_FRAME * self._frames:
            raise _refused(f"{self._reports} reports, with {self._frames} frames sent")
        if self.start is None:
            return self._first_report(offset, log, last_file)
        if offset == self.acked:
            return False
        if offset > self.sent:
            raise _refused(f"it reports {offset}, and was sent the log up to {self.sent}")
        if offset < max(self.acked, self.start):
            raise _refused(f"it reports {offset} after {max(self.acked, self.start)}")
        self.acked = offset
        return True

    def _first_report(self, offset: int, log: LogRange, last_file: int) -> bool:
        if not 0 <= offset <= max(log.end, first_report(0)):
            raise _refused(f"it reports {offset}, and the log ends at {log.end}")
        if offset == 0:
            self.begin(last_file, 0)
            return False
        if offset < log.begin:
            raise HaRefused(Status.HA_GAP, f"it reports {offset}, and the log begins at {log.begin}")
        self.begin(offset, offset)
        return True


def start_for(said: Introduction, log: LogRange, last_file: int) -> int:
    """Where the log has to go on for a slave that has introduced itself. HaRefused: HA_IDENTITY, HA_DIVERGED,
    HA_GAP."""
    theirs = said.log
    if theirs.file_size != log.file_size:
        text = f"its files have {theirs.file_size} bytes, the master's {log.file_size}"
        raise HaRefused(Status.HA_IDENTITY, text)
    if theirs.begin == theirs.end:
        if theirs.end and log.begin <= theirs.end <= log.end:
            return theirs.end
        return log.begin if said.whole_log else last_file
    if theirs.end > log.end:
        raise HaRefused(Status.HA_DIVERGED, f"it has the log up to {theirs.end}, the master up to {log.end}")
    if not max(theirs.begin, theirs.end - MOST_TAIL_BYTES) <= said.tail_begin < theirs.end:
        raise HaRefused(Status.HA_IDENTITY, f"the tail of its log begins at {said.tail_begin}")
    if said.tail_begin < log.begin:
        text = f"it has the log up to {theirs.end}, and the master from {log.begin} on"
        raise HaRefused(Status.HA_GAP, text)
    return theirs.end


def compare_tail(said: Introduction, digest: bytes) -> None:
    """`digest`: of the master's bytes from `tail_begin` to the end of the slave's log. HaRefused
    (HA_DIVERGED)."""
    if digest != said.tail_digest:
        text = f"between {said.tail_begin} and {said.log.end} its log differs from the master's"
        raise HaRefused(Status.HA_DIVERGED, text)


def _refused(problem: str) -> HaRefused:
    return HaRefused(Status.HA_REPORT_REFUSED, problem)
