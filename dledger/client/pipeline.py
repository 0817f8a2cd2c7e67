"""Passes appends from callers to the leader, and the results back. Uses one stream of ordered batches, many
of which are in flight at a time.

There is no linger timer. A call is sent immediately if nothing is in flight. Otherwise calls are gathered
into a batch until all batches in flight are answered, or until `gather_bytes` are queued.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from enum import Enum, auto

import tenacity

from dledger.client.batching import AppendCall, CallBatch, CallQueue, Limits, renewed, undecided
from dledger.client.directory import LeaderDirectory
from dledger.client.values import AttemptHook
from dledger.errors import (
    Code,
    DLedgerError,
    Indeterminate,
    InvalidRequest,
    NotLeader,
    Overloaded,
    Refused,
    SessionExpired,
)
from dledger.infra.transport.channels import CONNECT_TIMEOUT_MS
from dledger.rpc.log_client import AppendAnswer, AppendStream, ForeignServer, LogClient, NetworkFailure
from dledger.rpc.request_wire import SessionMark, wire_ms

#: Seconds in which a broken stream may deliver the responses that arrived before the break.
_LAST_ANSWERS = 0.5
#: Seconds between attempts without a response to a batch: first none, to follow redirections, then longer
#: pauses.
_RETRY_PAUSE = tenacity.wait_chain(
    *[tenacity.wait_none()] * 2,
    *[tenacity.wait_random(0.005, 0.02)] * 10,
    tenacity.wait_random(0.02, 0.1),
)


class Pipeline:
    """Appends of one session, or of one client without a session. Belongs to one event loop.

    `submit` assigns a call its position in the order, which in a session is also the order in the log. The
    call's future receives the outcome.
    """

    def __init__(
        self,
        directory: LeaderDirectory,
        limits: Limits,
        *,
        in_session: bool,
        stall_timeout: float,
        server_timeout: float,
        on_attempt: AttemptHook | None = None,
    ) -> None:
        self._directory = directory
        self._limits = limits
        self._in_session = in_session
        self._stall_timeout = stall_timeout
        self._server_timeout = server_timeout
        self._on_attempt = on_attempt
        self._loop = asyncio.get_running_loop()
        self._queue = CallQueue(limits)
        # Sent and unanswered, by seq, in order of sending. In a session they remain after the end of their
        # stream and their deadline: a used seq must reach the log, because a missing one would make the log
        # reject all later ones.
        self._inflight: dict[int, CallBatch] = {}
        self._inflight_bytes = 0
        self._to_resend: list[CallBatch] = []  # not yet sent on the current stream, last first
        self._set_aside: list[CallBatch] = []  # answered "not stored", until the stream is drained
        self._drain_reason: DLedgerError | None = None  # the error of the last batch in `_set_aside`
        self._stream_over: DLedgerError | None = None  # why the current stream is unusable
        self._next_seq = 1
        self.session_id: int | None = None
        self._ended: DLedgerError | None = None  # why no more appends are accepted
        self.is_closed = False
        self._answered = 0  # batches with a response, which shows whether an attempt made progress
        self._last_progress = 0.0
        self._last_error: DLedgerError | None = None  # since the last success
        self._sender: asyncio.Future[None] | None = None
        self._watchers: list[asyncio.Future[None]] = []
        self._runner: asyncio.Task[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None

    # -- callers

    def submit(self, call: AppendCall) -> None:
        """Queue one call. Its future fails immediately if the pipeline no longer accepts calls."""
        if self._ended is not None:
            call.fail(renewed(self._ended))
            return
        self._queue.add(call)
        if self._alarm is None or call.deadline < self._alarm.when():
            self._set_alarm(call.deadline)
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())
        if self._sender is not None:
            self._wake()

    @property
    def has_room(self) -> bool:
        """True if at most `max_pending_bytes` are queued or in flight."""
        return self._queue.size + self._inflight_bytes <= self._limits.max_pending_bytes

    async def room(self) -> None:
        """Wait until `has_room`."""
        await self._until(lambda: self.has_room)

    async def open(self) -> int:
        """Open the session now instead of at the first append, and return its id. Cancel it to give up."""
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(_is_worth_retrying), wait=_RETRY_PAUSE, reraise=True
        )
        return await retrying(self._open_session)

    async def close(self, timeout: float) -> None:
        """Accept no more calls, wait up to `timeout` seconds for pending ones, then fail the remaining
        ones."""
        if self._ended is None:
            self._ended = Refused("closed by the application", code=Code.ILLEGAL_MEMBER_STATE)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._until(lambda: not self._queue and not self._inflight)
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)
        if self._alarm is not None:
            self._alarm.cancel()
        self.is_closed = True
        closed = Indeterminate("closed before the answer arrived", code=Code.TIMEOUT)
        self._fail_all(queued=self._ended, sent=closed)

    def _fail_all(self, *, queued: DLedgerError, sent: DLedgerError) -> None:
        for batch in (*self._inflight.values(), *self._set_aside):
            batch.fail(sent)
        for call in self._queue:
            call.fail(renewed(queued))
        self._inflight.clear()
        self._inflight_bytes = 0
        self._to_resend.clear()
        self._set_aside.clear()
        self._queue.drop_done()
        self._wake()

    # -- waiting

    def _wake(self) -> None:
        """Wake the sender and the tasks that wait for room or for the end."""
        if self._sender is not None and not self._sender.done():
            self._sender.set_result(None)
        for watcher in self._watchers:
            if not watcher.done():
                watcher.set_result(None)
        self._watchers.clear()

    async def _sleep_until_woken(self) -> None:
        self._sender = self._loop.create_future()
        try:
            await self._sender
        finally:
            self._sender = None

    async def _until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            watcher: asyncio.Future[None] = self._loop.create_future()
            self._watchers.append(watcher)
            await watcher

    # -- deadlines: one timer for all calls

    def _set_alarm(self, when: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._loop.call_at(when, self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm = None
        now = self._loop.time()
        earliest = min(
            self._expire(self._queue, now, self._refusal),
            self._expire(self._calls_of(self._set_aside), now, self._refusal),
            self._expire(self._calls_of(self._inflight.values()), now, self._silence),
        )
        self._queue.drop_done()
        self._wake()
        if earliest != float("inf"):
            self._set_alarm(earliest)

    @staticmethod
    def _calls_of(batches: Iterable[CallBatch]) -> Iterable[AppendCall]:
        return (call for batch in batches for call in batch.calls)

    @staticmethod
    def _expire(calls: Iterable[AppendCall], now: float, error: Callable[[], DLedgerError]) -> float:
        """Fail the expired calls. Returns the earliest deadline of the others."""
        earliest = float("inf")
        for call in calls:
            if call.future.done():
                continue
            if call.deadline <= now:
                call.fail(error())
            else:
                earliest = min(earliest, call.deadline)
        return earliest

    def _refusal(self) -> DLedgerError:
        """Return the error for an expired call that was not stored. The failure is definite, because the call
        was not sent, or the leader has refused it."""
        if isinstance(self._last_error, Refused):
            return renewed(self._last_error)
        if self._last_error is not None:
            return self._directory.no_leader(
                f"no leader accepted it in time; last: {self._last_error.message}"
            )
        if self._inflight:
            return Overloaded(
                "it was not sent in time: too many appends are pending", code=Code.LEADER_PENDING_FULL
            )
        return self._directory.no_leader("no leader was found in time")

    def _silence(self) -> DLedgerError:
        where = " (in a session it stays queued and may still be stored)" if self._in_session else ""
        return Indeterminate(f"no answer in time{where}", code=Code.TIMEOUT)

    # -- changes of leader

    async def _run(self) -> None:
        while self._ended is None or self._queue or self._inflight:
            if not self._queue and not self._inflight:
                await self._sleep_until_woken()
                continue
            retrying = tenacity.AsyncRetrying(
                retry=tenacity.retry_if_result(lambda progressed: not progressed), wait=_RETRY_PAUSE
            )
            await retrying(self._attempt)

    async def _attempt(self) -> bool:
        """Use one leader until its stream ends. Returns True if it made progress, so that the next attempt
        needs no pause."""
        answered = self._answered
        address = None
        try:
            leader = await self._directory.leader()
            address = leader.address
            await leader.connect(CONNECT_TIMEOUT_MS / 1000)
            if self._in_session and self.session_id is None:
                await self._open_session()
            await self._serve(leader)
        except DLedgerError as error:
            self._last_error = error
            if address is not None:
                self._note_leader_error(address, error)
            if self.session_id is None and self._in_session and not _is_worth_retrying(error):
                self._fail_all(queued=error, sent=error)
        return self._answered > answered or not (self._queue or self._inflight)

    async def _open_session(self) -> int:
        """Open the session if needed. A repetition is safe: an OPEN whose response was lost only leaves an
        unused session."""
        if self.session_id is None:
            leader = await self._directory.leader()
            try:
                self.session_id = await leader.open_session(self._stall_timeout)
            except DLedgerError as error:
                self._note_leader_error(leader.address, error)
                raise
            self._answered += 1
        return self.session_id

    def _note_leader_error(self, address: str, error: DLedgerError) -> None:
        """Update the known leader after an error from it."""
        if isinstance(error, NotLeader):
            self._directory.redirected(address, error.leader_address)
        elif is_against_the_leader(error):
            self._directory.lost(address)

    async def _serve(self, leader: LogClient) -> None:
        """Send and receive on one stream until it ends. Raises its error."""
        stream = leader.open_append_stream()
        self._stream_over = None
        self._to_resend = list(reversed(self._inflight.values()))
        self._last_progress = self._loop.time()
        receiver = asyncio.create_task(self._receive(stream))
        guard = asyncio.create_task(self._guard(stream))
        try:
            await self._send(stream)
        except NetworkFailure as failure:
            # Responses that arrived before the break are definite: process them first.
            await asyncio.wait([receiver], timeout=_LAST_ANSWERS)
            raise self._stream_over or failure from None
        finally:
            guard.cancel()
            # The receiver ends with the call. Its cancellation would leave an event that reaches a closed
            # loop, so it is cancelled only if gRPC does not end the call: a stop must not wait forever.
            ending = (asyncio.create_task(stream.close()), receiver, guard)
            _, late = await asyncio.wait(ending, timeout=_LAST_ANSWERS)
            for task in late:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)
            self._leave_stream()

    def _leave_stream(self) -> None:
        """Settle the batches of this stream. In a session they stay in flight, to be sent again."""
        if self._in_session:
            self._to_resend.clear()
            if self._set_aside:  # a batch was rejected, and the results of later ones are unknown
                self._end(
                    Indeterminate("a rejected batch left a gap in the session", code=Code.SESSION_CONFLICT)
                )
            return
        broken = self._stream_over or NetworkFailure("the stream was closed")
        if isinstance(broken, ForeignServer):
            self._set_aside += self._inflight.values()  # the whole stream was refused
        else:
            for batch in self._inflight.values():
                batch.fail(Indeterminate(f"no answer: {broken.message}", code=broken.code))
        self._inflight.clear()
        self._inflight_bytes = 0
        self._requeue_set_aside()
        self._wake()

    async def _guard(self, stream: AppendStream) -> None:
        """Detect a leader that is suspended or partitioned: its stream is open without responses, and another
        node leads."""
        while True:
            now = self._loop.time()
            if not self._inflight:
                self._last_progress = now
            silence = now - self._last_progress
            if silence < self._stall_timeout:
                await asyncio.sleep(self._stall_timeout - silence)
            elif await self._directory.other_leader(stream.address):
                self._stream_over = NetworkFailure(
                    f"{stream.address} does not answer, and another node leads"
                )
                stream.cancel()
                return
            else:
                await asyncio.sleep(self._stall_timeout / 8)

    # -- sending

    async def _send(self, stream: AppendStream) -> None:
        timeout_ms = wire_ms(self._server_timeout)
        while self._stream_over is None:
            batch = self._next_batch()
            if batch is None:
                await self._sleep_until_woken()
                continue
            mark = None if self.session_id is None else SessionMark(self.session_id, batch.seq)
            batch.attempts += 1
            if self._on_attempt is not None:
                batch.report_attempt(self._on_attempt)
            await stream.send(batch.seq, batch.bodies, mark, timeout_ms)
        raise self._stream_over

    def _next_batch(self) -> CallBatch | None:
        """Return the next batch to send: first the batches of an earlier stream, then queued calls. Returns
        None if nothing may be sent now."""
        if self._set_aside:
            return None
        if self._to_resend:
            return self._to_resend.pop()
        limits, count = self._limits, len(self._inflight)
        if count and (count >= limits.max_inflight_batches or self._queue.size < limits.gather_bytes):
            return None
        calls, size = self._queue.next_calls()
        if not calls:
            return None
        if not count:
            self._last_progress = self._loop.time()
        batch = CallBatch(self._next_seq, calls, size)
        self._next_seq += 1
        self._inflight[batch.seq] = batch
        self._inflight_bytes += size
        return batch

    # -- answers

    async def _receive(self, stream: AppendStream) -> None:
        try:
            while True:
                self._on_answer(stream.address, await stream.receive())
        except NetworkFailure as failure:
            if self._stream_over is None:
                self._stream_over = failure
        finally:
            self._wake()

    def _on_answer(self, address: str, answer: AppendAnswer) -> None:
        if self._stream_over is not None or (batch := self._inflight.get(answer.request_id)) is None:
            return  # the batch was left: in a session the next stream delivers this result again
        self._last_progress = self._loop.time()
        if answer.error is None:
            self._forget(batch)
            self._answered += 1
            self._last_error = None
            self._directory.confirmed(answer.term)
            batch.succeed(answer)
        else:
            self._on_error(address, batch, answer.error)
        if self._set_aside and not self._inflight:
            self._on_drained()
        self._wake()

    def _forget(self, batch: CallBatch) -> None:
        del self._inflight[batch.seq]
        self._inflight_bytes -= batch.size

    def _on_error(self, address: str, batch: CallBatch, error: DLedgerError) -> None:
        self._last_error = error
        action = judge(error, in_session=self._in_session)
        # An earlier attempt may still be queued in a server, so this refusal is not final for the seq.
        only_attempt = batch.attempts == 1
        if action is ErrorAction.RESEND and self._set_aside and isinstance(error, Refused) and only_attempt:
            action = ErrorAction.RETRY  # handled like the rejected batch before it: they get new seqs
        if action is ErrorAction.REJECT and self._in_session and not only_attempt:
            action = ErrorAction.END
        if action is ErrorAction.END:
            self._end(undecided(error))
            self._stream_over = error
        elif action is ErrorAction.RESEND:
            self._stream_over = error
        elif action is ErrorAction.UNDECIDED:
            self._forget(batch)
            batch.fail(undecided(error))
            if is_against_the_leader(error):
                self._directory.lost(address)
        else:
            self._forget(batch)
            self._set_aside.append(batch)
            self._drain_reason = error
            if action is ErrorAction.REJECT:
                self._reject(batch, error)

    def _reject(self, batch: CallBatch, error: DLedgerError) -> None:
        """Fail the call of a rejected batch. If the batch has several calls, mark each to be sent alone,
        because the others may be valid."""
        self._answered += 1
        live = [call for call in batch.calls if not call.future.done()]
        for call in live:
            if len(live) == 1:
                call.fail(renewed(error))
            else:
                call.alone = True

    def _on_drained(self) -> None:
        """Retry the batches that were not stored. Call this only when all batches of this stream have a
        result."""
        if self._in_session:
            self._next_seq = min(batch.seq for batch in self._set_aside)
        self._requeue_set_aside()
        self._stream_over = self._drain_reason

    def _requeue_set_aside(self) -> None:
        batches = sorted(self._set_aside, key=lambda batch: batch.seq)
        self._set_aside.clear()
        self._queue.requeue([call for call in self._calls_of(batches) if not call.future.done()])

    def _end(self, error: DLedgerError) -> None:
        """End the session. Appends without a result become indeterminate, and no new ones are accepted."""
        self._ended = error
        self._fail_all(queued=error, sent=error)


def _is_worth_retrying(error: BaseException) -> bool:
    return isinstance(error, DLedgerError) and not isinstance(error, InvalidRequest)


#: Codes of `Refused` that do not concern leadership: the node may accept the batch later.
_SAME_LEADER = frozenset(
    {
        Code.LEADER_PENDING_FULL,
        Code.TOO_MANY_CONNECTIONS,
        Code.DISK_FULL,
        Code.SESSION_GAP,
        Code.SESSION_WINDOW_FULL,
    }
)


class ErrorAction(Enum):
    """The handling of a batch that failed with an error."""

    RETRY = auto()  # not stored: send it again, once no other batch of this stream can overtake it
    RESEND = auto()  # in a session: leave this stream and send all unanswered batches again, in order
    REJECT = auto()  # not stored, and invalid as it is
    UNDECIDED = auto()  # without a session: it is unknown whether it was stored
    END = auto()  # the session accepts no more appends


def judge(error: DLedgerError, *, in_session: bool) -> ErrorAction:
    """Choose the action for one batch.

    In a session it is always safe to send a batch again, so every error that does not concern the batch or
    the session itself is RESEND. Without a session, a batch may be sent again only after a definite failure.
    """
    if in_session:
        if isinstance(error, SessionExpired) or error.code == Code.SESSION_CONFLICT:
            return ErrorAction.END
        return ErrorAction.REJECT if isinstance(error, InvalidRequest) else ErrorAction.RESEND
    if isinstance(error, Refused):
        return ErrorAction.RETRY
    return ErrorAction.REJECT if isinstance(error, InvalidRequest) else ErrorAction.UNDECIDED


def is_against_the_leader(error: DLedgerError) -> bool:
    """Return True if the client should look for another leader. False for overload and invalid requests."""
    return error.code not in _SAME_LEADER and not isinstance(error, InvalidRequest)
