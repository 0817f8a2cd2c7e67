"""State images that are much larger than the memory that the nodes have for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.cluster import ProcessCluster
from tests.process.workload import Workload, others

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("process-images")]

FILE = 1 << 18
STATE_BYTES = 192 << 20
#: Of a node beside the state, none of which it needs in memory. Chunks of it are in several hands at a time.
_MOST_MORE_BYTES = 80 << 20


async def test_a_node_far_behind_copies_a_large_state_and_neither_node_holds_it_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BIG_STATE_BYTES", str(STATE_BYTES))
    settings = {"retention": {"max_bytes": 2 * FILE, "hold_bytes": 0, "check_interval": "100ms"}}
    machine = ["--state-machine", "tests.process.big_state:BigState"]
    async with ProcessCluster(
        tmp_path, settings=settings, data_file_size=FILE, server_options=machine
    ) as cluster:
        leader = await cluster.leader()
        behind, other = others(cluster, leader)
        before = {node: peak_bytes(cluster, node) for node in (leader, other)}
        async with Workload(cluster, at_once=4, size=1000, pause_s=0.005) as load:
            await load.progress(100)
            await cluster.kill(behind)
            await cluster.wait_for(
                lambda seen: len(seen) == 2 and all(s.ledger_begin_index > 100 for s in seen.values())
            )
            await cluster.start([behind])
            before[behind] = min(before.values())
            await cluster.wait_for(
                lambda seen: (
                    len(seen) == 3
                    and all(s.ledger_begin_index > 100 and not s.needs_image for s in seen.values())
                )
            )
            await load.progress(100)
        await cluster.settle()
        after = {node: peak_bytes(cluster, node) for node in cluster.members}
        assert all(after[node] - before[node] < _MOST_MORE_BYTES for node in after), (before, after)
        await load.assert_kept()


def peak_bytes(cluster: ProcessCluster, node: str) -> int:
    """Return the most memory that the process of a node has had so far."""
    status = Path(f"/proc/{cluster.processes[node].pid}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])
