"""Calls that are processed together, although each has its own result. A list consists of unary calls."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.v5.messages.request import Request
from broker_adapter.errors import BrokerError, Status

#: Errors after which a call had no effect and will have none.
WITHOUT_EFFECT = frozenset(
    {Status.NOT_MASTER, Status.SHUTTING_DOWN, Status.NOT_CONNECTED, Status.NOT_CONFIRMED}
)


class ListedCall(NamedTuple):
    """A call of a list."""

    request: Request
    context: CallContext


#: The results of some calls of a list, by the position of the call. Errors are those of `Answering`.
ListResults: TypeAlias = Sequence[tuple[int, bytes | BrokerError]]
#: Forwards a list to the master. Yields results in groups as they arrive, one for each call. Returns None if
#: no other node is master.
ForwardList: TypeAlias = Callable[[Sequence[ListedCall]], AsyncGenerator[ListResults, None] | None]


class ListOutcomes(Protocol):
    """Receives one outcome for each call of a list, by the position of the call."""

    def answer(self, answers: Iterable[tuple[int, bytes]]) -> None:
        """Send responses, together."""

    def process_alone(self, number: int, answer: Callable[[], Awaitable[bytes]] | None = None) -> None:
        """Process a call in a task of its own.

        `answer` returns the response, or raises the errors of `Answering`. None: process the call like one
        that arrived alone.
        """

    def fail(self, number: int, error: BrokerError) -> None:
        """Handle an error after which another master may process the call."""


class ListAnswering(Protocol):
    """Answers calls in lists."""

    def is_listed(self, request: Request) -> bool:
        """Return True for a call that `answer_list` processes."""

    async def answer_list(self, calls: Sequence[ListedCall], outcomes: ListOutcomes) -> None:
        """Process calls together. Returns once all have outcomes."""


def may_be_sent_again(request: Request, error: BrokerError, unknown: int) -> bool:
    """Return True if a call that failed may be sent to another master.

    `unknown`: number of attempts with an unknown outcome.
    """
    is_unknown = error.status is Status.OUTCOME_UNKNOWN
    return error.status in WITHOUT_EFFECT or (is_unknown and unknown == 1 and request.is_repeatable)
