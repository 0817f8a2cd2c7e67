"""Real nodes that find damage when they start, after all of them were down (rule 10)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dledger.errors import DLedgerError
from dledger.node.server import NodeServer
from dledger.store.api import BatchHead
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.internal import SessionBatch, decode_internal, strip_stamp
from dledger.store.format.layout import file_name
from tests.node.local import leader_of, make_server, running_nodes, until
from tests.node.test_bad_days import FILE, SMALL, client_of, equal_and_committed, read_all

#: No automatic scrub, and no checkpoint while the log grows: a power failure leaves the first one.
SETTINGS = {**SMALL, "scrub": {"bytes_per_second": 0}}
COUNT = 40


async def fill(servers: Sequence[NodeServer], count: int = COUNT) -> None:
    """Batches of one entry each, in a session."""
    async with client_of(servers) as client:
        for number in range(count):
            await client.append(b"%06d" % number + bytes(900))


def is_of_session(head: BatchHead) -> bool:
    return isinstance(strip_stamp(decode_internal(head.head))[1], SessionBatch)


@dataclass
class Crashed:
    """A cluster whose nodes are all down, as a power failure leaves them."""

    folder: Path
    members: dict[str, str]
    heads: list[BatchHead]  # of the batches that `fill` appended
    running: dict[str, NodeServer] = field(default_factory=dict)

    def flip(self, node_id: str, number: int) -> int:
        """Damage a batch on one node, in its first entry. Returns the index of that."""
        head = self.heads[number]
        path = self.folder / node_id / "data" / file_name(head.pos - head.pos % FILE)
        with path.open("r+b") as file:
            file.seek(head.pos % FILE + 50)
            old = file.read(1)[0]
            file.seek(head.pos % FILE + 50)
            file.write(bytes([old ^ 1]))
        return head.first_index

    def wipe(self, node_id: str) -> None:
        shutil.rmtree(self.folder / node_id)

    async def start(self, *node_ids: str, rejoining: bool = False) -> list[NodeServer]:
        """All that run now. They start at the same time: none may need that another one is ready."""
        servers = {
            node_id: make_server(
                self.folder, node_id, self.members, SETTINGS, data_file_size=FILE, rejoining=rejoining
            )
            for node_id in node_ids
        }
        self.running |= servers
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            for server in servers.values():
                group.create_task(server.start())
        return list(self.running.values())

    async def stop(self) -> None:
        for server in self.running.values():
            await server.stop()
        self.running.clear()


def cut_log(directory: Path, after_index: int) -> None:
    """As if the node had never got what follows."""
    store = DiskLogStore.open(directory)
    store.truncate_after(after_index)
    store.close()


@asynccontextmanager
async def crashed_cluster(folder: Path, count: int = 3) -> AsyncIterator[Crashed]:
    """Every entry is on every node. No node knows that more than the first one is committed, and none has a
    session table: the checkpoints are older than the entries."""
    async with running_nodes(folder, count, SETTINGS, data_file_size=FILE) as servers:
        await until(lambda: equal_and_committed(servers))
        for server in servers:
            directory = server.config.directory
            await until(lambda directory=directory: (directory / "checkpoint").exists())  # type: ignore[misc]
            shutil.copy(directory / "checkpoint", directory / "checkpoint.old")
        await fill(servers)
        await until(lambda: equal_and_committed(servers))
        heads = [head for head in servers[0].store.iter_heads(0) if is_of_session(head)]
        members = dict(servers[0].config.members)
    for node_id in members:
        (folder / node_id / "checkpoint.old").replace(folder / node_id / "checkpoint")
        (folder / node_id / "sessions").unlink(missing_ok=True)
    cluster = Crashed(folder, members, heads)
    try:
        yield cluster
    finally:
        await cluster.stop()


async def must_work(servers: list[NodeServer], count: int = COUNT) -> None:
    """One leads, takes appends, and all have the same."""
    await until(lambda: any(s.node_status().is_leader for s in servers))
    await fill(servers, 5)
    await until(
        lambda: equal_and_committed(servers) and not any(s.node_status().damaged for s in servers), 20
    )
    for server in servers:
        assert len(await read_all(server)) == count + 5


async def test_rule_10_a_damaged_node_votes_and_is_repaired_while_nothing_is_known_to_be_committed(
    tmp_path: Path,
) -> None:
    async with crashed_cluster(tmp_path) as cluster:
        cluster.flip("n1", 20)
        servers = await cluster.start("n1", "n2")
        await must_work(servers)
        assert cluster.running["n1"].node_status().repaired > 0


async def test_rule_10_two_nodes_with_different_damage_and_a_good_one_get_a_leader(tmp_path: Path) -> None:
    async with crashed_cluster(tmp_path) as cluster:
        cluster.flip("n1", 20)
        cluster.flip("n2", 30)
        await must_work(await cluster.start("n1", "n2", "n3"))


async def test_rule_10_two_nodes_with_different_damage_repair_each_other(tmp_path: Path) -> None:
    async with crashed_cluster(tmp_path) as cluster:
        cluster.flip("n1", 20)
        cluster.flip("n2", 30)
        await must_work(await cluster.start("n1", "n2"))


async def test_rule_10_neighbouring_batches_damaged_on_two_nodes_are_repaired(tmp_path: Path) -> None:
    async with crashed_cluster(tmp_path) as cluster:
        cluster.flip("n1", 20)
        cluster.flip("n2", 21)
        await must_work(await cluster.start("n1", "n2"))


async def test_rule_10_two_damaged_nodes_repair_each_other_while_the_good_one_is_shorter(
    tmp_path: Path,
) -> None:
    async with crashed_cluster(tmp_path) as cluster:
        cluster.flip("n1", 20)
        cluster.flip("n2", 30)
        cut_log(tmp_path / "n3", cluster.heads[10].last_index)
        await must_work(await cluster.start("n1", "n2", "n3"))


async def test_rule_10_a_wiped_node_rejoins_while_the_others_repair_each_other(tmp_path: Path) -> None:
    async with crashed_cluster(tmp_path) as cluster:
        cluster.flip("n1", 20)
        cluster.flip("n2", 30)
        cluster.wipe("n3")
        starting = asyncio.create_task(cluster.start("n3", rejoining=True))
        await cluster.start("n1", "n2")
        await starting
        await must_work(list(cluster.running.values()))
        await until(lambda: cluster.running["n3"].node_status().rejoining == "")


async def test_rule_10_three_of_five_nodes_each_with_damage_of_its_own_get_a_leader(tmp_path: Path) -> None:
    async with crashed_cluster(tmp_path, 5) as cluster:
        for number, node_id in enumerate(("n1", "n2", "n3")):
            cluster.flip(node_id, 10 + 5 * number)
            cluster.flip(node_id, 30 + number)
        await must_work(await cluster.start("n1", "n2", "n3"))


async def test_rule_10_what_only_the_damaged_node_had_gives_way_to_the_log_of_the_others(
    tmp_path: Path,
) -> None:
    """Its tail was never committed, and nobody can repair it. Until a majority of the others is there, it
    serves what it has, votes, and says what it waits for."""
    async with crashed_cluster(tmp_path) as cluster:
        for node_id in ("n2", "n3"):
            cut_log(tmp_path / node_id, cluster.heads[20].last_index)
        damaged = cluster.flip("n1", 30)
        cut_log(tmp_path / "n2", cluster.heads[10].last_index)
        await cluster.start("n1", "n2")
        status = cluster.running["n1"].node_status
        await until(lambda: any(d.first_index <= damaged <= d.last_index for d in status().damaged))
        await until(lambda: f"entry {damaged}" in status().rebuilding)
        assert "waits for the repair" in status().health
        assert not any(s.node_status().is_leader for s in cluster.running.values())
        servers = await cluster.start("n3")
        await until(lambda: any(s.node_status().is_leader for s in servers))
        leader = leader_of(servers)
        assert leader.config.node_id == "n3", "n1 may not lead, and n2 has less"
        await until(lambda: not status().damaged and not status().rebuilding)
        await until(lambda: equal_and_committed(servers))
        bodies = [await read_all(server) for server in servers]
        assert bodies[0] == bodies[1] == bodies[2]
        assert len(bodies[0]) == 21
        # The damaged node is a full member again: with n3 gone, it can lead.
        await leader.stop()
        del cluster.running["n3"]
        rest = list(cluster.running.values())
        await until(lambda: any(s.node_status().is_leader for s in rest))
        await fill(rest, 5)


async def test_rule_10_entries_beyond_what_is_committed_are_given_to_members_only(tmp_path: Path) -> None:
    async with crashed_cluster(tmp_path) as cluster:
        await cluster.start("n2")
        server = cluster.running["n2"]
        end = server.store.end_index
        assert server.node_status().committed_index < end
        try:
            await server.log.fetch(end, end, 1 << 20)
        except DLedgerError as error:
            assert "not committed" in str(error)
        else:
            raise AssertionError("a backup got an entry that may yet be taken back")
        begin = 1 + max(i for i in range(end) if server.store.entry(i).ends_batch)  # of the last batch
        frames = await server.log.fetch(begin, end, 1 << 20, uncommitted=True)
        assert frames.last_index == end
