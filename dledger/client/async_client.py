"""The client for asyncio programs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

import tenacity

from dledger.client.batching import Limits
from dledger.client.directory import Directory
from dledger.client.pipeline import Pipeline
from dledger.client.reader import Reader, ReadMode
from dledger.client.session import CLOSE_TIMEOUT, DEFAULT_TIMEOUT, Appender, Session
from dledger.client.values import AppendResult, AttemptHook, Entry
from dledger.errors import Code, ConfigError, DLedgerError, Indeterminate, NotLeader, ReadFailed
from dledger.rpc.log_client import LogClient, NetworkFailure
from dledger.rpc.ports import BackupHead, ScrubProgress
from dledger.rpc.transport.channels import ChannelSecurity
from dledger.rpc.transport.tls import ClientTls, TlsFiles
from dledger.status.model import NodeStatus

if TYPE_CHECKING:
    import grpc

T = TypeVar("T")

#: A leader that has not answered a batch for so long is looked into, in seconds.
DEFAULT_STALL_TIMEOUT = 1.5


class AsyncClient:
    """A client of one replicated log. Use it with `async with`, in one event loop.

    Args:
        servers: addresses "host:port", as a sequence or separated by commas. One is enough to find the others
            while it lives; name all.
        group: the group's name.
        session: True (default): appends go through a session that opens itself at the first append, and are
            stored exactly once, in call order, through retries and changes of leader. False: an append whose
            answer is lost raises Indeterminate and is never sent again.
        timeout: seconds until an append or a request is given up, unless a call says otherwise.
        stall_timeout: seconds without an answer until the client asks whether another node leads.
        limits: how appends are batched.
        tls: PEM files for TLS, read again when they change; None: plain text.
        credentials: gRPC channel credentials of your own making, instead of `tls`.
        on_attempt: called before each attempt to append, also of what is sent again, with the bodies of one
            call and the number of the attempt, from 1 on; it must not raise.

    Raises ConfigError when the TLS files cannot be used, ValueError for a time-out that is no finite number
    above 0.
    """

    def __init__(
        self,
        servers: Sequence[str] | str,
        *,
        group: str = "default",
        session: bool = True,
        timeout: float = DEFAULT_TIMEOUT,
        stall_timeout: float = DEFAULT_STALL_TIMEOUT,
        limits: Limits | None = None,
        tls: TlsFiles | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        on_attempt: AttemptHook | None = None,
    ) -> None:
        for name, seconds in (("timeout", timeout), ("stall_timeout", stall_timeout)):
            if not 0 < seconds < math.inf:
                raise ValueError(f"{name} is a finite number of seconds above 0, not {seconds}")
        named = servers.split(",") if isinstance(servers, str) else servers
        self._directory = Directory(
            [s.strip() for s in named if s.strip()], group, _security(tls, credentials)
        )
        self._limits = Limits() if limits is None else limits
        self._timeout = timeout
        self._stall_timeout = stall_timeout
        self._on_attempt = on_attempt
        self._closed = False
        self._pipelines: list[Pipeline] = []
        self._appender: Appender
        if session:
            self._appender = self.session()
        else:
            self._appender = Appender(lambda: self._new_pipeline(in_session=False), self._limits, timeout)

    # -- appending

    @property
    def appender(self) -> Appender:
        """What this client's own appends go through: its session, or the plain way."""
        self._check_open()
        return self._appender

    async def append(self, body: bytes, *, timeout: float | None = None) -> AppendResult:
        """Append one entry and wait until it is committed. See `Appender.append`."""
        return await self.appender.append(body, timeout=timeout)

    async def append_many(
        self, bodies: Sequence[bytes], *, timeout: float | None = None
    ) -> list[AppendResult]:
        """Append entries as one atomic batch if they fit one. See `Appender.append_many`."""
        return await self.appender.append_many(bodies, timeout=timeout)

    async def submit(self, body: bytes, *, timeout: float | None = None) -> asyncio.Future[AppendResult]:
        """Queue one entry and return its future. See `Appender.submit`."""
        return await self.appender.submit(body, timeout=timeout)

    def session(self) -> Session:
        """A session of its own, opened by its first append: `async with client.session() as s`."""
        self._check_open()
        return Session(lambda: self._new_pipeline(in_session=True), self._limits, self._timeout)

    async def open_session(self, *, timeout: float | None = None) -> Session:
        """A session of its own, open already. Raises Indeterminate when that takes too long."""
        session = self.session()
        await session.open(timeout=timeout)
        return session

    async def new_session(self, *, timeout: float | None = None) -> Session:
        """Give this client's own appends a new session, as is needed after SessionExpired."""
        old, session = self._appender, await self.open_session(timeout=timeout)
        self._appender = session
        await old.close(0)
        return session

    def _new_pipeline(self, *, in_session: bool) -> Pipeline:
        self._check_open()
        pipeline = Pipeline(
            self._directory,
            self._limits,
            in_session=in_session,
            stall_timeout=self._stall_timeout,
            server_timeout=self._timeout,
            on_attempt=self._on_attempt,
        )
        self._pipelines = [p for p in self._pipelines if not p.is_closed]
        self._pipelines.append(pipeline)
        return pipeline

    # -- reading

    async def read(
        self,
        from_index: int = -1,
        count: int | None = None,
        *,
        mode: ReadMode = "linearizable",
        server: str | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[Entry, None]:
        """Committed entries from `from_index` on, `count` at most.

        -1 begins where the log begins when the first entry is sent, even if a purge moves it in between.
        "linearizable" sees every append acknowledged before the call; "local" what the server knows. `server`
        is an address; default: the leader, else any. `timeout`: seconds to find a server that can serve.

        Raises ReadFailed: the index is beyond the end or below the beginning, or no server could confirm.
        """
        chunks = self.read_chunks(from_index, count, mode=mode, server=server, timeout=timeout)
        async with aclosing(chunks):
            async for entries in chunks:
                for entry in entries:
                    yield entry

    async def follow(
        self, from_index: int = -1, *, mode: ReadMode = "linearizable", server: str | None = None
    ) -> AsyncGenerator[Entry, None]:
        """Committed entries from `from_index` on, without end: waits for new ones.

        Survives changes of leader and deaths of nodes without a gap or a repeat. Ends when the client is
        closed. Raises ReadFailed when `from_index` has been purged: nothing is skipped silently.
        """
        chunks = self.read_chunks(from_index, follow=True, mode=mode, server=server)
        async with aclosing(chunks):
            async for entries in chunks:
                for entry in entries:
                    yield entry

    async def read_chunks(
        self,
        from_index: int = -1,
        count: int | None = None,
        *,
        follow: bool = False,
        mode: ReadMode = "linearizable",
        server: str | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[list[Entry], None]:
        """Like `read` and `follow`, in lists as they arrive: cheaper for bulk."""
        self._check_open()
        reader = Reader(
            self._directory,
            from_index,
            count,
            follow=follow,
            mode=mode,
            server=server,
            timeout=self._timeout if timeout is None else timeout,
            stall_timeout=self._stall_timeout,
        )
        try:
            async with aclosing(reader.chunks()) as chunks:
                async for entries in chunks:
                    yield entries
        except ReadFailed:
            if not (self._closed and follow):
                raise

    async def read_index(self, *, timeout: float | None = None) -> int:
        """The linearizable read point: every append acknowledged before the call is at or below it.

        Raises ReadFailed (READ_NOT_CONFIRMED) when no leader can confirm it in `timeout` seconds.
        """
        seconds = self._timeout if timeout is None else timeout

        async def ask(leader: LogClient) -> int:
            return await leader.read_index(min(seconds, self._stall_timeout))

        try:
            return await self._on_leader(ask, seconds)
        except (Indeterminate, NetworkFailure, NotLeader) as error:
            raise ReadFailed(f"not confirmed: {error.message}", code=Code.READ_NOT_CONFIRMED) from None

    # -- the cluster

    async def status(self, *, timeout: float = 1.0) -> dict[str, NodeStatus | DLedgerError]:
        """What each configured server says of itself, or the error that it or the network gave."""
        self._check_open()
        return await self._directory.statuses(timeout)

    async def leader(self, *, timeout: float | None = None) -> NodeStatus:
        """The status of the leader. Raises NotLeader if none is found in `timeout` seconds."""
        seconds = self._timeout if timeout is None else timeout

        async def ask(leader: LogClient) -> NodeStatus:
            status = await leader.get_status(min(seconds, 1.0))
            if not status.is_leader:
                raise NotLeader(f"{leader.address} does not lead", leader_address=status.leader_address)
            return status

        return await self._on_leader(ask, seconds)

    async def transfer_leadership(self, to: str, *, timeout: float | None = None) -> tuple[int, str]:
        """Hand leadership to node `to`; (term, node id) of the new leader.

        Raises Refused (TAKE_LEADERSHIP_FAILED and others) when it stayed, Indeterminate when that is unknown.
        """
        seconds = self._timeout if timeout is None else timeout

        async def ask(leader: LogClient) -> tuple[int, str]:
            try:
                return await leader.transfer_leadership(to, seconds)
            except NetworkFailure as failure:
                raise Indeterminate(failure.message, code=failure.code) from None
            finally:
                self._directory.lost(leader.address)

        return await self._on_leader(ask, seconds, retry=(NotLeader,))

    async def purge(
        self, before_index: int | None = None, *, before_age_ms: int = 0, timeout: float | None = None
    ) -> tuple[int, int]:
        """Let entries below an index, or older than an age, go: (the index, where the log begins now).

        It happens later, in the background, and only if this leader still leads then: whoever has to be sure
        watches `ledger_begin_index` and asks again. Raises Refused, and InvalidRequest if neither is given.
        """
        seconds = self._timeout if timeout is None else timeout
        index = -1 if before_index is None else before_index
        return await self._on_leader(lambda leader: leader.purge(index, before_age_ms, seconds), seconds)

    def scrub(self, server: str, *, bytes_per_second: int = 0) -> AsyncGenerator[ScrubProgress, None]:
        """Verify all that `server` stores, and have it repaired; progress until it is done."""
        self._check_open()
        return self._directory.client(server).scrub(bytes_per_second)

    def backup(self, server: str) -> AsyncGenerator[BackupHead | bytes, None]:
        """What follows, then all entries committed at `server` now, as they are stored."""
        self._check_open()
        return self._directory.client(server).backup()

    async def _on_leader(
        self,
        ask: Callable[[LogClient], Awaitable[T]],
        seconds: float,
        retry: tuple[type[DLedgerError], ...] = (NotLeader, Indeterminate, NetworkFailure),
    ) -> T:
        """Ask the leader, again where it moved to; the last error when `seconds` have passed."""
        self._check_open()
        last: DLedgerError | None = None

        async def once() -> T:
            nonlocal last
            leader = await self._directory.leader()
            try:
                return await ask(leader)
            except NotLeader as error:
                last = error
                self._directory.redirected(leader.address, error.leader_address)
                raise
            except DLedgerError as error:
                last = error
                self._directory.lost(leader.address)
                raise

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(retry), wait=tenacity.wait_random(0.01, 0.05)
        )
        try:
            async with asyncio.timeout(seconds):
                return await retrying(once)
        except TimeoutError:
            if last is None:
                last = self._directory.no_leader(f"no leader was found within {seconds:g} s")
            raise last from None

    # -- life

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the client is closed")

    async def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Wait `timeout` seconds for appends under way, end the others and every follow(), disconnect."""
        if self._closed:
            return
        self._closed = True
        await asyncio.gather(*(pipeline.close(timeout) for pipeline in self._pipelines))
        await self._directory.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _security(
    tls: TlsFiles | None, credentials: grpc.ChannelCredentials | None
) -> Callable[[], ChannelSecurity | None]:
    if tls is not None:
        if credentials is not None:
            raise ConfigError("tls and credentials exclude each other")
        return ClientTls(tls)
    security = None if credentials is None else ChannelSecurity(credentials, has_certificate=True)
    return lambda: security
