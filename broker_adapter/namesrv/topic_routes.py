"""The queues that each broker of a cluster has for a topic."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from broker_adapter.api import PERM_READ
from broker_adapter.errors import BrokerError, TopicRefused
from broker_adapter.namesrv.client import NameServerClient
from dledger import TlsFiles
from dledger.infra.logs import get_logger

#: Time after which a route is queried again. Consumers request their queues every 20 s, for each topic.
_FRESH_S = 5.0
#: Response timeout per NameServer. Consumers wait 3 s for their queues.
_ANSWER_S = 1.0
_MOST_TOPICS = 10_000

_log = get_logger("routes")


class _Known(NamedTuple):
    """`queues`: number of readable queues by broker name. `at_s`: time of the query."""

    queues: Mapping[str, int]
    at_s: float


class TopicRoutes:
    """Caches the routes of topics at the NameServers."""

    def __init__(
        self, addresses: Sequence[str], tls: TlsFiles | None, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`addresses`: of the NameServers. If there are none, topics have no routes. `now_s`: a monotonic
        clock.
        """
        self._client = NameServerClient(addresses, tls, timeout_s=_ANSWER_S) if addresses else None
        self._now_s = now_s
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._under_way: dict[str, asyncio.Task[Mapping[str, int]]] = {}

    async def readable(self, topic: str) -> Mapping[str, int]:
        """Return the number of readable queues by broker name.

        If no NameServer responds, the last known route remains valid: members must not lose their queues
        because of it.
        """
        if self._client is None:
            return {}
        known = self._known.get(topic)
        if known is not None and self._now_s() < known.at_s + _FRESH_S:
            return known.queues
        task = self._under_way.get(topic)
        if task is None:
            task = self._under_way[topic] = asyncio.create_task(self._refresh(self._client, topic))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """End the queries that are in progress."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    async def _refresh(self, client: NameServerClient, topic: str) -> Mapping[str, int]:
        before = self._known.get(topic)
        queues: Mapping[str, int] = {} if before is None else before.queues
        try:
            route = await client.route(topic)
            queues = {one.broker_name: one.read_queues for one in route.queues if one.permission & PERM_READ}
        except TopicRefused:
            queues = {}
        except BrokerError as error:
            _log.debug("the route of a topic is unknown", topic=topic, reason=str(error))
        finally:
            del self._under_way[topic]
        self._known[topic] = _Known(queues, self._now_s())
        self._known.move_to_end(topic)
        if len(self._known) > _MOST_TOPICS:
            self._known.popitem(last=False)
        return queues
