"""Dispatches requests by code to a processor and an executor.

As in RocketMQ's NettyRemotingAbstract, a table maps request codes to a processor and an executor, a full
executor responds with SYSTEM_BUSY immediately, and hooks run before and after each request.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from broker_adapter.errors import BrokerError, FrameRefused, RemotingRefused, ResponseCode, Status
from broker_adapter.remoting.command import RemotingCommand, encode
from broker_adapter.remoting.connection import RemotingConnection
from dledger.infra.counts import decrement
from dledger.infra.logs import get_logger
from dledger.infra.loops.turns import LARGE_BYTES, MAX_TOGETHER, large_turns, wake_queue
from dledger.infra.quotas import FairQueue, Quota, client_address

_log = get_logger("remoting")

#: Metric label shared by all unknown request codes, so that clients cannot create unbounded series.
UNKNOWN_CODE: Final = -1
#: RocketMQ's text.
_CLEANED = "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while"
_ANSWERS = frozenset(int(code) for code in ResponseCode)

#: Returns None if there is no response, or if the processor sends it itself.
Processor: TypeAlias = Callable[[RemotingConnection, RemotingCommand], Awaitable[RemotingCommand | None]]


class RequestList(Protocol):
    """Requests of one connection that arrived together, in order."""

    @property
    def requests(self) -> Sequence[RemotingCommand]:
        """Return the requests without an answer. They stay admitted until then."""

    def answer(self, answers: Iterable[tuple[RemotingCommand, bytes]]) -> None:
        """Write encoded responses, with one call to the transport. One-way requests get none."""

    def process_alone(self, request: RemotingCommand, processor: Processor | None = None) -> None:
        """Process a request in a task of its own, by the processor of its code or another one."""


#: Processes requests that arrived together. Returns once all are answered or processed alone.
ListProcessor: TypeAlias = Callable[[RemotingConnection, RequestList], Awaitable[None]]


@dataclass
class Executor:
    """Runs up to `running` requests concurrently while up to `waiting` more wait.

    Client addresses share both limits. Requests of different addresses start in fair order (`FairQueue`),
    requests of one address in order of arrival.

    Processors that do not wait would otherwise all run in one step of the event loop. Requests therefore wait
    for a shared step (`wake_queue`), or, if `is_expensive`, for their own step (`large_turns`).
    `ends_with_connection`: cancel requests when their connection closes, because only that client uses the
    result.
    """

    name: str
    running: int
    waiting: int
    is_expensive: bool = field(default=False, kw_only=True)
    ends_with_connection: bool = field(default=False, kw_only=True)
    refused: int = field(default=0, init=False)
    slots: FairQueue = field(init=False)  # one per running request
    _places: Quota = field(init=False)

    def __post_init__(self) -> None:
        self.slots = FairQueue(self.running)
        self._places = Quota(self.most, f"requests are under way in {self.name}", "try again")

    @property
    def under_way(self) -> int:
        return self._places.used

    @property
    def most(self) -> int:
        """Maximum number of requests in progress, including waiting ones."""
        return self.running + self.waiting

    def admit(self, address: str = "") -> str | None:
        """Admit a request from this address, or return the reason for its rejection.

        If the result is None, the request is admitted until `leave`. The address "" has no quota.
        """
        refusal = self._places.refusal(address)
        if refusal is None:
            self._places.acquire(address)
        else:
            self.count_refusal()
        return refusal

    def count_refusal(self) -> None:
        """Count a rejected request."""
        self.refused += 1

    def leave(self, address: str = "") -> None:
        self._places.release(address)


class RpcHook(Protocol):
    """Called with each request before its processor, and with each response before it is sent."""

    def before(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        """Check the request. Raises a BrokerError to reject it."""

    def after(
        self, connection: RemotingConnection, request: RemotingCommand, answer: RemotingCommand
    ) -> None: ...


class _Entry(NamedTuple):
    processor: Processor
    executor: Executor
    most_wait_s: float | None
    together: ListProcessor | None


@dataclass(slots=True, eq=False)
class _Admitted:
    """A request from its admission until its end. `room`: the quota of its bytes. `arrived`: seconds."""

    connection: RemotingConnection
    request: RemotingCommand
    entry: _Entry
    room: Quota
    size: int
    arrived: float

    @property
    def address(self) -> str:
        return client_address(self.connection.host)

    @property
    def is_large(self) -> bool:
        return self.entry.executor.is_expensive or len(self.request.body) >= LARGE_BYTES


class Dispatch:
    """Processes requests on one event loop."""

    def __init__(
        self,
        hooks: Iterable[RpcHook] = (),
        *,
        now: Callable[[], float] = time.monotonic,
        max_request_bytes: int = 64 << 20,
    ) -> None:
        """Create a dispatch. `now`: returns monotonic seconds. `max_request_bytes`: maximum total memory of
        the requests in progress. It applies separately to large requests, to small requests with a
        `ListProcessor` (sends), and to all others, so that heartbeats are processed while sends wait.
        Addresses share each. A single request may exceed it.
        """
        self._hooks = tuple(hooks)
        self._small, self._listed, self._large = (
            Quota(max_request_bytes, f"bytes of {kind} are under way", "try again")
            for kind in ("small requests", "small sends", "large requests")
        )
        self._now = now
        self._table: dict[int, _Entry] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way = 0
        self._is_closed = False
        # The newest list of a connection, which grows until its step or until another request.
        self._lists: dict[RemotingConnection, _AdmittedList] = {}
        # Tasks to cancel when the connection closes.
        self._of_connection: dict[RemotingConnection, set[asyncio.Task[None]]] = {}
        # requests that wait for their own step of the event loop
        self._waiting_large: Counter[RemotingConnection] = Counter()
        #: Number of responses by (request code, response code). Response -1: no response. Unknown request
        #: codes share UNKNOWN_CODE.
        self.counts: Counter[tuple[int, int]] = Counter()

    def register(
        self,
        codes: Iterable[int],
        processor: Processor,
        executor: Executor,
        *,
        most_wait_s: float | None = None,
        together: ListProcessor | None = None,
    ) -> None:
        """Register a processor for codes. Each code can be registered once.

        `together` processes small requests that arrive together on one connection. All codes share it.

        `most_wait_s`: as in RocketMQ's BrokerFastFailure, a request that has waited longer is rejected,
        because its client may have timed out and repeated the operation.
        """
        for code in codes:
            assert code not in self._table, f"request code {code} already has a processor"
            self._table[code] = _Entry(processor, executor, most_wait_s, together)

    def variant(self, processors: Mapping[int, Processor]) -> Dispatch:
        """Return a Dispatch with the same hooks, executors and limits, but other processors
        for these codes.
        """
        other = Dispatch(self._hooks, now=self._now)
        other._small, other._listed, other._large = self._small, self._listed, self._large
        other._table = {
            code: entry._replace(processor=processors.get(code, entry.processor))
            for code, entry in self._table.items()
        }
        return other

    @property
    def codes(self) -> frozenset[int]:
        """Codes that have a processor."""
        return frozenset(self._table)

    @property
    def executors(self) -> list[Executor]:
        return list({id(entry.executor): entry.executor for entry in self._table.values()}.values())

    @property
    def under_way(self) -> int:
        """Return the number of requests."""
        return self._under_way

    def answer(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        """Start processing a request. Returns immediately."""
        if self._is_closed:
            # The request is never ended. The connection is therefore reset, and the sender does not wait
            # longer.
            connection.begin()
            return
        entry = self._table.get(request.code)
        if entry is None:
            self._refuse(
                connection, request, Status.CODE_UNKNOWN, f"request type {request.code} not supported"
            )
            return
        executor, size = entry.executor, request.memory
        room = self._small if entry.together is None else self._listed
        if len(request.body) >= LARGE_BYTES:
            room = self._large
        if refusal := self._admit(client_address(connection.host), executor, room, size):
            self._refuse(connection, request, Status.EXECUTOR_FULL, f"[OVERLOAD]system busy: {refusal}")
            return
        connection.begin()
        self._under_way += 1
        admitted = _Admitted(connection, request, entry, room, size, self._now())
        if entry.together is None or admitted.is_large:
            # Requests that arrive later must not join a list that starts before this request.
            self._lists.pop(connection, None)
            self._start(self._run(admitted), admitted)
            return
        listed = self._lists.get(connection)
        if listed is None or len(listed) >= MAX_TOGETHER:
            self._lists[connection] = listed = _AdmittedList(self, connection, executor)
            task = self._start_task(self._run_list(listed, entry.together))
            # A callback, because a task that is canceled before its start executes nothing.
            task.add_done_callback(partial(self._list_ended, listed))
        listed.add(admitted)

    def gone(self, connection: RemotingConnection) -> None:
        """Cancel the requests that end when this connection closes."""
        wake_queue().each("gone", list(self._of_connection.get(connection, ())), asyncio.Task.cancel)

    def close(self) -> None:
        """Stop processing new requests.

        Requests that arrive later count as in progress until their connection closes.
        """
        self._is_closed = True

    async def drained(self) -> None:
        """Wait until no request is in progress."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def stop(self) -> None:
        """Cancel the requests in progress. They receive no response."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _admit(self, address: str, executor: Executor, room: Quota, size: int) -> str | None:
        """Admit a request of this size, or return the reason for its rejection.

        Executors limit only the number of requests. Suppose that a node has no master and lets each send wait
        for seconds. Then 3,072 sends of 4 MiB from one address would occupy 12 GiB, and 7,500 pulls with
        headers of 256 KiB would occupy 2 GiB.
        """
        if refusal := room.refusal(address, size):
            executor.count_refusal()
            return refusal
        if refusal := executor.admit(address):
            return refusal
        room.acquire(address, size)
        return None

    def _start(self, running: Coroutine[Any, Any, None], admitted: _Admitted) -> None:
        task = self._start_task(running)
        task.add_done_callback(partial(self._ended, admitted))
        if admitted.entry.executor.ends_with_connection:
            self._of_connection.setdefault(admitted.connection, set()).add(task)

    def _start_task(self, running: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(running)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _ended(self, admitted: _Admitted, task: asyncio.Task[None]) -> None:
        connection = admitted.connection
        if (tasks := self._of_connection.get(connection)) is not None:
            tasks.discard(task)
            if not tasks:
                del self._of_connection[connection]
        self._end(admitted)

    def _end(self, admitted: _Admitted) -> None:
        self._under_way -= 1
        admitted.entry.executor.leave(admitted.address)
        admitted.room.release(admitted.address, admitted.size)
        admitted.connection.end()

    async def _run(self, admitted: _Admitted) -> None:
        connection, address, slots = admitted.connection, admitted.address, admitted.entry.executor.slots
        # A send that is not listed takes the steps of a list, which keeps the order of its connection.
        is_ordered = admitted.entry.together is not None
        if is_ordered:
            await self._turn(connection, address, is_large=admitted.is_large)
        await slots.acquire(address)
        try:
            if not is_ordered:
                await self._turn(connection, address, is_large=admitted.is_large)
            if connection.is_closed:
                return  # the client is disconnected
            answer = self._refusal_before(admitted)
            if answer is None:
                answer = await self._process(admitted, admitted.entry.processor)
        finally:
            slots.release(address)
        self._send(connection, admitted.request, answer)

    async def _run_list(self, listed: _AdmittedList, together: ListProcessor) -> None:
        """Process the requests that arrive until the turn of the list. All have the executor of the first
        one."""
        connection, slots = listed.connection, listed.executor.slots
        address = client_address(connection.host)
        await self._turn(connection, address, is_large=False)
        self._close_list(listed)
        count = len(listed)
        try:
            await slots.acquire(address, count)
            try:
                if not connection.is_closed:
                    listed.refuse_invalid()
                    await together(connection, listed)
            finally:
                slots.release(address, count)
        except Exception:
            _log.exception("requests failed", count=len(listed), peer=connection.peer)
            listed.answer([(request, encode(_defect(request))) for request in listed.requests])

    def _close_list(self, listed: _AdmittedList) -> None:
        """Add no more requests to a list."""
        if self._lists.get(listed.connection) is listed:
            del self._lists[listed.connection]

    def _list_ended(self, listed: _AdmittedList, _: object) -> None:
        self._close_list(listed)
        listed.end()

    def _refusal_before(self, admitted: _Admitted) -> RemotingCommand | None:
        """Return the response to a request that must not be processed, or None."""
        try:
            self._check_wait(admitted.entry, self._now() - admitted.arrived)
            for hook in self._hooks:
                hook.before(admitted.connection, admitted.request)
        except BrokerError as error:
            return _refusal(admitted.request, error)
        except Exception:
            return self._defect(admitted)
        return None

    async def _process(self, admitted: _Admitted, processor: Processor) -> RemotingCommand | None:
        try:
            return await processor(admitted.connection, admitted.request)
        except BrokerError as error:
            return _refusal(admitted.request, error)
        except Exception:
            return self._defect(admitted)

    async def _process_alone(self, admitted: _Admitted, processor: Processor) -> None:
        self._send(admitted.connection, admitted.request, await self._process(admitted, processor))

    @staticmethod
    def _defect(admitted: _Admitted) -> RemotingCommand:
        """Log a defect of the broker. The response does not contain internal details."""
        _log.exception("a request failed", code=admitted.request.code, peer=admitted.connection.peer)
        return _defect(admitted.request)

    @staticmethod
    def _check_wait(entry: _Entry, waited_s: float) -> None:
        if entry.most_wait_s is not None and waited_s > entry.most_wait_s:
            size = entry.executor.under_way - 1
            text = f"{_CLEANED}, period in queue: {1000 * waited_s:.0f}ms, size of queue: {size}"
            raise RemotingRefused(Status.QUEUE_WAIT_TOO_LONG, text)

    async def _turn(self, connection: RemotingConnection, address: str, *, is_large: bool) -> None:
        """Wait for a shared step of the event loop. A large or expensive request then waits for its own step.

        Requests of one connection keep their order, even after a large one.
        """
        await wake_queue().turn(address)
        if not is_large and not self._waiting_large[connection]:
            return
        self._waiting_large[connection] += 1
        try:
            await large_turns().turn(address)
        finally:
            decrement(self._waiting_large, connection)

    def _refuse(
        self, connection: RemotingConnection, request: RemotingCommand, status: Status, message: str
    ) -> None:
        connection.end_turn()
        self._send(connection, request, _refusal(request, RemotingRefused(status, message)))

    def _send(
        self, connection: RemotingConnection, request: RemotingCommand, answer: RemotingCommand | None
    ) -> None:
        code = request.code if request.code in self._table else UNKNOWN_CODE
        response = -1 if answer is None else answer.code
        is_known = response in _ANSWERS or response == -1
        self.counts[code, response if is_known else ResponseCode.SYSTEM_ERROR] += 1
        if answer is None:
            return
        try:
            for hook in self._hooks:
                hook.after(connection, request, answer)
        except Exception:
            _log.exception("a hook failed", code=request.code, peer=connection.peer)
            answer = _defect(request)
        if request.is_oneway:
            return
        try:
            connection.send(answer)
        except FrameRefused as error:
            connection.send(_refusal(request, error))


class _AdmittedList:
    """Implements RequestList."""

    def __init__(self, dispatch: Dispatch, connection: RemotingConnection, executor: Executor) -> None:
        self.connection = connection
        self.executor = executor
        self._dispatch = dispatch
        self._left: dict[int, _Admitted] = {}

    def __len__(self) -> int:
        return len(self._left)

    def add(self, admitted: _Admitted) -> None:
        self._left[id(admitted.request)] = admitted

    @property
    def requests(self) -> Sequence[RemotingCommand]:
        return [one.request for one in self._left.values()]

    def answer(self, answers: Iterable[tuple[RemotingCommand, bytes]]) -> None:
        ended = []
        data = []
        for request, encoded in answers:
            self._dispatch.counts[request.code, -1] += 1
            ended.append(self._left.pop(id(request)))
            if not request.is_oneway:
                data.append(encoded)
        if data:
            self.connection.send_encoded(b"".join(data))
        for one in ended:
            self._dispatch._end(one)

    def process_alone(self, request: RemotingCommand, processor: Processor | None = None) -> None:
        one, dispatch = self._left.pop(id(request)), self._dispatch
        dispatch._start(dispatch._process_alone(one, processor or one.entry.processor), one)

    def refuse_invalid(self) -> None:
        """Answer the requests that waited too long or that a hook rejects."""
        for one in list(self._left.values()):
            if (refusal := self._dispatch._refusal_before(one)) is not None:
                del self._left[id(one.request)]
                self._dispatch._send(self.connection, one.request, refusal)
                self._dispatch._end(one)

    def end(self) -> None:
        """End the requests that get no answer."""
        left, self._left = self._left, {}
        for one in left.values():
            self._dispatch._end(one)


def _defect(request: RemotingCommand) -> RemotingCommand:
    return request.answer(ResponseCode.SYSTEM_ERROR, "internal error; see the server log")


def _refusal(request: RemotingCommand, error: BrokerError) -> RemotingCommand:
    return request.answer(error.response_code, str(error))
