"""Real nodes on bad days: purged logs, far-behind, wiped, damaged, full and stuck ones (rules 9 to 12)."""

from __future__ import annotations

import asyncio
import re
import shutil
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from dledger.client import AsyncClient
from dledger.core.values import Base
from dledger.errors import Code, DLedgerError, ReadFailed, Refused, StorageError
from dledger.infra.files.disk import Disk
from dledger.infra.loops.wall_clock import wall_ms
from dledger.node.machine.state_machine import AppliedEntry
from dledger.node.server import NodeServer
from dledger.rpc.log_client import LogClient
from dledger.rpc.ports import Chunk
from tests.node.disk.faulty_disk import FaultyDisk
from tests.node.local import GROUP, PATIENT, leader_of, make_server, running_nodes, until

FILE = 64 << 10
#: Retention that purges as soon as there is anything to purge.
EAGER = {"retention": {"max_bytes": 2 * FILE, "hold_bytes": 0, "check_interval": "20ms"}}
SMALL: dict[str, Any] = {
    "limits": {"max_batch_bytes": 32 << 10, "max_body_bytes": 16 << 10, "tail_cache_bytes": 64 << 10}
}


class Counter:
    """A state machine: how many entries, and the sum of their sizes."""

    def __init__(self) -> None:
        self.count = self.size = 0
        self.loads = 0

    def apply(self, entries: Sequence[AppliedEntry]) -> None:
        self.count += len(entries)
        self.size += sum(len(entry.body) for entry in entries)

    def save(self) -> Iterable[bytes]:
        yield b"%d " % self.count
        yield b"%d" % self.size

    def load(self, chunks: Iterable[bytes]) -> None:
        count, _, size = b"".join(chunks).partition(b" ")
        self.count, self.size = int(count or 0), int(size or 0)
        self.loads += 1


def client_of(servers: Sequence[NodeServer], **options: Any) -> AsyncClient:
    return AsyncClient([server.address for server in servers], group=GROUP, **options)


async def fill(servers: Sequence[NodeServer], count: int, size: int = 1000) -> list[int]:
    """Append `count` entries, a few at a time; their indexes."""
    indexes: list[int] = []
    async with client_of(servers) as client:
        for first in range(0, count, 20):
            batch = [b"%06d" % n + bytes(size) for n in range(first, min(first + 20, count))]
            indexes += [result.index for result in await client.append_many(batch)]
    return indexes


async def read_all(server: NodeServer, from_index: int = -1) -> list[bytes]:
    async with client_of([server], session=False) as client:
        return [e.body async for e in client.read(from_index, server=server.address)]


def equal_and_committed(servers: Sequence[NodeServer]) -> bool:
    found = [s.node_status() for s in servers]
    ends = {(s.ledger_end_index, s.committed_index, s.applied_index) for s in found}
    return len(ends) == 1 and found[0].committed_index == found[0].ledger_end_index


async def test_the_log_is_purged_by_size_on_all_nodes_and_readers_learn_the_new_begin(tmp_path: Path) -> None:
    settings = {**EAGER, **SMALL}
    async with running_nodes(tmp_path, 3, settings, data_file_size=FILE) as servers:
        await fill(servers, 400)
        await until(lambda: all(s.node_status().ledger_begin_index > 0 for s in servers))
        await until(lambda: len({s.node_status().ledger_begin_index for s in servers}) == 1)
        with pytest.raises(ReadFailed) as caught:
            await read_all(servers[0], 0)
        assert caught.value.code is Code.INDEX_LESS_THAN_LOCAL_BEGIN
        told = re.search(r"the range is (\d+)\.\.", str(caught.value))
        assert told and 0 < int(told[1]) <= servers[0].node_status().ledger_begin_index
        bodies = await read_all(servers[0])
        assert bodies and bodies[-1].startswith(b"000399")


async def test_a_session_outlives_the_purging_of_what_opened_it_and_a_restart(tmp_path: Path) -> None:
    settings = {**EAGER, **SMALL}
    async with running_nodes(tmp_path, 1, settings, data_file_size=FILE) as (node,):
        client = LogClient(node.address, GROUP)
        session = await client.open_session(5)
        await fill([node], 400)
        await until(lambda: node.node_status().ledger_begin_index > session)
        members = {"n1": node.config.address}
        await client.close()
    (tmp_path / "n1" / "sessions").unlink()  # so that the image alone tells
    again = make_server(tmp_path, "n1", members, settings)
    await again.start()
    try:
        await until(lambda: again.node_status().is_leader)
        assert again.node_status().sessions >= 1
    finally:
        await again.stop()


