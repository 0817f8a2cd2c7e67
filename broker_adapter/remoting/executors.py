"""Which processor answers a request code, on which executor, between which hooks.

As in RocketMQ's NettyRemotingAbstract: a table from request code to processor and executor, bounded
executors that are full say SYSTEM_BUSY at once, hooks before and after each request.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeAlias

from broker_adapter.errors import BrokerError, FrameRefused, RemotingRefused, ResponseCode, Status
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from dledger.platform import LARGE_BYTES, SharedPlaces, client_address, get_logger, large_turns, wake_queue

_log = get_logger("remoting")

#: Under which requests are counted whose code nobody knows: clients may name four billion.
UNKNOWN_CODE: Final = -1
#: RocketMQ's words.
_CLEANED = "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while"
_ANSWERS = frozenset(int(code) for code in ResponseCode)

#: None: there is no answer, or the processor sends it itself.
Processor: TypeAlias = Callable[[RemotingConnection, RemotingCommand], Awaitable[RemotingCommand | None]]


@dataclass
class Executor:
    """Lets `running` requests go on at a time, in order of arrival, and `waiting` more wait. Addresses share
    the places (`SharedPlaces`).

    Processors that do not wait would all run in one turn of the event loop: some share one (`wake_queue`), or
    each has its own (`large_turns`) if `is_expensive`. `ends_with_connection`: they wait for what nobody else
    would get, so they are cancelled when nobody is there to take it."""

    name: str
    running: int
    waiting: int
    is_expensive: bool = field(default=False, kw_only=True)
    ends_with_connection: bool = field(default=False, kw_only=True)
    refused: int = field(default=0, init=False)
    turn: asyncio.Semaphore = field(init=False)
    _places: SharedPlaces = field(init=False)

    def __post_init__(self) -> None:
        self.turn = asyncio.Semaphore(self.running)
        self._places = SharedPlaces(self.most, f"requests are under way in {self.name}", "try again")

    @property
    def under_way(self) -> int:
        return self._places.taken

    @property
    def most(self) -> int:
        """Under way at a time, those that wait included."""
        return self.running + self.waiting

    def admit(self, address: str = "") -> str | None:
        """Why there is no room for one more of this address; None: it has a place, which `leave` gives back.
        "" has no share."""
        refusal = self._places.refusal(address)
        if refusal is None:
            self._places.take(address)
        else:
            self.refused += 1
        return refusal

    def leave(self, address: str = "") -> None:
        self._places.give_back(address)


class RpcHook(Protocol):
    """Sees each request before its processor, and each answer before it is sent."""

    def before(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        """BrokerError: the request is refused with it."""

    def after(
        self, connection: RemotingConnection, request: RemotingCommand, answer: RemotingCommand
    ) -> None: ...


class _Entry(NamedTuple):
    processor: Processor
    executor: Executor
    most_wait_s: float | None


class Dispatch:
    """Answers requests. On one event loop."""

    def __init__(self, hooks: Iterable[RpcHook] = (), *, now: Callable[[], float] = time.monotonic) -> None:
        """`now`: seconds, which never fall."""
        self._hooks = tuple(hooks)
        self._now = now
        self._table: dict[int, _Entry] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._of_connection: dict[RemotingConnection, set[asyncio.Task[None]]] = {}  # that end with it
        self._large: Counter[RemotingConnection] = Counter()  # requests that wait for turns of their own
        #: (request code, response code) -> how many; response -1 for requests without an answer, and codes
        #: that nobody knows together as UNKNOWN_CODE.
        self.counts: Counter[tuple[int, int]] = Counter()

    def register(
        self,
        codes: Iterable[int],
        processor: Processor,
        executor: Executor,
        *,
        most_wait_s: float | None = None,
    ) -> None:
        """Each code once. `most_wait_s`: a request whose turn comes later is refused, as by RocketMQ's
        BrokerFastFailure: its client may have given up, and would have it done twice."""
        for code in codes:
            assert code not in self._table, f"request code {code} has a processor"
            self._table[code] = _Entry(processor, executor, most_wait_s)

    @property
    def codes(self) -> frozenset[int]:
        """That have a processor."""
        return frozenset(self._table)

    @property
    def executors(self) -> list[Executor]:
        return list({id(entry.executor): entry.executor for entry in self._table.values()}.values())

    @property
    def under_way(self) -> int:
        return len(self._tasks)

    def answer(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        """Begin to answer. Returns at once."""
        entry = self._table.get(request.code)
        if entry is None:
            self._refuse(
                connection, request, Status.CODE_UNKNOWN, f"request type {request.code} not supported"
            )
            return
        executor = entry.executor
        if refusal := executor.admit(client_address(connection.host)):
            self._refuse(connection, request, Status.EXECUTOR_FULL, f"[OVERLOAD]system busy: {refusal}")
            return
        connection.begin()
        task = asyncio.get_running_loop().create_task(self._run(connection, request, entry, self._now()))
        self._tasks.add(task)
        if executor.ends_with_connection:
            self._of_connection.setdefault(connection, set()).add(task)
        task.add_done_callback(partial(self._ended, connection, executor))

    def gone(self, connection: RemotingConnection) -> None:
        """Nobody takes the answers any more: what waits for its sake ends."""
        wake_queue().each("gone", list(self._of_connection.get(connection, ())), asyncio.Task.cancel)

    async def drained(self) -> None:
        """Until nothing is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def stop(self) -> None:
        """What is under way ends without an answer."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, connection: RemotingConnection, executor: Executor, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if (of_it := self._of_connection.get(connection)) is not None:
            of_it.discard(task)
            if not of_it:
                del self._of_connection[connection]
        executor.leave(client_address(connection.host))
        connection.end()

    async def _run(
        self, connection: RemotingConnection, request: RemotingCommand, entry: _Entry, arrived: float
    ) -> None:
        executor = entry.executor
        async with executor.turn:
            await self._turn(connection, is_large=executor.is_expensive or len(request.body) >= LARGE_BYTES)
            if connection.is_closed:
                return  # nobody waits: it was not begun
            try:
                self._check_wait(entry, self._now() - arrived)
                for hook in self._hooks:
                    hook.before(connection, request)
                answer = await entry.processor(connection, request)
            except BrokerError as error:
                answer = _refusal(request, error)
            except Exception:
                # A defect of ours, whatever the client sent: it is told that, and nothing of our insides.
                _log.exception("a request failed", code=request.code, peer=connection.peer)
                answer = _defect(request)
        self._send(connection, request, answer)

    @staticmethod
    def _check_wait(entry: _Entry, waited_s: float) -> None:
        if entry.most_wait_s is not None and waited_s > entry.most_wait_s:
            size = entry.executor.under_way - 1
            text = f"{_CLEANED}, period in queue: {1000 * waited_s:.0f}ms, size of queue: {size}"
            raise RemotingRefused(Status.QUEUE_WAIT_TOO_LONG, text)

    async def _turn(self, connection: RemotingConnection, *, is_large: bool) -> None:
        """The requests of one connection keep their order: none overtakes a large one."""
        await wake_queue().turn(connection.peer)
        if not is_large and not self._large[connection]:
            return
        self._large[connection] += 1
        try:
            await large_turns().turn(connection.peer)
        finally:
            self._large[connection] -= 1
            if not self._large[connection]:
                del self._large[connection]

    def _refuse(
        self, connection: RemotingConnection, request: RemotingCommand, status: Status, message: str
    ) -> None:
        self._send(connection, request, _refusal(request, RemotingRefused(status, message)))

    def _send(
        self, connection: RemotingConnection, request: RemotingCommand, answer: RemotingCommand | None
    ) -> None:
        code = request.code if request.code in self._table else UNKNOWN_CODE
        told = -1 if answer is None else answer.code
        self.counts[code, told if told in _ANSWERS or told == -1 else ResponseCode.SYSTEM_ERROR] += 1
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


def _defect(request: RemotingCommand) -> RemotingCommand:
    return request.answer(ResponseCode.SYSTEM_ERROR, "a defect of the server: see its log")


def _refusal(request: RemotingCommand, error: BrokerError) -> RemotingCommand:
    return request.answer(error.response_code, str(error))
