"""The addresses at which RocketMQ 4 clients reach a development broker, given after its start.

A container's ports are mapped to ports that are known only once it runs. `PUT /advertise` at the port of the
status page sets the addresses in routes.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from broker_adapter.errors import IllegalMessage, Status
from broker_adapter.server.record_limits import resolve_store_host
from dledger import ConfigError, NodeServer
from dledger.infra.addresses import is_destination, join_address
from dledger.infra.loops.threads import in_thread

if TYPE_CHECKING:
    from aiohttp import web

    from broker_adapter.server.program import BrokerProgram
    from dledger import NodeStatus

#: Interval of the checks whether NameServers have the registration (seconds). Each check costs microseconds.
_CHECK_S = 0.005
#: Maximum time until a NameServer in this process has the registration (seconds).
_REGISTERED_S = 10.0
#: Maximum time to resolve the name of the host, and to receive the body of a request (seconds).
_RESOLVE_S = 2.0
_BODY_S = 5.0

_Port = Annotated[int, Field(ge=1, le=65535)]


def _check_host(host: str) -> str:
    if not is_destination(host):
        raise PydanticCustomError(
            "host", "a host name, or an IP address without brackets other than 0.0.0.0 and ::, is required"
        )
    return host


class AdvertisedPorts(BaseModel):
    """The body of a request.

    `host`: name or IP address (IPv6 without brackets) at which clients reach the ports. `broker`: port that
    leads to the broker's port. `send_only`: port that leads to its send-only port, or None if no port does.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    host: Annotated[str, AfterValidator(_check_host)]
    broker: _Port
    send_only: _Port | None = None

    @property
    def address(self) -> str:
        return join_address(self.host, self.broker)

    @property
    def send_address(self) -> str:
        return "" if self.send_only is None else join_address(self.host, self.send_only)


def parse_ports(body: bytes) -> AdvertisedPorts:
    """Parse the body of a request. Raises IllegalMessage (REQUEST_MALFORMED, FIELD_OUT_OF_RANGE)."""
    try:
        return AdvertisedPorts.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"]))
        status = Status.FIELD_OUT_OF_RANGE if field else Status.REQUEST_MALFORMED
        raise IllegalMessage(status, f"{field}: {first['msg']}" if field else first["msg"]) from None


class Advertising:
    """Withholds a broker from all routes until `advertise` is called. Create it before the broker starts.

    Also implements `StatusSource`: the status of the node, with a health other than "ok" until then.
    """

    def __init__(self, broker: BrokerProgram, node: NodeServer) -> None:
        self._broker, self._node = broker, node
        self._is_waiting = True
        #: Requests are registered one after the other, so that each response is true when it is sent.
        self._registering = asyncio.Lock()
        broker.remoting.advertise("", "")

    async def put(self, request: web.Request) -> web.StreamResponse:
        """Handle `PUT /advertise`. Nothing changes if the body is invalid."""
        from dledger.infra.http.server import json_answer

        try:
            async with asyncio.timeout(_BODY_S):
                body = await request.read()
        except TimeoutError:
            return json_answer(request, 408, {"error": f"no complete request within {_BODY_S:g} s"})
        try:
            ports = parse_ports(body)
        except IllegalMessage as error:
            return json_answer(request, 400, {"error": str(error)})
        try:
            await self.advertise(ports)
        except TimeoutError:
            return json_answer(request, 504, {"error": "the NameServer did not respond in time"})
        return json_answer(request, 200, {"broker": ports.address, "send_only": ports.send_address})

    async def advertise(self, ports: AdvertisedPorts) -> None:
        """Replace the addresses in routes. Returns once NameServers have them.

        Raises TimeoutError if that takes longer than ten seconds. They are registered then as soon as the
        NameServer responds.
        """
        broker, store_host = self._broker, None
        try:
            # Message ids contain an IP address. This machine may not know the name by which clients know it.
            # A thread of its own, because a resolver may block for a minute, and other work and the end of
            # the process would wait for a thread of the loop.
            async with asyncio.timeout(_RESOLVE_S):
                store_host = await in_thread(partial(resolve_store_host, ports.address), "resolve")
        except (ConfigError, TimeoutError):
            pass
        async with self._registering, asyncio.timeout(_REGISTERED_S):
            if store_host is not None:
                broker.writer.set_store_host(store_host)
            broker.remoting.advertise(ports.address, ports.send_address)
            broker.register()
            while not self._is_registered():
                await asyncio.sleep(_CHECK_S)

    def _is_registered(self) -> bool:
        return all(one.registered for one in self._broker.registrations().values())

    def node_status(self) -> NodeStatus:
        status = self._node.status.node_status()
        # Not only after a response: the client may have disconnected, or the NameServer was slow.
        if self._is_waiting and self._broker.remoting.advertised and self._is_registered():
            self._is_waiting = False
        if self._is_waiting and status.health == "ok":
            return replace(status, health="waiting for the advertised address: PUT /advertise")
        return status

    async def cluster_status(self) -> dict[str, NodeStatus | str]:
        return await self._node.status.cluster_status()

    def metrics_text(self) -> bytes:
        return self._node.status.metrics_text()
