"""Durable state machines in the simulator: files that outlive processes, and their threads in virtual time.

The plan and the feeder are those of a real node; dledger.node.machine.applier is their shell there.
Whatever state a machine has, found again, loaded or applied, is compared with that of a machine which applied
the one committed log once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from dledger.errors import ReadFailed, StorageError
from dledger.node.machine.state_feeder import StateFeeder
from dledger.node.machine.state_machine import Applied, AppliedEntry, DurableStateMachine
from dledger.node.machine.state_plan import Apply, Load, Piece, Replay, Save, StatePlan
from dledger.store.api import EntryDamaged
from dledger.store.disk import CrashKind
from dledger.testing.virtual.violation import Violation

if TYPE_CHECKING:
    from dledger.testing.process import SimProcess

RETRY_MS = 20


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


class NodeFiles(Protocol):
    """What durable state machines of one node keep over its crashes."""

    def crash(self, kind: CrashKind, rng: Random) -> None: ...


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
        there = [index for index in self._users if base_index < index <= applied]
        derived = [index for index in machine.derived_from() if index > base_index]
        if derived != there:
            raise Violation("state machine", f"{node_id} at {applied} derives from {derived}, not {there}")


class StateThread:
    """The thread of the machine of one process. All methods in turns of it, but `recover`."""

    def __init__(self, process: SimProcess, machine: DurableStateMachine, truth: Judge, rng: Random) -> None:
        self.machine = machine
        self._process = process
        self._truth = truth
        self._rng = rng
        self._feeder = StateFeeder(machine, process.store, rng.choice((1, 300, 1 << 20)))
        self._plan = StatePlan(replays=True)
        self._is_started = False
        self._is_busy = False

    @property
    def applied(self) -> int:
        return self._plan.applied

    def recover(self) -> None:
        """Before there is a replica."""
        process = self._process
        recovered = self._feeder.recover()
        if recovered is None:
            return
        found, why_not = recovered
        process.sim.counts["states not used" if why_not else "states recovered"] += 1
        process.sim.trace.add(process.sim.clock.now_ms, process.node_id, "kept", recovered)
        if not why_not:
            self._plan.recovered(found.index)
            self._truth.check(process.node_id, self.machine, found.index, process.store.base.index)

    def start(self) -> None:
        """Once the log has been read for what is derived from it."""
        self._is_started = True
        if self._needs_image():
            self._plan.forget()
        self._wake()

    def committed(self) -> None:
        """More can be read, or what can be read has changed."""
        self._wake()

    def save(self, image_index: int) -> None:
        self._plan.save(image_index)
        self._wake()

    def close(self) -> None:
        """The node stops in order."""
        self._feeder.close()

    def _needs_image(self) -> bool:
        return self._process.replica.admission.state.needs_image

    def _wake(self) -> None:
        """The loop has named a piece; the thread comes to it a little later."""
        self._process.progressed()
        if self._is_busy or not self._is_started:
            return
        state = self._process.replica.admission.state
        if state.is_rebuilding:
            return
        piece = self._plan.next(
            self._process.store.base.index,
            self._process.readable.index,
            state.newest_image,
            needs_image=state.needs_image,
        )
        if piece is not None:
            self._is_busy = True
            self._process.after(self._rng.choice((0, 0, 1, 5, 30)), lambda: self._do(piece))

    def _do(self, piece: Piece) -> None:
        process = self._process
        reports: list[Callable[[], None]] = []
        try:
            process.sim.guarded_disk(process, lambda: reports.append(self._done(piece)))
        except (ReadFailed, StorageError) as error:
            process.sim.counts["state pieces put off"] += 1
            if isinstance(error, EntryDamaged):
                process.suspect(error.index)
            elif isinstance(error, StorageError):
                raise
            process.after(RETRY_MS, self._again)
            return

        def reported() -> None:
            reports[0]()
            self._again()

        process.after(self._rng.choice((0, 0, 1)), reported)

    def _again(self) -> None:
        self._is_busy = False
        self._wake()

    def _done(self, piece: Piece) -> Callable[[], None]:
        """Do a piece, on the thread. What to report of it on the loop."""
        plan, feeder, process = self._plan, self._feeder, self._process
        match piece:
            case Apply():
                applied = feeder.apply(piece)
                self._truth.check(process.node_id, self.machine, applied, process.store.base.index)
                return lambda: plan.has_applied(applied)
            case Replay():
                replayed = feeder.replay(piece)
                process.sim.counts["state pieces replayed"] += 1
                if replayed == piece.last:
                    self._truth.check(process.node_id, self.machine, replayed, piece.first - 1)
                return lambda: plan.replayed(replayed)
            case Load():
                found = feeder.load(piece)
                if found is None:
                    return lambda: None
                process.sim.counts["states loaded"] += 1
                return lambda: plan.loaded(found)
            case Save(image_index):
                self._truth.check(process.node_id, self.machine, image_index - 1, process.store.base.index)
                state = feeder.save()
                return lambda: process.shell.state_saved(image_index, state)
