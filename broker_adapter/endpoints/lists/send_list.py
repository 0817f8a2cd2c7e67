"""Processes the sends that arrived together in as few steps as possible.

The master stores a list with as few appends as possible. Other nodes forward it to the master, where the
sends of one frame are a list again, whichever clients they are from. The sends of a list may be from clients
of both protocols.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol, TypeAlias

from broker_adapter.endpoints.context import LATE_S, WAY_BACK_S, CallContext
from broker_adapter.endpoints.lists.calls import (
    WITHOUT_EFFECT,
    ForwardList,
    ListedCall,
    ListOutcomes,
    may_be_sent_again,
)
from broker_adapter.endpoints.v5.messages.request import Request
from broker_adapter.errors import BrokerError, PutIndeterminate, Status

#: Errors after which another master may store the send.
_MAY_MOVE = WITHOUT_EFFECT | {Status.OUTCOME_UNKNOWN}
#: Finds out the rest of a response. Raises the errors of `Answering`.
LookUp: TypeAlias = Callable[[], Awaitable[bytes]]


class StartedCall(Protocol):
    """A send that was submitted, or whose error is known."""

    @property
    def done(self) -> asyncio.Future[Any]:
        """Return the future that completes when the send is stored or has failed. Do not cancel it."""

    def response(self) -> bytes | LookUp:
        """Return the response once `done` is complete, or a function that waits for it.

        Raises the error of a send that was not stored.
        """


class SendStarter(Protocol):
    """Starts the sends of one protocol on the master."""

    def start(self, request: Any, context: CallContext) -> StartedCall | None:
        """Submit a send that waits for nothing but its append. For another one, return None and do nothing.

        Raises the error of a send that is rejected.
        """


class NodeSends:
    """The sends of this node. Implements ListAnswering for those that other nodes forward."""

    def __init__(
        self,
        starters: Mapping[str, SendStarter],
        is_here: Callable[[], bool],
        forward: ForwardList,
        *,
        timeout_s: float,
    ) -> None:
        """`starters`: by the name of the request.

        `is_here` returns True while this node is the master and accepts writes. `timeout_s` applies to sends
        of callers without a deadline.
        """
        self._starters = starters
        self._is_here = is_here
        self._forward = forward
        self._timeout_s = timeout_s
        self._storing: set[asyncio.Task[Any]] = set()

    def is_listed(self, request: Request) -> bool:
        return request.is_send

    async def process(self, calls: Sequence[ListedCall], outcomes: ListOutcomes) -> None:
        """Store sends of clients if this node is the master. Otherwise forward them together."""
        if self._is_here():
            await self.answer_list(calls, outcomes)
        else:
            await SendList(calls, outcomes, self._timeout_s).forward(self._forward)

    async def answer_list(self, calls: Sequence[ListedCall], outcomes: ListOutcomes) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._storing.add(task)
        try:
            await SendList(calls, outcomes, self._timeout_s).store(self._starters)
        finally:
            self._storing.discard(task)

    async def drain(self, seconds: float) -> None:
        """Wait up to `seconds` until the lists that this node stores have ended."""
        if self._storing:
            await asyncio.wait(self._storing, timeout=seconds)


class SendList:
    """Sends of one list. Each has its own outcome: no error or deadline of one concerns another.

    A send that waits for more than its append is processed alone. At its deadline only the waiting ends: the
    send may be stored.
    """

    def __init__(self, sends: Sequence[ListedCall], outcomes: ListOutcomes, timeout_s: float) -> None:
        """`timeout_s` applies to sends of callers without a deadline."""
        self._sends = sends
        self._outcomes = outcomes
        self._loop = asyncio.get_running_loop()
        latest = self._loop.time() - LATE_S
        self._deadlines = [
            latest + (timeout_s if context.timeout_s is None else context.timeout_s) for _, context in sends
        ]

    async def store(self, starters: Mapping[str, SendStarter]) -> None:
        """Start all sends in one step, in order. Pass on their results when their appends end."""
        waiting = self._start(starters)
        while waiting:
            # Appends end in order, and one append contains many sends.
            earliest = min(self._deadlines[number] for number, _ in waiting)
            now = self._loop.time()
            await asyncio.wait([waiting[0][1].done], timeout=max(0.0, earliest - now))
            now = self._loop.time()
            ended: list[tuple[int, StartedCall]] = []
            left: list[tuple[int, StartedCall]] = []
            for number, one in waiting:
                is_over = one.done.done() or self._deadlines[number] <= now
                (ended if is_over else left).append((number, one))
            waiting = left
            self._finish(ended)

    async def forward(self, forward: ForwardList) -> None:
        """Forward all sends together. Pass on their results as they arrive."""
        groups = forward(self._sends)
        if groups is None:
            for number in range(len(self._sends)):
                self._outcomes.process_alone(number)
            return
        left = dict(enumerate(self._deadlines))
        self._expiry = self._loop.call_at(min(self._deadlines), self._expire, left)
        try:
            async with asyncio.timeout_at(max(self._deadlines)), aclosing(groups):
                async for results in groups:
                    # A late response to a send that has expired is dropped.
                    self._pass_on([one for one in results if left.pop(one[0], None) is not None])
        except TimeoutError:
            self._outcomes.answer([(number, self._too_late(number)) for number in left])
        finally:
            self._expiry.cancel()

    def _expire(self, left: dict[int, float]) -> None:
        """Answer the sends whose deadline has passed, now and at the next deadline."""
        now = self._loop.time()
        expired = [number for number, deadline in left.items() if deadline <= now]
        for number in expired:
            del left[number]
        self._outcomes.answer([(number, self._too_late(number)) for number in expired])
        if left:
            self._expiry = self._loop.call_at(min(left.values()), self._expire, left)

    def _start(self, starters: Mapping[str, SendStarter]) -> list[tuple[int, StartedCall]]:
        started: list[tuple[int, StartedCall]] = []
        failed: list[tuple[int, Exception]] = []
        for number, (request, context) in enumerate(self._sends):
            try:
                one = starters[request.name].start(request, context)
            except Exception as error:
                failed.append((number, error))
            else:
                if one is None:
                    self._outcomes.process_alone(number)
                else:
                    started.append((number, one))
        self._pass_on(failed)
        return started

    def _finish(self, ended: Iterable[tuple[int, StartedCall]]) -> None:
        results: list[tuple[int, bytes | Exception]] = []
        for number, one in ended:
            try:
                result: bytes | LookUp | Exception = (
                    one.response() if one.done.done() else self._too_late(number)
                )
            except Exception as error:
                result = error
            if isinstance(result, bytes | Exception):
                results.append((number, result))
            else:
                self._outcomes.process_alone(number, result)
        self._pass_on(results)

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

    def _too_late(self, number: int) -> bytes:
        error = PutIndeterminate(Status.OUTCOME_UNKNOWN, "the master did not answer in time")
        return self._sends[number].request.refused(error)


def second_attempt(call: ListedCall, error: BrokerError, waited_s: float) -> CallContext | None:
    """Return the context of a second attempt of a send, or None if the error is final.

    A send is processed again if another master may store it in time, and if it cannot be stored twice.
    `waited_s`: time since the first attempt started.
    """
    request, context = call
    left_s = None if context.timeout_s is None else context.timeout_s - waited_s
    is_unknown = error.status is Status.OUTCOME_UNKNOWN
    may_again = may_be_sent_again(request, error, int(context.is_repeated) + is_unknown)
    if not may_again or (left_s is not None and left_s <= WAY_BACK_S):
        return None
    return context._replace(timeout_s=left_s, is_repeated=is_unknown)
