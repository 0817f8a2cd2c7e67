"""Whoever only asks: where the master is, where queues begin and end, which offsets a group has stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import cycle
from random import Random
from typing import NamedTuple

from broker_adapter.client import PullConsumer
from broker_adapter.errors import BrokerError
from broker_adapter.namesrv.client import NameServerClient
from chaos.trace.operations import Process
from chaos.workloads.clients import OPTIONS, queue_of
from chaos.workloads.spec import Setting

#: It has no members: it assigns queues to itself, and never reads a message.
GROUP = "auditors"
_PAUSE_S = (0.05, 0.25)

#: Who is asked: brokers, and the NameServer for what only brokers want to know of it.
_Asked = tuple[PullConsumer, NameServerClient]
#: The answer to an operation, as fields of its completion.
Answer = dict[str, int]


class NameServers(NamedTuple):
    """Addresses of the NameServers: for clients of brokers, and for the brokers."""

    remoting: Sequence[str]
    registry: Sequence[str]


class Auditor:
    """One client: one operation after the other, each kind in turn, on queues that are drawn. Ends of queues
    and offsets are linearizable, so what it is told has to fit what others were told before."""

    def __init__(
        self,
        setting: Setting,
        names: NameServers,
        topics: Sequence[str],
        queues: int,
        pause_s: tuple[float, float] = _PAUSE_S,
    ) -> None:
        """`pause_s`: at least and at most, between two operations."""
        self._process = Process(*setting.client("auditor"))
        self._rng = Random(setting.rng.random())
        self._names = names
        self._topics = topics
        self._queues = queues
        self._pause_s = pause_s
        self._stored: dict[tuple[str, int], int] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`, and until what is under way has ended."""
        async with (
            PullConsumer(GROUP, self._names.remoting, options=OPTIONS) as consumer,
            NameServerClient(self._names.registry) as registry,
        ):
            kinds = cycle((self._route, self._max_off, self._min_off, self._commit, self._fetch))
            while not stop.is_set():
                topic, queue = self._rng.choice(self._topics), self._rng.randrange(self._queues)
                await next(kinds)((consumer, registry), topic, queue)
                await asyncio.sleep(self._rng.uniform(*self._pause_s))

    async def _route(self, who: _Asked, topic: str, queue: int) -> None:
        async def ask() -> Answer:
            terms = (await who[1].route(topic)).master_terms
            return {"term": max(terms.values())} if terms else {}

        await self._ask("route", ask, topic=topic)

    async def _max_off(self, who: _Asked, topic: str, queue: int) -> None:
        async def ask() -> Answer:
            return {"max_off": await who[0].max_offset(queue_of(topic, queue))}

        await self._ask("max_off", ask, topic=topic, q=queue)

    async def _min_off(self, who: _Asked, topic: str, queue: int) -> None:
        async def ask() -> Answer:
            return {"min_off": await who[0].min_offset(queue_of(topic, queue))}

        await self._ask("min_off", ask, topic=topic, q=queue)

    async def _commit(self, who: _Asked, topic: str, queue: int) -> None:
        """One more than the last time, whether or not that was answered."""
        offset = self._stored[topic, queue] = self._stored.get((topic, queue), 0) + 1

        async def ask() -> Answer:
            await who[0].commit(queue_of(topic, queue), offset)
            return {}

        await self._ask("commit_off", ask, topic=topic, q=queue, group=GROUP, consumer=GROUP, off=offset)

    async def _fetch(self, who: _Asked, topic: str, queue: int) -> None:
        async def ask() -> Answer:
            return {"off": await who[0].committed(queue_of(topic, queue)) or 0}

        await self._ask("fetch_off", ask, topic=topic, q=queue, group=GROUP, consumer=GROUP)

    async def _ask(self, f: str, ask: Callable[[], Awaitable[Answer]], **arguments: str | int) -> None:
        self._process.invoke(f, **arguments)
        try:
            answer = await ask()
        except BrokerError as error:
            self._process.failed(error)
        else:
            self._process.ok(**answer)
