"""The target of a command: NameServers, or nodes from which it gets the addresses of NameServers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from broker_adapter.client import Admin, ClientOptions
from broker_adapter.errors import BrokerError, PutRefused, Status
from broker_adapter.namesrv.client import NameServerClient
from broker_adapter.namesrv.values import ClusterInfo
from dledger import AsyncClient, NodeStatus, TlsFiles

_REGISTRATION_SECONDS = 3.0
_POLL_SECONDS = 0.05
_NODE_SECONDS = 2.0
_REQUEST_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Target:
    """The target that the options of a command select. Either `namesrv` or `servers` is empty."""

    namesrv: Sequence[str]
    servers: Sequence[str]
    tls: TlsFiles | None
    timeout: float  # for one call, including changes of the master
    log_group: str = "default"

    @property
    def options(self) -> ClientOptions:
        """Client options for commands. They permit empty messages, which RocketMQ's brokers reject."""
        return ClientOptions(
            timeout=self.timeout,
            request_timeout=min(self.timeout, _REQUEST_SECONDS),
            poll_name_server_s=1.0,
            least_body_bytes=0,
        )

    @property
    def client_tls(self) -> ssl.SSLContext | None:
        """The TLS context for remoting clients."""
        if self.tls is None:
            return None
        context = ssl.create_default_context(cafile=self.tls.ca)
        if self.tls.certificate is not None:
            context.load_cert_chain(self.tls.certificate, self.tls.key)
        return context

    async def name_servers(self) -> list[str]:
        """Return the addresses of the NameServers that respond.

        Waits briefly for NameServers to start and for brokers to register. Raises PutRefused (NOT_CONNECTED)
        if no NameServer responds.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(self.timeout, _REGISTRATION_SECONDS)
        while True:
            infos = await self.cluster_infos()
            found = {name: info for name, info in infos.items() if isinstance(info, ClusterInfo)}
            if any(info.brokers for info in found.values()) or loop.time() > deadline:
                break
            await asyncio.sleep(_POLL_SECONDS)
        if found:
            return list(found)
        raise unreachable(infos)

    async def cluster_infos(self) -> Mapping[str, ClusterInfo | BrokerError]:
        """Query each NameServer. Return its cluster information, or the error, by address."""
        names = list(self.namesrv) or await self._names_of_nodes()
        async with NameServerClient(names, self.tls) as client:
            return await client.cluster_infos()

    async def _names_of_nodes(self) -> list[str]:
        """Return the NameServers with which the nodes' brokers register."""
        async with AsyncClient(self.servers, group=self.log_group, session=False, tls=self.tls) as client:
            answers = await client.status(timeout=min(self.timeout, _NODE_SECONDS))
        owners: list[Mapping[str, Any]] = [
            answer.owner for answer in answers.values() if isinstance(answer, NodeStatus)
        ]
        names = sorted({name for owner in owners for name in owner.get("nameservers", ())})
        if names:
            return names
        failures = [answer.message for answer in answers.values() if not isinstance(answer, NodeStatus)]
        problem = f"{', '.join(self.servers)}: their brokers do not register with a NameServer"
        raise PutRefused(Status.NOT_CONNECTED, "; ".join(failures) or problem)

    @asynccontextmanager
    async def admin(self) -> AsyncGenerator[Admin, None]:
        names = await self.name_servers()
        async with Admin(names, options=self.options, tls=self.client_tls) as admin:
            yield admin


def unreachable(infos: Mapping[str, ClusterInfo | BrokerError]) -> PutRefused:
    """Return the error to report when no NameServer has responded."""
    failures = (info.message for info in infos.values() if isinstance(info, BrokerError))
    return PutRefused(Status.NOT_CONNECTED, f"no NameServer responded: {'; '.join(failures)}")
