"""A node: construction of its parts, start and stop."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from dledger.core.values import UNKNOWN_UID, CoreConfig, Role
from dledger.errors import DLedgerError
from dledger.infra.files.disk import Disk, readable_by_others
from dledger.infra.files.watching import FileWatch
from dledger.infra.logs import get_logger
from dledger.infra.loops.lag import LoopLag
from dledger.infra.loops.readable import ReadableLog
from dledger.infra.loops.threads import finished
from dledger.infra.loops.wall_clock import JumpWatch, SpreadWatch, wall_ms
from dledger.infra.transport.host import GrpcService
from dledger.metrics import NodeMetrics
from dledger.node.admin import NodeAdmin
from dledger.node.async_shell import AsyncShell, monotonic_ms
from dledger.node.disk.allocator import Allocator
from dledger.node.disk.body_reader import BodyReader
from dledger.node.disk.disk_worker import DiskWorker
from dledger.node.machine.applier import Applier
from dledger.node.machine.state_feeder import StateFeeder
from dledger.node.machine.state_machine import StateMachine
from dledger.node.members.clients import MemberClients
from dledger.node.members.inbound import FetchEntries, PeerRequests
from dledger.node.members.repairer import Repairer, Scrubber
from dledger.node.node_log import LogSurroundings, NodeLog
from dledger.node.owner import OwnerApi
from dledger.node.parts import NodeParts, PartFactories, start_incarnation
from dledger.node.setup.config import NodeConfig, duration_ms
from dledger.node.setup.founders import founders, recorded_addresses
from dledger.node.setup.member_book import MemberBook, warn_of_other_address
from dledger.node.setup.secret_file import load_secret
from dledger.node.setup.security import NodeSecurity
from dledger.node.setup.trace import NodeTrace
from dledger.node.status_view import StatusView
from dledger.node.tracing import TracingShell
from dledger.replica.parts import ReplicaConfig
from dledger.replica.replica import Replica
from dledger.replica.shell import RoleNotice
from dledger.rpc.append_wire import AppendEncoder
from dledger.rpc.cluster_secret import ClusterSecret
from dledger.rpc.envelope import PeerIdentity
from dledger.rpc.log_client import LogClient
from dledger.rpc.peer_client import PeerClient
from dledger.rpc.serving import NodeGrpc, check_services
from dledger.status.model import NodeStatus
from dledger.store.api import LogStore
from dledger.store.disk_store import DiskLogStore
from dledger.store.identity import member_list

if TYPE_CHECKING:
    from dledger.infra.http.server import HttpServer

_log = get_logger("node")

#: EX_IOERR: the process exited because its disk or its state is unreliable.
EXIT_FATAL = 74

_READER_THREADS = 2
#: Space prepared ahead of the end of the log, limited to two data files.
_AHEAD_BYTES = 64 << 20
_GRACE_S = 0.2
_DISK_STOP_S = 5.0


def exit_process(error: DLedgerError) -> None:
    """Log the error and exit immediately, without further writes and without waiting for stuck threads. Any
    thread."""
    _log.error("fatal: the node stops", code=int(error.code), reason=str(error))
    with suppress(Exception):
        sys.stderr.flush()
    os._exit(EXIT_FATAL)


def _ahead_bytes(store: LogStore) -> int:
    return min(2 * store.data_file_size, _AHEAD_BYTES)


class NodeServer(OwnerApi):
    """A node in this process. Call `start` once and `stop` once, on the same event loop.

    OwnerApi is the part of the API for the program that owns the node. `on_fatal` is called when the node
    must not continue, on the thread of the loop or of the disk; by default it ends the process.
    """

    def __init__(
        self,
        config: NodeConfig,
        state_machine: StateMachine | None = None,
        *,
        on_fatal: Callable[[DLedgerError], None] = exit_process,
        disk: Disk | None = None,
        wall_ms: Callable[[], int] = wall_ms,
        owned: bool = False,
        services: Sequence[GrpcService] = (),
        trace: NodeTrace | None = None,
    ) -> None:
        """`disk` and `wall_ms` replace the file system and wall clock of the machine.

        `owned`: only the program itself appends; clients get APPENDS_BY_OWNER_ONLY. The program's `services`
        are served at the node's address, with its TLS. Raises ConfigError if the node already has a service
        of that name. `trace` receives the steps of this node.
        """
        super().__init__()
        check_services(services)
        self.config = config
        #: Addresses of the members in force, by node id.
        self.members = MemberBook(config.members, config.peer_addresses)
        self._services = tuple(services)
        self._owned = owned
        self._machine = state_machine
        self._disk = disk
        self._wall_ms = wall_ms
        self._trace = trace
        self._rejoining = ""
        self._encoder = AppendEncoder()  # shared by all members
        self.max_batch_bytes = config.batch_bytes(disk)  # limit of an append
        self.is_released = True  # False between `start` and `stop`, and while a stuck disk holds resources
        self.metrics = NodeMetrics()
        self._loop_lag = LoopLag()
        self.metrics.loop_lag_s = lambda: self._loop_lag.longest_s
        self.metrics.loop_stalls = lambda: self._loop_lag.stalls
        self._on_fatal = on_fatal
        self._readers = ThreadPoolExecutor(_READER_THREADS, thread_name_prefix="reader")
        self._security: NodeSecurity | None = None  # None: plain text
        self._secret: ClusterSecret | None = None
        self._clients = MemberClients(config.group, self.members, lambda: self._security)
        self._http: HttpServer | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._files: FileWatch | None = None
        self._stopping = False

    # -- starting -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the directory, serve, and take part in elections.

        State derived from the log is rebuilt afterwards. Until then the node votes, stores pushed entries
        and serves entries, but does not lead.

        Raises ConfigError (PORT_IN_USE, CONFIG_INVALID, PLAINTEXT_REFUSED) or StorageError
        (NOT_INITIALIZED, FOREIGN_DIRECTORY, DIRECTORY_LOCKED, damage) after releasing all resources.
        """
        self._is_started = True
        self.is_released = False
        loop = self._loop = asyncio.get_running_loop()
        try:
            self.config.refuse_plaintext()
            if self.config.cluster_secret_file is not None:
                self._secret = load_secret(self.config.cluster_secret_file)
            if self.config.tls is not None:
                self._security = await loop.run_in_executor(
                    self._readers, NodeSecurity, self.config, self.members
                )
            await loop.run_in_executor(self._readers, self._open_store)
        except BaseException:
            await self._release(self._close_only, _DISK_STOP_S)
            raise
        try:
            feeder = None if self._machine is None else StateFeeder(self._machine, self.store)
            self._applier = Applier(feeder, self.store, self._trace)
            await self._applier.recover()
            self._build()
            self._worker.start()
            self._parts.start()
            await self._grpc.start(self.config.listen_address)
            if self.config.http_listen:
                from dledger.status.http import start_http  # its libraries are large

                context = self._security.http_context if self._security else None
                self._http = await start_http(
                    self.status, self.config.http_listen, context, allowed_hosts=self.config.http_hosts
                )
                self.status.http_address = self.status.http_address or self._http.address
        except BaseException:
            await self._abandon()
            raise
        timing = self.config.timing
        self._parts.run(timing.tick_ms, self._parts.tick)
        self._loop_lag.start()
        self._every("checkpoint", timing.checkpoint_ms, self._checkpoint)
        if self._security is not None:
            self._files = FileWatch(self._readers, [self._security.reload_files], self._renew_certificates)
            self._files.start()
        _log.info(
            "serving",
            address=self._grpc.address,
            http=self._http.address if self._http else None,
            incarnation=self.store.hard_state.incarnation,
            ledger_end_index=self.store.end_index,
        )

    @property
    def address(self) -> str:
        """host:port of gRPC, with the port actually bound."""
        return self._grpc.address

    def node_status(self) -> NodeStatus:
        return self.status.node_status()

    @property
    def uid(self) -> int:
        """As which member this node was added; 0: one of the first, UNKNOWN_UID: it was not added yet."""
        return self._replica.core.hard_state.uid

    @property
    def first_members(self) -> Collection[str]:
        """Ids of the first members of the group, or the configured ones where they are not known."""
        return self.store.identity.members or self.config.members

    @property
    def begin_pos(self) -> int:
        """Position where the log starts, after the purged entries. May be read on any thread."""
        return self.store.base.pos

    @property
    def durable_index(self) -> int:
        """Last index that is durable on this node. Decreases only if uncommitted entries are truncated.

        May be read on any thread, after `start`.
        """
        return self.store.durable_index

    def read_bodies(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read bodies of committed entries, given as (position of the entry, size of the body), in any
        order.

        May be called on any thread after `start`, and waits for the disk only. Header and body are verified,
        but not the chain, which needs the previous entry. Raises ReadFailed INDEX_LESS_THAN_LOCAL_BEGIN for
        purged entries and INDEX_OUT_OF_RANGE for entries that are not readable yet; InvalidRequest if there
        is no user entry of that size, or for more than 64 MiB; StorageError DATA_DAMAGED until damage is
        repaired.
        """
        return self._bodies.read(spans)

    def body_at(self, pos: int) -> bytes:
        """Read the body of the committed entry at a position. May be called on the same threads as
        `read_bodies`.

        Raises the same errors as `read_bodies`, and ReadFailed if no entry starts at the position.
        """
        return self._bodies.read_at(pos)

    def index_at_pos(self, pos: int) -> int:
        """Return the index of the committed entry at a position. May be called on the same threads as
        `read_bodies`, and raises the same errors."""
        return self._bodies.index_at(pos)

    def _open_store(self) -> None:
        """Recover the log, and make the new incarnation durable before the node does anything else (rule
        2).

        Sets `store` on this thread, so that a start that is cancelled meanwhile can close it.
        """
        config = self.config
        store = DiskLogStore.open(
            config.directory,
            disk=self._disk,
            cluster_id=config.cluster_id,
            group=config.group,
            node_id=config.node_id,
            members=member_list(config.members),
            disk_reserve_bytes=config.limits.disk_reserve_bytes,
        )
        if mode := readable_by_others(config.directory):
            _log.warning("all users may read the node's directory: run chmod o-rwx on it", mode=f"{mode:04o}")
        for text in store.repairs:
            _log.warning("found at start", what=text)
        for damage in store.damages:
            _log.error("known to be damaged", **damage._asdict())
        try:
            self.max_batch_bytes = config.limits.batch_bytes(store.data_file_size)
            config.refuse_plaintext(recorded_addresses(store))
            start_incarnation(store, config.directory, config.node_id, _ahead_bytes(store))
        except BaseException:
            store.close()
            raise
        self.store: DiskLogStore = store

    def _build(self) -> None:
        config, store = self.config, self.store
        factories = PartFactories(
            shell=self._make_shell,
            disk=self._make_worker,
            allocator=self._make_allocator,
            replica=self._make_replica,
            transport=self._peer_client,
            fetch=self._make_log,
            repairer=self._make_repairer,
            scrubber=self._make_scrubber,
            readers=self._readers,
            identity=self._peer_identity(),
            call_timeout_ms=config.timing.election_min_ms,
            max_waiting_reads=config.limits.max_waiting_reads,
            state_failed=lambda error: self._shell.fatal(error),
        )
        self._parts = parts = NodeParts(store, self._applier, factories)
        self._replica, self._shell, self._readable = parts.replica, parts.shell, parts.readable
        self._allocator, self._links = parts.allocator, parts.links
        self._repairer, self._scrubber = parts.repairer, parts.scrubber
        self._jumps, self._spread = JumpWatch(self._wall_ms, monotonic_ms), SpreadWatch()
        self._build_services(parts.inbound)

    def _make_shell(self, readable: ReadableLog) -> AsyncShell:
        config, limits = self.config, self.config.limits
        shell = (AsyncShell if self._trace is None else TracingShell)(
            self.store,
            self.members,
            readable,
            self._readers,
            on_role=self._on_role,
            on_fatal=self._on_fatal,
            on_damage=self._suspect,
            on_uid=self._announce_role,
            catch_up_bytes_per_second=limits.catch_up_bytes_per_second,
            yields_to=self.metrics.append_latency if limits.catch_up_yields else None,
        )
        if self._trace is not None and isinstance(shell, TracingShell):
            shell.trace_to(self._trace, config.node_id)
        return shell

    def _make_worker(self, shell: AsyncShell) -> DiskWorker:
        self._worker = DiskWorker(
            self.store,
            self.store.identity.flush_mode,
            deliver=shell.disk_reported,
            on_fatal=self._disk_failed,
            metrics=self.metrics,
            flush_interval_ms=self.config.timing.flush_interval_ms,
        )
        return self._worker

    def _make_allocator(self, shell: AsyncShell) -> Allocator:
        store = self.store
        return Allocator(
            store,
            _ahead_bytes(store),
            on_fatal=self._disk_failed,
            most_bytes=_AHEAD_BYTES,
            position=lambda: store.tail.pos,
            on_prepared=shell.on_space_prepared,
        )

    def _make_replica(self, shell: AsyncShell) -> Replica:
        config = self._replica_config()
        replica = Replica(config, self.store, shell, random_ms=random.randint, wall_ms=self._wall_ms)
        known = [at.membership for at in replica.core.log.memberships]
        if replica.core.log.membership_index >= 0:
            self.members.update(known[-1], known)
            warn_of_other_address(self.config.node_id, self.config.address, known[-1])
        if self._needed_from is not None:
            replica.retainer.needed_from = self._needed_from
        return replica

    def _peer_identity(self) -> PeerIdentity:
        config, store = self.config, self.store
        return PeerIdentity(
            config.cluster_id,
            config.group,
            config.node_id,
            store.identity.members or (),
            store.hard_state.incarnation,
            self._secret,
            lambda node_id: self._replica.core.rejoining.announced_directory(node_id),
            lambda node_id: self._replica.core.announced_uid(node_id),
            lambda node_id: not config.is_reachable or self.members.has_named(node_id),
            lambda: self._replica.core.excludes_release_0_2,
        )

    def _peer_client(self, node_id: str) -> PeerClient:
        security = self._security.channel(node_id) if self._security else None
        address = self.members.peer_address(node_id)
        return PeerClient(node_id, address, self._peer_identity(), security, self._encoder)

    def _make_log(self, parts: NodeParts) -> FetchEntries:
        limits, replica = self.config.limits, parts.replica
        self.log = NodeLog(
            self.config.group,
            limits.service(self.store.data_file_size),
            self.store,
            parts.shell,
            parts.readable,
            self._readers,
            self.metrics,
            LogSurroundings(
                leader=self._leader_client,
                leads=lambda: replica.core.role is Role.LEADER,
                needs_image=lambda: replica.admission.state.needs_image,
                begin_index=lambda: replica.core.log.begin_index,
                on_damage=self._suspect,
            ),
            max_waiting_reads=limits.max_waiting_reads,
            read_timeout_ms=limits.read_timeout_ms,
            owned=self._owned,
        )
        self._bodies = BodyReader(self.store, parts.readable, self._suspect_from_thread)
        return self.log.fetch

    def _make_repairer(self, parts: NodeParts) -> Repairer:
        return Repairer(
            self.store,
            parts.links,
            parts.disk.call,
            on_fatal=self._disk_failed,
            on_purged=parts.shell.purged_elsewhere,
            is_urgent=parts.is_urgent,
            bytes_per_second=self.config.limits.repair_bytes_per_second,
        )

    def _make_scrubber(self, parts: NodeParts) -> Scrubber:
        scrub, threads = self.config.scrub, self._readers
        return Scrubber(
            *(self.store, threads, parts.suspect),
            image_damaged=parts.shell.image_damaged,
            bytes_per_second=scrub.bytes_per_second,
            pause_s=duration_ms(scrub.pause) / 1000,
        )

    def _build_services(self, inbound: PeerRequests) -> None:
        config, security = self.config, self._security
        self.status = StatusView(
            config,
            self.members,
            self.store.identity.flush_mode,
            self._replica,
            self._worker,
            self._applier,
            self._repairer,
            self._scrubber,
            self._links,
            self.metrics,
            self._clients.of,
            self._owner_status,
        )
        self.admin = NodeAdmin(
            config,
            self.members,
            self.store,
            self._shell,
            self.log,
            self._scrubber,
            self.status.node_status,
            self._clients.status_at,
        )
        self._grpc = NodeGrpc(
            self.log,
            inbound,
            self.admin,
            credentials=security.server_credentials() if security else None,
            peer_names=security.peer_names if security else None,
            admin_names=security.admin_names if security else None,
            others=self._services,
            cluster_id=self.config.cluster_id,
        )

    def _replica_config(self) -> ReplicaConfig:
        config, limits = self.config, self.config.limits
        core = CoreConfig(
            node_id=config.node_id,
            timing=config.timing.core(),
            flush_mode=self.store.identity.flush_mode,
            preferred_leaders=config.preferred_leaders,
            max_inflight_bytes=limits.max_inflight_bytes,
            max_push_bytes=limits.max_push_bytes,
        )
        return ReplicaConfig(
            core,
            founders(config.members, self.store),
            limits.appends(self.max_batch_bytes),
            retention=config.retention.policy(),
            cache_bytes=limits.tail_cache_bytes,
            max_waiting_reads=limits.max_waiting_reads,
        )

    # -- running ------------------------------------------------------------------------------------------

    def _on_role(self, notice: RoleNotice) -> None:
        self.status.note_role(notice)
        self.metrics.election(notice.cause)
        _log.info(
            "role",
            role=notice.role.value,
            term=notice.term,
            leader=notice.leader_id,
            cause=notice.cause,
            role_epoch=notice.role_epoch,
        )
        if notice.detail:
            _log.warning("no longer leader", cause=notice.cause, reason=notice.detail)
        self.log.role_changed()
        self._notice = notice
        self._announce_role()

    def _announce_role(self) -> None:
        """Tell the program its role, once this node is a member."""
        if self.uid != UNKNOWN_UID:
            self._role_events.announce(self._notice)

    def _disk_failed(self, error: DLedgerError) -> None:
        """Handle a failure immediately, on the disk thread, because the loop may be busy and must not
        acknowledge anything after the failure.
        """
        self._shell.give_up()
        self._on_fatal(error)

    def _suspect(self, index: int) -> None:
        self._repairer.suspect(index)

    def _suspect_from_thread(self, index: int) -> None:
        """Report a failed read. May be called on any thread."""
        with suppress(RuntimeError):  # the loop is gone
            self._loop.call_soon_threadsafe(self._suspect, index)

    def _checkpoint(self) -> None:
        self._shell.checkpoint()
        self._jumps.check()
        status = self._replica.status()
        if status.role is Role.LEADER:  # only the leader knows the clock of each member
            self._spread.check(status.clocks)
        rejoining = status.rejoining
        if rejoining != self._rejoining:
            self._rejoining = rejoining
            _log.info("rejoining", state=rejoining or "done: this node is a full member again")
        asyncio.get_running_loop().run_in_executor(self._readers, self.status.measure_disk)

    def _leader_client(self) -> LogClient | None:
        leader_id = self._replica.core.leader_id
        return None if leader_id in (None, self.config.node_id) else self._clients.of(leader_id)

    async def _renew_certificates(self) -> None:
        """Use certificates that have changed."""
        assert self._security is not None
        if self._security.check_reloaded():
            for node_id, link in self._links.items():
                link.renew(partial(self._peer_client, node_id))
            self._clients.renew()

    def _every(self, name: str, period_ms: int, work: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()

        def run() -> None:
            if self._stopping:
                return
            self._timers[name] = loop.call_later(period_ms / 1000, run)
            work()

        run()

    # -- stopping -----------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Hand leadership over, answer waiting callers, write a checkpoint, release the directory.

        Takes about a second at most, plus the time that the disk needs.
        """
        self._stopping = True
        await self.step_aside()
        await self.stop_serving(_GRACE_S)
        for timer in self._timers.values():
            timer.cancel()
        if self._files is not None:
            await self._files.stop()
        self._loop_lag.stop()
        self._parts.finish()
        await self._abandon()
        _log.info("stopped")

    async def stop_serving(self, timeout: float) -> None:
        """Accept no new calls or connections. Clients are notified and use other nodes for their next
        calls.

        Running calls have `timeout` seconds to finish. `stop` must follow. Repeatable.
        """
        await self.log.stop()
        self._fail_open_appends()
        await self._grpc.stop(timeout)

    async def wait_applied(self, index: int | None = None, timeout: float = 5.0) -> int:
        """Wait until the state machine has applied all entries up to `index`, and return the index.

        If `index` is not given, wait for all entries that were acknowledged before the call, as a
        linearizable read requires. Raises ReadFailed after `timeout` seconds.
        """
        if index is None:
            index = await self.log.read_index()
        await self._applier.wait(index, round(timeout * 1000))
        return index

    async def _abandon(self) -> None:
        """Release everything, in any state."""
        if not hasattr(self, "_grpc"):
            # The parts do not exist yet.
            await self._applier.stop()
            await self._release(self._close_only, _DISK_STOP_S)
            return
        if self._http is not None:
            await self._http.stop()
        await self._grpc.stop(0)
        await self._clients.close()
        await self._parts.stop()
        self._readers.shutdown(wait=False, cancel_futures=True)
        await self._release(self._close_store, 2 * _DISK_STOP_S)
        if not self.is_released:
            self._shell.give_up()

    async def _release(self, work: Callable[[], bool], within_s: float) -> None:
        self.is_released = await finished(work, within_s)
        if not self.is_released:
            _log.error("the disk does not respond: stopping without it")

    def _end_readers(self) -> bool:
        """Wait until the reader threads have ended. This never returns if one is stuck. The interpreter would
        also wait for it forever when it exits."""
        self._readers.shutdown(cancel_futures=True)
        return True

    def _close_only(self) -> bool:
        """End the reader threads, one of which may be opening the store, and close the store if it is
        open."""
        self._end_readers()
        if hasattr(self, "store"):
            self.store.close()
        return True

    def _close_store(self) -> bool:
        """Close the store on a thread of its own, because the disk may hang."""
        if not self._allocator.stop(_DISK_STOP_S) or not self._worker.stop(_DISK_STOP_S):
            return False
        self.store.close()
        return self._end_readers()
