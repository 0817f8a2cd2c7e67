"""Real nodes whose disks rot (rule 10)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dledger.errors import Code, DLedgerError
from dledger.node.server import NodeServer
from dledger.replica.log_state import LogState
from dledger.rpc.log_client import LogClient
from dledger.store.api import EntryDamaged
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.layout import file_name
from tests.node.disk.faulty_disk import FaultyDisk
from tests.node.local import GROUP, leader_of, make_server, running_nodes, until
from tests.node.test_bad_days import FILE, SMALL, Counter, equal_and_committed, fill, read_all

#: No automatic scrub: what a test is about is to find the damage.
QUIET = {**SMALL, "scrub": {"bytes_per_second": 0}}


def flip_at(directory: Path, pos: int) -> None:
    """Change the byte at a position of the log."""
    with (directory / "data" / file_name(pos - pos % FILE)).open("r+b") as file:
        file.seek(pos % FILE)
        old = file.read(1)[0]
        file.seek(pos % FILE)
        file.write(bytes([old ^ 1]))


async def test_rule_10_a_start_repairs_what_its_sessions_are_rebuilt_from(tmp_path: Path) -> None:
    """Entries below the checkpoint are not looked at by a start, unless the stored table is lost."""
    async with running_nodes(tmp_path, 3, SMALL, data_file_size=FILE) as servers:
        await fill(servers, 100)
        await until(lambda: equal_and_committed(servers))
        node = next(s for s in servers if s is not leader_of(servers))
        directory, members = node.config.directory, node.config.members
        head = next(iter(node.store.iter_heads(10)))
        await node.stop()
        servers.remove(node)
        (directory / "sessions").unlink()
        flip_at(directory, head.pos + 50)
        store = DiskLogStore.open(directory)
        assert not store.damages, "nobody has looked"
        with pytest.raises(EntryDamaged):
            LogState(max_sessions=100).rebuild(store, store.end_index, 0)
        store.close()
        back = make_server(tmp_path, node.config.node_id, members, SMALL)
        await back.start()
        servers.append(back)
        await until(lambda: not back.node_status().rebuilding)
        assert not back.node_status().damaged and back.node_status().sessions == 1
        assert len(await read_all(leader_of(servers))) == 100


@asynccontextmanager
async def rotting_nodes(folder: Path) -> AsyncIterator[tuple[list[NodeServer], dict[str, FaultyDisk]]]:
    """Three nodes with 100 entries, and their disks."""
    disks = {f"n{i}": FaultyDisk(folder / f"n{i}") for i in (1, 2, 3)}
    async with running_nodes(folder, 3, QUIET, data_file_size=FILE, disks=disks) as servers:
        await fill(servers, 100)
        await until(lambda: equal_and_committed(servers))
        yield servers, disks


def rot_entry(node: NodeServer, disk: FaultyDisk, index: int) -> None:
    pos = node.store.entry(index).pos
    disk.rot(node.config.directory / "data" / file_name(pos - pos % FILE), pos % FILE)


def rot_record(node: NodeServer, disk: FaultyDisk, index: int) -> None:
    [first, *_] = sorted((node.config.directory / "index").iterdir())
    disk.rot(first, index * 32)


async def repaired(node: NodeServer) -> None:
    await until(lambda: node.node_status().repaired > 0 and not node.node_status().damaged)


async def test_rule_10_a_reader_that_meets_a_bad_sector_gets_640_and_the_node_mends_it(
    tmp_path: Path,
) -> None:
    async with rotting_nodes(tmp_path) as (servers, disks):
        for node in (leader_of(servers), next(s for s in servers if s is not leader_of(servers))):
            rot_entry(node, disks[node.config.node_id], 50)
            client = LogClient(node.address, GROUP)
            with pytest.raises(DLedgerError) as caught:
                async for _ in client.read(0, 0, follow=False, linearizable=False, include_internal=False):
                    pass
            await client.close()
            assert caught.value.code is Code.DATA_DAMAGED
            await repaired(node)
            assert len(await read_all(node)) == 100


async def test_rule_10_a_scrub_finds_bad_sectors_of_data_and_index(tmp_path: Path) -> None:
    async with rotting_nodes(tmp_path) as (servers, disks):
        node = leader_of(servers)
        rot_entry(node, disks[node.config.node_id], 50)
        rot_record(node, disks[node.config.node_id], 3)
        client = LogClient(node.address, GROUP)
        for _ in range(3):  # records are written again one range at a time
            found = [damage async for step in client.scrub(0) for damage in step.found]
            await until(lambda: not node.node_status().damaged)
            if not found:
                break
        await client.close()
        assert node.node_status().repaired > 0
        assert len(await read_all(node)) == 100


async def test_rule_10_a_leader_that_cannot_read_what_a_late_follower_lacks_is_repaired_first(
    tmp_path: Path,
) -> None:
    async with rotting_nodes(tmp_path) as (servers, disks):
        late = next(s for s in servers if s is not leader_of(servers))
        node_id, members = late.config.node_id, late.config.members
        await late.stop()
        servers.remove(late)
        await fill(servers, 300)
        for node in servers:  # whoever leads
            rot_entry(node, disks[node.config.node_id], 180 if node is leader_of(servers) else 250)
        back = make_server(tmp_path, node_id, members, QUIET, disk=disks[node_id])
        await back.start()
        servers.append(back)
        await until(lambda: equal_and_committed(servers))
        assert len(await read_all(back)) == 400


async def test_rule_10_a_backup_meets_a_bad_sector_and_works_after_the_repair(tmp_path: Path) -> None:
    async with rotting_nodes(tmp_path) as (servers, disks):
        node = leader_of(servers)
        rot_entry(node, disks[node.config.node_id], 50)
        client = LogClient(node.address, GROUP)
        with pytest.raises(DLedgerError) as caught:
            async for _ in client.backup():
                pass
        assert caught.value.code is Code.DATA_DAMAGED
        await repaired(node)
        parts = [part async for part in client.backup()]
        assert b"".join(p for p in parts if isinstance(p, bytes)).count(b"000099") == 1
        await client.close()


async def test_rule_10_a_state_machine_waits_for_the_repair_of_what_it_is_to_apply(tmp_path: Path) -> None:
    async with rotting_nodes(tmp_path) as (servers, disks):
        node = next(s for s in servers if s is not leader_of(servers))
        node_id = node.config.node_id
        rot_entry(node, disks[node_id], 50)
        await node.stop()
        servers.remove(node)
        machine = Counter()
        back = make_server(
            tmp_path, node_id, node.config.members, QUIET, disk=disks[node_id], machine=machine
        )
        await back.start()
        servers.append(back)
        await until(lambda: machine.count == 100)
        assert not back.node_status().damaged


async def test_rule_10_a_start_reads_around_a_bad_sector_at_the_end_and_rejoins(tmp_path: Path) -> None:
    async with rotting_nodes(tmp_path) as (servers, disks):
        node = next(s for s in servers if s is not leader_of(servers))
        node_id, end = node.config.node_id, node.store.end_index
        pos = node.store.entry(end).pos
        await node.stop()
        servers.remove(node)
        path = node.config.directory / "data" / file_name(pos - pos % FILE)
        disks[node_id].rot(path, pos % FILE)
        back = make_server(tmp_path, node_id, node.config.members, QUIET, disk=disks[node_id])
        await back.start()
        servers.append(back)
        await until(lambda: back.node_status().rejoining == "" and equal_and_committed(servers))
        assert len(await read_all(back)) == 100
