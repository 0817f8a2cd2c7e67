"""The slave's side of HA: follow a master, store what comes, say how far (HAClient)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeVar

from broker_adapter.errors import AnswerMissing, BrokerError, HaRefused, Status
from broker_adapter.ha.handshake import HaIdentity
from broker_adapter.ha.link import Hello, Link
from broker_adapter.ha.log import CopiedLog, tail_of
from broker_adapter.ha.options import HaClientOptions, Handshake
from broker_adapter.ha.records import WholeRecords
from broker_adapter.ha.transfers import first_report, supplied
from dledger.platform import ClusterSecret, get_logger

_log = get_logger("ha")
_T = TypeVar("_T")

#: A master of RocketMQ's own that has not what it is asked for says nothing else.
_HEARTBEATS_FOR_NOTHING = 2
#: What a master of ours says that has another log, or not all that is needed of it any more.
_OTHER_LOG = (Status.HA_DIVERGED, Status.HA_GAP)


class RunBlocking(Protocol):
    """Runs what may block, elsewhere, and gives what it returns: asyncio.to_thread."""

    def __call__(self, function: Callable[..., _T], /, *args: Any) -> Awaitable[_T]: ...


class HaClientState(Enum):
    """The words are RocketMQ's."""

    READY = "READY"  # not connected
    TRANSFER = "TRANSFER"
    SHUTDOWN = "SHUTDOWN"


class HaClientStatus(NamedTuple):
    """`position`: all before it is stored, `reported` that it is. `problem`: why the last connection ended,
    or was not made; "" once bytes came. `silent_s`: since something came, None while there is no connection.
    `master_end`: of its log when it was connected, by handshake; else None. `refusal`: HA_DIVERGED or HA_GAP,
    since a master has said that its log does not continue this one; None once one has been followed again."""

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
    """From `start` to `stop`, on one event loop. While it runs nobody else appends to the log.

    What is stored ends where a record ends, always, and every record was checked. After an error it connects
    again, `retry_first_s` later, and twice as late each time, up to `retry_most_s`."""

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
        run: RunBlocking = asyncio.to_thread,
    ) -> None:
        """`own`: of this slave, for the handshake. `tls`: called for each connection. `on_grown`: called
        after each append, on the event loop. `on_failure`: the log has failed (LOG_FAILED); nothing is
        followed any more.
        `run`: for blocking calls of the log, one at a time."""
        self.options = options or HaClientOptions()
        if own is None and self.options.handshake is not Handshake.OFF:
            raise ValueError("the handshake needs to know who this slave is")
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
        self._heard = 0.0
        self._begin_is_gone: str | None = None  # the master that does not have it
        self._received = self._connections = 0
        self._problem = ""
        self._refusal: Status | None = None

    def start(self) -> None:
        assert self._task is None, "it was started before"
        self._task = asyncio.get_running_loop().create_task(self._follow_ever())
        self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """When it returns, nothing is appended any more. Repeatable."""
        self._state = HaClientState.SHUTDOWN
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def set_master(self, address: str | None) -> None:
        """host:port of its HA port; None: nobody is followed. Another one ends the connection."""
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
            asyncio.get_running_loop().time() - self._heard if link is not None else None,
            welcome is not None,
            welcome.log.end if welcome is not None else None,
            self._problem,
            self._refusal,
        )

    # -- inside -------------------------------------------------------------------------------------------

    async def _follow_ever(self) -> None:
        pause = self.options.retry_first_s
        while True:
            self._master_changed.clear()
            master, received = self._master, self._received
            if master is not None:
                await self._until_changed(self._follow(master))
            if self._received > received or self._master_changed.is_set():
                pause = self.options.retry_first_s
            await self._until_changed(asyncio.sleep(pause) if master is not None else asyncio.Future())
            pause = min(2 * pause, self.options.retry_most_s)

    async def _until_changed(self, work: Awaitable[None]) -> None:
        """Do it; end it when there is another master."""
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
        except Exception as error:  # whatever it is, it may be over: an address, a certificate, a bad master
            if isinstance(error, BrokerError) and error.status is Status.LOG_FAILED:
                raise
            if isinstance(error, HaRefused) and error.status in _OTHER_LOG:
                self._refusal = error.status
            problem = str(error) if isinstance(error, BrokerError | OSError) else repr(error)
            if problem != self._problem:
                _log.error("no transfer from the master", master=master, error=problem)
            self._problem = problem

    async def _copy_from(self, master: str) -> None:
        options = self.options
        if options.report_durable:  # what is reported first, too
            await self._run_blocking(self._log.flush)
        position = self._log.end_offset
        whole_log = options.whole_log and self._begin_is_gone != master
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
            self._heard = asyncio.get_running_loop().time()
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

    async def _hello(self) -> Hello | None:
        options = self.options
        if options.handshake is Handshake.OFF:
            return None
        assert self._own is not None
        log, begin, digest = await self._run_blocking(tail_of, self._log)
        return Hello(
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
        """Until it fails. `begin`: where the log goes on, `known`: its first bytes. None: where the first
        bytes belong that come."""
        records: WholeRecords | None = None
        heartbeats = 0
        while True:
            pieces = await link.read(self.options.housekeeping_s)
            self._heard = asyncio.get_running_loop().time()
            data = b"".join(piece.data for piece in pieces)
            heartbeats += sum(not piece.data for piece in pieces)
            if known and records is None and heartbeats >= _HEARTBEATS_FOR_NOTHING:
                self._begin_is_gone = self._master
                text = "it has no first file any more, or is empty; asking for its last file"
                raise AnswerMissing(Status.ANSWER_MISSING, f"{self._master}: {text}")
            self._problem = ""
            if not data:
                continue
            if records is None:
                begin = next(one.offset for one in pieces if one.data) if begin is None else begin
                records, data = self._records(begin), known + data
            self._received += len(data)
            await self._store(records, data)
            link.report(self._log.flushed_offset if self.options.report_durable else self._log.end_offset)

    def _records(self, begin: int) -> WholeRecords:
        file_size = self._log.file_size
        if begin != self._log.end_offset and begin % file_size:
            text = f"a transfer of offset {begin} first: no file of {file_size} bytes begins there"
            raise HaRefused(Status.HA_TRANSFER_REFUSED, text)
        return WholeRecords(begin, file_size, self.options.max_body_bytes)

    async def _store(self, records: WholeRecords, data: bytes) -> None:
        """Always to its end, though the slave is being stopped."""
        work = asyncio.ensure_future(self._run_blocking(self._store_now, records, data))
        ended: asyncio.CancelledError | None = None
        while not work.done():
            try:
                await asyncio.wait([work])
            except asyncio.CancelledError as error:  # by whoever stops it, and by another master
                ended = error
        self._on_grown()
        failure = work.exception()
        if ended is not None:
            raise ended
        if failure is not None:
            raise failure

    def _store_now(self, records: WholeRecords, data: bytes) -> None:
        """What was whole before damage is stored, too."""
        try:
            records.feed(data)
        finally:
            offset, taken = records.take()
            if taken:
                self._log.append_bytes(offset, taken)
                if self.options.report_durable:
                    self._log.flush()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        self._state, self._problem = HaClientState.SHUTDOWN, f"{error!r}"
        _log.critical("the slave follows nobody any more", error=self._problem)
        if isinstance(error, Exception):
            self._on_failure(error)
