"""Where the commands find the broker: NameServers, or the nodes, which know theirs."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from broker_adapter.cli.connect.wrong_ports import mistaken_ports
from broker_adapter.client import Admin, ClientOptions
from broker_adapter.errors import BrokerError, PutRefused, Status
from broker_adapter.namesrv.client import NameServerClient
from broker_adapter.namesrv.values import ClusterInfo
from dledger import AsyncClient, NodeStatus, TlsFiles

_REGISTRATION_SECONDS = 3.0
_LOOK_SECONDS = 0.05
_NODE_SECONDS = 2.0
_REQUEST_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Target:
    """What the options of a command name. Either `namesrv` or `servers` is empty."""

    namesrv: Sequence[str]
    servers: Sequence[str]
    tls: TlsFiles | None
    timeout: float  # seconds for one call, changes of the master included
    log_group: str = "default"

    @property
    def options(self) -> ClientOptions:
        """Of clients. Lines may be empty; other brokers than ours fail at that."""
        return ClientOptions(
            timeout_s=self.timeout,
            request_timeout_s=min(self.timeout, _REQUEST_SECONDS),
            poll_name_server_s=1.0,
            least_body_bytes=0,
        )

    @property
    def client_tls(self) -> ssl.SSLContext | None:
        """For clients of the remoting protocol."""
        if self.tls is None:
            return None
        context = ssl.create_default_context(cafile=self.tls.ca)
        if self.tls.certificate is not None:
            context.load_cert_chain(self.tls.certificate, self.tls.key)
        return context

    async def name_servers(self) -> list[str]:
        """Addresses of the NameServers for clients. A NameServer that is being started answers a moment
        later, and then brokers register with it: they are waited for.

        PutRefused (NOT_CONNECTED) if there is none that speaks the remoting protocol.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(self.timeout, _REGISTRATION_SECONDS)
        while True:
            infos = await self.cluster_infos()
            found = [info for info in infos.values() if isinstance(info, ClusterInfo)]
            addresses = [info.remoting_address for info in found if info.remoting_address]
            if (addresses and any(info.brokers for info in found)) or loop.time() > deadline:
                break
            await asyncio.sleep(_LOOK_SECONDS)
        if addresses:
            return addresses
        failures = "; ".join(str(info) for info in infos.values() if isinstance(info, BrokerError))
        mistakes = await self._mistaken_ports(self.namesrv, are_nodes=False) if failures else ""
        problem = f"no NameServer answers: {failures}" if failures else "no NameServer has remoting_listen"
        raise PutRefused(Status.NOT_CONNECTED, mistakes or problem)

    async def _mistaken_ports(self, addresses: Sequence[str], *, are_nodes: bool) -> str:
        found = await mistaken_ports(
            addresses, are_nodes=are_nodes, tls=self.tls, remoting_tls=self.client_tls
        )
        return "; ".join(found)

    async def cluster_infos(self) -> Mapping[str, ClusterInfo | BrokerError]:
        """What each NameServer says."""
        names = list(self.namesrv) or await self._names_of_nodes()
        async with NameServerClient(names, self.tls) as client:
            return await client.cluster_infos()

    async def _names_of_nodes(self) -> list[str]:
        """NameServers with which the brokers on the nodes register."""
        async with AsyncClient(self.servers, group=self.log_group, session=False, tls=self.tls) as client:
            answers = await client.status(timeout=min(self.timeout, _NODE_SECONDS))
        owners: list[Mapping[str, Any]] = [
            answer.owner for answer in answers.values() if isinstance(answer, NodeStatus)
        ]
        names = sorted({name for owner in owners for name in owner.get("nameservers", ())})
        if names:
            return names
        failures = [str(answer) for answer in answers.values() if not isinstance(answer, NodeStatus)]
        problem = "; ".join(failures) or "their brokers register with no NameServer"
        mistakes = await self._mistaken_ports(self.servers, are_nodes=True) if failures else ""
        raise PutRefused(Status.NOT_CONNECTED, mistakes or f"{', '.join(self.servers)}: {problem}")

    @asynccontextmanager
    async def admin(self) -> AsyncGenerator[Admin, None]:
        names = await self.name_servers()
        async with Admin(names, options=self.options, tls=self.client_tls) as admin:
            yield admin
