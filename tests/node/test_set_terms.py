"""A cluster whose terms were driven out of range starts again at a lower one, with all its entries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dledger.client import AsyncClient
from dledger.errors import Code, StorageError
from dledger.store.disk_store import DiskLogStore
from dledger.store.offline.set_term import report_term, set_term
from tests.node.local import CLUSTER, GROUP, make_server, running_nodes, until

_NODES = ("n1", "n2", "n3")


def bomb(directory: Path, term: int) -> None:
    """As a version that believed every term has left it."""
    store = DiskLogStore.open(directory)
    store.save_hard_state(replace(store.hard_state, term=term, voted_for=None))
    store.close()


async def test_a_bombed_cluster_comes_back_by_command(tmp_path: Path) -> None:
    async with (
        running_nodes(tmp_path, 3) as servers,
        AsyncClient([s.address for s in servers], group=GROUP) as client,
    ):
        first = (await client.append(b"before")).index
    members = servers[0].config.members
    for node in _NODES:
        bomb(tmp_path / node, 2**63 - 1)
    with pytest.raises(StorageError, match="set-term") as caught:
        await make_server(tmp_path, "n1", members).start()
    assert caught.value.code is Code.TERM_REFUSED

    reports = [report_term(tmp_path / node) for node in _NODES]
    assert {report.cluster_id for report in reports} == {CLUSTER}
    to = max(report.least for report in reports)
    for node in _NODES:
        set_term(tmp_path / node, to)

    async with running_nodes(tmp_path, 3) as servers:
        assert min(s.node_status().term for s in servers) >= to
        assert max(s.node_status().term for s in servers) < to + 1000
        async with AsyncClient([s.address for s in servers], group=GROUP) as client:
            entries = [entry async for entry in client.read(first, count=1)]
            assert [entry.body for entry in entries] == [b"before"]
            assert (await client.append(b"after")).index > first


async def test_one_node_with_an_absurd_term_does_not_hinder_the_others(tmp_path: Path) -> None:
    """Its votes and answers are refused; the two others elect a leader and serve."""
    async with running_nodes(tmp_path, 3):
        pass
    bomb(tmp_path / "n3", 2**61)
    async with running_nodes(tmp_path, 3) as servers:
        async with AsyncClient([s.address for s in servers], group=GROUP) as client:
            await client.append(b"x")
        others = servers[:2]
        await until(lambda: any(s.node_status().limits_hit.get("term_advance") for s in others))
        assert max(s.node_status().term for s in others) < 1000
