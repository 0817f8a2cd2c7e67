"""A read-only client: checks routes, the bounds of queues, and the offsets of a group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import cycle
from random import Random

from broker_adapter.client import PullConsumer
from broker_adapter.errors import BrokerError
from broker_adapter.namesrv.client import NameServerClient
from chaos.trace.operations import Process
from chaos.workloads.clients import OPTIONS, queue_of
from chaos.workloads.spec import Setting

#: A group without members: the auditor assigns queues to itself and never reads a message.
GROUP = "auditors"
_PAUSE_S = (0.05, 0.25)

#: Clients under audit: one for brokers, one for the name servers, which know the terms of masters.
_Clients = tuple[PullConsumer, NameServerClient]
#: The answer to an operation, as fields of its completion.
Answer = dict[str, int]


class Auditor:
    """One client that runs one operation at a time, each kind in turn, on random queues.

    Queue bounds and offsets are linearizable, so every answer must be consistent with the answers of other
    clients.
    """

    def __init__(
        self,
        setting: Setting,
        name_servers: Sequence[str],
        topics: Sequence[str],
        queues: int,
        pause_s: tuple[float, float] = _PAUSE_S,
    ) -> None:
        """Create an auditor. `pause_s`: minimum and maximum pause between two operations."""
        self._process = Process(*setting.client("auditor"))
        self._rng = Random(setting.rng.random())
        self._name_servers = name_servers
        self._topics = topics
        self._queues = queues
        self._pause_s = pause_s
        self._stored: dict[tuple[str, int], int] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Run operations until `stop` is set and the current one has ended."""
        async with (
            PullConsumer(GROUP, self._name_servers, options=OPTIONS) as consumer,
            NameServerClient(self._name_servers) as registry,
        ):
            kinds = cycle((self._route, self._max_off, self._min_off, self._commit, self._fetch))
            while not stop.is_set():
                topic, queue = self._rng.choice(self._topics), self._rng.randrange(self._queues)
                await next(kinds)((consumer, registry), topic, queue)
                await asyncio.sleep(self._rng.uniform(*self._pause_s))

    async def _route(self, clients: _Clients, topic: str, queue: int) -> None:
        async def call() -> Answer:
            terms = (await clients[1].route(topic)).master_terms
            return {"term": max(terms.values())} if terms else {}

        await self._request("route", call, topic=topic)

    async def _max_off(self, clients: _Clients, topic: str, queue: int) -> None:
        async def call() -> Answer:
            return {"max_off": await clients[0].max_offset(queue_of(topic, queue))}

        await self._request("max_off", call, topic=topic, q=queue)

    async def _min_off(self, clients: _Clients, topic: str, queue: int) -> None:
        async def call() -> Answer:
            return {"min_off": await clients[0].min_offset(queue_of(topic, queue))}

        await self._request("min_off", call, topic=topic, q=queue)

    async def _commit(self, clients: _Clients, topic: str, queue: int) -> None:
        """Commit the offset of the previous commit plus one, even if that commit got no answer."""
        offset = self._stored[topic, queue] = self._stored.get((topic, queue), 0) + 1

        async def call() -> Answer:
            await clients[0].commit(queue_of(topic, queue), offset)
            return {}

        await self._request("commit_off", call, topic=topic, q=queue, group=GROUP, consumer=GROUP, off=offset)

    async def _fetch(self, clients: _Clients, topic: str, queue: int) -> None:
        async def call() -> Answer:
            return {"off": await clients[0].committed(queue_of(topic, queue)) or 0}

        await self._request("fetch_off", call, topic=topic, q=queue, group=GROUP, consumer=GROUP)

    async def _request(self, f: str, call: Callable[[], Awaitable[Answer]], **arguments: str | int) -> None:
        self._process.invoke(f, **arguments)
        try:
            answer = await call()
        except BrokerError as error:
            self._process.failed(error)
        else:
            self._process.ok(**answer)
