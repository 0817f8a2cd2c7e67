"""A real cluster that is really hurt: each fault happened when it says so, and only then."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
import pytest_asyncio

from chaos.cluster.cluster import ChaosCluster
from chaos.faults import faults
from chaos.faults.faults import Kill, NetworkFault, PauseProcesses, Terminate
from chaos.network.impairment import Impairment
from chaos.network.topology import isolate
from dledger.client import AsyncClient
from tests.node.local import until

pytestmark = [
    pytest.mark.process,
    pytest.mark.xdist_group("chaos-cluster"),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ChaosCluster]:
    folder = tmp_path_factory.mktemp("chaos")
    async with await ChaosCluster.create(folder, rng=Random(1)) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def cluster(running: ChaosCluster) -> AsyncIterator[ChaosCluster]:
    """Shared by the tests of this module, each of which has ended what it began."""
    yield running
    await running.wait_healthy(all_run=True)


async def append(cluster: ChaosCluster, body: bytes) -> int:
    async with AsyncClient(cluster.addresses, timeout=20, session=False) as client:
        return (await client.append(body)).index


async def test_nodes_talk_over_links_and_clients_past_them(cluster: ChaosCluster) -> None:
    leader = (await cluster.wait_healthy()).node_id
    follower = "n1" if leader != "n1" else "n2"
    before = {n: cluster.links.counters((leader, n)).passed_bytes for n in cluster.node_ids if n != leader}
    await append(cluster, b"x" * 100_000)
    await cluster.wait_healthy()
    for node, passed in before.items():
        assert cluster.links.counters((leader, node)).passed_bytes >= passed + 100_000
    assert cluster.links.counters((leader, follower)).passed_bytes < before[follower] + 300_000


async def test_a_killed_leader_is_replaced_and_comes_back(cluster: ChaosCluster) -> None:
    leader = await cluster.wait_healthy()
    fault = Kill(cluster, [leader.node_id])
    begun = await fault.begin()
    assert begun.happened and begun.facts[f"pid.{leader.node_id}"]
    after = await cluster.wait_leadership(after_term=leader.term)
    assert after.node_id != leader.node_id
    assert await append(cluster, b"after") > 0
    assert (await fault.end()).happened
    await cluster.wait_healthy()


async def test_killing_what_is_dead_did_not_happen(cluster: ChaosCluster) -> None:
    killed = Kill(cluster, ["n1"])
    assert (await killed.begin()).happened
    assert not (await Kill(cluster, ["n1"]).begin()).happened
    assert not (await PauseProcesses(cluster, ["n1"]).begin()).happened
    assert not (await Terminate(cluster, ["n1"]).begin()).happened
    assert (await killed.end()).happened


@pytest.mark.parametrize("kind", [Kill, PauseProcesses, Terminate])
async def test_a_fault_happened_although_the_node_answers_late(
    cluster: ChaosCluster, kind: type[Kill | PauseProcesses | Terminate], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow machine: the end does not wait longer than it may, and what happened has happened."""

    async def too_late(*_: object) -> bool:
        return False

    monkeypatch.setattr(faults, "all_answer", too_late)
    fault = kind(cluster, ["n1"])
    assert (await fault.begin()).happened
    ended = await fault.end()
    assert ended.happened and ended.facts["answered"] == 0
    await cluster.wait_healthy(all_run=True)


async def test_a_wiped_node_rejoins(cluster: ChaosCluster) -> None:
    await append(cluster, b"before")
    leader = (await cluster.wait_healthy()).node_id
    victim = next(node for node in cluster.node_ids if node != leader)
    fault = Kill(cluster, [victim], wipe=True)
    assert (await fault.begin()).happened
    assert (cluster.local.folder(victim) / "lost-1" / "store").exists()
    assert not cluster.local.store_directory(victim).exists()
    assert (await fault.end()).happened
    await cluster.wait_healthy()


async def test_a_stopped_node_is_stopped_until_the_end(cluster: ChaosCluster) -> None:
    leader = await cluster.wait_healthy()
    fault = PauseProcesses(cluster, [leader.node_id])
    assert (await fault.begin()).happened
    assert (await cluster.wait_leadership(after_term=leader.term)).node_id != leader.node_id
    assert (await fault.end()).happened
    await cluster.wait_healthy()


async def test_an_isolated_leader_is_replaced_while_it_runs(cluster: ChaosCluster) -> None:
    leader = await cluster.wait_healthy()
    pairs = isolate(cluster.node_ids, [leader.node_id])
    fault = NetworkFault(cluster, "isolate", [leader.node_id], pairs, Impairment(cut=True))
    assert (await fault.begin()).happened
    after = await cluster.wait_leadership(after_term=leader.term)
    assert after.node_id != leader.node_id
    assert await append(cluster, b"in the majority") > 0
    assert (await fault.end()).happened
    await cluster.wait_healthy()


async def test_a_rolling_restart_goes_on_while_one_node_is_down(cluster: ChaosCluster) -> None:
    fault = Terminate(cluster, cluster.node_ids)
    assert (await fault.begin()).happened
    assert await append(cluster, b"two of three") > 0
    assert (await fault.end()).happened
    await cluster.wait_healthy()


async def test_all_nodes_at_once(cluster: ChaosCluster) -> None:
    index = await append(cluster, b"kept")
    fault = Kill(cluster, cluster.node_ids)
    assert (await fault.begin()).happened
    assert await cluster.leadership() is None
    assert (await fault.end()).happened
    await cluster.wait_healthy()
    async with AsyncClient(cluster.addresses) as client:
        bodies = [entry.body async for entry in client.read(index, 1)]
    assert bodies == [b"kept"]


async def test_brokers_find_each_other_and_the_name_server_over_links(tmp_path: Path) -> None:
    async with await ChaosCluster.create(tmp_path, kind="broker", rng=Random(1)) as cluster:
        assert cluster.namesrv
        leader = (await cluster.wait_healthy()).node_id
        await until(lambda: cluster.links.counters((leader, "namesrv")).passed_bytes > 0)
