"""The client for programs without asyncio: the same calls, which wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Self

from dledger.client.async_client import DEFAULT_STALL_TIMEOUT, AsyncClient
from dledger.client.batching import Limits, check
from dledger.client.loop_thread import LoopThread
from dledger.client.reader import ReadMode
from dledger.client.session import CLOSE_TIMEOUT, DEFAULT_TIMEOUT, Appender, Session
from dledger.client.values import AppendResult, Entry
from dledger.errors import DLedgerError
from dledger.rpc.transport.tls import TlsFiles
from dledger.status.model import NodeStatus

if TYPE_CHECKING:
    import grpc

SUBMITS_PER_MEETING = 64


class BlockingAppender:
    """Blocking appends; the outcomes are those of `Appender`. Any number of threads may call."""

    def __init__(self, thread: LoopThread, appender: Callable[[], Appender]) -> None:
        self._thread = thread
        self._appender = appender
        self._submitted = count(1)

    def append(self, body: bytes, *, timeout: float | None = None) -> AppendResult:
        """Append one entry and wait until it is committed. See `Appender.append`."""
        return self._submit(body, timeout).result()

    def append_many(self, bodies: Sequence[bytes], *, timeout: float | None = None) -> list[AppendResult]:
        """Append entries as one atomic batch if they fit one. See `Appender.append_many`."""
        return self._thread.run(self._appender().append_many(bodies, timeout=timeout))

    def submit(self, body: bytes, *, timeout: float | None = None) -> Future[AppendResult]:
        """Queue one entry and return its future; waits while too much is under way. See `Appender.submit`."""
        appender = self._appender()
        future = self._submit(body, timeout)
        # The loop counts what it has taken; meet it now and then, or a fast thread would run ahead of it.
        if not appender.has_room or next(self._submitted) % SUBMITS_PER_MEETING == 0:
            self._thread.run(appender.room())
        return future

    def _submit(self, body: bytes, timeout: float | None) -> Future[AppendResult]:
        # No coroutine and no task per append: the loop gets the call, the future goes to the caller.
        check(body)
        appender = self._appender()
        future: Future[AppendResult] = Future()
        future.set_running_or_notify_cancel()  # an append cannot be taken back
        self._thread.call(appender.submit_to, future, body, timeout)
        return future


class BlockingSession(BlockingAppender):
    """Blocking face of `Session`."""

    def __init__(self, thread: LoopThread, session: Session) -> None:
        super().__init__(thread, lambda: session)
        self._session = session

    @property
    def session_id(self) -> int | None:
        """The index of the session's OPEN entry; None: not opened yet."""
        return self._session.session_id

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Wait `timeout` seconds for appends under way, then end them."""
        self._thread.run(self._session.close(timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Client(BlockingAppender):
    """A blocking client of one replicated log. Use it with `with`, from any number of threads.

    Arguments, errors and meanings are those of `AsyncClient`. Each client has a thread of its own.
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
    ) -> None:
        self._client = AsyncClient(
            servers,
            group=group,
            session=session,
            timeout=timeout,
            stall_timeout=stall_timeout,
            limits=limits,
            tls=tls,
            credentials=credentials,
        )
        self._is_closed = False
        self._closing = threading.Lock()
        super().__init__(LoopThread(), self._current_appender)

    def _current_appender(self) -> Appender:
        return self._client.appender

    # -- sessions

    def session(self) -> BlockingSession:
        """A session of its own, opened by its first append: `with client.session() as s`."""
        return BlockingSession(self._thread, self._client.session())

    def open_session(self, *, timeout: float | None = None) -> BlockingSession:
        """A session of its own, open already. Raises Indeterminate when that takes too long."""
        return BlockingSession(self._thread, self._thread.run(self._client.open_session(timeout=timeout)))

    def new_session(self, *, timeout: float | None = None) -> None:
        """Give this client's own appends a new session, as is needed after SessionExpired."""
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
        """Committed entries from `from_index` on, `count` at most. See `AsyncClient.read`."""
        return self._iterate(
            self._client.read_chunks(from_index, count, mode=mode, server=server, timeout=timeout)
        )

    def follow(
        self, from_index: int = -1, *, mode: ReadMode = "linearizable", server: str | None = None
    ) -> Iterator[Entry]:
        """Committed entries from `from_index` on, without end. See `AsyncClient.follow`."""
        return self._iterate(self._client.read_chunks(from_index, follow=True, mode=mode, server=server))

    def _iterate(self, chunks: AsyncGenerator[list[Entry], None]) -> Iterator[Entry]:
        """One hop to the loop per chunk; the next chunk is fetched while this one is used."""

        async def fetch() -> list[Entry] | None:
            return await anext(chunks, None)

        coming = self._thread.start(fetch())
        try:
            while (entries := _ended_by_close(coming)) is not None:
                coming = self._thread.start(fetch())
                yield from entries
        finally:
            coming.cancel()
            with suppress(CancelledError, RuntimeError):  # closed meanwhile, and the stream with it
                self._thread.run(_finish(chunks))

    def read_index(self, *, timeout: float | None = None) -> int:
        """The linearizable read point. See `AsyncClient.read_index`."""
        return self._thread.run(self._client.read_index(timeout=timeout))

    # -- the cluster

    def status(self, *, timeout: float = 1.0) -> dict[str, NodeStatus | DLedgerError]:
        """What each configured server says of itself, or its error. See `AsyncClient.status`."""
        return self._thread.run(self._client.status(timeout=timeout))

    def leader(self, *, timeout: float | None = None) -> NodeStatus:
        """The status of the leader. See `AsyncClient.leader`."""
        return self._thread.run(self._client.leader(timeout=timeout))

    def transfer_leadership(self, to: str, *, timeout: float | None = None) -> tuple[int, str]:
        """Hand leadership to node `to`. See `AsyncClient.transfer_leadership`."""
        return self._thread.run(self._client.transfer_leadership(to, timeout=timeout))

    # -- life

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Wait `timeout` seconds for appends under way, end the others and every follow(), disconnect."""
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                self._thread.run(self._client.close(timeout))
                self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _ended_by_close(coming: Future[list[Entry] | None]) -> list[Entry] | None:
    try:
        return coming.result()
    except CancelledError:  # the client was closed meanwhile
        return None


async def _finish(chunks: AsyncGenerator[list[Entry], None]) -> None:
    """Close a generator whose last step may just be being cancelled."""
    while True:
        try:
            await chunks.aclose()
            return
        except RuntimeError:  # still running: let the cancellation arrive
            await asyncio.sleep(0)
