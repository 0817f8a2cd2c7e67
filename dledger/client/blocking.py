"""The client for programs without asyncio, with blocking variants of the same calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import closing, suppress
from functools import partial
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from dledger.client.async_client import DEFAULT_STALL_TIMEOUT, AsyncClient
from dledger.client.batching import Limits, check, check_timeout
from dledger.client.reader import ReadMode
from dledger.client.session import CLOSE_TIMEOUT, DEFAULT_TIMEOUT, Appender, Session
from dledger.client.values import AppendResult, AttemptHook, Entry
from dledger.core.membership_change import MembershipChange
from dledger.errors import DLedgerError, NotLeader
from dledger.infra.loops.loop_thread import LoopThread
from dledger.infra.transport.tls import TlsFiles
from dledger.rpc.ports import BackupHead, ScrubProgress
from dledger.status.model import NodeStatus

if TYPE_CHECKING:
    import grpc

T = TypeVar("T")

SUBMITS_PER_SYNC = 64


class _AppendFuture(Future[AppendResult]):
    """A future whose callbacks cannot end the event loop that calls them."""

    def add_done_callback(self, fn: Callable[[Future[AppendResult]], object]) -> None:
        super().add_done_callback(partial(_call_back, fn))


def _call_back(function: Callable[[Future[AppendResult]], object], future: Future[AppendResult]) -> None:
    try:
        function(future)
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"a callback raised {type(error).__name__}") from error  # logged by the future


class BlockingAppender:
    """Blocking appends with the outcomes of `Appender`. Thread-safe."""

    def __init__(self, thread: LoopThread, appender: Callable[[], Appender]) -> None:
        self._thread = thread
        self._appender = appender
        self._submitted = count(1)

    def append(self, body: bytes, *, timeout: float | None = None) -> AppendResult:
        """Append one entry and wait until it is committed. See `Appender.append`."""
        self._thread.check_caller()
        return self._submit(body, timeout).result()

    def append_many(self, bodies: Sequence[bytes], *, timeout: float | None = None) -> list[AppendResult]:
        """Append entries as one atomic batch if they fit one. See `Appender.append_many`."""
        return self._thread.run(self._appender().append_many(bodies, timeout=timeout))

    def submit(self, body: bytes, *, timeout: float | None = None) -> Future[AppendResult]:
        """Queue one entry and return its future; waits while too much is pending. See `Appender.submit`.

        Does not wait in a callback of a future, which runs in the thread of the client.
        """
        appender = self._appender()
        future = self._submit(body, timeout)
        # The loop counts submitted bytes. Synchronize with it now and then, because a fast thread would get
        # too far ahead of it.
        is_due = not appender.has_room or next(self._submitted) % SUBMITS_PER_SYNC == 0
        if is_due and not self._thread.is_current:
            self._thread.run(appender.room())
        return future

    def _submit(self, body: bytes, timeout: float | None) -> Future[AppendResult]:
        # No coroutine and no task per append: the call is passed to the loop, and the caller gets the future.
        check(body)
        check_timeout(timeout)
        appender = self._appender()
        future = _AppendFuture()
        future.set_running_or_notify_cancel()  # an append cannot be cancelled
        self._thread.call(appender.submit_to, future, body, timeout)
        return future


class BlockingSession(BlockingAppender):
    """The blocking variant of `Session`."""

    def __init__(self, thread: LoopThread, session: Session) -> None:
        super().__init__(thread, lambda: session)
        self._session = session

    @property
    def session_id(self) -> int | None:
        """The index of the session's OPEN entry, or None before it is opened."""
        return self._session.session_id

    def open(self, *, timeout: float | None = None) -> int:
        """Open the session now instead of at the first append, and return its id. See `Session.open`."""
        return self._thread.run(self._session.open(timeout=timeout))

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Wait up to `timeout` seconds for pending appends, then fail the remaining ones."""
        self._thread.run(self._session.close(timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Client(BlockingAppender):
    """A blocking client of one replicated log. Use it with `with`, from any number of threads.

    The arguments, errors and semantics are the same as for `AsyncClient`. Each client has its own thread.
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
        self._client = AsyncClient(
            servers,
            group=group,
            cluster_id=cluster_id,
            session=session,
            timeout=timeout,
            stall_timeout=stall_timeout,
            limits=limits,
            tls=tls,
            credentials=credentials,
            on_attempt=on_attempt,
        )
        self._is_closed = False
        self._closing = threading.Lock()
        super().__init__(LoopThread(), self._current_appender)

    def _current_appender(self) -> Appender:
        return self._client.appender

    # -- sessions

    def session(self) -> BlockingSession:
        """Return a new session, opened by its first append: `with client.session() as s`."""
        return BlockingSession(self._thread, self._client.session())

    def open_session(self, *, timeout: float | None = None) -> BlockingSession:
        """Open a new session. Raises Indeterminate if that takes too long."""
        return BlockingSession(self._thread, self._thread.run(self._client.open_session(timeout=timeout)))

    def new_session(self, *, timeout: float | None = None) -> None:
        """Replace the session of this client's own appends, as required after SessionExpired."""
        self._thread.run(self._client.new_session(timeout=timeout))

    # -- reading

    def read(
        self,
        from_index: int = -1,
        count: int | None = None,
        *,
        mode: ReadMode = "linearizable",
        server: str | None = None,
        timeout: float | None = None,
    ) -> Iterator[Entry]:
        """Read at most `count` committed entries, starting at `from_index`. See `AsyncClient.read`."""
        chunks = self._client.read_chunks(from_index, count, mode=mode, server=server, timeout=timeout)
        return _flat(self._iterate(chunks))

    def follow(
        self, from_index: int = -1, *, mode: ReadMode = "linearizable", server: str | None = None
    ) -> Iterator[Entry]:
        """Read committed entries without end, starting at `from_index`. See `AsyncClient.follow`."""
        chunks = self._client.read_chunks(from_index, follow=True, mode=mode, server=server)
        return _flat(self._iterate(chunks))

    def read_chunks(
        self,
        from_index: int = -1,
        count: int | None = None,
        *,
        follow: bool = False,
        mode: ReadMode = "linearizable",
        server: str | None = None,
        timeout: float | None = None,
    ) -> Iterator[list[Entry]]:
        """Like `read` and `follow`, but yields lists as they arrive. See `AsyncClient.read_chunks`."""
        return self._iterate(
            self._client.read_chunks(
                from_index, count, follow=follow, mode=mode, server=server, timeout=timeout
            )
        )

    def _iterate(self, chunks: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """Iterate with one call into the loop per chunk. The next chunk is fetched while the caller processes
        the current one."""

        async def fetch() -> T | None:
            return await anext(chunks, None)

        next_chunk = self._thread.start(fetch())
        try:
            while (entries := _ended_by_close(next_chunk)) is not None:
                next_chunk = self._thread.start(fetch())
                yield entries
        finally:
            next_chunk.cancel()
            with suppress(CancelledError, RuntimeError):  # closed in the meantime, together with the stream
                self._thread.run(_finish(chunks))

    def read_index(self, *, timeout: float | None = None) -> int:
        """Return the linearizable read index. See `AsyncClient.read_index`."""
        return self._thread.run(self._client.read_index(timeout=timeout))

    # -- the cluster

    def status(self, *, timeout: float = 1.0) -> dict[str, NodeStatus | DLedgerError]:
        """Return the status of each configured server, or its error. See `AsyncClient.status`."""
        return self._thread.run(self._client.status(timeout=timeout))

    def status_of(self, server: str, *, timeout: float = 1.0) -> NodeStatus:
        """Return the status of one server. See `AsyncClient.status_of`."""
        return self._thread.run(self._client.status_of(server, timeout=timeout))

    def leader(self, *, timeout: float | None = None) -> NodeStatus:
        """Return the status of the leader. See `AsyncClient.leader`."""
        return self._thread.run(self._client.leader(timeout=timeout))

    def transfer_leadership(self, to: str, *, timeout: float | None = None) -> tuple[int, str]:
        """Transfer leadership to node `to`. See `AsyncClient.transfer_leadership`."""
        return self._thread.run(self._client.transfer_leadership(to, timeout=timeout))

    def change_members(self, change: MembershipChange, *, timeout: float | None = None) -> int:
        """Change the members of the group. See `AsyncClient.change_members`."""
        return self._thread.run(self._client.change_members(change, timeout=timeout))

    def purge(
        self, before_index: int | None = None, *, before_age_ms: int = 0, timeout: float | None = None
    ) -> tuple[int, int]:
        """Request the removal of old entries. See `AsyncClient.purge`."""
        return self._thread.run(
            self._client.purge(before_index, before_age_ms=before_age_ms, timeout=timeout)
        )

    def scrub(self, server: str, *, bytes_per_second: int = 0) -> Iterator[ScrubProgress]:
        """Verify and repair the entries of `server`. See `AsyncClient.scrub`."""
        return self._iterate(self._client.scrub(server, bytes_per_second=bytes_per_second))

    def backup(self, server: str) -> Iterator[BackupHead | bytes]:
        """Yield a header, then all committed entries of `server`. See `AsyncClient.backup`."""
        return self._iterate(self._client.backup(server))

    @property
    def search_problem(self) -> NotLeader | None:
        """Why the search for a leader has not succeeded yet. See `AsyncClient.search_problem`."""
        return self._client.search_problem

    # -- lifecycle

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Wait up to `timeout` seconds for pending appends, fail the remaining ones, end every follow() and
        disconnect."""
        self._thread.check_caller()
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                try:
                    self._thread.run(self._client.close(timeout))
                finally:
                    self._thread.stop()

    def __enter__(self) -> Self:
        if self._is_closed:
            raise RuntimeError("the client is closed")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _flat(chunks: Generator[list[Entry], None, None]) -> Iterator[Entry]:
    with closing(chunks) as open_chunks:
        for entries in open_chunks:
            yield from entries


def _ended_by_close(next_chunk: Future[T | None]) -> T | None:
    try:
        return next_chunk.result()
    except CancelledError:  # the client was closed in the meantime
        return None


async def _finish(chunks: AsyncGenerator[object, None]) -> None:
    """Close a generator whose last step may still be in cancellation."""
    while True:
        try:
            await chunks.aclose()
            return
        except RuntimeError:  # still running: wait for the cancellation
            await asyncio.sleep(0)
