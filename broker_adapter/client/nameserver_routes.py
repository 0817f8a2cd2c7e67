"""Routes from NameServers, as the clients of brokers want them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import aclosing

from broker_adapter.client.routes import Route, StaticRoute
from broker_adapter.errors import BrokerError, Status, TopicRefused
from broker_adapter.namesrv.client import NameServerClient
from broker_adapter.namesrv.values import MASTER_ID, BrokerEntry, ClusterInfo
from broker_adapter.rpc.broker_client import NotConnected
from dledger import TlsFiles


class NameServerRoutes:
    """Implements `RouteSource`, and `BrokerSource` for `Admin`.

    A topic that no NameServer knows has a route without queues that shows all brokers: so the first message
    creates the topic, where brokers do that.

    Args:
        addresses: "host:port" of the NameServers, as a sequence or separated by commas.
        tls: PEM files for TLS; None: plain text.
    """

    def __init__(self, addresses: Iterable[str] | str, *, tls: TlsFiles | None = None) -> None:
        named = addresses.split(",") if isinstance(addresses, str) else addresses
        self._client = NameServerClient([a.strip() for a in named if a.strip()], tls)

    async def route(self, topic: str) -> Route:
        try:
            return await self._client.route(topic)
        except TopicRefused as error:
            if error.status is not Status.TOPIC_UNKNOWN:
                raise
        entries = await self._entries()
        return StaticRoute(topic, {}, _addresses(entries), _terms(entries))

    async def brokers(self) -> Mapping[str, Mapping[int, str]]:
        """Broker name -> broker id -> address. NotConnected if no NameServer answers."""
        return _addresses(await self._entries())

    async def watch(self, topics: Collection[str]) -> AsyncIterator[Route]:
        async with aclosing(self._client.watch(topics)) as routes:
            async for route in routes:
                yield route

    async def close(self) -> None:
        await self._client.close()

    async def _entries(self) -> list[BrokerEntry]:
        """What the NameServers know, all of them: they do not know of each other."""
        infos = await self._client.cluster_infos()
        found = [entry for info in infos.values() if isinstance(info, ClusterInfo) for entry in info.brokers]
        failures = [str(info) for info in infos.values() if isinstance(info, BrokerError)]
        if len(failures) == len(infos):
            raise NotConnected(f"no NameServer answers: {'; '.join(failures)}")
        return found


def _addresses(entries: Iterable[BrokerEntry]) -> dict[str, dict[int, str]]:
    """Of several that one name has as master, that of the highest term is it."""
    brokers: dict[str, dict[int, str]] = {}
    for entry in sorted(entries, key=lambda entry: entry.term):
        if entry.broker_id >= MASTER_ID:
            brokers.setdefault(entry.broker_name, {})[entry.broker_id] = entry.address
    return brokers


def _terms(entries: Iterable[BrokerEntry]) -> dict[str, int]:
    terms: dict[str, int] = {}
    for entry in entries:
        if entry.broker_id == MASTER_ID:
            terms[entry.broker_name] = max(entry.term, terms.get(entry.broker_name, -1))
    return terms
