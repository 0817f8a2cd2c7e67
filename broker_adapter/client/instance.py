"""What producers, consumers and admin share: connections, routes, calls to brokers (MQClientInstance)."""

from __future__ import annotations

import asyncio
import os
import secrets
import ssl
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Self

from broker_adapter.client.connections import Connections
from broker_adapter.client.core.outcomes import error_of
from broker_adapter.client.core.route_data import parse_topic_list
from broker_adapter.client.options import ClientOptions
from broker_adapter.client.routes import NameServers, RouteCache
from broker_adapter.errors import ReadFailed, ResponseCode, Status, TopicRefused
from broker_adapter.format.unique_keys import UniqueKeys
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Dispatch, Executor


def now_ms() -> int:
    """Wall clock, ms since 1970."""
    return time.time_ns() // 1_000_000


class ClientInstance:
    """`start` once, `close` once, on one event loop."""

    def __init__(
        self,
        name_servers: Sequence[str] | str,
        options: ClientOptions | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.options = options or ClientOptions()
        self.dispatch = Dispatch()
        self.connections = Connections(self.options, self.dispatch, tls)
        self.name_servers = NameServers(name_servers, self.connections, self.options)
        self.routes = RouteCache(self.name_servers, self.options)
        self.keys = UniqueKeys(now_ms)
        #: Groups know their members by it: no two clients may have the same.
        self.client_id = f"{os.getpid()}@{secrets.token_hex(6)}"
        self._tasks: list[asyncio.Task[None]] = []
        self.dispatch.register([RequestCode.ROUTES_CHANGED], self._routes_changed, Executor("routes", 8, 64))

    def start(self) -> None:
        """Begin to renew routes."""
        self.run(self.routes.run())
        self.run(self.routes.follow())

    async def _routes_changed(self, connection: RemotingConnection, request: RemotingCommand) -> None:
        self.routes.changed(parse_topic_list(request.body))

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Let it go on until it ends or the client is closed."""
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def stop_tasks(self) -> None:
        """Cancel what goes on; calls are still possible."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Cancel what goes on and disconnect. Repeatable."""
        await self.stop_tasks()
        await self.routes.close()
        await self.connections.close()

    async def master_of(self, topic: str, broker_name: str) -> str:
        """Its address. TopicRefused (QUEUE_UNKNOWN) if the route names no master, also after a renewal."""
        address = (await self.routes.get(topic)).master(broker_name)
        if address is None:
            address = (await self.routes.renewed(topic)).master(broker_name)
        if address is None:
            raise TopicRefused(Status.QUEUE_UNKNOWN, f"{topic}: no master of broker {broker_name} is known")
        return address

    async def call(
        self, address: str, request: RemotingCommand, timeout_s: float | None = None
    ) -> RemotingCommand:
        """The answer of a success. BrokerError for any other; AnswerMissing (ANSWER_MISSING)."""
        answer = await self.connections.invoke(address, request, timeout_s or self.options.request_timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            raise error_of(answer, f"{address}: request {request.code}")
        return answer

    async def call_name_server(self, request: RemotingCommand) -> RemotingCommand:
        """As `call`, to the first NameServer that answers."""
        answer = await self.name_servers.invoke(request)
        if answer.code != ResponseCode.SUCCESS:
            raise error_of(answer, f"NameServer: request {request.code}")
        return answer


def is_absent(error: Exception) -> bool:
    """The server knows nothing of what was asked for."""
    return isinstance(error, ReadFailed) and error.status is Status.MESSAGE_NOT_FOUND


class RemotingClient:
    """What programs start and close, or use with `async with`."""

    _client: ClientInstance

    async def start(self) -> None:
        """Begin to renew routes. Connections are made when they are needed."""
        self._client.start()

    async def close(self) -> None:
        """Disconnect. Calls in progress end as indeterminate."""
        await self._client.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
