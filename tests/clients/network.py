"""The links between the nodes of a cluster, which can be cut; those of its clients cannot."""

from __future__ import annotations

import asyncio
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from chaos.network.impairment import Impairment
from chaos.network.links import Links
from dledger.cli.local.cluster_plan import to_toml
from dledger.cli.local.local_cluster import LocalCluster


class Network:
    """`lay` before the nodes start. The links run on an event loop of their own, in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._links: Links | None = None

    def lay(self, local: LocalCluster) -> None:
        asyncio.run_coroutine_threadsafe(self._lay(local), self._loop).result()

    async def _lay(self, local: LocalCluster) -> None:
        targets = {node.node_id: node.address for node in local.plan.nodes}
        self._links = Links(local.node_ids, targets, Random(0))
        await self._links.start()
        for node_id in local.node_ids:
            path = local.process(node_id).config
            config = tomllib.loads(path.read_text())
            path.write_text(to_toml({**config, "peer_addresses": self._links.addresses_of(node_id)}))

    @contextmanager
    def cut_off(self, node: str, others: list[str]) -> Iterator[None]:
        """Nothing gets from the node to others, nor back."""
        links = self._links
        assert links is not None
        pairs = [pair for other in others if other != node for pair in ((node, other), (other, node))]

        async def begin() -> object:
            return links.begin(Impairment(cut=True), pairs)

        async def end() -> None:
            links.end(fault)

        fault = asyncio.run_coroutine_threadsafe(begin(), self._loop).result()
        yield
        asyncio.run_coroutine_threadsafe(end(), self._loop).result()

    def close(self) -> None:
        if self._links is not None:
            asyncio.run_coroutine_threadsafe(self._links.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
