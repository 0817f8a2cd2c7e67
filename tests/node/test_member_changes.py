"""Changes of the members of a running group (docs/guarantees.md rule 15)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from dledger.client import AsyncClient
from dledger.client.member_changes import MemberChanges
from dledger.core.membership_change import ChangeKind, MembershipChange, MemberStep
from dledger.errors import Code, DLedgerError, InvalidRequest, Refused
from dledger.node.joining import prepare_rejoin
from dledger.node.server import NodeServer
from dledger.store.identity import Identity, first_incarnation, init_directory, joined
from tests.node.local import CLUSTER, GROUP, leader_of, make_server, running_nodes, until
from tests.process.cluster import free_ports

SIZE = 4 << 20


class Group:
    """Three running nodes, and those that tests add."""

    def __init__(self, folder: Path, servers: list[NodeServer], stack: AsyncExitStack) -> None:
        self.folder = folder
        self.servers = {server.config.node_id: server for server in servers}
        self._stack = stack
        self.first = dict(servers[0].config.members)
        self.ended: list[DLedgerError] = []

    @property
    def leader(self) -> NodeServer:
        return leader_of(list(self.servers.values()))

    def client(self, servers: Sequence[str] | None = None) -> AsyncClient:
        return AsyncClient(servers or list(self.first.values()), group=GROUP, timeout=60.0)

    async def start(self, node_id: str, address: str = "", *, folder: Path | None = None) -> NodeServer:
        """Start a node that was not added yet, like `dledger server --join`."""
        folder = folder or self.folder
        address = address or f"127.0.0.1:{free_ports(1)[0]}"
        if not (folder / node_id).exists():
            identity = joined(Identity(CLUSTER, GROUP, node_id, data_file_size=SIZE))
            init_directory(folder / node_id, identity, incarnation=first_incarnation())
        server = make_server(folder, node_id, {**self.first, node_id: address})
        server._on_fatal = self.ended.append
        await server.start()
        self._stack.push_async_callback(server.stop)
        self.servers[node_id] = server
        return server

    def roles(self) -> dict[str, str]:
        return {member.node_id: member.role for member in self.leader.node_status().members}


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    async with running_nodes(tmp_path, 3) as servers, AsyncExitStack() as stack:
        yield Group(tmp_path, servers, stack)


def of(kind: ChangeKind, node_id: str, address: str = "") -> MembershipChange:
    return MembershipChange((MemberStep(kind, node_id, address),))


async def transfer(client: AsyncClient, target: str) -> tuple[int, str]:
    """Transfer leadership. It is refused until the leader has compared the log of its successor."""
    while True:
        with suppress(Refused):
            return await client.transfer_leadership(target, timeout=60.0)


async def test_a_node_is_added_and_votes(group: Group) -> None:
    async with group.client() as client:
        await client.append_many([b"%d" % i for i in range(1000)])
        new = await group.start("n4")
        await MemberChanges(client, timeout=60.0).add("n4", new.config.address, as_voter=True)
        assert group.roles() == dict.fromkeys(("n1", "n2", "n3", "n4"), "voter")
        await client.append(b"after")
        await until(lambda: new.node_status().committed_index == group.leader.node_status().committed_index)
        await until(lambda: new.node_status().uid > 0)
        # With two of the four gone, no majority is left: the new node counts.
        term, leader = await transfer(client, "n4")
        assert leader == "n4" and new.node_status().term == term


async def test_a_node_that_is_not_running_is_not_added(group: Group) -> None:
    async with group.client() as client:
        with pytest.raises(Refused, match="start it first") as caught:
            await client.change_members(of(ChangeKind.ADD, "n4", f"127.0.0.1:{free_ports(1)[0]}"))
        assert caught.value.code is Code.LEARNER_NOT_READY
        assert "n4" not in group.roles()


async def test_a_node_with_another_id_than_named_is_not_added(group: Group) -> None:
    new = await group.start("n4")
    async with group.client() as client:
        with pytest.raises(InvalidRequest, match="node_id 'n4'") as caught:
            await client.change_members(of(ChangeKind.ADD, "n5", new.config.address))
        assert caught.value.code is Code.CHANGE_REFUSED


async def test_a_member_that_is_lost_is_replaced_and_refused_if_it_returns(group: Group) -> None:
    lost = next(node for node, server in group.servers.items() if server is not group.leader)
    async with group.client() as client:
        await client.append(b"before")
        await group.servers[lost].stop()
        await client.append(b"without")
        new = await group.start("n4")
        await MemberChanges(client, timeout=60.0).replace(lost, "n4", new.config.address)
        assert lost not in group.roles() and group.roles()["n4"] == "voter"
        bodies = [entry.body async for entry in client.read(0)]
        assert bodies == [b"before", b"without"]
        # The same machine with a new node under its name: the old one is told that it was replaced.
        again = await group.start(lost, folder=group.folder / "new")
        await MemberChanges(client, timeout=60.0).add(lost, again.config.address, as_voter=True)
        await until(lambda: again.node_status().uid > new.node_status().uid)
        old = make_server(group.folder, lost, group.first)
        old._on_fatal = group.ended.append
        await old.start()
        await until(lambda: bool(group.ended))
        assert group.ended[0].code is Code.MEMBER_REPLACED
        await old.stop()
        await client.append(b"after")


async def test_a_replacement_at_an_address_for_this_machine_only_removes_nothing(group: Group) -> None:
    lost = next(node for node, server in group.servers.items() if server is not group.leader)
    async with group.client() as client:
        with pytest.raises(InvalidRequest, match="others can connect to"):
            await MemberChanges(client, timeout=60.0).replace(lost, lost, "0.0.0.0:1")
        assert group.roles() == dict.fromkeys(group.first, "voter")


@pytest.mark.parametrize("wrong", ["node", "cluster", "size"])
async def test_a_replacement_that_cannot_be_added_removes_nothing(group: Group, wrong: str) -> None:
    """With the same node id, the old member is removed before the new one is added."""
    lost = next(node for node, server in group.servers.items() if server is not group.leader)
    await group.servers[lost].stop()
    node_id = "n7" if wrong == "node" else lost
    cluster = "other" if wrong == "cluster" else CLUSTER
    folder, address = group.folder / "new", f"127.0.0.1:{free_ports(1)[0]}"
    size = 2 * SIZE if wrong == "size" else SIZE
    identity = joined(Identity(cluster, GROUP, node_id, data_file_size=size))
    init_directory(folder / node_id, identity, incarnation=first_incarnation())
    members = {**group.first, node_id: address}
    new = make_server(folder, node_id, members, {"cluster_id": cluster}, data_file_size=size)
    await new.start()
    try:
        async with group.client() as client:
            with pytest.raises(InvalidRequest, match=f"the node at {address} has") as caught:
                await MemberChanges(client, timeout=60.0).replace(lost, lost, address)
            assert caught.value.code is Code.CHANGE_REFUSED
            assert group.roles() == dict.fromkeys(group.first, "voter")
    finally:
        await new.stop()


async def test_a_machine_that_was_a_member_is_added_with_an_empty_directory_only(group: Group) -> None:
    new = await group.start("n4")
    async with group.client() as client:
        changes = MemberChanges(client, timeout=60.0)
        await changes.add("n4", new.config.address, as_voter=False)
        await until(lambda: new.node_status().uid > 0)
        await changes.change(MemberStep(ChangeKind.REMOVE, "n4"))
        with pytest.raises(InvalidRequest, match="or was a member before") as caught:
            await client.change_members(of(ChangeKind.ADD, "n4", new.config.address))
        assert caught.value.code is Code.CHANGE_REFUSED


async def test_a_leader_that_is_removed_steps_down_and_nothing_is_lost(group: Group) -> None:
    removed = group.leader
    name = removed.config.node_id
    async with group.client() as client:
        await client.append(b"before")
        await MemberChanges(client, timeout=60.0).change(MemberStep(ChangeKind.REMOVE, name))
        await client.append(b"after")
        assert group.leader is not removed and name not in group.roles()
        bodies = [entry.body async for entry in client.read(0)]
        assert bodies == [b"before", b"after"]


async def test_a_client_that_knows_only_former_members_of_a_group_finds_the_leader(group: Group) -> None:
    """Two of its three servers are gone for good."""
    async with group.client() as client:
        changes = MemberChanges(client, timeout=60.0)
        for new in ("n4", "n5"):
            old = next(n for n in group.first if n in group.roles() and group.servers[n] is not group.leader)
            server = await group.start(new)
            await changes.replace(old, new, server.config.address)
            await group.servers.pop(old).stop()
    async with group.client() as late:
        await late.append(b"found")


async def test_a_change_in_force_already_succeeds(group: Group) -> None:
    async with group.client() as client:
        before = (await client.append(b"its term has begun")).index
        await client.change_members(of(ChangeKind.REMOVE, "n9"))
        await client.change_members(of(ChangeKind.PROMOTE, "n1"))
        assert group.leader.node_status().ledger_end_index == before


async def test_a_node_that_never_was_a_member_is_neither_removed_nor_replaced(group: Group) -> None:
    async with group.client() as client:
        changes = MemberChanges(client, timeout=60.0)
        for work in (changes.remove("n9"), changes.replace("n9", "n4", "127.0.0.1:1")):
            with pytest.raises(InvalidRequest, match="n9 is not a member: nothing was changed") as caught:
                await work
            assert caught.value.code is Code.UNKNOWN_MEMBER and "n1, n2, n3" in caught.value.message
    assert sorted(group.roles()) == ["n1", "n2", "n3"]


async def test_a_completed_removal_is_repeated_where_the_removed_node_is_known(group: Group) -> None:
    gone = next(node for node, server in group.servers.items() if server is not group.leader)
    others = [address for node, address in group.first.items() if node != gone]
    told: list[str] = []
    async with group.client() as client:
        for _ in range(2):
            await MemberChanges(client, timeout=60.0, report=told.append).remove(gone)
    assert [text for text in told if "waiting" not in text] == [f"{gone} was removed already"]
    async with group.client(others) as stranger:
        with pytest.raises(InvalidRequest) as caught:
            await MemberChanges(stranger, timeout=60.0).remove(gone)
        assert caught.value.code is Code.UNKNOWN_MEMBER


async def test_each_step_is_told_once_and_without_advice_to_repeat_it(group: Group) -> None:
    told: list[str] = []
    address = f"127.0.0.1:{free_ports(1)[0]}"
    async with group.client() as client:
        changes = MemberChanges(client, timeout=60.0, report=told.append)
        adding = asyncio.create_task(changes.add("n4", address, as_voter=True))
        await until(lambda: bool(told))
        await group.start("n4", address)
        await adding
    assert told[0].startswith("waiting: n4 does not answer")
    assert told.count("n4 is a member and receives the log") == 1 and len(told) == len(set(told))
    assert not [text for text in told if "try again" in text or "done" in text]


@pytest.mark.parametrize("left", [1, 2])
async def test_a_group_shrinks_to_one_and_grows_again(group: Group, left: int) -> None:
    async with group.client() as client:
        changes = MemberChanges(client, timeout=60.0)
        stay = group.leader.config.node_id
        gone = [node for node in group.first if node != stay][: 3 - left]
        for node in gone:
            await changes.change(MemberStep(ChangeKind.REMOVE, node))
            await group.servers.pop(node).stop()
        await client.append(b"small")
        for number in range(len(gone)):
            server = await group.start(f"m{number}")
            await changes.add(f"m{number}", server.config.address, as_voter=True)
        await client.append(b"large")
        assert list(group.roles().values()) == ["voter"] * 3


async def test_a_member_is_reached_at_its_new_address(group: Group) -> None:
    moved = next(node for node, server in group.servers.items() if server is not group.leader)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    async with group.client() as client:
        await group.servers[moved].stop()
        await MemberChanges(client, timeout=60.0).change(MemberStep(ChangeKind.MOVE, moved, address))
        server = make_server(group.folder, moved, {**group.first, moved: address})
        await server.start()
        try:
            index = (await client.append(b"there")).index
            await until(lambda: server.node_status().committed_index >= index)
        finally:
            await server.stop()
    forgotten = make_server(group.folder, moved, {**group.first, moved: group.first[moved]})
    with capture_logs() as lines:
        await forgotten.start()
        await forgotten.stop()
    [warning] = [line for line in lines if "dledger member move" in line["event"]]
    assert (warning["configured"], warning["in_log"]) == (group.first[moved], address)


async def test_a_node_starts_with_the_members_of_its_log_whatever_its_file_names(group: Group) -> None:
    """The files of the first nodes do not name the node that was added, and may not name each other."""
    node = next(n for n, server in group.servers.items() if server is not group.leader)
    async with group.client() as client:
        new = await group.start("n4")
        await MemberChanges(client, timeout=60.0).add("n4", new.config.address, as_voter=True)
        await transfer(client, "n4")
        await group.servers[node].stop()
        for members in (group.first, {node: group.first[node]}):
            server = make_server(group.folder, node, members)
            await server.start()
            try:
                index = (await client.append(b"after the start")).index
                await until(lambda server=server, index=index: server.node_status().committed_index >= index)
                assert set(server.members) == {*group.first, "n4"}
            finally:
                await server.stop()


@pytest.mark.parametrize("names", ["n4 too", "n4 instead of n1", "only itself"])
async def test_a_founder_that_was_down_at_the_first_change_learns_the_members(
    group: Group, names: str
) -> None:
    """Its file was changed with those of the others. It has voted, and has no change in its log."""
    down = group.servers.pop("n3")
    async with group.client() as client:
        await until(lambda: down.node_status().committed_index >= 0)
        if down.node_status().is_leader:
            await transfer(client, "n2")
        await down.stop()
        new = await group.start("n4")
        changes = MemberChanges(client, timeout=60.0)
        await changes.add("n4", new.config.address, as_voter=True, force=True)
        members = {"n3": group.first["n3"]}
        if names != "only itself":
            members |= {"n2": group.first["n2"], "n4": new.config.address}
        if names == "n4 too":
            members["n1"] = group.first["n1"]
        elif names == "n4 instead of n1":
            await changes.change(MemberStep(ChangeKind.REMOVE, "n1"))
        server = make_server(group.folder, "n3", members)
        await server.start()
        try:
            index = (await client.append(b"after the start")).index
            await until(lambda: server.node_status().committed_index >= index)
            expected = {*group.first, "n4"} - ({"n1"} if names == "n4 instead of n1" else set())
            await until(lambda: set(server.members) == expected)
        finally:
            await server.stop()


@pytest.mark.parametrize("is_first", [True, False], ids=["first member", "added member"])
async def test_a_member_rejoins_after_the_members_have_changed(group: Group, is_first: bool) -> None:
    async with group.client() as client:
        new = await group.start("n4")
        await MemberChanges(client, timeout=60.0).add("n4", new.config.address, as_voter=True)
        await until(lambda: new.node_status().uid > 0)
        lost = next(n for n in group.first if group.servers[n] is not group.leader) if is_first else "n4"
        if group.leader is group.servers[lost]:
            await transfer(client, "n1")
        before = group.servers.pop(lost)
        uid = before.node_status().uid
        await before.stop()
        shutil.rmtree(group.folder / lost)
        await prepare_rejoin(before.config)
        server = make_server(group.folder, lost, before.config.members)
        await server.start()
        try:
            index = (await client.append(b"after the loss")).index
            await until(lambda: server.node_status().committed_index >= index)
            await until(lambda: server.node_status().rejoining == "")
            assert server.node_status().uid == uid
        finally:
            await server.stop()
