"""One NameServer, one channel: own types in and out. Nothing is retried here.

No answer is a NameServerUnavailable, whatever gRPC calls it; answers with a code are the errors of that code.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import grpc.aio

from broker_adapter.errors import NameServerRefused, NameServerUnavailable, Status
from broker_adapter.namesrv.rpc_convert import (
    answer_from_pb,
    info_from_pb,
    raise_bad,
    registration_to_pb,
    route_from_pb,
)
from broker_adapter.namesrv.values import ClusterInfo, Registration, RegistrationAnswer, Route
from broker_adapter.v1 import namesrv_pb2 as pb
from broker_adapter.v1.namesrv_pb2_grpc import NameServerServiceStub
from dledger.platform import ChannelSecurity, NetworkFailure, answer_of, open_channel

T = TypeVar("T")


class NameServerLink:
    """Calls to one NameServer. Times are in seconds."""

    def __init__(self, address: str, security: ChannelSecurity | None) -> None:
        """`security` None: plain text."""
        self.address = address
        self.security = security
        self._channel = open_channel(address, security)
        # Untyped: the stub's types depend on the version of the generator.
        self._stub: Any = NameServerServiceStub(self._channel)  # type: ignore[no-untyped-call, unused-ignore]

    async def route(self, topic: str, timeout: float) -> Route:
        answer = await self._ask(self._stub.GetRoute, pb.GetRouteRequest(topic=topic), timeout)
        return route_from_pb(answer.route)

    async def watch(self, topics: list[str]) -> AsyncGenerator[tuple[list[Route], bool]]:
        """(routes that are new, whether these complete what is known now), without an end."""
        call = self._stub.WatchRoutes(pb.WatchRoutesRequest(topics=topics))
        try:
            while (message := await self.answer(call.read, call.cancelled)) is not grpc.aio.EOF:
                raise_bad(message)
                yield [route_from_pb(route) for route in message.routes], message.complete
        finally:
            await end_call(call)
        raise self.unavailable("the server has ended the stream")

    async def cluster_info(self, timeout: float) -> ClusterInfo:
        return info_from_pb(await self._ask(self._stub.GetClusterInfo, pb.GetClusterInfoRequest(), timeout))

    async def topics(self, timeout: float) -> list[str]:
        """All of them; each page within `timeout`."""
        found: list[str] = []
        while True:
            request = pb.ListRoutedTopicsRequest(after=found[-1] if found else "")
            answer = await self._ask(self._stub.ListRoutedTopics, request, timeout)
            found += answer.topics
            if not answer.more:
                return found

    async def register(self, given: Registration, timeout: float) -> RegistrationAnswer:
        return answer_from_pb(await self._ask(self._stub.Register, registration_to_pb(given), timeout))

    async def unregister(self, broker_name: str, node_id: str, role_epoch: int, timeout: float) -> None:
        request = pb.UnregisterBrokerRequest(broker_name=broker_name, node_id=node_id, role_epoch=role_epoch)
        await self._ask(self._stub.Unregister, request, timeout)

    async def wipe_write_permission(self, broker_name: str, give_back: bool, timeout: float) -> int:
        request = pb.WipeWritePermissionRequest(broker_name=broker_name, give_back=give_back)
        return int((await self._ask(self._stub.WipeWritePermission, request, timeout)).topics)

    async def kv_put(self, namespace: str, key: str, value: str, timeout: float) -> None:
        request = pb.PutKvConfigRequest(namespace=namespace, key=key, value=value)
        await self._ask(self._stub.PutKvConfig, request, timeout)

    async def kv_get(self, namespace: str, key: str, timeout: float) -> str:
        request = pb.GetKvConfigRequest(namespace=namespace, key=key)
        return str((await self._ask(self._stub.GetKvConfig, request, timeout)).value)

    async def kv_delete(self, namespace: str, key: str, timeout: float) -> None:
        request = pb.DeleteKvConfigRequest(namespace=namespace, key=key)
        await self._ask(self._stub.DeleteKvConfig, request, timeout)

    async def kv_list(self, namespace: str, timeout: float) -> dict[str, str]:
        request = pb.ListKvConfigRequest(namespace=namespace)
        return dict((await self._ask(self._stub.ListKvConfig, request, timeout)).values)

    def open_session(self) -> RegistrationSession:
        return RegistrationSession(self, self._stub.Session())

    async def close(self) -> None:
        await self._channel.close()

    async def _ask(self, method: Any, request: Any, timeout: float) -> Any:
        answer = await self.answer(lambda: method(request, timeout=timeout))
        raise_bad(answer)
        return answer

    async def answer(
        self, call: Callable[[], Awaitable[T]], cancelled: Callable[[], bool] | None = None
    ) -> T:
        try:
            return await answer_of(self.address, call, cancelled, security=self.security)
        except NetworkFailure as error:
            raise NameServerUnavailable(Status.NAMESRV_UNREACHABLE, error.message) from None

    def unavailable(self, what: str) -> NameServerUnavailable:
        return NameServerUnavailable(Status.NAMESRV_UNREACHABLE, f"{self.address}: {what}")


class RegistrationSession:
    """One stream of registrations of one node, used by one task."""

    def __init__(self, link: NameServerLink, call: Any) -> None:
        self._link = link
        self._call = call
        self._reading: asyncio.Task[RegistrationAnswer] | None = None

    async def send(self, given: Registration) -> None:
        """NameServerUnavailable."""
        message = registration_to_pb(given)
        await self._link.answer(lambda: self._call.write(message), self._call.cancelled)

    async def receive(self) -> RegistrationAnswer:
        """The next answer. NameServerRefused; NameServerUnavailable when the stream ends."""
        reading = self.next_answer()
        await asyncio.wait((reading,))
        self._reading = None
        return reading.result()

    def next_answer(self) -> asyncio.Task[RegistrationAnswer]:
        """What the next `receive` will return: it is done early only when the stream ends. Do not cancel it,
        as gRPC would take that for the end of the whole call."""
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read())
        return self._reading

    async def _read(self) -> RegistrationAnswer:
        message = await self._link.answer(self._call.read, self._call.cancelled)
        if message is grpc.aio.EOF:
            raise self._link.unavailable("the server has ended the stream")
        return answer_from_pb(message)

    async def finish(self) -> None:
        """Tell the server that nothing more comes, which un-registers the node, and wait until it has heard:
        until NameServerUnavailable is raised."""
        await self._link.answer(self._call.done_writing, self._call.cancelled)
        while True:
            with suppress(NameServerRefused):  # of answers that were on their way
                await self.receive()

    async def close(self) -> None:
        await end_call(self._call)
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)


async def end_call(call: Any) -> None:
    """Cancel a call and wait for its last event: one that came after the loop is closed would make noise."""
    call.cancel()
    await call.code()
