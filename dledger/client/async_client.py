"""The client for asyncio programs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

import tenacity

from dledger.client.batching import Limits, check_integer, check_timeout
from dledger.client.directory import LeaderDirectory
from dledger.client.pipeline import Pipeline
from dledger.client.reader import LogReadStream, ReadMode
from dledger.client.session import CLOSE_TIMEOUT, DEFAULT_TIMEOUT, Appender, Session
from dledger.client.values import AppendResult, AttemptHook, Entry
from dledger.core.membership_change import MembershipChange
from dledger.errors import (
    Code,
    ConfigError,
    DLedgerError,
    Indeterminate,
    InvalidRequest,
    NotLeader,
    ReadFailed,
)
from dledger.infra.addresses import check_address
from dledger.infra.transport.channels import ChannelSecurity
from dledger.infra.transport.tls import ClientTls, TlsFiles
from dledger.rpc.log_client import LogClient, NetworkFailure
from dledger.rpc.ports import BackupHead, ScrubProgress
from dledger.status.model import NodeStatus

if TYPE_CHECKING:
    import grpc

T = TypeVar("T")

#: Seconds without a response to a batch, after which the client looks for another leader.
DEFAULT_STALL_TIMEOUT = 1.5


class AsyncClient:
    """A client of one replicated log. Use it with `async with`, in one event loop.

    Args:
        servers: addresses "host:port", as a sequence or separated by commas. One reachable server is enough
            to find the others, but list them all.
        group: the group's name.
        cluster_id: binds the client to a cluster: servers of another one are not used. Without it, a client
            uses the cluster that its servers form now, which can be another one after a forced recovery.
        session: if True (default), appends use a session, which the first append opens, and are stored
            exactly once, in call order, across retries and changes of leader. If False, an append whose
            response is lost raises Indeterminate and is never sent again.
        timeout: default time limit of an append or a request, in seconds.
        stall_timeout: seconds without a response after which the client checks whether another node leads.
        limits: limits of batches.
        tls: PEM files for TLS, reloaded when they change. None means plain text.
        credentials: gRPC channel credentials, instead of `tls`.
        on_attempt: called before each attempt to append, including retries, with the bodies of one call and
            the number of the attempt, starting at 1. Its errors are logged and ignored.

    Raises ConfigError if the TLS files are invalid, TypeError for an argument of another type, and ValueError
    if a timeout is not a finite number above 0.
    """

    def __init__(
        self,
        servers: Sequence[str] | str,
        *,
        group: str = "default",
        cluster_id: str | None = None,
        session: bool = True,
        timeout: float = DEFAULT_TIMEOUT,
        stall_timeout: float = DEFAULT_STALL_TIMEOUT,
        limits: Limits | None = None,
        tls: TlsFiles | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        on_attempt: AttemptHook | None = None,
    ) -> None:
        if not isinstance(servers, Sequence):
            raise TypeError(f"servers must be a sequence of addresses, not {type(servers).__name__}")
        for name, value, kind in (
            ("group", group, str),
            ("cluster_id", cluster_id, str),
            ("limits", limits, Limits),
            ("tls", tls, TlsFiles),
        ):
            if not (isinstance(value, kind) or (value is None and name != "group")):
                raise TypeError(f"{name} must be {kind.__name__}, not {type(value).__name__}")
        for name, seconds in (("timeout", timeout), ("stall_timeout", stall_timeout)):
            if not isinstance(seconds, int | float):
                raise TypeError(f"{name} must be a number of seconds, not {type(seconds).__name__}")
            if not 0 < seconds < math.inf:
                raise ValueError(f"{name} must be a finite number of seconds above 0, not {seconds}")
        named = servers.split(",") if isinstance(servers, str) else servers
        self._directory = LeaderDirectory(
            [text for server in named if (text := str(server).strip())],
            group,
            _security(tls, credentials),
            cluster_id,
        )
        self._limits = Limits() if limits is None else limits
        self._timeout = timeout
        self._stall_timeout = stall_timeout
        self._on_attempt = on_attempt
        self._closed = False
        self._renewal = asyncio.Lock()  # held while the client's default session is replaced
        self._pipelines: list[Pipeline] = []
        self._appender: Appender
        if session:
            self._appender = self.session()
        else:
            self._appender = Appender(lambda: self._new_pipeline(in_session=False), self._limits, timeout)

    # -- appending

    @property
    def appender(self) -> Appender:
        """The appender for this client's own appends. It uses a session unless the client was created without
        one."""
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
        """Return a new session, opened by its first append: `async with client.session() as s`."""
        self._check_open()
        return Session(lambda: self._new_pipeline(in_session=True), self._limits, self._timeout)

    async def open_session(self, *, timeout: float | None = None) -> Session:
        """Open a new session. Raises Indeterminate if that takes too long."""
        session = self.session()
        await session.open(timeout=timeout)
        return session

    async def new_session(self, *, timeout: float | None = None) -> Session:
        """Replace the session of this client's own appends, as required after SessionExpired.

        Concurrent calls get the same session. Raises Indeterminate after `timeout` seconds.
        """
        check_timeout(timeout)
        seconds, old = self._timeout if timeout is None else timeout, self._appender
        try:
            async with asyncio.timeout(seconds), self._renewal:
                current = self._appender
                if current is not old and isinstance(current, Session):
                    return current
                session = await self.open_session(timeout=seconds)
                self._appender = session
        except TimeoutError:
            raise Indeterminate(f"no session opened within {seconds:g} s", code=Code.TIMEOUT) from None
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
        """Read at most `count` committed entries, starting at `from_index`.

        -1 means the start of the log at the time when the first entry is sent, even if a purge has moved it.
        "linearizable" includes every append acknowledged before the call; "local" reads the entries that the
        server knows as committed. `server` is an address; default: the leader, or any server if no leader is
        found. `timeout`: seconds to find a server.

        Raises ReadFailed if the index is after the end or before the start of the log, or if no server can
        confirm the read.
        """
        chunks = self.read_chunks(from_index, count, mode=mode, server=server, timeout=timeout)
        async with aclosing(chunks):
            async for entries in chunks:
                for entry in entries:
                    yield entry

    async def follow(
        self, from_index: int = -1, *, mode: ReadMode = "linearizable", server: str | None = None
    ) -> AsyncGenerator[Entry, None]:
        """Read committed entries starting at `from_index`, and wait for new ones without end.

        Continues without gaps or duplicates across changes of leader and failures of nodes. Ends when the
        client is closed. Raises ReadFailed if `from_index` has been purged: no entries are skipped silently.
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
        """Like `read` and `follow`, but yields lists of entries as they arrive, which is cheaper for bulk
        reads."""
        self._check_open()
        reader = LogReadStream(
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
        """Return the linearizable read index. Every append acknowledged before the call is at or below it.

        Raises ReadFailed (READ_NOT_CONFIRMED) if no leader can confirm it within `timeout` seconds.
        """
        seconds = self._timeout if timeout is None else timeout

        async def request(leader: LogClient) -> int:
            return await leader.read_index(min(seconds, self._stall_timeout))

        try:
            return await self._on_leader(request, seconds)
        except (Indeterminate, NetworkFailure, NotLeader) as error:
            raise ReadFailed(
                f"the leader did not confirm the read: {error.message}", code=Code.READ_NOT_CONFIRMED
            ) from None

    # -- the cluster

    async def status(self, *, timeout: float = 1.0) -> dict[str, NodeStatus | DLedgerError]:
        """Return the status of each configured server, or the error of the request."""
        self._check_open()
        check_timeout(timeout)
        return await self._directory.statuses(timeout)

    async def status_of(self, server: str, *, timeout: float = 1.0) -> NodeStatus:
        """Return the status of one server (host:port), which need not be a member. Raises NetworkFailure."""
        self._check_open()
        check_address(server)
        check_timeout(timeout)
        return await self._directory.client(server).get_status(timeout)

    @property
    def search_problem(self) -> NotLeader | None:
        """The reason why the search for a leader has not succeeded yet, such as refused connections, unknown
        hosts or wrong ports.

        None if no call is waiting for a leader.
        """
        return self._directory.search_problem

    async def leader(self, *, timeout: float | None = None) -> NodeStatus:
        """Return the status of the leader. Raises NotLeader if none is found within `timeout` seconds."""
        seconds = self._timeout if timeout is None else timeout

        async def request(leader: LogClient) -> NodeStatus:
            status = await leader.get_status(min(seconds, 1.0))
            if not status.is_leader:
                raise NotLeader(f"{leader.address} is not the leader", leader_address=status.leader_address)
            return status

        return await self._on_leader(request, seconds)

    async def transfer_leadership(self, to: str, *, timeout: float | None = None) -> tuple[int, str]:
        """Transfer leadership to node `to`. Returns (term, node id) of the new leader.

        Raises Refused (TAKE_LEADERSHIP_FAILED and others) if the leader did not change, and Indeterminate if
        the result is unknown.
        """
        if not isinstance(to, str) or not to:
            raise InvalidRequest(f"the id of a node must be a text, not {to!r:.100}")
        seconds = self._timeout if timeout is None else timeout

        async def request(leader: LogClient) -> tuple[int, str]:
            try:
                return await leader.transfer_leadership(to, seconds)
            except NetworkFailure as failure:
                raise Indeterminate(failure.message, code=failure.code) from None
            finally:
                self._directory.lost(leader.address)

        return await self._on_leader(request, seconds, retry=(NotLeader,))

    async def change_members(self, change: MembershipChange, *, timeout: float | None = None) -> int:
        """Change the members of the group. Returns the index of the newest change once this one is committed.

        The steps of a change take effect together. A change that is already in force succeeds without an
        entry, so it can be repeated. Raises Refused (CHANGE_RUNNING, LEARNER_NOT_READY, NO_LIVE_MAJORITY) or
        InvalidRequest (CHANGE_REFUSED) if nothing was changed, and Indeterminate if the result is unknown.
        """
        if not isinstance(change, MembershipChange):
            raise TypeError(f"change must be a MembershipChange, not {type(change).__name__}")
        seconds = self._timeout if timeout is None else timeout

        async def request(leader: LogClient) -> int:
            try:
                return await leader.change_members(change, seconds)
            except NetworkFailure as failure:
                self._directory.lost(leader.address)
                raise Indeterminate(failure.message, code=failure.code) from None

        return await self._on_leader(request, seconds, retry=(NotLeader,))

    async def purge(
        self, before_index: int | None = None, *, before_age_ms: int = 0, timeout: float | None = None
    ) -> tuple[int, int]:
        """Request the removal of entries below an index, or older than an age. Returns (the index, the
        current start).

        The entries are removed later, in the background, and only while this leader leads. To make sure that
        they are removed, watch `ledger_begin_index` and repeat the request if it does not change. Raises
        Refused, and InvalidRequest unless either an index or an age is given.
        """
        if before_index is not None:
            check_integer("before_index", before_index, 0)
        check_integer("before_age_ms", before_age_ms, 0)
        if before_index is not None and before_age_ms:
            raise InvalidRequest("pass either before_index or before_age_ms, not both")
        seconds = self._timeout if timeout is None else timeout
        index = -1 if before_index is None else before_index
        return await self._on_leader(lambda leader: leader.purge(index, before_age_ms, seconds), seconds)

    def scrub(self, server: str, *, bytes_per_second: int = 0) -> AsyncGenerator[ScrubProgress, None]:
        """Verify all entries stored by `server` (host:port) and repair damage. Yields progress until done."""
        self._check_open()
        check_address(server)
        check_integer("bytes_per_second", bytes_per_second, 0)
        return self._explained(server, lambda client: client.scrub(bytes_per_second))

    def backup(self, server: str) -> AsyncGenerator[BackupHead | bytes, None]:
        """Yield a header, then all entries committed at `server` now, in their stored encoding."""
        self._check_open()
        check_address(server)
        return self._explained(server, lambda client: client.backup())

    async def _explained(
        self, server: str, request: Callable[[LogClient], AsyncGenerator[T, None]]
    ) -> AsyncGenerator[T, None]:
        """Yield the parts of a response. A failure names what listens at the address, unless it is a node."""
        try:
            async with aclosing(request(self._directory.client(server))) as parts:
                async for part in parts:
                    yield part
        except NetworkFailure as failure:
            raise await self._directory.explained(server, failure) from None

    async def _on_leader(
        self,
        request: Callable[[LogClient], Awaitable[T]],
        seconds: float,
        retry: tuple[type[DLedgerError], ...] = (NotLeader, Indeterminate, NetworkFailure),
    ) -> T:
        """Run a request on the leader, and on a new leader if it changes. Raises the last error after
        `seconds`."""
        self._check_open()
        check_timeout(seconds)
        last: DLedgerError | None = None

        async def once() -> T:
            nonlocal last
            leader = await self._directory.leader()
            try:
                return await request(leader)
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
            problem = self._directory.search_problem
            is_foreign = problem is not None and problem.code is Code.UNKNOWN_CLUSTER
            if last is None or (is_foreign and not isinstance(last, Indeterminate)):
                # What is left of a longer time limit has many digits.
                limit_s = round(seconds) if seconds >= 10 else round(seconds, 1) or seconds
                last = self._directory.no_leader(f"no leader was found within {limit_s:g} s")
            raise last from None

    # -- lifecycle

    def _check_open(self) -> None:
        """Raise RuntimeError if the client is closed."""
        if self._closed:
            raise RuntimeError("the client is closed")

    async def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Wait up to `timeout` seconds for pending appends, fail the remaining ones, end every follow() and
        disconnect."""
        if self._closed:
            return
        self._closed = True
        await asyncio.gather(*(pipeline.close(timeout) for pipeline in self._pipelines))
        await self._directory.close()

    async def __aenter__(self) -> Self:
        self._check_open()
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
            raise ConfigError("pass either tls or credentials, not both")
        return ClientTls(tls)
    security = None if credentials is None else ChannelSecurity(credentials, has_certificate=True)
    return lambda: security
