"""Durable state machines in the simulator: files that outlive processes, and their threads in virtual time.

Applier, plan and feeder are those of a real node; only the thread is simulated. Whatever state a machine has,
found again, loaded or applied, is compared with that of a machine which applied the one committed log once.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, Protocol, TypeVar

from dledger.errors import DLedgerError, ReadFailed, StorageError
from dledger.node.machine.applier import Applier
from dledger.node.machine.state_feeder import Recovered, StateFeeder
from dledger.node.machine.state_machine import Applied, AppliedEntry, DurableStateMachine
from dledger.node.machine.state_plan import Apply, Load, Loaded, Piece, Replay, Save
from dledger.store.disk import CrashKind
from dledger.store.format.batch import Batch
from dledger.testing.virtual.violation import Violation
from dledger.testing.world import Life

T = TypeVar("T")

_RETRY_S = 0.02
#: How long the thread of a machine takes to get round to a piece of work, in ms.
_THREAD_MS = (0, 0, 1, 5, 30)


class MachineFiles:
    """One small file of a state machine, written at once. It outlives processes; of what was written and not
    synced, a power failure may take the newest."""

    def __init__(self) -> None:
        self._versions: list[bytes | None] = [None]  # the first one is durable

    def read(self) -> bytes | None:
        """None: there is no file."""
        return self._versions[-1]

    def write(self, content: bytes) -> None:
        self._versions.append(content)

    def sync(self) -> None:
        del self._versions[:-1]

    def crash(self, kind: CrashKind, rng: Random) -> None:
        if kind is CrashKind.POWER:
            self._versions = [rng.choice(self._versions)]


class CheckedMachine(Protocol):
    """A DurableStateMachine that can be looked at."""

    def apply(self, entries: Sequence[AppliedEntry]) -> None: ...
    def save(self) -> Iterable[bytes]: ...
    def load(self, chunks: Iterable[bytes]) -> None: ...
    def recover(self) -> Applied | None: ...
    def replay(self, entries: Sequence[AppliedEntry]) -> None: ...
    def close(self) -> None: ...

    def digest(self) -> object:
        """Equal for all machines that have applied the same entries."""

    def derived_from(self) -> Sequence[int]:
        """The indexes of all entries that what it derives from single entries is made of, in order."""


#: Made for each life of a node, from its files, how far its log is durable, and a random source.
MakeMachine = Callable[[MachineFiles, Callable[[], int], Random], CheckedMachine]


class Judge(Protocol):
    """Knows the committed log, and so what every state made of it has to be."""

    def committed(self, index: int, entry: AppliedEntry | None) -> None:
        """The next entry of the committed log; None if it is internal."""

    def check(self, node_id: str, machine: Any, applied: int, base_index: int) -> None:
        """A machine is said to have applied all up to `applied`, of a log that begins after base_index."""


class Truth:
    """What machines are compared with: one that applies the committed log once."""

    def __init__(self, machine: CheckedMachine) -> None:
        self._machine = machine
        machine.load(())
        self._initial = machine.digest()
        self._digests: list[object] = []  # by index
        self._users: list[int] = []  # indexes of entries of users

    def committed(self, index: int, entry: AppliedEntry | None) -> None:
        """The next entry of the committed log; None if it is internal."""
        assert index == len(self._digests)
        if entry is not None:
            self._machine.apply([entry])
            self._users.append(index)
        self._digests.append(self._machine.digest())

    def check(self, node_id: str, machine: CheckedMachine, applied: int, base_index: int) -> None:
        """A machine is said to have applied all up to `applied`, of a log that begins after base_index."""
        if applied >= len(self._digests):
            raise Violation("state machine", f"{node_id} has the state at {applied}, which is not committed")
        expected = self._digests[applied] if applied >= 0 else self._initial
        if machine.digest() != expected:
            raise Violation("state machine", f"{node_id} at {applied}: {machine.digest()}, not {expected}")
        there = self._users[bisect_right(self._users, base_index) : bisect_right(self._users, applied)]
        derived = [index for index in machine.derived_from() if index > base_index]
        if derived != there:
            raise Violation("state machine", f"{node_id} at {applied} derives from {derived}, not {there}")


class CheckedFeeder(StateFeeder):
    """That of a real node. Whatever it brings the machine to is compared with the truth, and whatever else
    than damage it raises is a finding."""

    def __init__(self, process: Life, machine: DurableStateMachine, truth: Judge, rng: Random) -> None:
        super().__init__(machine, process.store, rng.choice((1, 300, 1 << 20)))
        self._process = process
        self._truth = truth

    def check(self, applied: int, base_index: int) -> None:
        """The machine is said to have applied all up to `applied`, of a log that begins after base_index."""
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

    def recover(self) -> Recovered | None:
        process = self._process
        recovered = super().recover()
        if recovered is None:
            return None
        process.sim.counts["states not used" if recovered.why_not else "states recovered"] += 1
        process.sim.trace.add(process.sim.clock.now_ms, process.node_id, "kept", recovered)
        if not recovered.why_not:
            self.check(recovered.found.index, process.store.base.index)
        return recovered

    def apply(self, piece: Apply, batches: Sequence[Batch] = ()) -> int:
        with self._watched():
            applied = super().apply(piece, batches)
        self.check(applied, self._process.store.base.index)
        return applied

    def replay(self, piece: Replay) -> int:
        with self._watched():
            replayed = super().replay(piece)
        self._process.sim.counts["state pieces replayed"] += 1
        if replayed == piece.last:
            self.check(replayed, piece.first - 1)
        return replayed

    def load(self, piece: Load) -> Loaded | None:
        with self._watched():
            found = super().load(piece)
        self._process.sim.counts["states loaded"] += found is not None
        return found

    def save(self) -> list[bytes]:
        with self._watched():
            return super().save()


class SimApplier(Applier):
    """The applier of a process: that of a real node, whose thread gets round to its work a little later.

    Without a machine there is nothing to apply: machines that are not durable are checked against the log,
    and not kept in it."""

    def __init__(self, process: Life, feeder: CheckedFeeder | None, rng: Random) -> None:
        super().__init__(feeder, process.store, retry_s=_RETRY_S)
        self._checked = feeder
        self._process = process
        self._rng = rng

    def recover_now(self) -> None:
        """As `recover`, before there is a replica. StorageError."""
        if self._checked is not None:
            self.recovered(self._checked.recover())

    def failed(self, error: DLedgerError) -> None:
        """The state of this node cannot be believed."""
        if error.__cause__ is not None:  # a finding, and no fault of the disk
            self._process.loop.fail(error.__cause__)
        self._process.disk_failed(error)

    async def _do(self, feeder: StateFeeder, piece: Piece) -> bool:
        if self._checked is not None and isinstance(piece, Save):
            self._checked.check(piece.image_index - 1, self._process.store.base.index)
        return await super()._do(feeder, piece)

    async def _on_thread(self, work: Callable[..., T], *arguments: object) -> T:
        await asyncio.sleep(self._rng.choice(_THREAD_MS) / 1000)
        return await asyncio.get_running_loop().run_in_executor(None, work, *arguments)
