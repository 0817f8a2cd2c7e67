"""A broker's node on a classic CommitLog: what a NodeServer is to it on a replicated one."""

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

from broker_adapter.classic.commit_log_files import CommitLogFiles, CommitLogOptions
from broker_adapter.classic.log_retention import RetentionPolicy, parse_delete_when
from broker_adapter.classic.log_upkeep import LogUpkeep
from broker_adapter.classic.recovery import open_commit_log
from broker_adapter.classic_node.appends import ClassicAppends
from broker_adapter.classic_node.feed import DispatchFeed, Machine
from broker_adapter.classic_node.group_commit import GroupCommit, async_rule
from broker_adapter.classic_node.records import ClassicRecords
from broker_adapter.classic_node.replication import HaTls, Replication
from broker_adapter.classic_node.roles import RoleRecord, RoleTeller, read_role, write_role
from broker_adapter.classic_node.status import status_of
from broker_adapter.classic_node.store_clock import StoreClock
from broker_adapter.config.classic import ClassicSettings
from broker_adapter.errors import Status, error_for
from broker_adapter.ha.handshake import HaIdentity
from dledger import Code, ConfigError, NodeConfig, NodeStatus, ReadFailed, Role, RoleEvent, TlsFiles
from dledger.platform import (
    ClientTls,
    Disk,
    GrpcService,
    NodeMetrics,
    OsDisk,
    ProgramPorts,
    ServerTls,
    get_logger,
    is_loopback,
    load_secret,
)

_log = get_logger("classic")

#: EX_IOERR: the process ended itself, because its disk or its state cannot be believed.
_EXIT_FATAL = 74
_READ_POINT_MS = 5_000
_TEND_S = 1.0
#: For slaves to get what their master has stored, before another one takes its place, and before it stops.
#: Less than a caller waits for the answer.
_DRAIN_S = 2.0
#: For the disk, when the node is stopped; and for a thread that may be stuck in it.
_DISK_STOP_S = 10.0


def _nothing() -> None: ...


def exit_process(error: Exception) -> None:
    """Say why and end at once, as a node of the replicated log does."""
    _log.error("fatal: the broker stops", reason=str(error))
    os._exit(_EXIT_FATAL)


