"""Gathers the sends that arrive in one turn of the event loop into lists. gRPC delivers them one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import NamedTuple, Protocol

from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.lists.calls import ListedCall
from broker_adapter.endpoints.lists.send_list import NodeSends, second_attempt
from broker_adapter.endpoints.v5.messages.request import Request
from broker_adapter.errors import BrokerError
from dledger.infra.loops.turns import MAX_TOGETHER, wake_queue


class ClientCall(NamedTuple):
    """A call of a client. `answered` is its response. It is canceled if the client disconnects."""

    request: Request
    context: CallContext
    answered: asyncio.Future[bytes]

    def settle(self, answer: bytes | Exception) -> None:
        """Set the response, or the error from which it is made."""
        if self.answered.done():
            return
        if isinstance(answer, bytes):
            self.answered.set_result(answer)
        else:
            self.answered.set_exception(answer)
            self.answered.exception()  # mark the exception as retrieved, in case the caller was canceled


class CallOwner(Protocol):
    """The service that has admitted the calls."""

    def process_alone(self, call: ClientCall, answer: Callable[[], Awaitable[bytes]] | None) -> None:
        """Process a call in a task of its own. `answer`: as in ListOutcomes."""

    def process_again(self, call: ClientCall, context: CallContext) -> None:
        """Process another attempt of a call in a task of its own."""

    def end(self, call: ClientCall) -> None:
        """Release what the call holds. Its outcome is known, or this node is stopping."""


class GatheredSends:
    """Starts lists of sends. There is no timer: a list starts in the next turn of the event loop."""

    def __init__(self, sends: NodeSends, owner: CallOwner) -> None:
        self._sends = sends
        self._owner = owner
        self._newest: _GatheredList | None = None  # grows until it starts

    def is_gathered(self, request: Request) -> bool:
        return self._sends.is_listed(request)

    def add(self, call: ClientCall) -> asyncio.Task[None]:
        """Add a call to the newest list. Return the task that processes the list."""
        newest = self._newest
        if newest is None or len(newest.calls) >= MAX_TOGETHER:
            newest = self._newest = _GatheredList(self._owner)
            newest.task = asyncio.create_task(self._run(newest))
            # A callback, because a task that is canceled before its start executes nothing.
            newest.task.add_done_callback(partial(self._ended, newest))
        newest.add(call)
        assert newest.task is not None
        return newest.task

    async def _run(self, gathered: _GatheredList) -> None:
        try:
            await wake_queue().turn("sends")
            self._close(gathered)
            listed = [ListedCall(call.request, call.context) for call in gathered.calls]
            await self._sends.process(listed, gathered)
        except Exception as error:
            gathered.answer([(number, call.request.refused(error)) for number, call in gathered.left.items()])

    def _close(self, gathered: _GatheredList) -> None:
        """Add no more calls to a list."""
        if self._newest is gathered:
            self._newest = None

    def _ended(self, gathered: _GatheredList, _: object) -> None:
        self._close(gathered)
        gathered.end()


class _GatheredList:
    """Implements ListOutcomes."""

    def __init__(self, owner: CallOwner) -> None:
        self.calls: list[ClientCall] = []
        self.left: dict[int, ClientCall] = {}
        self.task: asyncio.Task[None] | None = None
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._start_s = self._loop.time()

    def add(self, call: ClientCall) -> None:
        self.left[len(self.calls)] = call
        self.calls.append(call)

    def answer(self, answers: Iterable[tuple[int, bytes]]) -> None:
        for number, data in answers:
            call = self.left.pop(number)
            call.settle(data)
            self._owner.end(call)

    def process_alone(self, number: int, answer: Callable[[], Awaitable[bytes]] | None = None) -> None:
        self._owner.process_alone(self.left.pop(number), answer)

    def fail(self, number: int, error: BrokerError) -> None:
        call = self.left[number]
        waited_s = self._loop.time() - self._start_s
        again = second_attempt(ListedCall(call.request, call.context), error, waited_s)
        if again is None:
            self.answer([(number, call.request.refused(error))])
        else:
            del self.left[number]
            self._owner.process_again(call, again)

    def end(self) -> None:
        """End the calls without an outcome, because the list was canceled."""
        for call in self.left.values():
            self._owner.end(call)
        self.left.clear()
