"""Linearizable reads by heartbeat rounds (Raft thesis 6.4; docs/guarantees.md rule 4)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WaitingRead:
    request_id: int
    read_index: int
    min_round: int  # confirmed by a majority of responses to this heartbeat round or a later one


class ReadIndexQueue:
    """The pending reads of one leader in one term. Reads share rounds; one round is in flight at a time."""

    def __init__(self) -> None:
        self.before_noop: list[int] = []  # requested before the no-op of this leadership was committed
        self.waiting: deque[WaitingRead] = deque()

    def add(self, request_id: int, committed_index: int, last_round: int) -> None:
        """Add a read. Only a round that starts after the request can confirm it."""
        self.waiting.append(WaitingRead(request_id, committed_index, last_round + 1))

    def needs_round(self, last_round: int) -> bool:
        """Return True if all waiting reads need a round that has not started yet."""
        return bool(self.waiting) and self.waiting[0].min_round > last_round

    def confirmed(self, majority_round: int) -> list[WaitingRead]:
        """Return the reads confirmed by a majority of responses to `majority_round`, in order."""
        ready: list[WaitingRead] = []
        while self.waiting and self.waiting[0].min_round <= majority_round:
            ready.append(self.waiting.popleft())
        return ready

    def drain(self) -> list[int]:
        """Remove and return all request ids, because the node no longer leads."""
        ids = [*self.before_noop, *(read.request_id for read in self.waiting)]
        self.before_noop.clear()
        self.waiting.clear()
        return ids
