"""A real cluster whose disks and clocks are faulty: each fault happened when it says so, and only then."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import pytest_asyncio

from chaos.cluster.cluster import ChaosCluster
from chaos.faults.disk_faults import BitFlip, ClockJump, FailingDisk, FullDisk, HeldUpDisk, PowerLoss
from chaos.faults.faults import Kill
from chaos.faults.nemesis import Nemesis, aim
from chaos.plans.scenario import FaultStep, Occurrence
from chaos.trace.writer import TraceWriter
from dledger.cli.local.local_cluster import ClusterError
from dledger.client import AsyncClient
from dledger.errors import DLedgerError

pytestmark = [
    pytest.mark.process,
    pytest.mark.xdist_group("chaos-disk-faults"),
    pytest.mark.asyncio(loop_scope="module"),
]

#: Two files are reserved, which a disk that is full has to use up first: on a slow machine, too.
_BODY = b"x" * (8 << 10)
SMALL = {
    "limits": {"max_batch_bytes": 64 << 10, "max_body_bytes": 32 << 10},
}


@asynccontextmanager
async def with_injection(folder: Path) -> AsyncIterator[ChaosCluster]:
    made = ChaosCluster.create(
        folder, rng=Random(1), settings=SMALL, fault_injection=True, data_file_size=128 << 10
    )
    async with await made as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ChaosCluster]:
    async with with_injection(tmp_path_factory.mktemp("chaos")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def cluster(running: ChaosCluster) -> AsyncIterator[ChaosCluster]:
    """Shared by the tests of this module, each of which has ended what it began."""
    yield running
    await running.wait_healthy(all_run=True)


class Load:
    """`async with Load(cluster):` appends all the time, whatever comes of it."""

    def __init__(self, cluster: ChaosCluster) -> None:
        self._cluster = cluster
        self.stored: list[int] = []

    async def __aenter__(self) -> Load:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def progress(self, count: int = 20) -> None:
        """Wait until so many more are acknowledged."""
        until = len(self.stored) + count
        async with asyncio.timeout(120):
            while len(self.stored) < until:
                await asyncio.wait([self._task], timeout=0.01)

    async def _run(self) -> None:
        async with AsyncClient(self._cluster.addresses, timeout=10, session=False) as client:
            while True:
                try:
                    self.stored.append((await client.append(_BODY)).index)
                except DLedgerError:
                    continue


async def follower_of(cluster: ChaosCluster) -> str:
    leader = (await cluster.wait_healthy()).node_id
    return next(node for node in cluster.node_ids if node != leader)


async def test_slow_and_stuck_disks_hold_syncs_up(cluster: ChaosCluster) -> None:
    victim = await follower_of(cluster)
    async with Load(cluster) as load:
        for fault in (HeldUpDisk(cluster, [victim], slow_ms=5), HeldUpDisk(cluster, [victim])):
            assert (await fault.begin()).happened
            await load.progress()
            ended = await fault.end()
            assert ended.happened and int(ended.facts[f"syncs.{victim}"]) > 0, fault.kind
        await cluster.wait_healthy()


async def test_a_stuck_disk_that_nobody_used_did_not_happen(cluster: ChaosCluster) -> None:
    victim = await follower_of(cluster)
    killed = Kill(cluster, [victim])
    assert (await killed.begin()).happened
    fault = HeldUpDisk(cluster, [victim])
    assert not (await fault.begin()).happened
    assert not (await fault.end()).happened
    assert (await killed.end()).happened


@pytest.mark.parametrize("kind", ["write_error", "sync_error"])
async def test_a_node_whose_disk_fails_ends_and_is_started_again(cluster: ChaosCluster, kind: str) -> None:
    leader = await cluster.wait_healthy()
    async with Load(cluster) as load:
        await load.progress()
        fault = FailingDisk(cluster, kind, [leader.node_id])
        begun = await fault.begin()
        assert begun.happened and begun.facts[f"end.{leader.node_id}"] == "failed (exit code 74)"
        assert (await cluster.wait_leadership(after_term=leader.term)).node_id != leader.node_id
        await load.progress()
        assert (await fault.end()).happened
    await cluster.wait_healthy()


async def test_a_disk_that_fails_under_a_dead_node_did_not_happen(cluster: ChaosCluster) -> None:
    assert (await Kill(cluster, ["n1"]).begin()).happened
    fault = FailingDisk(cluster, "sync_error", ["n1"])
    assert not (await fault.begin()).happened
    assert (await fault.end()).happened, "it has been started again"


async def test_a_full_leader_hands_over_and_catches_up_when_there_is_space(cluster: ChaosCluster) -> None:
    leader = await cluster.wait_healthy()
    async with Load(cluster) as load:
        fault = FullDisk(cluster, [leader.node_id])
        assert (await fault.begin()).happened
        assert (await cluster.wait_leadership(after_term=leader.term)).node_id != leader.node_id
        await load.progress()
        assert (await fault.end()).happened
    await cluster.wait_healthy()


async def test_a_power_loss_takes_what_is_not_durable_and_nothing_that_was_promised(
    cluster: ChaosCluster,
) -> None:
    async with Load(cluster) as load:
        await load.progress(50)
        fault = PowerLoss(cluster, cluster.node_ids, Random(3))
        begun = await fault.begin()
        stored = list(load.stored)
        assert begun.happened and sum(int(begun.facts[f"undone.{n}"]) for n in cluster.node_ids) > 0
        assert not (await PowerLoss(cluster, ["n1"], Random(3)).begin()).happened, "it is dead, and lost all"
        assert (await fault.end()).happened
        await load.progress()
    await cluster.wait_healthy()
    async with AsyncClient(cluster.addresses) as client:
        kept = {entry.index async for entry in client.read(0, max(stored) + 1) if entry.body}
    assert set(stored) <= kept


async def test_power_fails_while_a_leader_syncs_so_that_it_always_has_something_to_lose(
    cluster: ChaosCluster,
) -> None:
    async with Load(cluster) as load:
        for seed in range(3):
            leader = await cluster.wait_healthy()
            await load.progress()
            fault = PowerLoss(cluster, [leader.node_id], Random(seed))
            begun = await fault.begin()
            assert begun.happened and int(begun.facts[f"undone.{leader.node_id}"]) > 0
            assert (await fault.end()).happened, "its disk works again"
        await load.progress()
    await cluster.wait_healthy()


async def test_flipped_bits_are_found_and_repaired(cluster: ChaosCluster) -> None:
    async with Load(cluster) as load:
        await load.progress(150)
    await cluster.wait_healthy()
    minority = [await follower_of(cluster)]
    fault = BitFlip(cluster, minority, 3, Random(5))
    begun = await fault.begin()
    assert begun.happened and str(begun.facts["entries"]).count(minority[0]) == 3
    ended = await fault.end()
    assert ended.happened and int(ended.facts["found"]) >= 1 and ended.facts["flips"] == 3
    others = [node for node in cluster.node_ids if node not in minority]
    assert all(cluster.copies.may_lose(node) for node in others), "these entries are good again"


async def test_bits_do_not_flip_in_a_log_without_old_entries(tmp_path: Path) -> None:
    async with with_injection(tmp_path) as cluster:
        assert not (await BitFlip(cluster, [await follower_of(cluster)], 3, Random(5)).begin()).happened


async def test_a_clock_jumps_and_jumps_back(cluster: ChaosCluster) -> None:
    leader = await cluster.wait_healthy()
    for jump_s in (3600, -3600):
        fault = ClockJump(cluster, [leader.node_id], jump_s * 1000)
        assert (await fault.begin()).happened
        ended = await fault.end()
        assert ended.happened
        assert abs(int(ended.facts[f"offset_ms.{leader.node_id}"]) - jump_s * 1000) < 600_000
    assert (await cluster.wait_healthy()).term == leader.term, "nobody was deposed for it"


async def test_faults_that_overlap_happen_both_and_one_that_cannot_is_written_down(
    cluster: ChaosCluster, tmp_path: Path
) -> None:
    writer = TraceWriter(tmp_path, "run", "nemesis")
    nemesis = Nemesis(cluster, writer, Random(1))
    await cluster.wait_healthy()
    steps = [
        FaultStep(kind="slow_disk", target="all", at=0, lasts=2, slow_ms=5),
        FaultStep(kind="clock_jump", target="all", at=0, lasts=2),
        FaultStep(kind="sync_error", target="follower", at=2.5, lasts=4),
        FaultStep(kind="bit_flip", target="follower", at=3.5, lasts=1),
    ]
    async with Load(cluster):
        await nemesis.run([Occurrence(n, step.at, step) for n, step in enumerate(steps)])
    writer.close()
    failed = {done.occurrence.step.kind: done.failures for done in nemesis.done}
    assert failed["slow_disk"] == failed["clock_jump"] == failed["sync_error"] == [], failed
    assert "report their durable index" in failed["bit_flip"][0], "one node is down"
    lines = [json.loads(line) for line in (tmp_path / "raw" / "nemesis.0.jsonl").read_text().splitlines()]
    effective = {(e["f"], e["e"]): e["effective"] for e in lines if e["ev"] == "fault"}
    assert effective["slow_disk", "end"] and effective["clock_jump", "end"]
    assert effective["bit_flip", "begin"] is False


async def test_a_cluster_of_ordinary_disks_refuses_faults(tmp_path: Path) -> None:
    plain = await ChaosCluster.create(tmp_path, nodes=1, rng=Random(1))
    with pytest.raises(ClusterError, match="does not support faults"):
        await HeldUpDisk(plain, ["n1"]).begin()
    await plain.close()


async def test_a_node_is_not_wiped_while_another_one_is_not_whole(cluster: ChaosCluster) -> None:
    await cluster.wait_healthy()
    cluster.copies.damage("n1", 3)
    cluster.copies.damage("n1", 4)
    for number in range(20):
        try:
            aimed = await aim(cluster, FaultStep(kind="wipe", target="random"), Random(number), [])
        except ClusterError as error:
            assert "must not lose its log" in str(error)
        else:
            assert aimed.fault.targets == ["n1"]
    cluster.copies.repaired("n1", 3)
    cluster.copies.repaired("n1", 4)
