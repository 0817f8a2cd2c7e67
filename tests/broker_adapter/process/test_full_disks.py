"""The disk of a master fills up under load: refusals have a number, and one with room takes over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.errors import Status
from dledger.node.server import EXIT_FATAL
from tests.broker_adapter.process.checker import check
from tests.broker_adapter.process.load import Load
from tests.broker_adapter.process.processes import BrokerProcesses
from tests.node.local import PATIENT
from tests.process.small_disks import BALLAST, KINDS, SmallDisks, fill_up, mounted, small_disks

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("broker-full-disks")]

FILE = 256 << 10
CAPACITY = 16 << 20
SETTINGS: dict[str, Any] = {
    "timing": PATIENT,  # leadership moves because a disk is full, or not at all
    "limits": {"max_batch_bytes": 192 << 10, "max_body_bytes": 128 << 10, "tail_cache_bytes": 256 << 10},
}
FAULTY = "tests.broker_adapter.process.programs:faulty"


@pytest.fixture(params=KINDS)
def disks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisks]:
    with small_disks(request.param, tmp_path, CAPACITY) as made:
        yield made


@pytest.mark.long
async def test_a_full_master_hands_over_and_when_all_are_full_sends_are_refused(
    tmp_path: Path, disks: SmallDisks
) -> None:
    brokers = BrokerProcesses(
        tmp_path, program=FAULTY, log=SETTINGS, data_file_size=FILE, fault_injection=True
    )
    disks.attach(brokers.nodes)
    async with brokers:
        nodes = brokers.nodes
        async with Load(brokers, writers=2, pause_s=0.02, timeout=5.0, refusals=True) as load:
            await load.progress(100)
            full = await brokers.master()
            disks.fill(full)
            new = await brokers.master(other_than=full)
            status = await nodes.wait_for(lambda seen: seen[new])
            assert "transfer" in [event.cause for event in status.elections]
            await load.progress(100)
            assert Status.DISK_FULL not in load.notes.refused.values(), "there was always one with room"

            rest = brokers.slaves(full)
            for node in rest:
                disks.fill(node)
            await load.refusals(4, Status.DISK_FULL)
            for node in nodes.members:
                disks.free(node)
            await nodes.wait_for(lambda seen: len(seen) == 3 and not any(s.no_room for s in seen.values()))
            await load.progress(100)
        await check(brokers, load)


async def test_a_node_without_room_for_derived_files_stops_and_comes_back_when_there_is_some(
    tmp_path: Path,
) -> None:
    brokers = BrokerProcesses(tmp_path)
    with mounted([brokers.derived(node) for node in brokers.nodes.members], 4 << 20):
        async with brokers:
            nodes = brokers.nodes
            async with Load(brokers, writers=2, pause_s=0.02) as load:
                await load.progress(100)
                full = await brokers.master()
                nodes.expect_end(full)
                fill_up(brokers.derived(full))
                assert await nodes.ended(full, within_s=60) == EXIT_FATAL
                assert "No space left on device" in nodes.log_of(full)
                await load.progress(100)
                (brokers.derived(full) / BALLAST).unlink()
                await nodes.start([full])
                await load.progress(100)
            await check(brokers, load, may_raise=[full])
