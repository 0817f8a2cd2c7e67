"""Interfaces between a replica and its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dledger.core.raft import RaftCore
from dledger.core.values import CoreConfig, Membership, Tail
from dledger.replica.admission import AppendAdmission, AppendLimits
from dledger.replica.retention import RetentionLimits
from dledger.replica.shell import Shell
from dledger.store.api import LogStore
from dledger.store.format.internal import Internal


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    core: CoreConfig
    membership: Membership  # of an empty log
    limits: AppendLimits = field(default_factory=AppendLimits)
    retention: RetentionLimits = field(default_factory=RetentionLimits)
    cache_bytes: int = 16 << 20  # newest batches kept in memory
    max_waiting_reads: int = 10_000


class RebuildStatus(Protocol):
    def text(self) -> str:
        """Describe the pending work of the rebuild. Returns an empty text once it is done."""


class Marked(Protocol):
    def marked(self, marks: Sequence[Internal]) -> None:
        """Process committed purges. Idempotent."""

    def publish(self) -> None:
        """Announce the newest image of this node to the other members."""


class ClockStatus(Protocol):
    @property
    def age_purge_step_ms(self) -> int:
        """Length in ms of the step of cluster time that paused purging by age; 0 if purging by age is not
        paused."""

    def pause_left_ms(self, now_ms: int) -> int: ...

    def walls(self, now_ms: int) -> Mapping[str, int]:
        """Current wall clocks by member, without stale ones."""


class ReplicaParts(Protocol):
    """Implemented by `Replica`."""

    config: ReplicaConfig
    store: LogStore
    shell: Shell
    core: RaftCore
    admission: AppendAdmission
    log_tail: Tail
    committed_pos: int
    suspects: list[int]
    wall_ms: Callable[[], int]

    @property
    def rebuilding(self) -> RebuildStatus: ...

    @property
    def clock_keeper(self) -> ClockStatus: ...

    @property
    def retainer(self) -> Marked: ...

    def pos_after(self, index: int) -> int: ...
