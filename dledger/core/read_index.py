"""Linearizable read points (Raft thesis 6.4; guarantees.md rule 4), as bookkeeping over heartbeat rounds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WaitingRead:
    request_id: int
    read_index: int
    min_round: int  # confirmed by a majority of answers to this heartbeat round or a later one


class ReadIndexQueue:
    """Reads of one leadership. All that wait share rounds: one round is out for reads at a time."""

    def __init__(self) -> None:
        self.before_noop: list[int] = []  # asked before the no-op of this leadership was committed
        self.waiting: deque[WaitingRead] = deque()

    def add(self, request_id: int, committed_index: int, last_round: int) -> None:
        """Only a round that starts after the request can confirm it."""
        self.waiting.append(WaitingRead(request_id, committed_index, last_round + 1))

    def needs_round(self, last_round: int) -> bool:
        """Is somebody waiting for a round that has not begun, and nobody for one that is out?"""
        return bool(self.waiting) and self.waiting[0].min_round > last_round

    def confirmed(self, majority_round: int) -> list[WaitingRead]:
        """A majority has answered `majority_round`: the reads that it confirms, in order."""
        ready: list[WaitingRead] = []
        while self.waiting and self.waiting[0].min_round <= majority_round:
            ready.append(self.waiting.popleft())
        return ready

    def drain(self) -> list[int]:
        """All request ids, for a leadership that ends."""
        ids = [*self.before_noop, *(read.request_id for read in self.waiting)]
        self.before_noop.clear()
        self.waiting.clear()
        return ids
