"""Status of a RoleChangeHandler: state, recent steps and metrics."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from dledger.metrics import LatencyHistogram


class RoleStep(StrEnum):
    """Step of a role change. In all steps except IDLE, SLAVE, MASTER and STOPPED, the handler waits."""

    IDLE = "IDLE"  # no role event yet: the adapter is neither master nor slave
    CHANGING_TO_SLAVE = "CHANGING_TO_SLAVE"
    SLAVE = "SLAVE"
    WAITING_FOR_COMMIT = "WAITING_FOR_COMMIT"  # committed_index has not reached the barrier
    WAITING_FOR_DISPATCH = "WAITING_FOR_DISPATCH"  # the adapter has not dispatched up to the barrier
    RECOVERING = "RECOVERING"  # recover_topic_queue_table
    CHANGING_TO_MASTER = "CHANGING_TO_MASTER"
    MASTER = "MASTER"  # the only step in which writes are accepted
    ENDING_CALL = "ENDING_CALL"  # the call for an older event has not ended yet
    STOPPED = "STOPPED"

    @property
    def is_rest(self) -> bool:
        return self in (RoleStep.IDLE, RoleStep.SLAVE, RoleStep.MASTER, RoleStep.STOPPED)

    @property
    def is_wait(self) -> bool:
        """True if this step waits for the log or its dispatch.

        If such a step is slow, the adapter has not failed.
        """
        return self in (RoleStep.WAITING_FOR_COMMIT, RoleStep.WAITING_FOR_DISPATCH)


class StepOutcome(StrEnum):
    DONE = "DONE"
    FAILED = "FAILED"  # the call raised; the handler repeats it
    SUPERSEDED = "SUPERSEDED"  # abandoned for a newer event
    OVERDUE = "OVERDUE"  # still running after the time limit


class StepRecord(NamedTuple):
    """An item of the handler's history, which is also logged."""

    unix_ms: int  # wall clock, for display
    role: str
    term: int
    role_epoch: int
    step: RoleStep
    outcome: StepOutcome
    took_ms: int
    detail: str = ""


# Histogram bounds in seconds for the time from elected to writable. The range covers an up-to-date log and a
# long catch-up.
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)


class RoleChangeMetrics:
    """Counters since the handler was started, for the metrics exporter. Durations are in seconds."""

    def __init__(self) -> None:
        self.elected_to_writable = LatencyHistogram(_SECONDS)
        self.switches: Counter[RoleStep] = Counter()  # MASTER, SLAVE
        self.seconds: defaultdict[RoleStep, float] = defaultdict(float)  # per step, with any outcome
        self.failures: Counter[RoleStep] = Counter()
        self.overdue: Counter[RoleStep] = Counter()
        self.superseded = 0  # events abandoned for newer ones
        self.stale_events = 0  # events older in (role_epoch, term) than an earlier one
        # by outcome: "done", or "failed" if no node was fitter or the transfer failed
        self.hand_overs: Counter[str] = Counter()


@dataclass(frozen=True, slots=True)
class HandlerStatus:
    """State of the handler. Times are in milliseconds; unix_ms is wall-clock time, for display."""

    step: RoleStep
    role: str  # role in the newest event, "" before the first
    term: int  # -1 before the first event
    role_epoch: int
    leader_id: str
    barrier_index: int  # -1 unless the newest event is LEADER
    writable: bool
    waits_for: str  # "" at rest
    waiting_ms: int  # 0 at rest
    fit: bool  # may become leader
    dispatch_behind_bytes: int  # as last reported to the node
    failures: int
    last_failure: str
    last_switch_unix_ms: int  # to MASTER or SLAVE; 0: never
    elected_to_writable_ms: int  # last switch to MASTER; -1: never
    history: tuple[StepRecord, ...] = ()  # newest last, bounded

    def as_dict(self) -> dict[str, Any]:
        """Convert to a dict for JSON."""
        return asdict(self) | {"history": [record._asdict() for record in self.history]}
