"""Replays the journals of a node with a classic log, which shows how far its log was written at each time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from chaos.syncs.journal import Line
from chaos.syncs.recorder import CLASSIC_LOG
from chaos.syncs.replay import RecordingStarted


class LogStored(NamedTuple):
    """From `mono` on, the log was written up to the physical offset `end`."""

    mono: int
    end: int


class ClassicReplay:
    """The end of the log of one node across all its processes.

    A line precedes its write, so an end may be reported slightly too early, but never too late.
    """

    def __init__(self) -> None:
        self._life = -1
        self._begins: dict[int, int] = {}  # start of each file in the log, by inode
        self._end = 0

    def life(self, lines: Iterable[Line]) -> Iterator[RecordingStarted | LogStored]:
        """Yield the facts that follow from the journal of the next process."""
        self._life += 1
        self._begins.clear()
        for line in lines:
            end = self._end
            if line.what == "life":
                yield RecordingStarted(line.number_at(0), self._life)
            elif line.what in ("has", "made"):
                self._add(line)
            elif line.what == "listed":
                end = end if self._begins else 0  # the harness may have moved the log away
            elif (begin := self._begin_of(line)) is not None:
                at = begin + line.number_at(2)
                end = max(end, at + line.number_at(3)) if line.what == "write" else min(end, at)
            if end != self._end:
                self._end = end
                yield LogStored(line.number_at(0), end)

    def _add(self, line: Line) -> None:
        folder, _, name = line.name_at(2).rpartition("/")
        if folder == CLASSIC_LOG and name.isdecimal():
            self._begins[line.number_at(0 if line.what == "has" else 1)] = int(name)

    def _begin_of(self, line: Line) -> int | None:
        """Return the start of the file that a line writes or cuts, or None for other lines and files."""
        return self._begins.get(line.number_at(1)) if line.what in ("write", "cut") else None
