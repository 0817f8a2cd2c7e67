"""Which processor answers a request code, on which executor, between which hooks.

As in RocketMQ's NettyRemotingAbstract: a table from request code to processor and executor, bounded
executors that are full say SYSTEM_BUSY at once, hooks before and after each request.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeAlias

from broker_adapter.errors import BrokerError, FrameRefused, RemotingRefused, ResponseCode, Status
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from dledger.platform import get_logger, large_turns, wake_queue

_log = get_logger("remoting")

#: None: there is no answer, or the processor sends it itself.
Processor: TypeAlias = Callable[[RemotingConnection, RemotingCommand], Awaitable[RemotingCommand | None]]


@dataclass
class Executor:
    """Lets `running` requests go on at a time, in order of arrival, and `waiting` more wait.

    Processors that do not wait would all run in one turn of the event loop: some share one (`wake_queue`), or
    each has its own (`large_turns`) if `is_expensive`."""

    name: str
    running: int
    waiting: int
    is_expensive: bool = field(default=False, kw_only=True)
    under_way: int = field(default=0, init=False)
    refused: int = field(default=0, init=False)
    turn: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self.turn = asyncio.Semaphore(self.running)

    @property
    def most(self) -> int:
        """Under way at a time, those that wait included."""
        return self.running + self.waiting

    def admit(self) -> bool:
        """Room for one more. `leave` gives it back."""
        if self.under_way >= self.most:
            self.refused += 1
            return False
        self.under_way += 1
        return True

    def leave(self) -> None:
        self.under_way -= 1


class RpcHook(Protocol):
    """Sees each request before its processor, and each answer before it is sent."""

    def before(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        """BrokerError: the request is refused with it."""

    def after(
        self, connection: RemotingConnection, request: RemotingCommand, answer: RemotingCommand
    ) -> None: ...


class Dispatch:
    """Answers requests. On one event loop."""

    def __init__(self, hooks: Iterable[RpcHook] = ()) -> None:
        self._hooks = tuple(hooks)
        self._table: dict[int, tuple[Processor, Executor]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: (request code, response code) -> how many; -1 for requests without an answer.
        self.counts: Counter[tuple[int, int]] = Counter()

    def register(self, codes: Iterable[int], processor: Processor, executor: Executor) -> None:
        """Each code once."""
        for code in codes:
            assert code not in self._table, f"request code {code} has a processor"
            self._table[code] = processor, executor

    @property
    def codes(self) -> frozenset[int]:
        """That have a processor."""
        return frozenset(self._table)

    @property
    def executors(self) -> list[Executor]:
        return list({id(executor): executor for _, executor in self._table.values()}.values())

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
        processor, executor = entry
        if not executor.admit():
            self._refuse(
                connection,
                request,
                Status.EXECUTOR_FULL,
                f"[OVERLOAD]system busy: {executor.most} requests are under way in {executor.name}",
            )
            return
        connection.begin()
        task = asyncio.get_running_loop().create_task(self._run(connection, request, processor, executor))
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, connection, executor))

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
        executor.leave()
        connection.end()

    async def _run(
        self,
        connection: RemotingConnection,
        request: RemotingCommand,
        processor: Processor,
        executor: Executor,
    ) -> None:
        async with executor.turn:
            # By peers: the requests of one connection keep their order.
            await (large_turns() if executor.is_expensive else wake_queue()).turn(connection.peer)
            if connection.is_closed:
                return  # nobody waits: it was not begun
            try:
                for hook in self._hooks:
                    hook.before(connection, request)
                answer = await processor(connection, request)
            except BrokerError as error:
                answer = _refusal(request, error)
            except Exception:
                # A defect of ours, whatever the client sent: it is told that, and nothing of our insides.
                _log.exception("a request failed", code=request.code, peer=connection.peer)
                answer = _defect(request)
        self._send(connection, request, answer)

    def _refuse(
        self, connection: RemotingConnection, request: RemotingCommand, status: Status, message: str
    ) -> None:
        self._send(connection, request, _refusal(request, RemotingRefused(status, message)))

    def _send(
        self, connection: RemotingConnection, request: RemotingCommand, answer: RemotingCommand | None
    ) -> None:
        self.counts[request.code, -1 if answer is None else answer.code] += 1
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
