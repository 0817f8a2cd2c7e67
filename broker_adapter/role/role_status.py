"""What a RoleChangeHandler shows of itself: its state, its last steps, its numbers. Values, no behaviour."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from dledger.platform import Histogram


class Step(StrEnum):
    """What the handler is at. SLAVE, MASTER, IDLE and STOPPED are at rest, in all others it waits."""

    IDLE = "IDLE"  # no role event yet: the adapter is neither master nor slave
    CHANGING_TO_SLAVE = "CHANGING_TO_SLAVE"
    SLAVE = "SLAVE"
    WAITING_FOR_COMMIT = "WAITING_FOR_COMMIT"  # committed_index has not reached the barrier
    WAITING_FOR_DISPATCH = "WAITING_FOR_DISPATCH"  # the adapter has not dispatched up to the barrier
    RECOVERING = "RECOVERING"  # recover_topic_queue_table
    CHANGING_TO_MASTER = "CHANGING_TO_MASTER"
    MASTER = "MASTER"  # the only one in which writes are accepted
    ENDING_CALL = "ENDING_CALL"  # a newer event is in, and a call for the older one does not end
    STOPPED = "STOPPED"

    @property
    def is_rest(self) -> bool:
        return self in (Step.IDLE, Step.SLAVE, Step.MASTER, Step.STOPPED)

    @property
    def is_wait(self) -> bool:
        """Whether this waits for the log or its dispatch: being slow there is no failure of the adapter."""
        return self in (Step.WAITING_FOR_COMMIT, Step.WAITING_FOR_DISPATCH)


class Outcome(StrEnum):
    DONE = "DONE"
    FAILED = "FAILED"  # raised; it is tried again
    SUPERSEDED = "SUPERSEDED"  # given up for a newer event
    OVERDUE = "OVERDUE"  # still under way after the time limit


class StepRecord(NamedTuple):
    """One line of the handler's history, and of the log."""

    unix_ms: int  # wall clock, for people
    role: str
    term: int
    role_epoch: int
    step: Step
    outcome: Outcome
    took_ms: int
    detail: str = ""


#: Upper bounds in seconds of the time from elected to writable: a reput in step to a long catch-up.
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)


class RoleChangeMetrics:
    """Plain numbers since the start of the handler, read by whoever exports them. Durations in seconds."""

    def __init__(self) -> None:
        self.elected_to_writable = Histogram(_SECONDS)
        self.switches: Counter[Step] = Counter()  # MASTER, SLAVE
        self.seconds: defaultdict[Step, float] = defaultdict(float)  # each step's, however it ended
        self.failures: Counter[Step] = Counter()
        self.overdue: Counter[Step] = Counter()
        self.superseded = 0  # events that were given up for newer ones
        self.stale_events = 0  # events of an older (role_epoch, term) than one that had been there
        self.hand_overs: Counter[str] = Counter()  # "done", "failed": nobody was fitter, or it went wrong


@dataclass(frozen=True, slots=True)
class HandlerStatus:
    """Where the handler is. Times in milliseconds; unix_ms is wall clock, for people."""

    step: Step
    role: str  # of the newest event, "" before the first
    term: int  # -1 before the first event
    role_epoch: int
    leader_id: str
    barrier_index: int  # -1 unless the newest event is LEADER
    writable: bool
    waits_for: str  # "" at rest
    waiting_ms: int  # 0 at rest
    fit: bool  # may be handed leadership
    dispatch_behind_bytes: int  # as last reported to the node
    failures: int
    last_failure: str
    last_switch_unix_ms: int  # to MASTER or SLAVE; 0: never
    elected_to_writable_ms: int  # of the last switch to MASTER; -1: never
    history: tuple[StepRecord, ...] = ()  # the newest last, bounded

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"history": [record._asdict() for record in self.history]}
