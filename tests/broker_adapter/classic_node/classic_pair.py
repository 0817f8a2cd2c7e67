"""Brokers with classic logs inside the test's own process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from broker_adapter.config.settings import parse_settings
from broker_adapter.log.classic.node.node import ClassicNode
from broker_adapter.server.program import BrokerProgram
from dledger import RULES_VERSION
from dledger.node.setup.config import parse_config
from tests.broker_adapter.cluster import SMALL
from tests.node.local import CLUSTER, GROUP, until
from tests.process.cluster import free_ports

FILE_SIZE = 1 << 20


class ClassicPair:
    """Nodes n1, and n2 as its slave. `start` and `stop` as often as wanted."""

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], tls_of: Mapping[str, Any] | None = None
    ) -> None:
        """`tls_of`: the section [tls] of each node."""
        self.folder = folder
        self._tls_of = tls_of
        ports = free_ports(6)
        self.members = {f"n{i}": f"127.0.0.1:{ports[i - 1]}" for i in (1, 2)}
        self.ha = {f"n{i}": f"127.0.0.1:{ports[i + 1]}" for i in (1, 2)}
        self.remoting = {f"n{i}": f"127.0.0.1:{ports[i + 3]}" for i in (1, 2)}
        self._settings = settings
        self.programs: dict[str, BrokerProgram] = {}
        #: Further settings of brokers that are started from now on.
        self.more: Mapping[str, Any] = {}

    def program(self, node_id: str, **classic: Any) -> BrokerProgram:
        other = "n2" if node_id == "n1" else "n1"
        config = parse_config(
            {
                "directory": str(self.folder / node_id),
                "node_id": node_id,
                "cluster_id": CLUSTER,
                "group": GROUP,
                "members": self.members,
                **({"tls": self._tls_of[node_id]} if self._tls_of else {}),
            }
        )
        settings = {
            **SMALL,
            **self.more,
            "store": "classic",
            "remoting": {"listen": self.remoting[node_id]},
            "classic": {
                "broker_role": "SYNC_MASTER" if node_id == "n1" else "SLAVE",
                "waits_for_slaves": True,
                "file_size": FILE_SIZE,
                "ha_listen": self.ha[node_id],
                "ha_master": self.ha[other],
                **self._settings,
                **classic,
            },
        }
        return BrokerProgram(config, parse_settings(settings))

    async def start(self, *node_ids: str, **classic: Any) -> None:
        for node_id in node_ids:
            program = self.program(node_id, **classic)
            await program.make_node().start()
            await program.start()
            self.programs[node_id] = program

    async def stop(self, *node_ids: str) -> None:
        for node_id in node_ids or list(self.programs):
            program = self.programs.pop(node_id)
            await program.stop()
            await program.node.stop()

    def node(self, node_id: str) -> ClassicNode:
        node = self.programs[node_id].node
        assert isinstance(node, ClassicNode)
        return node

    async def writable(self, node_id: str) -> BrokerProgram:
        """The master, once it takes writes and has logged the version of its rules: tests read log ends."""
        program = self.programs[node_id]
        await until(lambda: program.writer.expected is not None)
        await until(lambda: program.metadata.rules_version == RULES_VERSION)
        return program

    async def in_step(self) -> None:
        """Until the slave has, and has dispatched, all that the master has."""
        ends = [self.node(node_id) for node_id in ("n1", "n2")]
        await until(lambda: len({one.log.end_offset for one in ends}) == 1)
        await until(lambda: all(one.feed.position == one.log.end_offset for one in ends))


@asynccontextmanager
async def classic_pair(
    folder: Path, *node_ids: str, tls_of: Mapping[str, Any] | None = None, **settings: Any
) -> AsyncIterator[ClassicPair]:
    pair = ClassicPair(folder, settings, tls_of)
    try:
        await pair.start(*node_ids)
        yield pair
    finally:
        await pair.stop()
