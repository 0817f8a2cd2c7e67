"""One node: its parts put together, started in order, stopped in order."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from dledger.core.values import CoreConfig, Membership, Role
from dledger.errors import Code, ConfigError, DLedgerError, Indeterminate
from dledger.node.admission import AppendLimits
from dledger.node.async_shell import AsyncShell
from dledger.node.config import NodeConfig
from dledger.node.disk_worker import DiskWorker
from dledger.node.inbound import Inbound
from dledger.node.logs import get_logger
from dledger.node.metrics import NodeMetrics
from dledger.node.node_log import NodeLog
from dledger.node.peers import PeerLink
from dledger.node.readable import ReadableLog
from dledger.node.replica import Replica, ReplicaConfig
from dledger.node.security import NodeSecurity
from dledger.node.shell import RoleNotice
from dledger.node.status_view import StatusView
from dledger.rpc.envelope import Identity
from dledger.rpc.log_client import LogClient
from dledger.rpc.serving import NodeGrpc
from dledger.status.http import HttpServer, start_http
from dledger.status.model import NodeStatus
from dledger.store.batch import max_batch_size
from dledger.store.disk_store import DiskLogStore

_log = get_logger("node")

#: EX_IOERR: the process ended itself, because its disk or its state cannot be believed.
EXIT_FATAL = 74

_READER_THREADS = 2
_TLS_LOOK_MS = 1000
_TRANSFER_S = 1.0
_GRACE_S = 0.2
_DISK_STOP_S = 5.0


def exit_process(error: DLedgerError) -> None:
    """Say why and end at once, from any thread: nothing more is written, no stuck thread is waited for."""
    _log.error("fatal: the node stops", code=int(error.code), reason=str(error))
    with suppress(Exception):
        sys.stderr.flush()
    os._exit(EXIT_FATAL)


class NodeServer:
    """A node in this process. `start` once, `stop` once; both on the same event loop.

    `on_fatal` is called, on the loop's or on the disk's thread, when the node must not go on; the default
    ends the process.
    """

    def __init__(
        self, config: NodeConfig, *, on_fatal: Callable[[DLedgerError], None] = exit_process
    ) -> None:
        self.config = config
        self.metrics = NodeMetrics()
        self._on_fatal = on_fatal
        self._readers = ThreadPoolExecutor(_READER_THREADS, thread_name_prefix="reader")
        self._security: NodeSecurity | None = None  # None: plain text
        self._clients: dict[str, LogClient] = {}
        self._retired: set[asyncio.Task[None]] = set()
        self._stream_id = 0
        self._role: Role | None = None
        self._http: HttpServer | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._stopping = False

    # -- starting -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the directory, serve, and take part in elections.

        ConfigError (PORT_IN_USE, CONFIG_INVALID, PLAINTEXT_REFUSED) or StorageError (NOT_INITIALIZED,
        FOREIGN_DIRECTORY, DIRECTORY_LOCKED, damage); nothing is left behind then.
        """
        loop = asyncio.get_running_loop()
        try:
            self.config.refuse_plaintext()
            if self.config.tls is not None:
                self._security = await loop.run_in_executor(self._readers, NodeSecurity, self.config)
            self.store = await loop.run_in_executor(self._readers, self._open_store)
        except BaseException:
            self._readers.shutdown(wait=False)
            raise
        try:
            self._build()
            self._worker.start()
            self._shell.start()
            await self._grpc.start(self.config.listen_address)
            if self.config.http_listen:
                context = self._security.http_context if self._security else None
                self._http = await start_http(self.status, self.config.http_listen, context)
                self.status.http_address = self.status.http_address or self._http.address
        except BaseException:
            await self._abandon()
            raise
        for link in self._links.values():
            link.connect()
        timing = self.config.timing
        self._every("tick", timing.tick_ms, self._shell.tick)
        self._every("checkpoint", timing.checkpoint_ms, self._checkpoint)
        if self._security is not None:
            self._every("tls", _TLS_LOOK_MS, self._look_at_certificates)
        _log.info(
            "serving",
            address=self._grpc.address,
            http=self._http.address if self._http else None,
            incarnation=self.store.hard_state.incarnation,
            ledger_end_index=self.store.end_index,
        )

    @property
    def address(self) -> str:
        """host:port of gRPC, with the port that was really bound."""
        return self._grpc.address

    def node_status(self) -> NodeStatus:
        return self.status.node_status()

    def _open_store(self) -> DiskLogStore:
        """Recover, and make the new incarnation durable before anything else happens (rule 2)."""
        config = self.config
        store = DiskLogStore.open(
            config.directory, cluster_id=config.cluster_id, group=config.group, node_id=config.node_id
        )
        try:
            largest = max_batch_size(store.data_file_size)
            if config.limits.max_batch_bytes > largest:
                raise ConfigError(
                    f"limits.max_batch_bytes is {config.limits.max_batch_bytes}; "
                    f"the data files of {config.directory} hold batches of at most {largest}"
                )
            state = store.hard_state
            store.save_hard_state(replace(state, incarnation=state.incarnation + 1))
        except BaseException:
            store.close()
            raise
        return store

    def _build(self) -> None:
        config, store = self.config, self.store
        limits = config.limits
        identity = Identity(
            config.cluster_id,
            config.group,
            config.node_id,
            tuple(config.members),
            store.hard_state.incarnation,
        )
        committed = max(store.base.index, store.committed_checkpoint)
        readable = ReadableLog(committed, store.end_index, limits.max_waiting_reads)
        shell = AsyncShell(
            store, config.members, readable, self._readers, on_role=self._on_role, on_fatal=self._on_fatal
        )
        worker = DiskWorker(
            store,
            store.identity.flush_mode,
            deliver=shell.disk_reported,
            on_fatal=self._disk_failed,
            metrics=self.metrics,
            flush_interval_ms=config.timing.flush_interval_ms,
        )
        inbound = Inbound(identity, shell)
        links = {
            node_id: PeerLink(
                node_id,
                address,
                identity,
                shell,
                next_stream_id=self._next_stream_id,
                call_timeout_ms=config.timing.election_min_ms,
                security=self._security.channel(node_id) if self._security else None,
            )
            for node_id, address in config.members.items()
            if node_id != config.node_id
        }
        replica = Replica(self._replica_config(), store, shell, random_ms=random.randint)
        shell.wire(replica, worker, inbound, links)
        self._replica, self._worker, self._shell = replica, worker, shell
        self._links = links
        self.log = NodeLog(
            config.group,
            limits.service(),
            store,
            shell,
            readable,
            self._readers,
            self.metrics,
            leader=self._leader_client,
            leads=lambda: replica.core.role is Role.LEADER,
            max_waiting_reads=limits.max_waiting_reads,
            read_timeout_ms=limits.read_timeout_ms,
        )
        self.status = StatusView(
            config,
            store.identity.flush_mode,
            replica,
            worker,
            readable,
            links,
            self.metrics,
            self._client_of,
        )
        security = self._security
        self._grpc = NodeGrpc(
            self.log,
            inbound,
            self,
            credentials=security.server_credentials() if security else None,
            peer_names=security.peer_names if security else None,
        )

    def _replica_config(self) -> ReplicaConfig:
        config, limits = self.config, self.config.limits
        core = CoreConfig(
            node_id=config.node_id,
            membership=Membership(tuple(config.members)),
            timing=config.timing.core(),
            flush_mode=self.store.identity.flush_mode,
            preferred_leaders=config.preferred_leaders,
            max_inflight_bytes=limits.max_inflight_bytes,
            max_push_bytes=limits.max_push_bytes,
        )
        appends = AppendLimits(
            max_body_bytes=limits.max_body_bytes,
            max_batch_bytes=limits.max_batch_bytes,
            max_batch_entries=limits.max_batch_entries,
            max_pending_bytes=limits.max_pending_bytes,
        )
        return ReplicaConfig(
            core, appends, cache_bytes=limits.tail_cache_bytes, max_waiting_reads=limits.max_waiting_reads
        )

    # -- AdminPort ----------------------------------------------------------------------------------------

    @property
    def group(self) -> str:
        return self.config.group

    async def transfer(self, to: str | None) -> None:
        """DLedgerError says why leadership was not handed over; NotLeader names who leads."""
        if to is not None and to not in self.config.members:
            known = ", ".join(sorted(self.config.members))
            raise DLedgerError(f"{to!r} is no member: {known}", code=Code.UNKNOWN_MEMBER)
        bound_s = 2 * self.config.timing.transfer_timeout_ms / 1000
        try:
            async with asyncio.timeout(bound_s):
                await self._shell.transfer(to)
        except TimeoutError:
            raise Indeterminate(f"no end of the transfer within {bound_s:g} s", code=Code.TIMEOUT) from None

    # -- running ------------------------------------------------------------------------------------------

    def _on_role(self, notice: RoleNotice) -> None:
        self.status.note_role(notice)
        self.metrics.election(notice.cause)
        self._role = notice.role
        _log.info(
            "role",
            role=notice.role.value,
            term=notice.term,
            leader=notice.leader_id,
            cause=notice.cause,
            role_epoch=notice.role_epoch,
        )

    def _disk_failed(self, error: DLedgerError) -> None:
        """On the disk thread, at once: the loop may be busy, and must promise nothing more."""
        self._shell.give_up()
        self._on_fatal(error)

    def _checkpoint(self) -> None:
        self._shell.checkpoint()
        asyncio.get_running_loop().run_in_executor(self._readers, self.status.measure_disk)

    def _next_stream_id(self) -> int:
        """Never repeats, not even over restarts: role_epoch begins with the incarnation."""
        self._stream_id = max(self._stream_id + 1, self._replica.core.role_epoch)
        return self._stream_id

    def _leader_client(self) -> LogClient | None:
        leader_id = self._replica.core.leader_id
        return None if leader_id in (None, self.config.node_id) else self._client_of(leader_id)

    def _client_of(self, node_id: str) -> LogClient:
        client = self._clients.get(node_id)
        if client is None:
            security = self._security.channel(node_id) if self._security else None
            client = LogClient(self.config.members[node_id], self.config.group, security)
            self._clients[node_id] = client
        return client

    def _look_at_certificates(self) -> None:
        """Files are read on a reader's thread; what came of it is taken over one look later, on the loop."""
        assert self._security is not None
        if self._security.taken_over():
            for node_id, link in self._links.items():
                link.renew(self._security.channel(node_id))
            for client in self._clients.values():
                task = asyncio.create_task(client.retire())
                self._retired.add(task)
                task.add_done_callback(self._retired.discard)
            self._clients.clear()
        asyncio.get_running_loop().run_in_executor(self._readers, self._security.look)

    def _every(self, name: str, period_ms: int, work: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()

        def run() -> None:
            if self._stopping and name != "tick":
                return
            self._timers[name] = loop.call_later(period_ms / 1000, run)
            work()

        run()

    # -- stopping -----------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Hand leadership over, answer whoever waits, write a checkpoint, release the directory.

        Takes about a second at most, besides what the disk takes.
        """
        self._stopping = True
        if self._role is Role.LEADER and self._links:
            await self._hand_over()
        await self.log.stop()
        await self._grpc.stop(_GRACE_S)
        for timer in self._timers.values():
            timer.cancel()
        self._shell.checkpoint()
        await self._abandon()
        _log.info("stopped")

    async def _hand_over(self) -> None:
        try:
            async with asyncio.timeout(_TRANSFER_S):
                await self._shell.transfer(None)
        except (DLedgerError, TimeoutError) as error:
            # The push streams then break without GOODBYE, which the followers act upon at once.
            _log.info("leadership was not handed over", reason=str(error) or "time-out")

    async def _abandon(self) -> None:
        """Release everything, in whatever state it is."""
        loop = asyncio.get_running_loop()
        if self._http is not None:
            await self._http.stop()
        await self._grpc.stop(0)
        for link in self._links.values():
            await link.close()
        for client in self._clients.values():
            await client.close()
        for task in self._retired:
            task.cancel()
        await asyncio.gather(*self._retired, return_exceptions=True)
        if await loop.run_in_executor(self._readers, self._worker.stop, _DISK_STOP_S):
            await loop.run_in_executor(self._readers, self.store.close)
        else:
            _log.error("the disk does not answer: stopping without it")
        self._readers.shutdown(wait=False)
