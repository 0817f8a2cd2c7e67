"""What the parts of a replica see of the replica they belong to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dledger.core.raft import RaftCore
from dledger.core.values import CoreConfig, Tail
from dledger.replica.admission import Admission, AppendLimits
from dledger.replica.retention import RetentionPolicy
from dledger.replica.shell import Shell
from dledger.store.api import LogStore
from dledger.store.format.internal import Internal


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    core: CoreConfig
    limits: AppendLimits = field(default_factory=AppendLimits)
    retention: RetentionPolicy = field(default_factory=RetentionPolicy)
    cache_bytes: int = 16 << 20  # newest batches kept in memory
    max_waiting_reads: int = 10_000


class RebuildingText(Protocol):
    def text(self) -> str:
        """What the rebuild waits for; empty: it is done."""


class ReplicaParts(Protocol):
    """Implemented by `Replica`."""

    config: ReplicaConfig
    store: LogStore
    shell: Shell
    core: RaftCore
    admission: Admission
    log_tail: Tail
    committed_pos: int
    suspects: list[int]
    wall_ms: Callable[[], int]

    @property
    def rebuilding(self) -> RebuildingText: ...

    def pos_after(self, index: int) -> int: ...

    def carry_out(self, marks: Sequence[Internal]) -> None: ...
