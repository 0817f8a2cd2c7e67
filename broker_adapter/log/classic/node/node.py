"""ClassicNode: the node of a broker with a classic CommitLog. It has the interface of NodeServer."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from broker_adapter.config.classic import ClassicSettings
from broker_adapter.errors import Status, error_for
from broker_adapter.log.classic.age_pause import AgePause
from broker_adapter.log.classic.commit_log_files import CommitLogFiles, CommitLogOptions
from broker_adapter.log.classic.ha.handshake import HaIdentity
from broker_adapter.log.classic.log_retention import DiskRetentionPolicy, parse_delete_when
from broker_adapter.log.classic.log_upkeep import LogUpkeep, UpkeepClocks
from broker_adapter.log.classic.node.appends import ClassicAppends
from broker_adapter.log.classic.node.feed import Adopt, DispatchFeed, Machine
from broker_adapter.log.classic.node.group_commit import GroupCommit, async_rule
from broker_adapter.log.classic.node.records import ClassicRecords
from broker_adapter.log.classic.node.replication import HaTls, Replication
from broker_adapter.log.classic.node.roles import RoleNotifier, RoleRecord, read_role, write_role
from broker_adapter.log.classic.node.status import status_of
from broker_adapter.log.classic.node.store_clock import StepSum, StoreClock
from broker_adapter.log.classic.recovery import open_commit_log
from broker_adapter.wire.host import Host
from dledger import Code, ConfigError, NodeConfig, NodeStatus, ReadFailed, Role, RoleEvent, TlsFiles
from dledger.infra.files.disk import Disk, OsDisk
from dledger.infra.logs import get_logger
from dledger.infra.transport.host import GrpcService
from dledger.infra.transport.tls import ClientTls, ServerTls
from dledger.metrics import NodeMetrics
from dledger.node.program_ports import ProgramPorts
from dledger.node.setup.config import is_loopback
from dledger.node.setup.member_book import MemberBook
from dledger.node.setup.secret_file import load_secret

_log = get_logger("classic")

# EX_IOERR: the process exits because its disk or state is no longer trustworthy.
_EXIT_FATAL = 74
_READ_POINT_MS = 5_000
_TEND_S = 1.0
# Seconds for slaves to receive the stored messages before another broker becomes master or this one stops.
# Shorter than the caller's timeout.
_DRAIN_S = 2.0
# Seconds to wait for the disk when the node stops, and for each thread, which may hang on the disk.
_DISK_STOP_S = 10.0


def _nothing() -> None: ...


def exit_process(error: Exception) -> None:
    """Log the reason and exit immediately, as a node with a replicated log does."""
    _log.error("fatal error, stopping the broker", reason=str(error))
    os._exit(_EXIT_FATAL)


class ClassicNode:
    """A node with a classic log. Call `start` once and `stop` once, on one event loop.

    `on_fatal` is called when the log must no longer be written.
    """

    def __init__(
        self,
        config: NodeConfig,
        settings: ClassicSettings,
        slave: HaIdentity,
        machine: Machine,
        *,
        store_host: Host,
        derived_end: Callable[[], int],
        other_master: Callable[[], Awaitable[str]],
        adopt: Adopt = lambda is_new: None,
        settle: Callable[[], None] = lambda: None,
        before_open: Callable[[], None] = lambda: None,
        recorded_steps_ms: Callable[[], int] = lambda: 0,
        disk: Disk | None = None,
        on_fatal: Callable[[Exception], None] = exit_process,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        monotonic_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    ) -> None:
        """Create a node.

        `slave`: this broker's identity as a slave. `store_host`: store host of all its records.
        `derived_end`: returns the offset up to which derived files durably cover the log. It may be called on
        any thread. `other_master`: returns the address of another master with this broker name, or "".
        `adopt` and `settle`: see `DispatchFeed.start`. `before_open`: called before the directory is accessed
        at startup. `recorded_steps_ms`: returns the total of the log time's steps in the newest applied
        command.
        """
        self.config = config
        self.members = MemberBook(config.members, config.peer_addresses)
        self.metrics = NodeMetrics()
        self.is_released = True
        self._is_open = False
        self.max_batch_bytes = min(config.batch_bytes(), settings.file_size - 8)
        self.roles = RoleNotifier()
        self.ports = ProgramPorts(config, self.metrics, self.node_status)
        self.settings = settings
        self.started = time.monotonic()
        self._slave = slave
        self._machine = machine
        self._adopt = adopt
        self._settle = settle
        self._before_open = before_open
        self._derived_end = derived_end
        self._other_master = other_master
        self._disk: Disk = disk or OsDisk()
        self._on_fatal = on_fatal
        self._wall_ms = wall_ms
        self.monotonic_ms = monotonic_ms
        self._clock = StoreClock(wall_ms, monotonic_ms)
        self._steps = StepSum(self._clock, recorded_steps_ms)
        self._services: list[GrpcService] = []
        self._needed_from: Callable[[], int] | None = None
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="classic")
        self._machine_thread = ThreadPoolExecutor(1, thread_name_prefix="dispatch")
        self._flush_thread = ThreadPoolExecutor(1, thread_name_prefix="flush")
        self._record = RoleRecord(False, 0, 0)
        self._is_taken = False
        self._changing = asyncio.Lock()
        self._tending: asyncio.Task[None] | None = None
        self.health = "ok"
        self._has_failed = False
        # Ends of the log that derived files do not cover yet, each with the newest timestamp at that time.
        self._ends: deque[tuple[int, int]] = deque()
        self.appends = ClassicAppends(
            self.roles,
            self.cluster_time_ms,
            self._steps.read,
            store_host=store_host,
            max_batch_bytes=self.max_batch_bytes,
            max_pending_bytes=config.limits.max_pending_bytes,
            timeout_ms=config.limits.append_timeout_ms,
            busy_ms=settings.page_cache_busy_ms,
            on_grown=self._grown,
            on_failure=self._failed,
        )
        self.records = ClassicRecords()

    # -- start and stop ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover the log, start serving, and change to the stored role.

        Raises StorageError, BrokerError or ConfigError after releasing all resources.
        """
        config, settings = self.config, self.settings
        self._refuse_plaintext()
        self.is_released = False
        loop = asyncio.get_running_loop()
        secret = None if config.cluster_secret_file is None else load_secret(config.cluster_secret_file)
        options = CommitLogOptions(settings.file_size, settings.disk_reserve_bytes, settings.cut_damage)
        try:
            await loop.run_in_executor(self._readers, self._before_open)
            await loop.run_in_executor(self._readers, self._open, options)
        except BaseException:
            self._readers.submit(self._close_unused)  # runs after the opening, which a cancellation leaves
            await self._end_threads()
            raise
        self._is_open = True
        try:
            self._build(secret)
            self._record = read_role(self._disk, self._tables, is_master=settings.broker_role != "SLAVE")
            await self.feed.start(self._adopt, self._settle)
            self.commit.start()
            self.upkeep.start()
            await self.ports.start(self._services, self._readers)
            await self._set_role(self._record.is_master and await self._is_alone())
        except BaseException as error:
            await self.stop()
            if isinstance(error, OSError):
                raise error_for(Status.LOG_FAILED, f"{config.directory}: {error}") from error
            raise
        self._tending = loop.create_task(self._tend())
        recovery = self.log.recovery
        _log.info("serving", address=self.ports.address, begin=recovery.begin, end=recovery.end)

    def _refuse_plaintext(self) -> None:
        config, address = self.config, self.settings.ha_listen
        if config.tls is None and not config.allow_plaintext and not is_loopback(address):
            raise ConfigError(
                f"classic.ha_listen is {address}, which is reachable from other machines in plain text: "
                "add a [tls] section, or set allow_plaintext = true if the network is trusted",
                code=Code.PLAINTEXT_REFUSED,
            )

    def _ha_tls(self) -> HaTls | None:
        """Build the TLS contexts from the configured files. Slaves present certificates if members do."""
        section = self.config.tls
        if section is None:
            return None
        files, is_mutual = (
            TlsFiles(section.ca, section.certificate, section.key),
            section.client_auth == "require",
        )
        return HaTls(
            ServerTls(files, client_auth=is_mutual).remoting_context(), ClientTls(files).stream_context
        )

    async def stop(self) -> None:
        """Stop, from any state. May be called repeatedly. If the disk hangs, resources are not released."""
        if self.is_released:
            return
        if self._tending is not None:
            self._tending.cancel()
            await asyncio.gather(self._tending, return_exceptions=True)
        self.appends.is_stopping = True
        if lacking := await self.replication.drain(_DRAIN_S):
            _log.warning("a slave lacks data of this master", lacking_bytes=lacking)
        try:
            async with asyncio.timeout(_DISK_STOP_S):
                await self.replication.stop()
                await self.ports.stop()
                await self.commit.stop()
                await self.upkeep.stop()
                await self._close()
        except TimeoutError:
            _log.error("the disk does not respond: stopping without it")
            return
        except Exception as error:
            self._failed(error)
        await self._end_threads()
        _log.info("stopped")

    def _open(self, options: CommitLogOptions) -> None:
        self.log: CommitLogFiles = open_commit_log(self.config.directory, self._disk, options)

    def _close_unused(self) -> None:
        """Close the log if a start that failed or was cancelled has opened it."""
        if hasattr(self, "log"):
            self.log.close(keep_abort=True)

    async def _close(self) -> None:
        """Close the log. If derived files do not durably cover it, the file `abort` remains, and the next
        start scans the log.
        """
        loop = asyncio.get_running_loop()
        has_failed = self.log.failure is not None or self.feed.is_failed
        if not has_failed:
            await loop.run_in_executor(self._flush_thread, self._make_whole)
            self.feed.advance(self.log.end_offset)
            with suppress(ReadFailed):
                await self.feed.wait(self.log.end_offset, _READ_POINT_MS)
        await self.feed.stop()
        is_whole = not has_failed and self._derived_end() >= self.feed.position >= self.log.end_offset
        if is_whole:
            self.log.checkpoint.logics_ms = self.log.checkpoint.index_ms = self.log.last_stamp_ms
        await loop.run_in_executor(self._flush_thread, partial(self.log.close, keep_abort=not is_whole))

    async def _end_threads(self) -> None:
        """Shut down the threads, except if one hangs.

        The interpreter would wait for that thread forever at exit.
        """
        threads = (self._readers, self._machine_thread, self._flush_thread)
        loop = asyncio.get_running_loop()
        idle = [loop.run_in_executor(thread, _nothing) for thread in threads]  # runs after current work
        _, stuck = await asyncio.wait(idle, timeout=_DISK_STOP_S)
        if stuck:
            return
        for thread in threads:
            thread.shutdown(wait=False)
        self.is_released = True

    def _make_whole(self) -> None:
        """Cut an incomplete append of a slave, and make the remaining log durable.

        The connection to the master has ended, so the missing records will not arrive.
        """
        self.log.cut_incomplete()
        self.log.flush()

    async def flush(self) -> None:
        """Make the written log durable. Raises BrokerError."""
        await asyncio.get_running_loop().run_in_executor(self._flush_thread, self.log.flush)

    async def step_aside(self) -> None:
        """Do nothing: there is no automatic takeover."""

    async def stop_serving(self, timeout: float) -> None:
        await self.ports.stop_serving(timeout)

    def add_service(self, service: GrpcService) -> None:
        self._services.append(service)

    # -- roles -------------------------------------------------------------------------------------------

    async def change_role(self, is_master: bool, *, force: bool) -> None:
        """Change the role at an operator's request.

        Raises ROLE_CHANGE_BLOCKED for a slave that lacks data or whose master is connected or has refused it,
        and for a master whose slave lacks data. With `force`, the loss of that data is accepted. After
        ROLE_CHANGE_BLOCKED, and after any error while a slave becomes master, such as ConfigError
        (PORT_IN_USE), the broker still has its previous role. The call may be repeated after any error.
        """
        async with self._changing:
            if self._is_taken and is_master == self._record.is_master:
                return
            if is_master and not self._record.is_master:
                if not force:
                    self._check_may_lead()
                self._steps.restart()
            await self._set_role(is_master, force=force)

    async def _is_alone(self) -> bool:
        """False if another broker has become master in the meantime.

        Two masters would write different logs.
        """
        other = await self._other_master()
        if other:
            _log.error("another broker has become master: starting as a slave", master=other)
        return not other

    def _check_may_lead(self) -> None:
        """Raise ROLE_CHANGE_BLOCKED if the master is connected, has a different log, or may have data that
        this slave lacks.
        """
        lacking, problem = self.replication.lacking(), ""
        if self.replication.follows:
            problem = "its master is connected: make that broker a slave first, or stop it"
        elif self.replication.is_refused:
            problem = "its master has a different log and may have acknowledged more messages since"
        elif lacking < 0:
            problem = "it has not connected to its master since its start, so missing data is unknown"
        elif lacking:
            problem = f"it lacks {lacking} bytes that its master had at the last contact"
        if problem:
            raise error_for(Status.ROLE_CHANGE_BLOCKED, f"{self.config.node_id} remains slave: {problem}")

    async def _set_role(self, is_master: bool, *, force: bool = False) -> None:
        """Change the role. Writes are disabled before all other changes, and enabled after them."""
        self._is_taken = False
        record = self._record.changed(is_master, self._wall_ms())
        if is_master:
            await self._become_master(record)
        else:
            self._announce(record)
            await self._give_to_slaves(force=force)
            await self.replication.stop()
            await self._write(record)
            self.replication.follow()
        self._is_taken = True

    async def _become_master(self, record: RoleRecord) -> None:
        was_following = self.replication.is_following
        await self.replication.stop()
        try:
            await asyncio.get_running_loop().run_in_executor(self._flush_thread, self._make_whole)
            await self.replication.serve()
            await self._write(record)
        except BaseException:
            await self.replication.stop()
            if was_following:
                self.replication.follow()
                self._is_taken = True
            raise
        self._flushed()
        self._announce(record)

    async def _give_to_slaves(self, *, force: bool) -> None:
        """Wait until the slaves have all data that this master has acknowledged, because one of them may
        become master.
        """
        lacking = await self.replication.drain(_DRAIN_S)
        if not lacking:
            return
        if not force:
            await self._write(self._record.changed(True, self._wall_ms()))
            self._announce(self._record)
            self._is_taken = True
            text = f"a slave lacks {lacking} bytes after {_DRAIN_S:g} s"
            raise error_for(Status.ROLE_CHANGE_BLOCKED, f"{self.config.node_id} remains master: {text}")
        _log.error("a slave lacks data of this master", lacking_bytes=lacking)

    async def _write(self, record: RoleRecord) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._readers, write_role, self._disk, self._tables, record)
        except OSError as error:
            raise error_for(Status.LOG_FAILED, f"cannot write the role file: {error}") from error
        self._record = record

    def _announce(self, record: RoleRecord) -> None:
        config = self.config
        others = [node_id for node_id in config.members if node_id != config.node_id]
        leader = config.node_id if record.is_master else others[0] if len(others) == 1 else None
        role = Role.LEADER if record.is_master else Role.FOLLOWER
        barrier = self.log.end_offset - 1 if record.is_master else -1
        self.roles.announce(RoleEvent(role, record.term, record.role_epoch, leader, barrier))

    def on_role(self, listener: Callable[[RoleEvent], None]) -> None:
        self.roles.listen(listener)

    @property
    def leader_id(self) -> str | None:
        event = self.roles.current
        return None if event is None else event.leader_id

    def report_fitness(self, *, lag_bytes: int, fit: bool) -> None:
        """Ignored: there are no elections."""

    async def hand_over(self) -> bool:
        """Return False, because only operators change roles."""
        return False

    # -- positions ---------------------------------------------------------------------------------------

    @property
    def begin_pos(self) -> int:
        return self.log.begin_offset

    @property
    def durable_index(self) -> int:
        """Index of the last durable byte. May be read on any thread."""
        return self.log.flushed_offset - 1

    @property
    def committed_index(self) -> int:
        return self.committed_pos - 1

    @property
    def committed_pos(self) -> int:
        """End of the log that may be applied, always at the end of an append.

        On a master with SYNC_FLUSH this is the durable end.
        """
        is_sure = self.roles.leads and self.settings.flush == "SYNC_FLUSH"
        return self.log.flushed_offset if is_sure else self.log.complete_end_offset

    @property
    def applied_index(self) -> int:
        return self.feed.position - 1

    @property
    def wanted_begin_pos(self) -> int:
        """Start of the log that retention alone would choose. Always -1, which means no change."""
        return -1

    def keep_log_from(self, needed_from: Callable[[], int]) -> None:
        self._needed_from = needed_from

    async def wait_committed(self, index: int, timeout: float = 5.0) -> None:
        await self.feed.wait(index + 1, round(timeout * 1000))

    async def wait_applied(self, index: int | None = None, timeout: float = 5.0) -> int:
        """Wait until `index` has been applied; None: the whole current log.

        A slave considers only its own log.
        """
        end = self.committed_pos if index is None else index + 1
        await self.feed.wait(end, round(timeout * 1000))
        return end - 1

    def cluster_time_ms(self) -> int:
        """Return the log's time.

        It never decreases, never stops, and is never before the newest record's timestamp.
        """
        return self._clock.read(self.log.last_stamp_ms) if self._is_open else self._wall_ms()

    # -- status ------------------------------------------------------------------------------------------

    def node_status(self) -> NodeStatus:
        return status_of(self)

    def show_status(self, give: Callable[[], Mapping[str, Any]]) -> None:
        self.ports.show_status(give)

    def add_metrics(self, collect: Callable[[], Iterable[Any]]) -> None:
        self.ports.add_metrics(collect)

    # -- internals ---------------------------------------------------------------------------------------

    @property
    def waits_for_slaves(self) -> bool:
        """True if sends wait for slaves while this broker is master."""
        return self.settings.broker_role == "SYNC_MASTER" or self.settings.waits_for_slaves

    @property
    def _tables(self) -> Path:
        return self.config.directory / "config"

    def _build(self, secret: Any) -> None:
        settings = self.settings
        self.feed = DispatchFeed(self.log, self._machine, self._machine_thread, self._failed)
        self.commit = GroupCommit(
            self.log,
            self._flush_thread,
            self.metrics,
            rule=async_rule(settings),
            on_flushed=self._flushed,
            on_failure=self._failed,
        )
        self.replication = Replication(
            self.log, settings, self._slave, secret, self._ha_tls(), self._grown_by_master, self._failed
        )
        if self.waits_for_slaves:
            self.commit.acknowledged = self.replication.acknowledged
        self.appends.open(self.log, self.commit)
        self.records.open(self.log)
        policy = DiskRetentionPolicy(
            reserved_hours=settings.file_reserved_hours,
            delete_when=parse_delete_when(settings.delete_when),
            clean_percent=settings.disk_clean_percent,
            forced_percent=settings.disk_forced_percent,
            full_percent=settings.disk_full_percent,
            may_force=settings.clean_forcibly,
        )
        self.pause = AgePause(self._disk, self._tables, self.monotonic_ms())
        self.upkeep = LogUpkeep(
            self.log,
            policy,
            clocks=UpkeepClocks(
                self.cluster_time_ms, lambda: self._clock.steps_ms, self._wall_ms, self.monotonic_ms
            ),
            pause=self.pause,
            keep_from=self._keep_from,
            on_fatal=self._failed,
        )

    def _grown(self) -> None:
        """Handle an append by this master."""
        self.replication.grown()
        if self.settings.flush != "SYNC_FLUSH":
            self.feed.advance(self.log.end_offset)

    def _grown_by_master(self) -> None:
        self.commit.grown()
        self.feed.advance(self.log.complete_end_offset)

    def _flushed(self) -> None:
        self.feed.advance(self.committed_pos)

    def _failed(self, error: Exception) -> None:
        self._has_failed = True
        self.health = f"failed: {error}"
        self._on_fatal(error)

    async def _tend(self) -> None:
        """Run periodic work.

        If the log has failed and only a caller has received the error, stops the node. Also updates the
        timestamp in the checkpoint up to which derived files are durable. Without this timestamp, RocketMQ
        and this broker would scan all files after a crash.
        """
        while True:
            if self.log.failure is not None and not self._has_failed:
                self._failed(self.log.failure)  # reported only to the caller of the failed method
            if not self._has_failed:
                self.health = "the disk is full" if self.upkeep.is_full else self.log.refusal or "ok"
            self._note_derived()
            await asyncio.sleep(_TEND_S)

    def _note_derived(self) -> None:
        newest_ms = self.log.last_stamp_ms  # read before the end, which may grow in between
        self._ends.append((self.log.end_offset, newest_ms))
        durable, stamp_ms = self._derived_end(), 0
        while self._ends and self._ends[0][0] <= durable:
            stamp_ms = self._ends.popleft()[1]
        if stamp_ms:
            self.log.checkpoint.logics_ms = self.log.checkpoint.index_ms = stamp_ms

    def _keep_from(self) -> int:
        """Return the first offset that the log must keep. May be called on any thread.

        After a crash, all records that derived files do not cover are dispatched again.
        """
        needed = self._needed_from() if self._needed_from is not None else self.feed.position
        return min(needed, self.feed.position, self._derived_end())
