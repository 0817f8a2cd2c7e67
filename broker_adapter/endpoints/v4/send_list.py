"""Processes the sends that arrived together in as few steps as possible.

The master stores a list with as few appends as possible. Other nodes forward it to the master, where the
sends of one frame are a list again, whichever clients they are from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import NamedTuple, TypeAlias, cast

from broker_adapter.endpoints.context import LATE_S, WAY_BACK_S, CallContext
from broker_adapter.endpoints.rejected import ELSEWHERE
from broker_adapter.endpoints.v4.request import SEND, RemotingRequest
from broker_adapter.endpoints.v4.sends import SendProcessor, StartedSend
from broker_adapter.endpoints.v5.calls.lists import ForwardList, ListedCall, ListOutcomes
from broker_adapter.endpoints.v5.messages.request import Request
from broker_adapter.errors import BrokerError, PutIndeterminate, Status
from broker_adapter.remoting.command import RemotingCommand, encode
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import RequestList

#: Errors after which another master may store the send.
_MAY_MOVE = ELSEWHERE | {Status.NOT_CONNECTED}
_Alone: TypeAlias = Callable[[RemotingRequest, CallContext], Awaitable[bytes]]


class ListedSend(NamedTuple):
    """A ListedCall."""

    request: RemotingRequest
    context: CallContext


class NodeSends(NamedTuple):
    """The sends of this node. Implements ListAnswering for those that other nodes forward.

    `is_here` returns True while this node is the master and accepts writes.
    """

    processor: SendProcessor
    is_here: Callable[[], bool]
    forward: ForwardList

    def is_listed(self, request: Request) -> bool:
        return isinstance(request, RemotingRequest) and request.kind is SEND

    async def answer_list(self, calls: Sequence[ListedCall], outcomes: ListOutcomes) -> None:
        sends = [ListedSend(cast(RemotingRequest, request), context) for request, context in calls]
        await SendList(sends, outcomes).store(self.processor)


class SendList:
    """Sends of one list. Each has its own outcome: no error of one concerns another.

    A send that waits for more than its append is processed alone.
    """

    def __init__(self, sends: Sequence[ListedSend], outcomes: ListOutcomes) -> None:
        """The largest timeout of the sends applies to all."""
        self._sends = sends
        self._outcomes = outcomes
        self._loop = asyncio.get_running_loop()
        timeout_s = max(context.timeout_s or request.timeout_s for request, context in sends)
        self._deadline = self._loop.time() + timeout_s - LATE_S

    async def store(self, processor: SendProcessor) -> None:
        """Start all sends in one step, in order. Pass on their results when their appends end."""
        waiting = self._start(processor)
        while waiting:
            # Appends end in order, and one append contains many sends.
            left_s = max(0.0, self._deadline - self._loop.time())
            first = waiting[0][1].submitted.done
            await asyncio.wait([first], timeout=left_s)
            is_over = not first.done()
            ended = [one for one in waiting if is_over or one[1].submitted.done.done()]
            waiting = [one for one in waiting if not (is_over or one[1].submitted.done.done())]
            self._finish(processor, ended)

    async def forward(self, forward: ForwardList) -> None:
        """Forward all sends together. Pass on their results as they arrive.

        At the deadline only the waiting ends: the master may store the sends.
        """
        groups = forward(self._sends)
        if groups is None:
            for number in range(len(self._sends)):
                self._outcomes.process_alone(number)
            return
        left = dict.fromkeys(range(len(self._sends)))
        try:
            async with asyncio.timeout_at(self._deadline), aclosing(groups):
                async for results in groups:
                    for number, _ in results:
                        del left[number]
                    self._pass_on(results)
        except TimeoutError:
            self._pass_on([(number, _too_late()) for number in left])

    def _start(self, processor: SendProcessor) -> list[tuple[int, StartedSend]]:
        started: list[tuple[int, StartedSend]] = []
        failed: list[tuple[int, Exception]] = []
        for number, (request, context) in enumerate(self._sends):
            try:
                one = processor.start(request, context)
            except Exception as error:
                failed.append((number, error))
            else:
                if one is None:
                    self._outcomes.process_alone(number)
                else:
                    started.append((number, one))
        self._pass_on(failed)
        return started

    def _finish(self, processor: SendProcessor, ended: Iterable[tuple[int, StartedSend]]) -> None:
        results: list[tuple[int, bytes | Exception]] = []
        for number, one in ended:
            try:
                result: bytes | Exception | None = self._result(processor, number, one)
            except Exception as error:
                result = error
            if result is not None:
                results.append((number, result))
        self._pass_on(results)

    def _result(self, processor: SendProcessor, number: int, one: StartedSend) -> bytes | None:
        """Return the response, or None if the send is processed alone from here on."""
        if not one.submitted.done.done():
            raise _too_late()
        sent = one.submitted.result()
        answer = processor.answer(one.plain, sent)
        if answer is None:

            async def look_up() -> bytes:
                return encode(await processor.look_up(one.plain, sent))

            self._outcomes.process_alone(number, look_up)
            return None
        return encode(answer)

    def _pass_on(self, results: Iterable[tuple[int, bytes | Exception]]) -> None:
        answers: list[tuple[int, bytes]] = []
        for number, result in results:
            if isinstance(result, BrokerError) and result.status in _MAY_MOVE:
                self._outcomes.fail(number, result)
            elif isinstance(result, Exception):
                answers.append((number, self._sends[number].request.refused(result)))
            else:
                answers.append((number, result))
        self._outcomes.answer(answers)


class ClientOutcomes:
    """Outcomes of the sends of one connection. Implements ListOutcomes."""

    def __init__(self, listed: RequestList, sends: Sequence[ListedSend], process: _Alone) -> None:
        """`process` processes a second attempt of a send, within the timeout of its context."""
        self._listed = listed
        self._sends = sends
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._start_s = self._loop.time()

    def answer(self, answers: Iterable[tuple[int, bytes]]) -> None:
        self._listed.answer([(self._sends[number].request.command, data) for number, data in answers])

    def process_alone(self, number: int, answer: Callable[[], Awaitable[bytes]] | None = None) -> None:
        command = self._sends[number].request.command
        if answer is None:
            self._listed.process_alone(command)
            return

        async def process(connection: RemotingConnection, _: RemotingCommand) -> None:
            data = await answer()
            if not command.is_oneway:
                connection.send_encoded(data)

        self._listed.process_alone(command, process)

    def fail(self, number: int, error: BrokerError) -> None:
        """Process a send again if another master may store it in time, and if it cannot be stored twice."""
        request, context = self._sends[number]
        left_s = (context.timeout_s or request.timeout_s) - (self._loop.time() - self._start_s)
        is_unknown = error.status is Status.OUTCOME_UNKNOWN
        if left_s <= WAY_BACK_S or (is_unknown and not request.is_repeatable):
            self.answer([(number, request.refused(error))])
            return
        again = context._replace(timeout_s=left_s, is_repeated=is_unknown)
        self.process_alone(number, lambda: self._process(request, again))


def _too_late() -> BrokerError:
    return PutIndeterminate(Status.OUTCOME_UNKNOWN, "the master did not answer in time")
