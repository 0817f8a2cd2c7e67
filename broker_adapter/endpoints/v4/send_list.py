"""Stores the sends that arrived together on one connection with as few appends as possible."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from broker_adapter.endpoints.context import LATE_S, WAY_BACK_S, CallContext
from broker_adapter.endpoints.rejected import ELSEWHERE
from broker_adapter.endpoints.v4.request import RemotingRequest
from broker_adapter.endpoints.v4.sends import SendProcessor, StartedSend
from broker_adapter.errors import BrokerError, PutIndeterminate, Status
from broker_adapter.remoting.command import RemotingCommand, encode
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Processor, RequestList
from dledger.infra.logs import get_logger

_log = get_logger("sends")

#: Returns a processor for a second attempt of a send, within the timeout of the context.
Retry: TypeAlias = Callable[[RemotingRequest, CallContext], Processor]


class LocalSends(NamedTuple):
    """The sends of this node. `is_here` returns True while it is the master and accepts writes."""

    processor: SendProcessor
    is_here: Callable[[], bool]


class SendList:
    """Sends of one list. Each is answered on its own: no error of one concerns another.

    A send that waits for more than its append is processed alone, and so is one that another master must
    store.
    """

    def __init__(self, processor: SendProcessor, listed: RequestList, retry: Retry) -> None:
        self._processor = processor
        self._listed = listed
        self._retry = retry

    async def run(self, requests: list[RemotingRequest], context: CallContext) -> None:
        """Start all sends in one step, in order, and answer them when their appends end. `context` has the
        time limit of all."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (context.timeout_s or 0.0) - LATE_S
        waiting = self._start(requests, context)
        while waiting:
            # Appends end in order, and one append contains many sends.
            await asyncio.wait([waiting[0].submitted.done], timeout=max(0.0, deadline - loop.time()))
            is_over = not waiting[0].submitted.done.done()
            ended = [one for one in waiting if is_over or one.submitted.done.done()]
            waiting = [one for one in waiting if not (is_over or one.submitted.done.done())]
            left = context._replace(timeout_s=max(0.0, deadline - loop.time()) + LATE_S)
            self._answer(ended, left)

    def _start(self, requests: list[RemotingRequest], context: CallContext) -> list[StartedSend]:
        started: list[StartedSend] = []
        refused: list[tuple[RemotingCommand, bytes]] = []
        for request in requests:
            try:
                one = self._processor.start(request, context)
            except Exception as error:
                if isinstance(error, BrokerError) and error.status in ELSEWHERE:
                    self._listed.process_alone(request.command)
                else:
                    refused.append((request.command, request.refused(error)))
            else:
                if one is None:
                    self._listed.process_alone(request.command)
                else:
                    started.append(one)
        self._listed.answer(refused)
        return started

    def _answer(self, ended: list[StartedSend], left: CallContext) -> None:
        answers: list[tuple[RemotingCommand, bytes]] = []
        for one in ended:
            request = one.plain.request
            try:
                answer = self._result(one)
            except Exception as error:
                if self._tries_again(request, error, left):
                    continue
                answer = request.refused(error)
            if answer is not None:
                answers.append((request.command, answer))
        self._listed.answer(answers)

    def _result(self, one: StartedSend) -> bytes | None:
        """Return the response, or None if the send is processed alone from here on."""
        if not one.submitted.done.done():
            raise PutIndeterminate(Status.OUTCOME_UNKNOWN, "the master did not answer in time")
        sent = one.submitted.result()
        answer = self._processor.answer(one.plain, sent)
        if answer is None:

            async def look_up(_: RemotingConnection, __: RemotingCommand) -> RemotingCommand:
                return await self._processor.look_up(one.plain, sent)

            self._listed.process_alone(one.plain.request.command, look_up)
            return None
        return encode(answer)

    def _tries_again(self, request: RemotingRequest, error: Exception, left: CallContext) -> bool:
        """Process a send again if another master may store it in time, and if it cannot be stored twice."""
        in_time = left.timeout_s is not None and left.timeout_s > WAY_BACK_S
        if not (in_time and isinstance(error, BrokerError) and error.status in ELSEWHERE):
            return False
        is_unknown = error.status is Status.OUTCOME_UNKNOWN
        if is_unknown and not request.is_repeatable:
            return False
        processor = self._retry(request, left._replace(is_repeated=is_unknown))
        self._listed.process_alone(request.command, processor)
        return True
