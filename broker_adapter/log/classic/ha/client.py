"""HA client: follows a master, stores its log, and reports progress (HAClient)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeVar

from broker_adapter.errors import AnswerMissing, BrokerError, HaRefused, Status
from broker_adapter.log.classic.ha.handshake import HaIdentity
from broker_adapter.log.classic.ha.link import Link, SlaveHello
from broker_adapter.log.classic.ha.log import CopiedLog, tail_of
from broker_adapter.log.classic.ha.options import HaClientOptions, Handshake
from broker_adapter.log.classic.ha.records import WholeRecords
from broker_adapter.log.classic.ha.transfers import first_report, supplied
from dledger.infra.logs import get_logger
from dledger.rpc.cluster_secret import ClusterSecret

_log = get_logger("ha")
_T = TypeVar("_T")

# A RocketMQ master without the requested data sends only heartbeats.
_HEARTBEATS_FOR_NOTHING = 2
# Refusals by a master of this project whose log differs or no longer has data that this slave needs.
_OTHER_LOG = (Status.HA_DIVERGED, Status.HA_GAP)


class RunBlocking(Protocol):
    """Runs a blocking call on another thread and returns its result, as asyncio.to_thread does."""

    def __call__(self, function: Callable[..., _T], /, *args: Any) -> Awaitable[_T]: ...


def run_in_thread(function: Callable[..., _T], /, *args: Any) -> Awaitable[_T]:
    """Run a blocking call. Unlike asyncio.to_thread, creates no task and copies no context."""
    return asyncio.get_running_loop().run_in_executor(None, function, *args)


class HaClientState(Enum):
    """State of the client, with RocketMQ's names."""

    READY = "READY"  # not connected
    TRANSFER = "TRANSFER"
    SHUTDOWN = "SHUTDOWN"


class HaClientStatus(NamedTuple):
    """Status of a slave.

    `position`: end of the stored log. `reported`: last reported position. `problem`: why the last connection
    failed or ended; "" after data has arrived. `silent_s`: seconds since the last data, or None if not
    connected. `master_end`: end of the master's log at the handshake, or None if there was no handshake or
    the slave is not connected. `refusal`: HA_DIVERGED or HA_GAP after a master has replied that its log does
    not continue this one, until the next successful connection.
    """

    state: HaClientState
    master: str | None
    position: int
    reported: int
    received_bytes: int
    connections: int
    silent_s: float | None
    by_handshake: bool
    master_end: int | None
    problem: str
    refusal: Status | None = None