async def test_a_read_from_the_beginning_begins_where_a_purge_meanwhile_has_moved_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_nodes(tmp_path, 1, SMALL, data_file_size=FILE) as (node,):
        indexes = await fill([node], 200)
        client = LogClient(node.address, GROUP)
        load = node.log.load
        asked: list[int] = []

        async def load_late(first_index: int, *others: Any, **named: Any) -> Chunk:
            asked.append(first_index)
            if len(asked) == 1:
                await client.purge(indexes[100], 0, 5)
                await until(lambda: node.store.base.index >= first_index)
            return await load(first_index, *others, **named)

        monkeypatch.setattr(node.log, "load", load_late)
        bodies = await read_all(node)
        begin = node.log.begin_index
        assert asked[:2] == [0, begin] and begin > 0
        assert len(bodies) == sum(index >= begin for index in indexes)
        monkeypatch.setattr(node.log, "load", load)
        with pytest.raises(ReadFailed, match="was purged"):
            await read_all(node, 0)  # an index that somebody names is that or nothing
        await client.close()


async def test_nobody_reads_what_lies_below_the_begin_that_a_node_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the disk thread, on a machine with much else to do, has not removed it yet."""
    async with running_nodes(tmp_path, 1, SMALL, data_file_size=FILE) as (node,):
        indexes = await fill([node], 200)
        purge, may_purge = node.store.purge_to, threading.Event()

        def purge_late(base: Base) -> None:
            assert may_purge.wait(30)
            purge(base)

        monkeypatch.setattr(node.store, "purge_to", purge_late)
        client = LogClient(node.address, GROUP)
        try:
            await client.purge(indexes[100], 0, 5)
            await until(lambda: node.node_status().ledger_begin_index > 0)
            begin = node.node_status().ledger_begin_index
            assert node.store.base.index < 0
            with pytest.raises(ReadFailed) as caught:
                await read_all(node, 0)
            assert caught.value.code is Code.INDEX_LESS_THAN_LOCAL_BEGIN
            assert f"the range is {begin}.." in str(caught.value)
            assert len(await read_all(node)) == sum(index >= begin for index in indexes)
        finally:
            may_purge.set()
        await client.close()


async def test_an_operator_purges_by_index(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 1, SMALL, data_file_size=FILE) as (node,):
        indexes = await fill([node], 200)
        client = LogClient(node.address, GROUP)
        before, _ = await client.purge(indexes[100], 0, 5)
        assert before == indexes[100]
        await until(lambda: 0 < node.node_status().ledger_begin_index <= indexes[100])
        assert node.node_status().newest_image > indexes[-1]
        await client.close()


async def test_rule_9_a_purge_that_found_no_room_is_tried_again_though_nobody_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**SMALL, "timing": {**PATIENT, "checkpoint_ms": 20}}
    async with running_nodes(tmp_path, 1, settings, data_file_size=FILE) as (node,):
        indexes = await fill([node], 200)
        purge, refused = node.store.purge_to, [0]

        def purge_on_a_full_disk(base: Base) -> None:
            if refused[0] < 10:
                refused[0] += 1
                raise StorageError("no room for a purge", code=Code.DISK_FULL)
            purge(base)

        monkeypatch.setattr(node.store, "purge_to", purge_on_a_full_disk)
        client = LogClient(node.address, GROUP)
        await client.purge(indexes[100], 0, 5)
        await client.close()
        await until(lambda: node.store.base.index > 0)
        assert refused == [10]


async def test_a_follower_far_behind_gets_a_base_and_serves_once_it_has_an_image(tmp_path: Path) -> None:
    machines = {f"n{i}": Counter() for i in (1, 2, 3)}
    settings = {**EAGER, **SMALL}
    async with running_nodes(tmp_path, 3, settings, data_file_size=FILE, machines=machines) as servers:
        late = next(s for s in servers if s is not leader_of(servers))
        others = [s for s in servers if s is not late]
        node_id, members = late.config.node_id, late.config.members
        await late.stop()
        await fill(others, 600)
        await until(lambda: all(s.node_status().ledger_begin_index > 100 for s in others))
        machine = Counter()
        back = make_server(tmp_path, node_id, members, settings, machine=machine)
        servers[servers.index(late)] = back
        await back.start()
        await until(lambda: equal_and_committed(servers))
        assert back.node_status().ledger_begin_index > 100
        assert not back.node_status().needs_image
        left = [machines[s.config.node_id] for s in others]
        assert [(m.count, m.size) for m in (*left, machine)] == [(600, 600 * 1006)] * 3
        assert (await read_all(back))[-1].startswith(b"000599")


async def test_rule_11_a_wiped_node_rejoins_while_clients_append(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 3, SMALL, data_file_size=FILE) as servers:
        await fill(servers, 100)
        lost = next(s for s in servers if s is not leader_of(servers))
        node_id, members = lost.config.node_id, lost.config.members
        others = [s for s in servers if s is not lost]
        await lost.stop()
        shutil.rmtree(tmp_path / node_id)
        writing = asyncio.ensure_future(fill(others, 300))
        back = make_server(tmp_path, node_id, members, SMALL, data_file_size=FILE, rejoining=True)
        servers[servers.index(lost)] = back
        await back.start()
        assert back.node_status().incarnation > 1
        await writing
        await until(lambda: back.node_status().rejoining == "")
        await until(lambda: equal_and_committed(servers))
        # It counts again: with one of the others gone, the two that are left commit.
        gone = next(s for s in others if s is not leader_of(others))
        await gone.stop()
        servers.remove(gone)
        await fill(servers, 20)
        assert len(await read_all(back)) == 420


def flip(directory: Path, what: bytes) -> None:
    """Change one byte in the middle of where `what` is stored."""
    for path in sorted((directory / "data").iterdir()):
        content = path.read_bytes()
        at = content.find(what)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at + len(what) // 2)
                old = file.read(1)[0]
                file.seek(at + len(what) // 2)
                file.write(bytes([old ^ 1]))
            return
    raise AssertionError(f"{what!r} is not stored in {directory}")


async def test_rule_10_a_flipped_byte_is_found_by_a_reader_and_repaired_from_a_peer(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 3, SMALL, data_file_size=FILE) as servers:
        await fill(servers, 100)
        await until(lambda: equal_and_committed(servers))
        node = next(s for s in servers if s is not leader_of(servers))
        flip(tmp_path / node.config.node_id, b"000040")
        with pytest.raises(DLedgerError) as caught:
            client = LogClient(node.address, GROUP)
            async for _ in client.read(0, 0, follow=False, linearizable=False, include_internal=False):
                pass
        assert caught.value.code is Code.DATA_DAMAGED
        await client.close()
        await until(lambda: node.node_status().repaired == 1)
        assert node.node_status().damaged == ()
        assert len(await read_all(node)) == 100


async def test_rule_10_a_scrub_finds_and_repairs_what_nobody_reads(tmp_path: Path) -> None:
    settings = {**SMALL, "scrub": {"bytes_per_second": 0}}
    async with running_nodes(tmp_path, 3, settings, data_file_size=FILE) as servers:
        await fill(servers, 100)
        await until(lambda: equal_and_committed(servers))
        leader = leader_of(servers)
        flip(tmp_path / leader.config.node_id, b"000040")
        client = LogClient(leader.address, GROUP)
        steps = [step async for step in client.scrub(0)]
        await client.close()
        assert steps[-1].done
        assert [d.first_index <= 45 <= d.last_index for step in steps for d in step.found]
        await until(lambda: leader.node_status().repaired == 1)
        assert len(await read_all(leader)) == 100


async def test_rule_10_what_sessions_are_rebuilt_from_is_repaired_after_a_start(tmp_path: Path) -> None:
    """Recovery does not look below the checkpoint, and nobody had noted the damage before."""
    async with running_nodes(tmp_path, 3, SMALL, data_file_size=FILE) as servers:
        await fill(servers, 100)
        await until(lambda: equal_and_committed(servers))
        node = next(s for s in servers if s is not leader_of(servers))
        node_id, members = node.config.node_id, node.config.members
        await node.stop()
        (tmp_path / node_id / "sessions").unlink()
        flip(tmp_path / node_id, b"SB")
        back = make_server(tmp_path, node_id, members, SMALL, data_file_size=FILE)
        servers[servers.index(node)] = back
        await back.start()
        await until(lambda: not back.node_status().rebuilding)
        assert back.node_status().damaged == () and back.node_status().sessions == 1
        await until(lambda: equal_and_committed(servers))
        assert len(await read_all(back)) == 100


async def test_rule_9_a_full_disk_refuses_before_any_push_and_recovers_by_itself(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path, capacity=12 * FILE)
    settings = {"limits": {**SMALL["limits"], "disk_reserve_bytes": 4 * FILE}}
    async with running_nodes(tmp_path, 1, settings, data_file_size=FILE, disks={"n1": disk}) as (node,):
        await until(lambda: node.node_status().reserved_bytes > 0)
        sent, stored = 0, 0
        async with client_of([node], session=False) as client:
            while True:
                sent += 1
                try:
                    await client.append(b"%d " % sent + bytes(4000), timeout=2)
                    stored += 1
                except DLedgerError as error:
                    if error.code is Code.DISK_FULL:
                        break
                    # The client's own time was up while the server's refusal was on its way.
                    assert error.code is Code.TIMEOUT
        assert stored > 0
        await until(lambda: node.node_status().no_room)
        assert node.node_status().is_leader, "nobody else has room: it stays, and serves reads"
        assert node.node_status().health == "the disk is full"
        written = await read_all(node)
        assert stored <= len(written) < sent
        disk.capacity = 40 * FILE
        await until(lambda: not node.node_status().no_room)
        async with client_of([node], session=False) as client:
            await client.append(b"there is room again")
        assert len(await read_all(node)) == len(written) + 1


@pytest.mark.slow
async def test_rule_9_a_full_follower_catches_up_when_there_is_room_again(tmp_path: Path) -> None:
    disks: dict[str, Disk] = {f"n{i}": FaultyDisk(tmp_path / f"n{i}") for i in (1, 2, 3)}
    settings = {"limits": {**SMALL["limits"], "disk_reserve_bytes": 4 * FILE}}
    async with running_nodes(tmp_path, 3, settings, data_file_size=FILE, disks=disks) as servers:
        full = next(s for s in servers if s is not leader_of(servers))
        others = [s for s in servers if s is not full]
        quota = disks[full.config.node_id]
        assert isinstance(quota, FaultyDisk)
        quota.capacity = 10 * FILE
        await fill(others, 900)
        await until(lambda: full.node_status().no_room)
        leader = leader_of(others).node_status()
        assert full.node_status().ledger_end_index < leader.ledger_end_index
        quota.capacity = 100 * FILE
        await until(lambda: equal_and_committed(servers))


async def test_rule_9_a_leader_with_a_stuck_disk_makes_way_and_comes_back(tmp_path: Path) -> None:
    disks: dict[str, Disk] = {f"n{i}": FaultyDisk(tmp_path / f"n{i}") for i in (1, 2, 3)}
    settings = {**SMALL, "timing": {**PATIENT, "fsync_stall_ms": 1000}}
    async with running_nodes(tmp_path, 3, settings, data_file_size=FILE, disks=disks) as servers:
        await fill(servers, 20)
        old = leader_of(servers)
        stuck = disks[old.config.node_id]
        assert isinstance(stuck, FaultyDisk)
        stuck.stick()
        try:
            others = [s for s in servers if s is not old]
            async with client_of(servers) as client:
                while not any(s.node_status().is_leader for s in others):
                    await client.append(b"while the disk is stuck", timeout=120)
            await fill(others, 20)
        finally:
            stuck.release()
        await until(lambda: equal_and_committed(servers))
        assert not old.node_status().is_leader


async def test_rule_9_nobody_makes_way_when_all_disks_are_stuck(tmp_path: Path) -> None:
    disks = {f"n{i}": FaultyDisk(tmp_path / f"n{i}") for i in (1, 2, 3)}
    settings = {**SMALL, "timing": {**PATIENT, "fsync_stall_ms": 1000}}
    async with running_nodes(tmp_path, 3, settings, data_file_size=FILE, disks=disks) as servers:
        await fill(servers, 20)
        before = leader_of(servers).node_status()
        for disk in disks.values():
            disk.stick()
        try:
            loop = asyncio.get_running_loop()
            began = loop.time()
            async with client_of(servers) as client:
                stuck = asyncio.ensure_future(client.append(b"while all disks are stuck", timeout=30))
                await until(lambda: loop.time() - began > 4.5)  # four times fsync_stall_ms, and more
                after = leader_of(servers).node_status()
                assert (after.node_id, after.term, after.is_leader) == (before.node_id, before.term, True)
                assert "fdatasync has taken" in after.health
                assert len(await read_all(leader_of(servers))) == 20, "reads do not wait behind it"
                for disk in disks.values():
                    disk.release()
                await stuck
        finally:
            for disk in disks.values():
                disk.release()
        assert leader_of(servers).node_status().term == before.term


async def test_rule_9_a_node_stops_without_its_stuck_disk(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    node = make_server(tmp_path, "n1", {"n1": "127.0.0.1:0"}, disk=disk)
    await node.start()
    await until(lambda: node.node_status().committed_index == 0)
    disk.stick()
    try:
        node.log.append(Unanswered(), [b"stuck"], None, False, 1000)
        await until(lambda: node.node_status().ledger_end_index > 0)
        await node.stop()
        assert not node.is_released
    finally:
        disk.release()
    # pytest removes the directory after the test: the worker must not write a checkpoint there any more.
    assert await asyncio.to_thread(node._worker.stop, 60.0)


async def test_rule_9_a_node_stops_without_a_read_that_does_not_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dledger.node.server._DISK_STOP_S", 0.2)
    node = make_server(tmp_path, "n1", {"n1": "127.0.0.1:0"})
    await node.start()
    begun, going_on = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        going_on.wait()

    node._readers.submit(hang)
    await asyncio.to_thread(begun.wait)  # before that it would be cancelled
    try:
        await node.stop()
        assert not node.is_released, "the interpreter would wait for it"
    finally:
        going_on.set()


class Unanswered:
    def answer(self, outcome: object) -> None:
        """Whatever it is: the node is stopping."""


async def test_rule_12_cluster_time_goes_on_and_follows_no_jump(tmp_path: Path) -> None:
    wall = [1_700_000_000_000]
    node = make_server(tmp_path, "n1", {"n1": "127.0.0.1:0"}, wall_ms=lambda: wall[0])
    await node.start()
    try:
        await until(lambda: node.node_status().is_leader)
        before = node.node_status().cluster_time_ms
        wall[0] += 86_400_000
        status = node.node_status()
        assert before <= status.cluster_time_ms < before + 60_000
        assert status.clock_offset_ms > 86_000_000
    finally:
        await node.stop()


async def test_rule_12_the_leader_names_the_member_whose_clock_is_wrong(tmp_path: Path) -> None:
    clocks = {"n2": lambda: wall_ms() - 86_400_000}
    with capture_logs() as logs:
        async with running_nodes(tmp_path, 3, SMALL, data_file_size=FILE, clocks=clocks):
            await until(lambda: any("check NTP" in log["event"] for log in logs))
    assert all("n2" in log["members"] for log in logs if "check NTP" in log["event"])


async def test_a_backup_is_the_committed_log(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 1, SMALL, data_file_size=FILE) as (node,):
        await fill([node], 50)
        client = LogClient(node.address, GROUP)
        parts = [part async for part in client.backup()]
        await client.close()
        head, frames = parts[0], b"".join(p for p in parts[1:] if isinstance(p, bytes))
        assert not isinstance(head, bytes)
        assert (head.cluster_id, head.data_file_size, head.base.index) == ("c", FILE, -1)
        assert head.last_index == node.node_status().committed_index
        assert frames.count(b"000049") == 1


@pytest.mark.parametrize("is_later", [True, False])
async def test_a_backup_without_an_image_of_its_own_entries_is_refused(
    tmp_path: Path, is_later: bool
) -> None:
    """It would be restored to a node that never serves."""
    async with running_nodes(tmp_path, 1, SMALL, data_file_size=FILE) as (node,):
        indexes = await fill([node], 200)
        client = LogClient(node.address, GROUP)
        await client.purge(indexes[100], 0, 5)
        await until(lambda: node.store.base.index > 0)
        assert [part async for part in client.backup()]
        newest = node.store.images.newest
        assert newest is not None
        if is_later:
            mark = newest.mark._replace(index=node.store.end_index + 1000)
            node.store.images.writer(mark, b"").finish()
        else:
            node.store.images.discard(newest.mark)
        with pytest.raises(Refused, match="no state image"):
            _ = [part async for part in client.backup()]
        await client.close()


async def test_rule_10_damage_that_nobody_can_repair_is_in_every_form_of_the_status(tmp_path: Path) -> None:
    settings = {**SMALL, "http_listen": "127.0.0.1:0"}
    async with running_nodes(tmp_path, 1, settings, data_file_size=FILE) as (node,):
        indexes = await fill([node], 100)
        flip(tmp_path / "n1", b"000040")
        client = LogClient(node.address, GROUP)
        with pytest.raises(DLedgerError):
            async for _ in client.read(0, 0, follow=False, linearizable=False, include_internal=False):
                pass
        await until(lambda: node.node_status().scrub_found == 1)
        for status in (node.node_status(), await client.get_status(5)):
            assert len(status.damaged) == 1, "it is hidden"
            damage = status.damaged[0]
            assert damage.first_index <= indexes[40] <= damage.last_index
            assert "data" in damage.file and damage.reason
            assert status.health.startswith(f"damaged: entries {damage.first_index}..{damage.last_index}")
        await client.close()
        base = f"http://{node.status.http_address}"
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{base}/status") as answer:
                (shown,) = (await answer.json())["damaged"]
            assert (shown["first_index"], shown["last_index"]) == (damage.first_index, damage.last_index)
            async with session.get(f"{base}/metrics") as answer:
                text = await answer.text()
        assert re.search(r"^dledger_damaged_ranges(\{[^}]*\})? 1.0$", text, re.MULTILINE)
