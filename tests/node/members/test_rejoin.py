"""A node without a directory asks the other members what its own has to be like."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from dledger.client import AsyncClient
from dledger.errors import Code, ConfigError, DLedgerError
from dledger.infra.files.disk import OsDisk
from dledger.node import joining
from dledger.node.joining import prepare_rejoin
from dledger.node.server import NodeServer
from dledger.node.setup.config import NodeConfig, parse_config
from dledger.rpc.log_client import NetworkFailure
from dledger.status.model import MemberAddress, NodeStatus
from dledger.store.format.layout import NodePaths
from dledger.store.identity import Identity, init_directory, load_identity
from dledger.store.state_files import read_hard_state
from tests.node.local import CLUSTER, GROUP, leader_of, make_server, running_nodes, until
from tests.process.cluster import free_ports
from tests.status.fakes import make_status

DATA_FILE_SIZE = 4 << 20


async def test_a_node_of_another_cluster_at_a_members_address_is_named_and_not_believed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def named() -> bool:
        return "is node 'n1' of cluster" in caplog.text

    async with running_nodes(tmp_path) as (node,):
        content = {
            "directory": str(tmp_path / "lost"),
            "node_id": "n2",
            "cluster_id": "another",
            "group": GROUP,
            "members": {"n1": node.address, "n2": "127.0.0.1:1"},
        }
        asking = asyncio.create_task(prepare_rejoin(parse_config(content)))
        await until(named)
        assert not asking.done() and not (tmp_path / "lost").exists()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

        await prepare_rejoin(parse_config(content | {"cluster_id": CLUSTER}))
        assert load_identity(tmp_path / "lost").node_id == "n2"


class FakeMembers:
    """Stands for LogClient: answers of members by address. None: no answer, counted down to the next one."""

    def __init__(self, *statuses: NodeStatus, silent: Mapping[str, int] | None = None) -> None:
        self._statuses = {status.address: status for status in statuses}
        self._silent = dict(silent or {})

    def __call__(self, address: str, group: str, security: object) -> FakeMember:
        return FakeMember(self, address)

    def status(self, address: str) -> NodeStatus:
        if self._silent.get(address, 0):
            self._silent[address] -= 1
            raise NetworkFailure(f"nothing answers at {address}")
        return self._statuses[address]


class FakeMember:
    def __init__(self, members: FakeMembers, address: str) -> None:
        self._members, self._address = members, address

    async def get_status(self, timeout: float) -> NodeStatus:
        return self._members.status(self._address)

    async def close(self) -> None: ...


ALWAYS = 1 << 30


def status_of(node_id: str, membership_index: int, uids: Mapping[str, int]) -> NodeStatus:
    """The status of a member whose configuration has these members, all of them voters."""
    members = tuple(MemberAddress(n, f"{n}:1", "", "voter", uid) for n, uid in uids.items())
    return make_status(
        node_id,
        cluster_id=CLUSTER,
        group=GROUP,
        address=f"{node_id}:1",
        data_file_size=DATA_FILE_SIZE,
        membership_index=membership_index,
        members=members,
    )


def rejoining_config(folder: Path) -> NodeConfig:
    members = {node: f"{node}:1" for node in ("n1", "n2", "n3")}
    content = {"directory": str(folder), "node_id": "n3", "cluster_id": CLUSTER, "group": GROUP}
    return parse_config(content | {"members": members})


FIRST = {"n1": 0, "n2": 0, "n3": 0}
#: n3 was removed and added again, as 57.
NEWEST = {"n1": 0, "n2": 0, "n3": 57}


@pytest.mark.parametrize("silent", [{}, {"n2:1": 2}], ids=["all answer", "the newest answers later"])
async def test_the_newest_configuration_of_a_majority_tells_who_rejoins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: dict[str, int]
) -> None:
    """n1 answers first, and has not received the change."""
    fakes = FakeMembers(status_of("n1", -1, FIRST), status_of("n2", 9, NEWEST), silent=silent)
    monkeypatch.setattr(joining, "LogClient", fakes)
    monkeypatch.setattr(joining, "_PAUSE_S", 0.0)
    await prepare_rejoin(rejoining_config(tmp_path / "n3"))
    state = read_hard_state(OsDisk(), NodePaths(tmp_path / "n3").hard_state)
    assert state.rejoining and state.uid == 57
    assert load_identity(tmp_path / "n3").is_joined


async def test_members_that_the_file_does_not_name_are_asked_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """n1 knows n4 and n5. Of them, n4 knows that n3 was added again since."""
    later = {"n1": 0, "n3": 0, "n4": 31, "n5": 32}
    newest = {"n3": 57, "n4": 31, "n5": 32}
    fakes = FakeMembers(
        *(status_of("n1", 5, later), status_of("n4", 9, newest), status_of("n5", 9, newest)),
        silent={"n2:1": ALWAYS},
    )
    monkeypatch.setattr(joining, "LogClient", fakes)
    monkeypatch.setattr(joining, "_PAUSE_S", 0.0)
    await prepare_rejoin(rejoining_config(tmp_path / "n3"))
    assert read_hard_state(OsDisk(), NodePaths(tmp_path / "n3").hard_state).uid == 57


async def test_without_a_majority_the_newest_answer_counts_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fakes = FakeMembers(status_of("n1", 9, NEWEST), silent={"n2:1": ALWAYS})
    monkeypatch.setattr(joining, "LogClient", fakes)
    monkeypatch.setattr(joining, "_PAUSE_S", 0.0)
    monkeypatch.setattr(joining, "_MAJORITY_WITHIN_S", 0.0)
    await prepare_rejoin(rejoining_config(tmp_path / "n3"))
    assert read_hard_state(OsDisk(), NodePaths(tmp_path / "n3").hard_state).uid == 57
    assert "no majority of the voters answers" in caplog.text


async def test_a_member_that_only_an_old_configuration_has_does_not_rejoin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes = FakeMembers(status_of("n1", 5, FIRST), status_of("n2", 9, {"n1": 0, "n2": 0}))
    monkeypatch.setattr(joining, "LogClient", fakes)
    with pytest.raises(ConfigError) as refusal:
        await prepare_rejoin(rejoining_config(tmp_path / "n3"))
    assert refusal.value.code is Code.UNKNOWN_MEMBER


async def test_a_node_that_is_no_member_does_not_stop_one_by_the_directory_that_it_knows(
    tmp_path: Path,
) -> None:
    """n9 has left. It has seen a directory of n1 that was lost before it counted."""
    async with running_nodes(tmp_path, 3) as nodes:
        shell, stopped = nodes[0]._shell, list[DLedgerError]()
        shell._on_fatal = stopped.append
        shell.directory_replaced("n9", "n9 knows another directory")
        assert not stopped
        shell.directory_replaced(nodes[1].config.node_id, "a member knows another directory")
        assert [error.code for error in stopped] == [Code.DIRECTORY_REPLACED]


def new_directory(folder: Path, incarnation: int, *, rejoining: bool) -> None:
    identity = Identity(CLUSTER, GROUP, "n1", data_file_size=DATA_FILE_SIZE)
    init_directory(folder / "n1", identity, incarnation=incarnation, rejoining=rejoining)


async def make_leader(servers: list[NodeServer], target: NodeServer) -> None:
    """Transfers are refused while a member is not compared yet: ask until one goes through."""
    node = target.node_status().node_id

    async def ask() -> None:
        leader = leader_of(servers)
        if leader is not target and leader.node_status().is_leader:
            await asyncio.gather(leader._shell.transfer(node), return_exceptions=True)

    while not target.node_status().is_leader:
        await ask()
        await until(lambda: any(s.node_status().is_leader for s in servers))


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(9, 5), (5, 9)], ids=["lower", "higher"])
async def test_a_node_that_rejoined_with_another_incarnation_leads_and_commits(
    tmp_path: Path, before: int, after: int
) -> None:
    """It led before it lost its directory, and said GOODBYE then: ids of its streams may be lower now."""
    members = {f"n{i}": f"127.0.0.1:{port}" for i, port in enumerate(free_ports(3), 1)}
    new_directory(tmp_path, before << 20, rejoining=False)
    servers = [make_server(tmp_path, node, members) for node in members]
    try:
        await asyncio.gather(*(server.start() for server in servers))
        async with AsyncClient(list(members.values()), group=GROUP) as client:
            await until(lambda: any(s.node_status().is_leader for s in servers))
            await make_leader(servers, servers[0])
            await client.append(b"of the first life", timeout=60)
            await make_leader(servers, servers[1])
            await servers[0].stop()
            shutil.rmtree(tmp_path / "n1")

            new_directory(tmp_path, after << 20, rejoining=True)
            servers[0] = make_server(tmp_path, "n1", members)
            await servers[0].start()
            await make_leader(servers, servers[0])
            last = await client.append(b"of the second life", timeout=60)
            await until(lambda: all(s.node_status().ledger_end_index >= last.index for s in servers))
    finally:
        for server in servers:
            await server.stop()
