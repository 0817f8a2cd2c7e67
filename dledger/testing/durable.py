"""Durable state machines in the simulator, whose files survive processes and whose threads run in virtual
time.

Applier, plan and feeder are the real ones; only the thread is simulated. Every state of a machine, whether
recovered, loaded or applied, is compared with a machine that applied the committed log once.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, Protocol, TypeVar

from dledger.errors import DLedgerError, ReadFailed, StorageError
from dledger.infra.files.disk import CrashKind
from dledger.node.machine.applier import Applier
from dledger.node.machine.state_feeder import RecoveryResult, StateFeeder
from dledger.node.machine.state_machine import Applied, AppliedEntry, DurableStateMachine
from dledger.node.machine.state_plan import ApplyStep, LoadResult, LoadStep, ReplayStep, SaveStep, StateStep
from dledger.replica.images import ImageRequest
from dledger.store.format.batch import Batch
from dledger.testing.virtual.violation import Violation
from dledger.testing.world import NodeLife

T = TypeVar("T")

_RETRY_S = 0.02
#: Delay in ms until the machine's thread starts a piece of work.
_THREAD_MS = (0, 0, 1, 5, 30)


class MachineFiles:
    """One small file of a state machine, written atomically. It survives processes; a power failure may drop
    the latest unsynced versions."""

    def __init__(self) -> None:
        self._versions: list[bytes | None] = [None]  # the first one is durable

    def read(self) -> bytes | None:
        """Return the content, or None if there is no file."""
        return self._versions[-1]

    def write(self, content: bytes) -> None:
        self._versions.append(content)

    def sync(self) -> None:
        del self._versions[:-1]

    def crash(self, kind: CrashKind, rng: Random) -> None:
        if kind is CrashKind.POWER:
            self._versions = [rng.choice(self._versions)]


class CheckedMachine(Protocol):
    """A DurableStateMachine whose state can be inspected."""

    def apply(self, entries: Sequence[AppliedEntry]) -> None: ...
    def save(self) -> Iterable[bytes]: ...
    def load(self, chunks: Iterable[bytes]) -> None: ...
    def recover(self) -> Applied | None: ...
    def replay(self, entries: Sequence[AppliedEntry]) -> None: ...
    def close(self) -> None: ...

    def digest(self) -> object:
        """Return a value that is equal for all machines that have applied the same entries."""

    def derived_from(self) -> Sequence[int]:
        """Return the indexes of all entries that are part of its derived data, in order."""


#: Called for each life of a node with its files, its durable index and a random source.
MakeMachine = Callable[[MachineFiles, Callable[[], int], Random], CheckedMachine]


class StateJudge(Protocol):
    """Checks states against the committed log, which determines every valid state."""

    def committed(self, index: int, entry: AppliedEntry | None) -> None:
        """Process the next entry of the committed log. It is None if the entry is internal."""

    def check(self, node_id: str, machine: Any, applied: int, base_index: int) -> None:
        """Check a machine that has applied everything up to `applied`, of a log that starts after
        `base_index`."""


class ReferenceState:
    """The reference for all machines: a machine that applies the committed log once."""

    def __init__(self, machine: CheckedMachine) -> None:
        self._machine = machine
        machine.load(())
        self._initial = machine.digest()
        self._digests: list[object] = []  # by index
        self._users: list[int] = []  # indexes of user entries

    def committed(self, index: int, entry: AppliedEntry | None) -> None:
        """Process the next entry of the committed log. It is None if the entry is internal."""
        assert index == len(self._digests)
        if entry is not None:
            self._machine.apply([entry])
            self._users.append(index)
        self._digests.append(self._machine.digest())

    def check(self, node_id: str, machine: CheckedMachine, applied: int, base_index: int) -> None:
        """Check a machine that has applied everything up to `applied`, of a log that starts after
        `base_index`."""
        if applied >= len(self._digests):
            raise Violation("state machine", f"{node_id} has applied entry {applied}, which is not committed")
        expected = self._digests[applied] if applied >= 0 else self._initial
        if machine.digest() != expected:
            raise Violation(
                "state machine",
                f"{node_id} at entry {applied}: the digest is {machine.digest()}, expected {expected}",
            )
        expected_indexes = self._users[
            bisect_right(self._users, base_index) : bisect_right(self._users, applied)
        ]
        derived = [index for index in machine.derived_from() if index > base_index]
        if derived != expected_indexes:
            raise Violation(
                "state machine",
                f"{node_id} at entry {applied}: the state derives from {derived}, expected "
                f"{expected_indexes}",
            )


class CheckedFeeder(StateFeeder):
    """The real feeder, with checks: every resulting state is compared with the reference, and every exception
    other than damage is a finding."""

    def __init__(
        self, process: NodeLife, machine: DurableStateMachine, truth: StateJudge, rng: Random
    ) -> None:
        super().__init__(machine, process.store, rng.choice((1, 300, 1 << 20)))
        self._process = process
        self._truth = truth

    def check(self, applied: int, base_index: int) -> None:
        """Check the machine, which has applied everything up to `applied`, of a log that starts after
        `base_index`."""
        with self._watched():
            self._truth.check(self._process.node_id, self.machine, applied, base_index)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except (ReadFailed, StorageError):
            self._process.sim.counts["state pieces put off"] += 1
            raise
        except Exception as error:
            self._process.loop.fail(error)
            raise

    def recover(self) -> RecoveryResult | None:
        process = self._process
        recovered = super().recover()
        if recovered is None:
            return None
        process.sim.counts["states not used" if recovered.why_not else "states recovered"] += 1
        process.sim.trace.add(process.sim.clock.now_ms, process.node_id, "kept", recovered)
        if not recovered.why_not:
            self.check(recovered.found.index, process.store.base.index)
        return recovered

    def apply(self, piece: ApplyStep, batches: Sequence[Batch] = ()) -> int:
        with self._watched():
            applied = super().apply(piece, batches)
        self.check(applied, self._process.store.base.index)
        return applied

    def replay(self, piece: ReplayStep) -> int:
        with self._watched():
            replayed = super().replay(piece)
        self._process.sim.counts["state pieces replayed"] += 1
        if replayed == piece.last:
            self.check(replayed, piece.first - 1)
        return replayed

    def load(self, piece: LoadStep) -> LoadResult | None:
        with self._watched():
            loaded = super().load(piece)
        self._process.sim.counts["states loaded"] += loaded is not None
        return loaded

    def begin_save(self, request: ImageRequest, applied: int) -> bool:
        with self._watched():
            return super().begin_save(request, applied)

    def save_on(self) -> bool | None:
        with self._watched():
            return super().save_on()


class SimApplier(Applier):
    """The real applier, with a thread that starts its work after a delay.

    Without a durable machine this applier has nothing to apply. Entries are applied to other machines by
    `NodeLife.committed`, and images do not contain their state.
    """

    def __init__(self, process: NodeLife, feeder: CheckedFeeder | None, rng: Random) -> None:
        super().__init__(feeder, process.store, retry_s=_RETRY_S)
        self._checked = feeder
        self._process = process
        self._rng = rng

    def recover_now(self) -> None:
        """Recover in the same way as `recover`, before the replica is created. Raises StorageError."""
        if self._checked is not None:
            self.recovered(self._checked.recover())

    def failed(self, error: DLedgerError) -> None:
        """Stop the process, because the state of this node cannot be trusted."""
        if error.__cause__ is not None:  # a finding, not a disk failure
            self._process.loop.fail(error.__cause__)
        self._process.disk_failed(error)

    async def _do(self, feeder: StateFeeder, piece: StateStep) -> bool:
        if self._checked is not None and isinstance(piece, SaveStep):
            self._checked.check(self.applied_index, self._process.store.base.index)
        return await super()._do(feeder, piece)

    async def _on_thread(self, work: Callable[..., T], *arguments: object) -> T:
        await asyncio.sleep(self._rng.choice(_THREAD_MS) / 1000)
        return await asyncio.get_running_loop().run_in_executor(None, work, *arguments)
