"""Whoever only asks: where the master is, where queues begin and end, which offsets a group has stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import cycle
from random import Random

from broker_adapter.client import PullConsumer
from broker_adapter.client.routes import RouteSource
from broker_adapter.errors import BrokerError
from chaos.trace.operations import Process
from chaos.workloads.spec import Setting

#: It has no members: it assigns queues to itself, and never reads a message.
GROUP = "auditors"
_TIMEOUT_S = 5.0
_PAUSE_S = (0.05, 0.25)

#: The answer to an operation, as fields of its completion.
Answer = dict[str, int]


class Auditor:
    """One client: one operation after the other, each kind in turn, on queues that are drawn. Ends of queues
    and offsets are linearizable, so what it is told has to fit what others were told before."""

    def __init__(
        self,
        setting: Setting,
        routes: RouteSource,
        topics: Sequence[str],
        queues: int,
        pause_s: tuple[float, float] = _PAUSE_S,
    ) -> None:
        """`pause_s`: at least and at most, between two operations."""
        self._process = Process(*setting.client("auditor"))
        self._rng = Random(setting.rng.random())
        self._routes = routes
        self._topics = topics
        self._queues = queues
        self._pause_s = pause_s
        self._stored: dict[tuple[str, int], int] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`, and until what is under way has ended."""
        async with PullConsumer(self._routes, group=GROUP, timeout=_TIMEOUT_S) as consumer:
            kinds = cycle((self._route, self._max_off, self._min_off, self._commit, self._fetch))
            while not stop.is_set():
                topic, queue = self._rng.choice(self._topics), self._rng.randrange(self._queues)
                await next(kinds)(consumer, topic, queue)
                await asyncio.sleep(self._rng.uniform(*self._pause_s))

    async def _route(self, _: PullConsumer, topic: str, queue: int) -> None:
        async def ask() -> Answer:
            route = await self._routes.route(topic)
            return {"term": max(route.master_terms.values())} if route.master_terms else {}

        await self._ask("route", ask, topic=topic)

    async def _max_off(self, consumer: PullConsumer, topic: str, queue: int) -> None:
        async def ask() -> Answer:
            return {"max_off": (await consumer.bounds(topic, queue)).max_offset}

        await self._ask("max_off", ask, topic=topic, q=queue)

    async def _min_off(self, consumer: PullConsumer, topic: str, queue: int) -> None:
        async def ask() -> Answer:
            return {"min_off": (await consumer.bounds(topic, queue)).min_offset}

        await self._ask("min_off", ask, topic=topic, q=queue)

    async def _commit(self, consumer: PullConsumer, topic: str, queue: int) -> None:
        """One more than the last time, whether or not that was answered."""
        offset = self._stored[topic, queue] = self._stored.get((topic, queue), 0) + 1

        async def ask() -> Answer:
            await consumer.commit(topic, queue, offset)
            return {}

        await self._ask("commit_off", ask, topic=topic, q=queue, group=GROUP, consumer=GROUP, off=offset)

    async def _fetch(self, consumer: PullConsumer, topic: str, queue: int) -> None:
        async def ask() -> Answer:
            return {"off": await consumer.committed(topic, queue) or 0}

        await self._ask("fetch_off", ask, topic=topic, q=queue, group=GROUP, consumer=GROUP)

    async def _ask(self, f: str, ask: Callable[[], Awaitable[Answer]], **arguments: str | int) -> None:
        self._process.invoke(f, **arguments)
        try:
            answer = await ask()
        except BrokerError as error:
            self._process.failed(error)
        else:
            self._process.ok(**answer)
