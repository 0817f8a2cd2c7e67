"""Nodes with brokers inside the test's own process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from broker_adapter.api import GetMessageStatus, OutgoingMessage
from broker_adapter.config.settings import parse_settings
from broker_adapter.server.program import BrokerProgram
from broker_adapter.wire.message import decode
from dledger import NodeConfig
from dledger.node.setup.config import parse_config
from tests.node.local import CLUSTER, GROUP, PATIENT, first_leader, until
from tests.process.cluster import free_ports

#: Small enough that a test sees files end; the index as small as its layout allows.
SMALL: dict[str, Any] = {
    "units_per_file": 50,
    "index_slots": 100,
    "index_items": 400,
    "checkpoint_ms": 200,
    "default_queues": 2,
}


class BrokerCluster:
    """`programs` by node id, started; `stop` and `start` one by one as often as wanted."""

    def __init__(
        self,
        folder: Path,
        count: int,
        settings: Mapping[str, Any],
        more: Mapping[str, Any],
        tls_of: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        self.members = {f"n{i}": f"127.0.0.1:{port}" for i, port in enumerate(free_ports(count), 1)}
        self._settings = {**SMALL, **settings}
        self._more = more
        self._tls_of = tls_of
        self._options = options or {}
        self.programs: dict[str, BrokerProgram] = {}

    def config(self, node_id: str) -> NodeConfig:
        return parse_config(
            {
                "directory": str(self.folder / node_id),
                "node_id": node_id,
                "cluster_id": CLUSTER,
                "group": GROUP,
                "members": self.members,
                "timing": PATIENT,
                **({"tls": self._tls_of[node_id]} if self._tls_of else {}),
                **self._more,
            }
        )

    async def start(self, *node_ids: str) -> None:
        for node_id in node_ids or self.members:
            program = BrokerProgram(self.config(node_id), parse_settings(self._settings))
            node = program.make_node(**self._options)
            await node.start()
            await program.start()
            self.programs[node_id] = program

    async def stop(self, *node_ids: str) -> None:
        for node_id in node_ids or list(self.programs):
            program = self.programs.pop(node_id)
            await program.stop()
            await program.node.stop()

    @property
    def masters(self) -> list[BrokerProgram]:
        return [p for p in self.programs.values() if p.writer.expected is not None]

    async def master(self, other_than: str = "") -> BrokerProgram:
        def found() -> BrokerProgram | None:
            """At one moment: the machine may stand still for so long that another one is elected."""
            everybody_knows = all(p.node.leader_id for p in self.programs.values())
            others = (p for p in self.masters if p.config.node_id != other_than)
            return next(others, None) if everybody_knows else None

        await until(lambda: found() is not None)
        master = found()
        assert master is not None, "nothing else has run since"
        return master


async def in_step(*programs: BrokerProgram) -> None:
    """Until they have dispatched, also to the index, all that any of them knows to be committed."""
    end = max(program.node.committed_index for program in programs)
    await until(lambda: all(program.node.applied_index >= end for program in programs))
    await until(lambda: all(program.dispatcher.figures().index_pending == 0 for program in programs))


async def bodies(program: BrokerProgram, topic: str, queue_id: int, tags: Sequence[str] = ()) -> list[bytes]:
    """All that this broker has of a queue, read from its least offset on."""
    found: list[bytes] = []
    offset = program.files.bounds(topic, queue_id)[0]
    while True:
        result = await program.broker.pull(topic, queue_id, offset, tags=tags)
        found += [decode(record).body for record in result.records]
        if result.status not in (GetMessageStatus.FOUND, GetMessageStatus.NO_MATCHED_MESSAGE):
            return found
        offset = result.next_offset


def messages(*texts: str, **properties: str) -> list[OutgoingMessage]:
    return [OutgoingMessage(text.encode(), properties) for text in texts]


@asynccontextmanager
async def brokers(
    folder: Path,
    count: int = 3,
    settings: Mapping[str, Any] | None = None,
    *,
    tls_of: Mapping[str, Any] | None = None,
    data_file_size: int = 4 << 20,
    options: Mapping[str, Any] | None = None,
    **more: Any,
) -> AsyncIterator[BrokerCluster]:
    """A started cluster with a writable master. `tls_of`: the section [tls] of each node. `options` of
    each `NodeServer`, as `wall_ms`."""
    from dledger.store.identity import Identity, init_directory

    cluster = BrokerCluster(folder, count, settings or {}, more, tls_of, options)
    for node_id in cluster.members:
        init_directory(folder / node_id, Identity(CLUSTER, GROUP, node_id, data_file_size=data_file_size))
    try:
        await cluster.start()
        await first_leader([program.node for program in cluster.programs.values()])
        await cluster.master()
        yield cluster
    finally:
        await cluster.stop()
