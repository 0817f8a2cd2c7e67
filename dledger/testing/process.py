"""One life of a simulated node: the parts of a real one, wired to virtual disks, networks and clocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import NamedTuple

from dledger.core.values import HardState
from dledger.errors import DLedgerError
from dledger.node.loop.readable import ReadableLog
from dledger.node.loop.ticker import next_tick_ms
from dledger.node.members.fetching import LogFetcher
from dledger.node.members.read_points import ReadPoints
from dledger.node.parts import Makers, NodeParts, begin_life
from dledger.replica.replica import Replica
from dledger.replica.shell import RoleNotice
from dledger.rpc.envelope import Identity
from dledger.store.api import LogStore
from dledger.testing import peer_transport
from dledger.testing.allocating import FILES_AHEAD, SimAllocator
from dledger.testing.disk_thread import DiskThread
from dledger.testing.durable import SimApplier
from dledger.testing.network import Outcome, PushStream, Request
from dledger.testing.repairs import repairer_of, scrubber_of
from dledger.testing.sim_shell import SimShell
from dledger.testing.stores import DIRECTORY
from dledger.testing.virtual.violation import Violation
from dledger.testing.world import Life, NodeOwner, StateMachine, World

_MAX_WAITING_READS = 1000

_MAX_WAITING_READS = 1000


class _StartingStore:
    """Implements dledger.node.parts.StartingStore: the store of a process, seen by the invariants."""

    def __init__(self, process: Life) -> None:
        self._store = process.store
        self._node_id = process.node_id
        self._invariants = process.sim.invariants
        self.prepare = process.store.prepare

    @property
    def hard_state(self) -> HardState:
        return self._store.hard_state

    def save_hard_state(self, state: HardState) -> None:
        self._invariants.saving_hard_state(self._node_id, state)
        self._invariants.hard_state_starts(self._node_id, state)
        self._store.save_hard_state(state)
        self._invariants.hard_state_saved(self._node_id, state)


class LifeMakers(NamedTuple):
    """Make what a process has that depends on its simulation."""

    owner: Callable[[Life], NodeOwner | None]
    machine: Callable[[], StateMachine | None]
    applier: Callable[[Life], SimApplier]
    replica: Callable[[Life, LogStore], Replica]


class SimProcess(Life):
    """See `Life`."""

    applier: SimApplier
    shell: SimShell

    def __init__(self, sim: World, node_id: str, store: LogStore, rng: Random, makers: LifeMakers) -> None:
        super().__init__(sim, node_id, store, rng)
        self._make_replica = makers.replica
        self.disk = DiskThread(self, rng)
        self.owner = makers.owner(self)
        self._machine = makers.machine()
        self.applier = makers.applier(self)
        begin_life(_StartingStore(self), DIRECTORY, FILES_AHEAD * store.data_file_size)
        self.incarnation = store.hard_state.incarnation
        self.applier.recover_now()
        self.loop.entered(self._put_together)
        timeout_ms = sim.profile.request_timeout_ms
        self._read_points = ReadPoints(self.shell.read_index, _MAX_WAITING_READS, timeout_ms)

    def _put_together(self) -> None:
        """What a NodeServer puts together, of parts that are its own but for disk, network and threads."""
        rng, profile = self._rng, self.sim.profile
        makers = Makers(
            shell=self._make_shell,
            disk=lambda shell: self.disk,
            allocator=lambda shell: SimAllocator(self, shell.room_was_made, rng),
            replica=lambda shell: self._make_replica(self, self.store),
            transport=partial(peer_transport.SimTransport, self),
            fetch=lambda parts: LogFetcher(self.store, parts.readable, None, self.suspect).fetch,
            repairer=lambda parts: repairer_of(self, parts, rng),
            scrubber=lambda parts: scrubber_of(self),
            peers=[peer for peer in profile.node_ids if peer != self.node_id],
            identity=Identity("sim", "sim", self.node_id, profile.node_ids, self.incarnation),
            call_timeout_ms=profile.timing.election_min_ms,
            max_waiting_reads=_MAX_WAITING_READS,
            state_failed=self.applier.failed,
            uniform=rng.uniform,
        )
        self.parts = parts = NodeParts(self.store, self.applier, makers)
        self.replica, self.readable, self.inbound = parts.replica, parts.readable, parts.inbound

    def _make_shell(self, readable: ReadableLog) -> SimShell:
        self.shell = SimShell(
            self.store,
            {node_id: node_id for node_id in self.sim.profile.node_ids},
            readable,
            None,
            on_role=self._on_role,
            on_fatal=self._on_fatal,
            on_damage=self.suspect,
            catch_up_bytes_per_second=0,
            yields_to=None,
            now_ms=self.now_ms,
        )
        self.shell.observe(self)
        return self.shell

    def start(self) -> None:
        """Let the replica begin, once the node knows of this process: its disk may fail at once."""
        self.post(self._begin)
        self._checkpoint()
        if self.owner is not None:
            self.owner.start()

    def _begin(self) -> None:
        self.parts.begin()
        self.parts.run(self.sim.profile.tick_ms, self._tick)

    @property
    def is_disk_idle(self) -> bool:
        return self.disk.is_idle

    def _tick(self) -> None:
        now_ms, core, done = self.now_ms(), self.replica.core, self.shell.done
        fitness = core.may_lead, core.has_room
        is_early = next_tick_ms(self.replica, now_ms) > now_ms
        self.parts.tick()
        # Fitness is looked at with every tick, and needs none at a certain moment.
        if is_early and self.shell.done != done and fitness == (core.may_lead, core.has_room):
            raise Violation("ticks", f"{self.node_id} did with a tick what it would have slept over")

    def _checkpoint(self) -> None:
        if self.is_stopping:
            return
        self.after(self.sim.profile.checkpoint_every_ms, self._store_checkpoint)

    def _store_checkpoint(self) -> None:
        self.shell.checkpoint()
        self._checkpoint()

    # -- requests of clients

    # -- the network calls these

    def serve(self, peer: str, message: Request, deadline_ms: int, answer: Callable[[Outcome], None]) -> None:
        """In a turn."""

        async def serve() -> None:
            answer(await peer_transport.answer(self, peer, message))

        def give_up() -> None:
            if not task.done():
                self.post(task.cancel)

        task = self._spawn(serve())
        self.sim.clock.after(deadline_ms, give_up)

    def serve_push(self, stream: PushStream) -> None:
        """In a turn."""
        task = self._spawn(peer_transport.receive_pushes(self, stream))
        stream.on_follower_notices = task.cancel

    # -- the shell calls these

    def _on_role(self, notice: RoleNotice) -> None:
        if self.owner is not None:
            self.owner.role_changed(notice)

    def _on_fatal(self, error: DLedgerError) -> None:
        self.loop.fail(Violation("fatal", f"{self.node_id} stops: {error}"))
