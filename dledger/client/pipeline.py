"""The way of appends from callers to the leader and back: one stream, batches in order, many in flight.

Batches form without a linger timer: a call is sent at once when nothing is in flight; otherwise calls gather
until the batch in flight is answered, or until `gather_bytes` wait. What an error answer means is decided in
`rules.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable

import tenacity

from dledger.client.batching import Batch, Call, Limits, Queue, renewed, undecided
from dledger.client.directory import Directory
from dledger.client.rules import Verdict, is_against_the_leader, judge
from dledger.client.values import AttemptHook
from dledger.errors import Code, DLedgerError, Indeterminate, InvalidRequest, NotLeader, Overloaded, Refused
from dledger.rpc.log_client import AppendAnswer, AppendStream, LogClient, NetworkFailure
from dledger.rpc.request_wire import SessionMark, wire_ms
from dledger.rpc.transport.channels import CONNECT_TIMEOUT_MS

#: How long a broken stream may take to hand over the answers that arrived before it broke, in seconds.
_LAST_ANSWERS = 0.5
#: Between attempts that got no batch answered: at once to where a redirection points, then with pauses.
_RETRY_PAUSE = tenacity.wait_chain(
    *[tenacity.wait_none()] * 2,
    *[tenacity.wait_random(0.005, 0.02)] * 10,
    tenacity.wait_random(0.02, 0.1),
)


class Pipeline:
    """Appends of one session, or of one client without a session. Belongs to one event loop.

    `submit` gives a call its place, in a session the one it gets in the log; its future gets the outcome.
    """

    def __init__(
        self,
        directory: Directory,
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
        self._queue = Queue(limits)
        # Sent and unanswered, by seq, in order of sending. In a session they outlive streams and deadlines:
        # a seq that was used must get into the log, or all later ones would find a gap.
        self._inflight: dict[int, Batch] = {}
        self._inflight_bytes = 0
        self._to_resend: list[Batch] = []  # those that the present stream has not carried yet, last first
        self._set_aside: list[Batch] = []  # answered "not stored", until the stream is drained
        self._drain_reason: DLedgerError | None = None  # why they were, for the last of them
        self._stream_over: DLedgerError | None = None  # why the present stream is of no more use
        self._next_seq = 1
        self.session_id: int | None = None
        self._ended: DLedgerError | None = None  # why no more appends are taken
        self.is_closed = False
        self._answered = 0  # batches: tells an attempt that got somewhere from one that did not
        self._last_progress = 0.0
        self._last_error: DLedgerError | None = None  # since the last success
        self._sender: asyncio.Future[None] | None = None
        self._watchers: list[asyncio.Future[None]] = []
        self._runner: asyncio.Task[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None

    # -- the callers' side

    def submit(self, call: Call) -> None:
        """Queue one call. Its future fails at once if no more are taken."""
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
        """Whether no more than `max_pending_bytes` are queued or in flight."""
        return self._queue.size + self._inflight_bytes <= self._limits.max_pending_bytes

    async def room(self) -> None:
        """Wait until `has_room`."""
        await self._until(lambda: self.has_room)

    async def open(self) -> int:
        """Open the session now instead of at the first append; its id. Cancel it to give up."""
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(_is_worth_retrying), wait=_RETRY_PAUSE, reraise=True
        )
        return await retrying(self._open_session)

    async def close(self, timeout: float) -> None:
        """Take no more calls, wait `timeout` seconds for those under way, then end them with an error."""
        if self._ended is None:
            self._ended = Refused("closed by its user", code=Code.ILLEGAL_MEMBER_STATE)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._until(lambda: not self._queue and not self._inflight)
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)
        if self._alarm is not None:
            self._alarm.cancel()
        self.is_closed = True
        closed = Indeterminate("closed before the answer came", code=Code.TIMEOUT)
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
        """Something changed: let the sender, and who waits for room or the end, look again."""
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
    def _calls_of(batches: Iterable[Batch]) -> Iterable[Call]:
        return (call for batch in batches for call in batch.calls)

    @staticmethod
    def _expire(calls: Iterable[Call], now: float, error: Callable[[], DLedgerError]) -> float:
        """Fail the calls whose time is up; the earliest deadline of the others."""
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
        """For a call that was not stored, and whose time is up. In order of sending, so definite."""
        if isinstance(self._last_error, Refused):
            return renewed(self._last_error)
        if self._last_error is not None:
            return NotLeader(f"no leader took it in time; last: {self._last_error.message}")
        if self._inflight:
            return Overloaded("its turn did not come in time", code=Code.LEADER_PENDING_FULL)
        return self._directory.no_leader("no leader was found in time")

    def _silence(self) -> DLedgerError:
        where = " (in a session it stays queued and may still be stored)" if self._in_session else ""
        return Indeterminate(f"no answer in time{where}", code=Code.TIMEOUT)

    # -- from leader to leader

    async def _run(self) -> None:
        while self._ended is None or self._queue or self._inflight:
            if not self._queue and not self._inflight:
                await self._sleep_until_woken()
                continue
            retrying = tenacity.AsyncRetrying(
                retry=tenacity.retry_if_result(lambda got_somewhere: not got_somewhere), wait=_RETRY_PAUSE
            )
            await retrying(self._attempt)

    async def _attempt(self) -> bool:
        """Work with one leader until its stream is over. True if it somewhere: no pause is due."""
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
                self._blame(address, error)
            if self.session_id is None and self._in_session and not _is_worth_retrying(error):
                self._fail_all(queued=error, sent=error)
        return self._answered > answered or not (self._queue or self._inflight)

    async def _open_session(self) -> int:
        """Safe to repeat: an OPEN whose answer is lost leaves an unused session behind, no more."""
        if self.session_id is None:
            leader = await self._directory.leader()
            try:
                self.session_id = await leader.open_session(self._stall_timeout)
            except DLedgerError as error:
                self._blame(leader.address, error)
                raise
            self._answered += 1
        return self.session_id

    def _blame(self, address: str, error: DLedgerError) -> None:
        """Draw the conclusion from an error of the leader."""
        if isinstance(error, NotLeader):
            self._directory.redirected(address, error.leader_address)
        elif is_against_the_leader(error):
            self._directory.lost(address)

    async def _serve(self, leader: LogClient) -> None:
        """Send and receive on one stream until it is over; raises what ended it."""
        stream = leader.open_append_stream()
        self._stream_over = None
        self._to_resend = list(reversed(self._inflight.values()))
        self._last_progress = self._loop.time()
        receiver = asyncio.create_task(self._receive(stream))
        guard = asyncio.create_task(self._guard(stream))
        try:
            await self._send(stream)
        except NetworkFailure as failure:
            # Answers that arrived before the break are definite: hear them first.
            await asyncio.wait([receiver], timeout=_LAST_ANSWERS)
            raise self._stream_over or failure from None
        finally:
            guard.cancel()
            # The receiver ends with the call. Cancelling it leaves an event behind for a closed loop, so that
            # is only for a call that gRPC does not end: who wants to stop must not wait for it for ever.
            ending = (asyncio.create_task(stream.close()), receiver, guard)
            _, late = await asyncio.wait(ending, timeout=_LAST_ANSWERS)
            for task in late:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)
            self._leave_stream()

    def _leave_stream(self) -> None:
        """Settle what this stream leaves behind. In a session nothing: it is all sent again."""
        if self._in_session:
            self._to_resend.clear()
            if self._set_aside:  # a batch was rejected, and the answers to those after it are not known
                self._end(
                    Indeterminate("a rejected batch left a gap in the session", code=Code.SESSION_CONFLICT)
                )
            return
        broken = self._stream_over or NetworkFailure("the stream was closed")
        for batch in self._inflight.values():
            batch.fail(Indeterminate(f"no answer: {broken.message}", code=broken.code))
        self._inflight.clear()
        self._inflight_bytes = 0
        self._requeue_set_aside()
        self._wake()

    async def _guard(self, stream: AppendStream) -> None:
        """Notice a leader that is paused or cut off: no break, no answers, and another one leads."""
        while True:
            now = self._loop.time()
            if not self._inflight:
                self._last_progress = now
            silent = now - self._last_progress
            if silent < self._stall_timeout:
                await asyncio.sleep(self._stall_timeout - silent)
            elif await self._directory.other_leader(stream.address):
                self._stream_over = NetworkFailure(f"{stream.address} is silent, another node leads")
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
                batch.tell_attempt(self._on_attempt)
            await stream.send(batch.seq, batch.bodies, mark, timeout_ms)
        raise self._stream_over

    def _next_batch(self) -> Batch | None:
        """What goes out next: batches of an earlier stream first, then whatever waits. None: not now."""
        if self._set_aside:
            return None
        if self._to_resend:
            return self._to_resend.pop()
        limits, count = self._limits, len(self._inflight)
        if count and (count >= limits.max_inflight_batches or self._queue.size < limits.gather_bytes):
            return None
        calls, size = self._queue.take()
        if not calls:
            return None
        if not count:
            self._last_progress = self._loop.time()
        batch = Batch(self._next_seq, calls, size)
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
            return  # left already: in a session the next stream brings this answer again
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

    def _forget(self, batch: Batch) -> None:
        del self._inflight[batch.seq]
        self._inflight_bytes -= batch.size

    def _on_error(self, address: str, batch: Batch, error: DLedgerError) -> None:
        self._last_error = error
        verdict = judge(error, in_session=self._in_session)
        # An earlier attempt may linger in a server: then this refusal is not the last word on the seq.
        only_attempt = batch.attempts == 1
        if verdict is Verdict.RESEND and self._set_aside and isinstance(error, Refused) and only_attempt:
            verdict = Verdict.RETRY  # together with the rejected batch before it: they get new seqs
        if verdict is Verdict.REJECT and self._in_session and not only_attempt:
            verdict = Verdict.END
        if verdict is Verdict.END:
            self._end(undecided(error))
            self._stream_over = error
        elif verdict is Verdict.RESEND:
            self._stream_over = error
        elif verdict is Verdict.UNDECIDED:
            self._forget(batch)
            batch.fail(undecided(error))
            if is_against_the_leader(error):
                self._directory.lost(address)
        else:
            self._forget(batch)
            self._set_aside.append(batch)
            self._drain_reason = error
            if verdict is Verdict.REJECT:
                self._reject(batch, error)

    def _reject(self, batch: Batch, error: DLedgerError) -> None:
        """One call of the batch is wrong; which one shows when each is sent alone."""
        self._answered += 1
        live = [call for call in batch.calls if not call.future.done()]
        for call in live:
            if len(live) == 1:
                call.fail(renewed(error))
            else:
                call.alone = True

    def _on_drained(self) -> None:
        """Every batch of this stream is answered, so nothing lingers: what was not stored may go again."""
        if self._in_session:
            self._next_seq = min(batch.seq for batch in self._set_aside)
        self._requeue_set_aside()
        self._stream_over = self._drain_reason

    def _requeue_set_aside(self) -> None:
        batches = sorted(self._set_aside, key=lambda batch: batch.seq)
        self._set_aside.clear()
        self._queue.put_back([call for call in self._calls_of(batches) if not call.future.done()])

    def _end(self, error: DLedgerError) -> None:
        """The session is over: nothing unanswered can be decided any more, and nothing new is taken."""
        self._ended = error
        self._fail_all(queued=error, sent=error)


def _is_worth_retrying(error: BaseException) -> bool:
    return isinstance(error, DLedgerError) and not isinstance(error, InvalidRequest)
