"""What a node is made of: its parts, put together, begun and stopped in the order that they need.

A NodeServer is made of these, and so is each process of the simulator: what differs is who makes a part.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from dledger.core.values import HardState
from dledger.errors import DLedgerError
from dledger.node.async_shell import AsyncShell, DiskQueue
from dledger.node.disk.allocator import Allocator
from dledger.node.loop.readable import ReadableLog
from dledger.node.machine.applier import Applier
from dledger.node.members.inbound import Fetch, Inbound
from dledger.node.members.peers import PeerLink
from dledger.node.members.repairer import Repairer, Scrubber
from dledger.replica.replica import Replica
from dledger.rpc.envelope import Identity
from dledger.rpc.peer_transport import PeerTransport
from dledger.store.api import LogStore
from dledger.store.offline.set_term import check_range


class StartingStore(Protocol):
    """What a life of a node begins with."""

    @property
    def hard_state(self) -> HardState: ...

    def save_hard_state(self, state: HardState) -> None: ...
    def prepare(self, ahead_bytes: int, *, use_reserve: bool = False) -> bool: ...


def begin_life(store: StartingStore, directory: Path, ahead_bytes: int) -> None:
    """Make the new incarnation durable before anything else happens (rule 2), and some space ready, so that
    the first append need not be refused. StorageError; `directory` is named if the term is out of range."""
    state = store.hard_state
    check_range(state, directory)
    store.save_hard_state(replace(state, incarnation=state.incarnation + 1))
    store.prepare(ahead_bytes)


class DiskThread(DiskQueue, Protocol):
    """Also of whoever repairs."""

    def call(self, work: Callable[[], object]) -> Future[object]: ...


@dataclass(frozen=True)
class Makers:
    """Who makes the parts of a node, in this order. `peers`: the other members."""

    shell: Callable[[ReadableLog], AsyncShell]
    disk: Callable[[AsyncShell], DiskThread]
    allocator: Callable[[AsyncShell], Allocator]
    replica: Callable[[AsyncShell], Replica]
    transport: Callable[[str], PeerTransport]
    fetch: Callable[[NodeParts], Fetch]
    repairer: Callable[[NodeParts], Repairer]
    scrubber: Callable[[NodeParts], Scrubber]
    peers: Iterable[str]
    identity: Identity
    call_timeout_ms: int
    max_waiting_reads: int
    state_failed: Callable[[DLedgerError], None]  # of the program, or of the thread that it is on
    uniform: Callable[[float, float], float] = random.uniform


class NodeParts:
    """One life of a node, whose store was opened and whose life was begun. All methods on the loop."""

    def __init__(self, store: LogStore, applier: Applier, makers: Makers) -> None:
        """`applier` has recovered: that may move the committed index of the store."""
        self.store = store
        self.applier = applier
        committed = max(store.base.index, store.committed_checkpoint)
        self.readable = ReadableLog(committed, store.end_index, makers.max_waiting_reads)
        self.shell = makers.shell(self.readable)
        self.disk = makers.disk(self.shell)
        self.allocator = makers.allocator(self.shell)
        self.replica = makers.replica(self.shell)
        self.replica.admission.want_room = self.allocator.look
        self.links = {peer: self._link(peer, makers) for peer in makers.peers}
        fetch = makers.fetch(self)
        self._wire_applier(makers)
        self.repairer = makers.repairer(self)
        self.scrubber = makers.scrubber(self)
        self.inbound = Inbound(makers.identity, self.shell, fetch)
        self.shell.wire(self.replica, self.disk, self.inbound, self.links, applier)

    def _link(self, peer: str, makers: Makers) -> PeerLink:
        return PeerLink(
            peer,
            makers.transport(peer),
            self.shell,
            role_epoch=lambda: self.replica.core.role_epoch,
            call_timeout_ms=makers.call_timeout_ms,
            uniform=makers.uniform,
        )

    def _wire_applier(self, makers: Makers) -> None:
        admission = self.replica.admission
        self.applier.wire(
            self.readable,
            cached=self.replica.cache.batches,
            newest_image=lambda: admission.state.newest_image,
            needs_image=lambda: admission.state.needs_image,
            saved=self.shell.state_saved,
            on_damage=self.suspect,
            on_fatal=makers.state_failed,
        )

    def suspect(self, index: int) -> None:
        """A read of `index` failed."""
        self.repairer.suspect(index)

    def is_urgent(self) -> bool:
        """The cluster has no leader, or cannot do without this node: a repair should not take its time."""
        return self.replica.core.leader_id is None or not self.replica.rebuilding.is_done

    def begin(self) -> None:
        """The disk has its thread: from now on the node can be asked. Ticks come later."""
        self.allocator.start()
        self.shell.start()
        self.repairer.start()
        self.scrubber.start()

    def run(self, tick_ms: int, tick: Callable[[], None]) -> None:
        """The node can be reached: let it reach others, and take part in elections. `tick` calls ours."""
        for link in self.links.values():
            link.connect()
        self.shell.run_ticks(tick_ms, tick)

    def tick(self) -> None:
        self.shell.tick()
        self.replica.admission.reserve_in_use = self.allocator.serve(self.replica.retainer)

    def finish(self) -> None:
        """Nobody is served any more: the last checkpoint."""
        if self.shell.ticker is not None:
            self.shell.ticker.stop()
        self.shell.checkpoint()

    async def stop(self) -> None:
        """In whatever state they are. Then the allocator and the disk have to end, and the store to close."""
        for link in self.links.values():
            await link.close()
        self.shell.stop()
        for part in (self.scrubber, self.repairer, self.applier):
            await part.stop()
