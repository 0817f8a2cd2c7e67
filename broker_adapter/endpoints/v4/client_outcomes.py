"""Outcomes of sends that arrived together on one connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from broker_adapter.endpoints.context import CallContext
from broker_adapter.endpoints.lists.calls import ListedCall
from broker_adapter.endpoints.lists.send_list import second_attempt
from broker_adapter.endpoints.v5.messages.request import Request
from broker_adapter.errors import BrokerError
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import RequestList


class ClientOutcomes:
    """Implements ListOutcomes."""

    def __init__(
        self,
        listed: RequestList,
        sends: Sequence[ListedCall],
        process: Callable[[Request, CallContext], Awaitable[bytes]],
    ) -> None:
        """`sends`: the requests of `listed`, in order.

        `process` processes a second attempt of a send, within the timeout of its context.
        """
        self._listed = listed
        self._commands = listed.requests
        self._sends = sends
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._start_s = self._loop.time()

    def answer(self, answers: Iterable[tuple[int, bytes]]) -> None:
        self._listed.answer([(self._commands[number], data) for number, data in answers])

    def process_alone(self, number: int, answer: Callable[[], Awaitable[bytes]] | None = None) -> None:
        command = self._commands[number]
        if answer is None:
            self._listed.process_alone(command)
            return

        async def process(connection: RemotingConnection, _: RemotingCommand) -> None:
            data = await answer()
            if not command.is_oneway:
                connection.send_encoded(data)

        self._listed.process_alone(command, process)

    def fail(self, number: int, error: BrokerError) -> None:
        request = self._sends[number].request
        again = second_attempt(self._sends[number], error, self._loop.time() - self._start_s)
        if again is None:
            self.answer([(number, request.refused(error))])
        else:
            self.process_alone(number, lambda: self._process(request, again))