class ClassicNode:
    """`start` once, `stop` once, on one event loop. `on_fatal`: the log must not be written any more."""

    def __init__(
        self,
        config: NodeConfig,
        settings: ClassicSettings,
        slave: HaIdentity,
        machine: Machine,
        *,
        derived_end: Callable[[], int],
        other_master: Callable[[], Awaitable[str]],
        adopt: Callable[[bool], None] = lambda is_new: None,
        settle: Callable[[], None] = lambda: None,
        disk: Disk | None = None,
        on_fatal: Callable[[Exception], None] = exit_process,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        monotonic_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    ) -> None:
        """`slave`: who this broker is as one. `derived_end`: what is before it is durable in derived files;
        any thread. `other_master`: where another master of this name is, "": nowhere. `adopt`: called on the
        machine's thread when it has recovered; whether it gets the log from the begin on. `settle`: called
        there when it has all that the log has at the start."""
        self.config = config
        self.metrics = NodeMetrics()
        self.is_released = True
        self._is_open = False
        self.max_batch_bytes = min(config.batch_bytes(), settings.file_size - 8)
        self.roles = RoleTeller()
        self.ports = ProgramPorts(config, self.metrics, self.node_status)
        self.settings = settings
        self.started = time.monotonic()
        self._slave = slave
        self._machine = machine
        self._adopt = adopt
        self._settle = settle
        self._derived_end = derived_end
        self._other_master = other_master
        self._disk: Disk = disk or OsDisk()
        self._on_fatal = on_fatal
        self._wall_ms = wall_ms
        self._clock = StoreClock(wall_ms, monotonic_ms)
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
        #: Where the log ended at times, and its newest timestamp then; until derived files are there.
        self._ends: deque[tuple[int, int]] = deque()
        self.appends = ClassicAppends(
            self.roles,
            self.cluster_time_ms,
            max_batch_bytes=self.max_batch_bytes,
            max_pending_bytes=config.limits.max_pending_bytes,
            timeout_ms=config.limits.append_timeout_ms,
            busy_ms=settings.page_cache_busy_ms,
            on_grown=self._grown,
            on_failure=self._failed,
        )
        self.records = ClassicRecords()

    # -- life ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover, serve, and take the role that was decided last. StorageError, BrokerError, ConfigError;
        nothing is left behind then."""
        config, settings = self.config, self.settings
        self._refuse_plaintext()
        self.is_released = False
        loop = asyncio.get_running_loop()
        secret = None if config.cluster_secret_file is None else load_secret(config.cluster_secret_file)
        options = CommitLogOptions(settings.file_size, settings.disk_reserve_bytes, settings.cut_damage)
        try:
            self.log: CommitLogFiles = await loop.run_in_executor(
                self._readers, open_commit_log, config.directory, self._disk, options
            )
        except BaseException:
            await self._end_threads()
            raise
        self._is_open = True
        try:
            self._build(secret)
            self._record = read_role(self._disk, self._tables, is_master=settings.broker_role != "SLAVE")
            await self.feed.begin(self._adopt, self._settle)
            self.commit.start()
            self.upkeep.start()
            await self.ports.start(self._services, self._readers)
            await self._take(self._record.is_master and await self._is_alone())
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
                f"classic.ha_listen is {address}, beyond this machine, and would be in plain text: add a "
                "[tls] section, or say allow_plaintext = true if the network can be trusted",
                code=Code.PLAINTEXT_REFUSED,
            )

    def _ha_tls(self) -> HaTls | None:
        """Both ends show certificates where members do. Reads files."""
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
        """Repeatable, from whatever state. Without a disk that does not answer: then this is not released."""
        if self.is_released:
            return
        if self._tending is not None:
            self._tending.cancel()
            await asyncio.gather(self._tending, return_exceptions=True)
        self.appends.is_stopping = True
        if lacking := await self.replication.drain(_DRAIN_S):
            _log.warning("a slave does not have all that this master has stored", lacking_bytes=lacking)
        try:
            async with asyncio.timeout(_DISK_STOP_S):
                await self.replication.stop()
                await self.ports.stop()
                await self.commit.stop()
                await self.upkeep.stop()
                await self._close()
        except TimeoutError:
            _log.error("the disk does not answer: stopping without it")
            return
        except Exception as error:
            self._failed(error)
        await self._end_threads()
        _log.info("stopped")

    async def _close(self) -> None:
        """What was not dispatched, and so is not durable in derived files, the next start has to look for:
        then `abort` stays."""
        loop = asyncio.get_running_loop()
        has_failed = self.log.failure is not None or self.feed.is_failed
        if not has_failed:
            await loop.run_in_executor(self._flush_thread, self.log.flush)
            self.feed.advance(self.log.end_offset)
            with suppress(ReadFailed):
                await self.feed.wait(self.log.end_offset, _READ_POINT_MS)
        await self.feed.stop()
        is_whole = not has_failed and self._derived_end() >= self.feed.position >= self.log.end_offset
        if is_whole:
            self.log.checkpoint.logics_ms = self.log.checkpoint.index_ms = self.log.last_stamp_ms
        await loop.run_in_executor(self._flush_thread, partial(self.log.close, keep_abort=not is_whole))

    async def _end_threads(self) -> None:
        """The interpreter would wait for one that is stuck, at its exit and for ever."""
        threads = (self._readers, self._machine_thread, self._flush_thread)
        loop = asyncio.get_running_loop()
        idle = [loop.run_in_executor(one, _nothing) for one in threads]  # behind what they do
        _, stuck = await asyncio.wait(idle, timeout=_DISK_STOP_S)
        if stuck:
            return
        for one in threads:
            one.shutdown(wait=False)
        self.is_released = True

    async def step_aside(self) -> None:
        """Nobody takes over automatically."""

    async def stop_serving(self, grace_s: float) -> None:
        await self.ports.stop_serving(grace_s)

    def add_service(self, service: GrpcService) -> None:
        self._services.append(service)

    # -- roles --------------------------------------------------------------------------------------------

    async def change_role(self, is_master: bool, *, force: bool) -> None:
        """As somebody decides. ROLE_CHANGE_BLOCKED: it is a slave that lacks something, or whose master
        lives or has refused it, or a master whose slave lacks something; `force` gives up what is lacking.
        ConfigError (PORT_IN_USE), and any other error: it has the role that it had; the same call may be made
        again."""
        async with self._changing:
            if self._is_taken and is_master == self._record.is_master:
                return
            if is_master and not self._record.is_master and not force:
                self._check_complete()
            await self._take(is_master, force=force)

    async def _is_alone(self) -> bool:
        """A master that was away may find that somebody took its place. Two would write two logs."""
        other = await self._other_master()
        if other:
            _log.error("this broker was master, and another one is now: it starts as a slave", master=other)
        return not other

    def _check_complete(self) -> None:
        lacking, problem = self.replication.lacking(), ""
        if self.replication.follows:
            problem = "its master is alive: make that a slave first, or stop it"
        elif self.replication.is_refused:
            problem = "its master has another log, and may have stored and answered more since"
        elif lacking < 0:
            problem = "it has not heard of its master since it was started: nobody knows what it lacks"
        elif lacking:
            problem = f"it lacks {lacking} bytes that its master had when it was last heard of"
        if problem:
            raise error_for(Status.ROLE_CHANGE_BLOCKED, f"{self.config.node_id} stays slave: {problem}")

    async def _take(self, is_master: bool, *, force: bool = False) -> None:
        """Writes stop before anything else changes; they begin when all else has."""
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
            await asyncio.get_running_loop().run_in_executor(self._flush_thread, self.log.flush)
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
        """What a master has stored and answered: whoever takes its place has to have it."""
        lacking = await self.replication.drain(_DRAIN_S)
        if not lacking:
            return
        if not force:
            await self._write(self._record.changed(True, self._wall_ms()))
            self._announce(self._record)
            self._is_taken = True
            text = f"a slave lacks {lacking} bytes after {_DRAIN_S:g} s"
            raise error_for(Status.ROLE_CHANGE_BLOCKED, f"{self.config.node_id} stays master: {text}")
        _log.error("a slave does not have all that this master has stored", lacking_bytes=lacking)

    async def _write(self, record: RoleRecord) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._readers, write_role, self._disk, self._tables, record)
        except OSError as error:
            raise error_for(Status.LOG_FAILED, f"the role cannot be written: {error}") from error
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
        """Nobody asks."""

    async def hand_over(self) -> bool:
        """People do."""
        return False

    # -- positions ----------------------------------------------------------------------------------------

    @property
    def begin_pos(self) -> int:
        return self.log.begin_offset

    @property
    def durable_index(self) -> int:
        """Any thread."""
        return self.log.flushed_offset - 1

    @property
    def committed_index(self) -> int:
        return self.committed_pos - 1

    @property
    def committed_pos(self) -> int:
        """What may be applied: on a master what is durable, unless it answers before that."""
        is_sure = self.roles.leads and self.settings.flush == "SYNC_FLUSH"
        return self.log.flushed_offset if is_sure else self.log.end_offset

    @property
    def applied_index(self) -> int:
        return self.feed.position - 1

    @property
    def wanted_begin_pos(self) -> int:
        """What retention would let go if nothing was needed; -1: nothing."""
        return -1

    def keep_log_from(self, needed_from: Callable[[], int]) -> None:
        self._needed_from = needed_from

    async def wait_committed(self, index: int, timeout_ms: int = _READ_POINT_MS) -> None:
        await self.feed.wait(index + 1, timeout_ms)

    async def wait_applied(self, index: int | None = None, timeout_ms: int = _READ_POINT_MS) -> int:
        """Without an index: all that this broker has now. A slave has what has come, and says no more."""
        end = self.committed_pos if index is None else index + 1
        await self.feed.wait(end, timeout_ms)
        return end - 1

    def cluster_time_ms(self) -> int:
        """It never falls, also not below the newest record, and never stands still."""
        return self._clock.read(self.log.last_stamp_ms if self._is_open else 0)

    # -- status -------------------------------------------------------------------------------------------

    def node_status(self) -> NodeStatus:
        return status_of(self)

    def show_status(self, give: Callable[[], Mapping[str, Any]]) -> None:
        self.ports.show_status(give)

    def add_metrics(self, collect: Callable[[], Iterable[Any]]) -> None:
        self.ports.add_metrics(collect)

    # -- inside -------------------------------------------------------------------------------------------

    @property
    def waits_for_slaves(self) -> bool:
        """Sends do, while this broker is master."""
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
        policy = RetentionPolicy(
            reserved_hours=settings.file_reserved_hours,
            delete_when=parse_delete_when(settings.delete_when),
            clean_percent=settings.disk_clean_percent,
            forced_percent=settings.disk_forced_percent,
            full_percent=settings.disk_full_percent,
            may_force=settings.clean_forcibly,
        )
        self.upkeep = LogUpkeep(self.log, policy, keep_from=self._keep_from, on_fatal=self._failed)

    def _grown(self) -> None:
        """By an append of this master."""
        self.replication.grown()
        if self.settings.flush != "SYNC_FLUSH":
            self.feed.advance(self.log.end_offset)

    def _grown_by_master(self) -> None:
        self.commit.grown()
        self.feed.advance(self.log.end_offset)

    def _flushed(self) -> None:
        self.feed.advance(self.committed_pos)

    def _failed(self, error: Exception) -> None:
        self._has_failed = True
        self.health = f"failed: {error}"
        self._on_fatal(error)

    async def _tend(self) -> None:
        """A log that has failed ends this node, whoever found it.

        The checkpoint says up to which message derived files are durable, too: without that a broker of
        RocketMQ, and ours, looks at all files after a crash."""
        while True:
            if self.log.failure is not None and not self._has_failed:
                self._failed(self.log.failure)  # whoever found it has told its own caller only
            if not self._has_failed:
                self.health = "the disk is full" if self.upkeep.is_full else self.log.refusal or "ok"
            self._note_derived()
            await asyncio.sleep(_TEND_S)

    def _note_derived(self) -> None:
        newest_ms = self.log.last_stamp_ms  # before the end, which may grow meanwhile
        self._ends.append((self.log.end_offset, newest_ms))
        durable, stamp_ms = self._derived_end(), 0
        while self._ends and self._ends[0][0] <= durable:
            stamp_ms = self._ends.popleft()[1]
        if stamp_ms:
            self.log.checkpoint.logics_ms = self.log.checkpoint.index_ms = stamp_ms

    def _keep_from(self) -> int:
        """Any thread. What derived files do not have durably is dispatched again after a crash."""
        needed = self._needed_from() if self._needed_from is not None else self.feed.position
        return min(needed, self.feed.position, self._derived_end())
