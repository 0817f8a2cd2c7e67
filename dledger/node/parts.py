"""The parts of a node, their connections, and the order in which they start and stop.

A NodeServer and each process of the simulator consist of these parts. They differ in the factories.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from dledger.core.directories import with_own_directory
from dledger.core.values import HardState
from dledger.errors import DLedgerError
from dledger.infra.loops.readable import ReadableLog
from dledger.infra.loops.threads import ThreadRunner, in_thread
from dledger.node.async_shell import AsyncShell, DiskQueue
from dledger.node.disk.allocator import Allocator
from dledger.node.machine.applier import Applier
from dledger.node.members.inbound import FetchEntries, PeerRequests
from dledger.node.members.links import PeerLinks
from dledger.node.members.peers import PeerLink
from dledger.node.members.repairer import Repairer, Scrubber
from dledger.node.members.state_images import ImageFetcher, ImageSource
from dledger.replica.replica import Replica
from dledger.rpc.envelope import PeerIdentity
from dledger.rpc.peer_transport import PeerTransport
from dledger.store.api import LogStore
from dledger.store.offline.set_term import check_range


class StartingStore(Protocol):
    """Store state used at the start of a node."""

    @property
    def hard_state(self) -> HardState: ...

    def save_hard_state(self, state: HardState) -> None: ...
    def prepare(self, ahead_bytes: int) -> bool: ...


def start_incarnation(store: StartingStore, directory: Path, node_id: str, ahead_bytes: int) -> None:
    """Make the new incarnation durable before the node does anything else (rule 2), and prepare space for the
    first append.

    Raises StorageError, which names `directory` if the term is out of range.
    """
    state = store.hard_state
    check_range(state, directory)
    state = replace(state, incarnation=state.incarnation + 1)
    store.save_hard_state(with_own_directory(state, node_id))
    store.prepare(ahead_bytes)


class DiskExecutor(DiskQueue, Protocol):
    """The disk thread, as the repairer uses it."""

    def call(self, work: Callable[[], object]) -> Future[object]: ...


def images_of(
    parts: NodeParts, *, rng: random.Random | None = None, in_thread: ThreadRunner = in_thread
) -> ImageFetcher:
    core = parts.replica.core
    return ImageFetcher(
        parts.store.images,
        parts.links,
        wanted=parts.replica.retainer.wanted_image,
        leader=lambda: core.leader_id,
        stored=parts.shell.load_image,
        rng=rng,
        in_thread=in_thread,
    )


@dataclass(frozen=True)
class PartFactories:
    """Factories for the parts of a node, called in this order."""

    shell: Callable[[ReadableLog], AsyncShell]
    disk: Callable[[AsyncShell], DiskExecutor]
    allocator: Callable[[AsyncShell], Allocator]
    replica: Callable[[AsyncShell], Replica]
    transport: Callable[[str], PeerTransport]
    fetch: Callable[[NodeParts], FetchEntries]
    repairer: Callable[[NodeParts], Repairer]
    scrubber: Callable[[NodeParts], Scrubber]
    readers: Executor | None  # None: the loop's default executor reads
    identity: PeerIdentity
    call_timeout_ms: int
    max_waiting_reads: int
    # called when the program's state machine, or its thread, fails
    state_failed: Callable[[DLedgerError], None]
    uniform: Callable[[float, float], float] = random.uniform
    images: Callable[[NodeParts], ImageFetcher] = images_of


class NodeParts:
    """The parts of a running node. Create this after `start_incarnation`, and call all methods on the
    loop."""

    def __init__(self, store: LogStore, applier: Applier, factories: PartFactories) -> None:
        """`applier` must have recovered already, because this may advance the committed index of the
        store."""
        self.store = store
        self.applier = applier
        committed = max(store.base.index, store.committed_checkpoint)
        self.readable = ReadableLog(committed, store.end_index, factories.max_waiting_reads)
        self.shell = factories.shell(self.readable)
        self.disk = factories.disk(self.shell)
        self.allocator = factories.allocator(self.shell)
        self.replica = factories.replica(self.shell)
        self.replica.admission.want_room = self.allocator.request_check
        self.links = PeerLinks(
            lambda peer, last_stream_id: self._link(peer, last_stream_id, factories),
            self.replica.core.peers,
        )
        fetch = factories.fetch(self)
        self._wire_applier(factories)
        self.repairer = factories.repairer(self)
        self.scrubber = factories.scrubber(self)
        state = self.replica.admission
        source = ImageSource(
            store.images,
            factories.readers,
            self.shell.catch_up,
            adopted=lambda: state.state.newest_image,
            damaged=self.shell.image_damaged,
        )
        self.inbound = PeerRequests(factories.identity, self.shell, fetch, source.chunk)
        self.images = factories.images(self)
        self.shell.wire(self.replica, self.disk, self.inbound, self.links, applier)

    def _link(self, peer: str, last_stream_id: int, factories: PartFactories) -> PeerLink:
        return PeerLink(
            peer,
            factories.transport(peer),
            self.shell,
            role_epoch=lambda: self.replica.core.role_epoch,
            call_timeout_ms=factories.call_timeout_ms,
            last_stream_id=last_stream_id,
            uniform=factories.uniform,
        )

    def _wire_applier(self, factories: PartFactories) -> None:
        admission = self.replica.admission
        self.applier.wire(
            self.readable,
            cached=self.replica.cache.batches,
            newest_image=lambda: admission.state.newest_image,
            needs_image=lambda: admission.state.needs_image,
            is_leader=lambda: self.replica.core.leadership is not None,
            saved=self.shell.state_saved,
            image_damaged=self.shell.image_damaged,
            on_damage=self.suspect,
            on_fatal=factories.state_failed,
        )

    def suspect(self, index: int) -> None:
        """Report a failed read of `index`."""
        self.repairer.suspect(index)

    def is_urgent(self) -> bool:
        """Return True if the cluster has no leader or needs this node, so that a repair is urgent."""
        return self.replica.core.leader_id is None or not self.replica.rebuilding.is_done

    def start(self) -> None:
        """Start the parts. The disk thread must already run. Afterwards the node accepts requests. Ticks
        start in `run`.
        """
        self.allocator.start()
        self.shell.start()
        self.repairer.start()
        self.scrubber.start()
        self.images.start()

    def run(self, tick_ms: int, tick: Callable[[], None]) -> None:
        """Connect to the other members and take part in elections. `tick` must call this object's `tick`."""
        self.links.run()
        self.shell.run_ticks(tick_ms, tick)

    def tick(self) -> None:
        self.shell.tick()
        self.images.check()
        self.allocator.serve()

    def finish(self) -> None:
        """Stop the ticks and write the last checkpoint. No clients are served any longer."""
        if self.shell.ticker is not None:
            self.shell.ticker.stop()
        self.shell.checkpoint()

    async def stop(self) -> None:
        """Stop the parts in any state. The caller then stops the allocator and the disk, and closes the
        store.
        """
        for link in self.links.values():
            await link.close()
        self.shell.stop()
        for part in (self.images, self.scrubber, self.repairer, self.applier):
            await part.stop()