class HaClient:
    """Follows a master from `start` to `stop`, on one event loop.

    During this time no other component may append to the log. The stored log always ends after a checked
    record. After an error the client reconnects with exponential back-off from `retry_first_s` to
    `retry_most_s`.
    """

    def __init__(
        self,
        log: CopiedLog,
        options: HaClientOptions | None = None,
        *,
        own: HaIdentity | None = None,
        secret: ClusterSecret | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        on_grown: Callable[[], object] = lambda: None,
        on_failure: Callable[[Exception], object] = lambda error: None,
        run: RunBlocking = run_in_thread,
    ) -> None:
        """Create a client.

        `own`: identity of this slave for the handshake. `tls`: returns the TLS context of each connection.
        `on_grown`: called after each append, on the event loop. `on_failure`: called when the log has failed
        (LOG_FAILED); the client then stops. `run`: runs blocking calls of the log, one at a time.
        """
        self.options = options or HaClientOptions()
        if own is None and self.options.handshake is not Handshake.OFF:
            raise ValueError("the handshake requires the identity of this slave")
        self._log = log
        self._own = own
        self._secret = secret
        self._tls = tls
        self._on_grown = on_grown
        self._on_failure = on_failure
        self._run_blocking = run
        self._master: str | None = None
        self._master_changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._link: Link | None = None
        self._state = HaClientState.READY
        self._last_data_s = 0.0
        self._lacks_start: str | None = None  # address of the master that lacks the start of the log
        self._received = self._connections = 0
        self._problem = ""
        self._refusal: Status | None = None

    def start(self) -> None:
        assert self._task is None, "the client is already started"
        self._task = asyncio.get_running_loop().create_task(self._follow_with_retries())
        self._task.add_done_callback(self._on_task_ended)

    async def stop(self) -> None:
        """Stop. After this call returns, the client appends nothing. May be called repeatedly."""
        self._state = HaClientState.SHUTDOWN
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def set_master(self, address: str | None) -> None:
        """Set the HA address (host:port) of the master. None: follow no master.

        A change ends the current connection.
        """
        if address != self._master:
            self._master = address
            self._master_changed.set()

    def status(self) -> HaClientStatus:
        link = self._link
        welcome = link.welcome if link is not None else None
        return HaClientStatus(
            self._state,
            self._master,
            self._log.end_offset,
            link.reported if link is not None else 0,
            self._received,
            self._connections,
            asyncio.get_running_loop().time() - self._last_data_s if link is not None else None,
            welcome is not None,
            welcome.log.end if welcome is not None else None,
            self._problem,
            self._refusal,
        )

    # -- internals ---------------------------------------------------------------------------------------

    async def _follow_with_retries(self) -> None:
        pause = self.options.retry_first_s
        while True:
            self._master_changed.clear()
            master, received = self._master, self._received
            if master is not None:
                await self._run_until_master_changes(self._follow(master))
            if self._received > received or self._master_changed.is_set():
                pause = self.options.retry_first_s
            await self._run_until_master_changes(
                asyncio.sleep(pause) if master is not None else asyncio.Future()
            )
            pause = min(2 * pause, self.options.retry_most_s)

    async def _run_until_master_changes(self, work: Awaitable[None]) -> None:
        """Run `work`; cancel it when the master changes."""
        doing = asyncio.ensure_future(work)
        changed = asyncio.ensure_future(self._master_changed.wait())
        try:
            await asyncio.wait([doing, changed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (doing, changed):
                task.cancel()
            await asyncio.gather(doing, changed, return_exceptions=True)
        if not doing.cancelled():
            doing.result()

    async def _follow(self, master: str) -> None:
        try:
            await self._copy_from(master)
        except Exception as error:  # any error may be temporary, such as a wrong address or certificate
            if isinstance(error, BrokerError) and error.status is Status.LOG_FAILED:
                raise
            if isinstance(error, HaRefused) and error.status in _OTHER_LOG:
                self._refusal = error.status
            problem = str(error) if isinstance(error, BrokerError | OSError) else repr(error)
            if problem != self._problem:
                _log.error("cannot follow the master", master=master, error=problem)
            self._problem = problem

    async def _copy_from(self, master: str) -> None:
        options = self.options
        if self._log.complete_end_offset < self._log.end_offset:
            # A restarted master may lack this append, and would then refuse a log with a part of it.
            await self._change_log(self._log.cut_incomplete)
        if options.report_durable:  # also for the first report
            await self._run_blocking(self._log.flush)
        position = self._log.end_offset
        whole_log = options.whole_log and self._lacks_start != master
        begins_anywhere = position == 0 and not whole_log
        link = await Link.open(
            master,
            first_report(position) if whole_log else position,
            begins_anywhere=begins_anywhere,
            hello=await self._hello(),
            tls=self._tls() if self._tls is not None else None,
            timeout_s=options.connect_s,
            heartbeat_s=options.heartbeat_s,
        )
        try:
            self._link, self._state, self._refusal = link, HaClientState.TRANSFER, None
            self._connections += 1
            self._last_data_s = asyncio.get_running_loop().time()
            by_handshake = link.welcome is not None
            _log.info("following a master", master=master, position=position, handshake=by_handshake)
            if link.welcome is not None:
                await self._copy(link, link.welcome.start)
            elif begins_anywhere:
                await self._copy(link, None)
            else:
                await self._copy(link, position, supplied(position))
        finally:
            self._link = None
            if self._state is HaClientState.TRANSFER:
                self._state = HaClientState.READY
            await link.close()

    async def _hello(self) -> SlaveHello | None:
        options = self.options
        if options.handshake is Handshake.OFF:
            return None
        assert self._own is not None
        log, begin, digest = await self._run_blocking(tail_of, self._log)
        return SlaveHello(
            options.handshake,
            self._own,
            log,
            begin,
            digest,
            options.whole_log,
            self._secret,
            options.probe_s,
        )

    async def _copy(self, link: Link, begin: int | None, known: bytes = b"") -> None:
        """Copy until an error occurs.

        `begin`: start of the transferred log, or None if it starts with the first transferred byte. `known`:
        bytes that precede the transfer.
        """
        records: WholeRecords | None = None
        heartbeats = 0
        while True:
            pieces = await link.read(self.options.housekeeping_s)
            self._last_data_s = asyncio.get_running_loop().time()
            data = [piece.data for piece in pieces if piece.data]
            heartbeats += sum(not piece.data for piece in pieces)
            if known and records is None and heartbeats >= _HEARTBEATS_FOR_NOTHING:
                self._lacks_start = self._master
                text = "it no longer has its first file, or is empty; requesting its last file"
                raise AnswerMissing(Status.ANSWER_MISSING, f"{self._master}: {text}")
            self._problem = ""
            if not data:
                continue
            if records is None:
                begin = next(piece.offset for piece in pieces if piece.data) if begin is None else begin
                records = self._records(begin)
                if known:
                    data.insert(0, memoryview(known))
            self._received += sum(map(len, data))
            await self._change_log(self._store, records, data)
            stored = self._log.flushed_offset if self.options.report_durable else self._log.end_offset
            if stored > link.reported:
                link.report(stored)

    def _records(self, begin: int) -> WholeRecords:
        file_size = self._log.file_size
        if begin != self._log.end_offset and begin % file_size:
            text = f"first transfer at offset {begin}, which is not the start of a file of {file_size} bytes"
            raise HaRefused(Status.HA_TRANSFER_REFUSED, text)
        return WholeRecords(begin, file_size, self.options.max_body_bytes)

    async def _change_log(self, change: Callable[..., object], *arguments: object) -> None:
        """Change the log. The change is completed even if the client is stopped in the meantime."""
        work = asyncio.ensure_future(self._run_blocking(change, *arguments))
        try:
            await asyncio.shield(work)
        finally:
            while not work.done():  # canceled by `stop` or a new master
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([work])
            self._on_grown()

    def _store(self, records: WholeRecords, data: Sequence[memoryview]) -> None:
        """Store the complete records, even if they are followed by damaged data."""
        try:
            records.feed(*data)
        finally:
            offset, complete, units = records.take_complete()
            if complete:
                log = self._log
                log.append_bytes(offset, complete, units)
                # The master waits for whole appends only, so a sync that completes none is needless.
                if self.options.report_durable and log.complete_end_offset > log.flushed_offset:
                    log.flush()

    def _on_task_ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        self._state, self._problem = HaClientState.SHUTDOWN, f"{error!r}"
        _log.critical("the slave has stopped following its master", error=self._problem)
        if isinstance(error, Exception):
            self._on_failure(error)
