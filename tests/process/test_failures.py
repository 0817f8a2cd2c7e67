"""Real processes, real signals: nothing acknowledged is lost, whatever dies, stops or comes back."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from dledger.errors import Code, DLedgerError
from dledger.rpc.log_client import LogClient
from dledger.status.model import ElectionEvent, NodeStatus
from tests.node.local import PATIENT
from tests.process.cluster import GROUP, ProcessCluster
from tests.process.workload import Workload, assert_nothing_lost, others

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("process-failures")]


async def test_leaders_that_are_killed(tmp_path: Path) -> None:
    async with ProcessCluster(tmp_path) as cluster:
        await cluster.leader()
        async with Workload(cluster) as load:
            await load.progress(50)
            for _ in range(3):
                leader = await cluster.leader()
                await cluster.kill(leader)
                await cluster.leader(nodes=others(cluster, leader))
                await load.progress(50)
                await cluster.start([leader])
                await load.progress(50)
        await assert_nothing_lost(cluster, load.acknowledged)


@pytest.mark.smoke
async def test_a_killed_leader_is_replaced_through_its_broken_stream(tmp_path: Path) -> None:
    """Long election time-outs: whoever stands for election first does so because a stream has broken."""
    slow = {"timing": {"heartbeat_ms": 1000, "election_min_ms": 20_000, "election_max_ms": 30_000}}
    async with ProcessCluster(tmp_path, settings=slow) as cluster:
        leader = await cluster.leader()
        await cluster.settle()
        await cluster.kill(leader)
        rest = others(cluster, leader)
        await cluster.leader(nodes=rest)
        seen = await cluster.wait_for(lambda seen: seen if set(rest) <= set(seen) else None)
        stood = [event for node in rest for event in candidacies_since(seen[node], leader)]
        assert min(stood, key=lambda event: event.unix_ms).cause == "stream-lost"


async def test_a_stopped_leader_is_replaced_through_its_silence(tmp_path: Path) -> None:
    """Long election time-outs, and a stop breaks no stream: only the silence can be the cause."""
    slow = {"heartbeat_ms": 100, "election_min_ms": 20_000, "election_max_ms": 30_000, "silence_ms": 2_000}
    async with ProcessCluster(tmp_path, settings={"timing": slow}) as cluster:
        leader = await cluster.leader()
        await cluster.settle()
        cluster.signal(leader, signal.SIGSTOP)
        rest = others(cluster, leader)
        await cluster.leader(nodes=rest)
        seen = await cluster.wait_for(lambda seen: seen if set(rest) <= set(seen) else None)
        stood = [event for node in rest for event in candidacies_since(seen[node], leader)]
        assert min(stood, key=lambda event: event.unix_ms).cause == "leader-silent"
        cluster.signal(leader, signal.SIGCONT)
        await cluster.leader()


def candidacies_since(status: NodeStatus, leader: str) -> list[ElectionEvent]:
    """What the node stood for after it had last seen this leader."""
    seen = [i for i, event in enumerate(status.elections) if event.leader_id == leader]
    return [event for event in status.elections[seen[-1] :] if event.role == "CANDIDATE"]


async def test_a_leader_that_is_stopped_and_wakes(tmp_path: Path) -> None:
    async with ProcessCluster(tmp_path, settings={"timing": PATIENT}) as cluster:
        old = await cluster.leader()
        async with Workload(cluster) as load:
            await load.progress(50)
            cluster.signal(old, signal.SIGSTOP)
            new = await cluster.leader(nodes=others(cluster, old))
            await load.progress(50)
            # Both lie in the sleeper's sockets when it wakes, and still believes that it leads.
            client = LogClient(cluster.members[old], GROUP)
            stale = asyncio.create_task(append_directly(client, b"from the past"))
            read = asyncio.create_task(read_index_directly(client))
            await load.progress(20)
            acknowledged_before = max(load.acknowledged)
            cluster.signal(old, signal.SIGCONT)
            outcome, point = await asyncio.gather(stale, read)
            await cluster.leader()
            await load.progress(50)
            await client.close()
        status = await cluster.status(new)
        assert status is not None
        if isinstance(outcome, int):  # then it went through the new leader's log after all
            load.acknowledged.setdefault(outcome, -1)
        assert not isinstance(point, int) or point >= acknowledged_before, "a stale read was served"
        await cluster.settle()
        acknowledged = {i: n for i, n in load.acknowledged.items() if n >= 0}
        await assert_nothing_lost(cluster, acknowledged)
        if isinstance(outcome, int):
            for node in cluster.members:
                assert cluster.stored_entries(node)[outcome].body == b"from the past"


async def append_directly(client: LogClient, body: bytes) -> int | DLedgerError:
    stream = client.open_append_stream()
    try:
        await stream.send(1, [body], None, 5000)
        answer = await stream.receive()
    except DLedgerError as error:
        return error
    return answer.error or answer.index


async def read_index_directly(client: LogClient) -> int | DLedgerError:
    try:
        return await client.read_index(10)
    except DLedgerError as error:
        return error


async def test_all_nodes_killed_at_once(tmp_path: Path) -> None:
    async with ProcessCluster(tmp_path) as cluster:
        await cluster.leader()
        async with Workload(cluster) as load:
            for _ in range(2):
                await load.progress(100)
                await cluster.kill(*cluster.members)
                await cluster.start()
                await cluster.leader()
            await load.progress(100)
        await assert_nothing_lost(cluster, load.acknowledged)


async def test_a_rolling_restart_under_load(tmp_path: Path) -> None:
    async with ProcessCluster(tmp_path) as cluster:
        await cluster.settle()
        async with Workload(cluster) as load:
            await load.progress(50)
            for node in list(cluster.members):
                assert await cluster.stop(node) == 0
                await load.progress(50)
                await cluster.start([node])

                def is_back(seen: dict, node: str = node) -> bool:  # type: ignore[type-arg]
                    return node in seen and bool(seen[node].leader_id)

                await cluster.wait_for(is_back)
                await load.progress(50)
        await assert_nothing_lost(cluster, load.acknowledged)


async def test_a_node_whose_followers_are_gone_acknowledges_and_confirms_nothing(tmp_path: Path) -> None:
    async with ProcessCluster(tmp_path, settings={"timing": PATIENT}) as cluster:
        leader = await cluster.leader()
        await cluster.settle()
        await cluster.kill(*others(cluster, leader))
        client = LogClient(cluster.members[leader], GROUP)
        append, read = await asyncio.gather(append_directly(client, b"alone"), read_index_directly(client))
        assert isinstance(append, DLedgerError) and isinstance(read, DLedgerError)
        assert read.code in (Code.READ_NOT_CONFIRMED, Code.NOT_LEADER)
        await client.close()
        await cluster.start(others(cluster, leader))
        await cluster.settle()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_end_a_node_in_order(tmp_path: Path, number: signal.Signals) -> None:
    async with ProcessCluster(tmp_path, size=1) as cluster:
        await cluster.leader()
        cluster.expect_end("n1")
        cluster.signal("n1", number)
        assert await cluster.stop("n1") == 0
        assert "event=stopped" in cluster.log_of("n1")


async def test_a_node_that_cannot_start_says_why_and_ends(tmp_path: Path) -> None:
    cluster = ProcessCluster(tmp_path, size=1)
    config = tmp_path / "n1.toml"
    config.write_text("nodeid = 1\n" + config.read_text())
    async with cluster:
        cluster.expect_end("n1")
        assert await cluster.ended("n1") == 2
        assert "did you mean node_id?" in cluster.log_of("n1")


async def test_a_node_whose_files_vanish_ends_itself_and_the_others_go_on(tmp_path: Path) -> None:
    async with ProcessCluster(tmp_path) as cluster:
        leader = await cluster.leader()
        async with Workload(cluster) as load:
            await load.progress(20)
            cluster.expect_end(leader)
            for path in (tmp_path / leader / "data").iterdir():
                path.unlink()
            assert await cluster.ended(leader) == 74
            await load.progress(50)
        assert 'event="fatal: the node stops"' in cluster.log_of(leader)
