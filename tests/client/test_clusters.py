"""Servers that a client knows belong to two clusters: one was recovered by force, or a learner promoted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dledger import AsyncClient, Code, NotLeader, ReadFailed
from dledger.v1 import admin_pb2
from tests.client.fake_cluster import FakeCluster
from tests.node.local import until

LATER = 1 << 24


@asynccontextmanager
async def group_and_mirror(voters: int = 3) -> AsyncIterator[tuple[FakeCluster, FakeCluster]]:
    """A group that lists its former learner as a member, and the cluster of this learner."""
    async with FakeCluster(voters) as group, FakeCluster(1) as mirror:
        mirror.cluster_id, mirror.term, mirror.membership_index = "orders-r1", LATER, 90
        mirror.members = [admin_pb2.MemberAddress(address=mirror.addresses[0], role="voter")]
        roles = {server.address: "voter" for server in group.servers} | {mirror.addresses[0]: "learner"}
        group.members = [admin_pb2.MemberAddress(address=a, role=role) for a, role in roles.items()]
        group.membership_index = 3
        yield group, mirror


@pytest.mark.parametrize("session", [True, False])
async def test_a_client_stays_with_its_group_when_a_learner_has_become_another(session: bool) -> None:
    async with (
        group_and_mirror() as (group, mirror),
        AsyncClient(group.addresses, session=session, timeout=30.0) as client,
    ):
        await client.append(b"a")
        for leader in (2, 1, 0):
            await group.servers[(leader + 1) % 3].kill()  # the leader is gone
            group.lead(group.servers[leader])
            await (
                client.leader()
            )  # an append without a session would be in doubt if it were sent to the old one
            await client.append(b"after the failover to %d" % leader)
            await group.servers[(leader + 1) % 3].start(int(client_port(group, (leader + 1) % 3)))
        assert len(group.log.bodies) == 4 and not mirror.log.entries


def client_port(cluster: FakeCluster, number: int) -> str:
    return cluster.servers[number].address.rpartition(":")[2]


async def test_a_group_without_a_leader_is_not_left_for_the_mirror() -> None:
    async with group_and_mirror() as (group, mirror), AsyncClient(group.addresses, timeout=30.0) as client:
        await client.append(b"a")
        old = group.servers[0]
        await old.kill()
        group.lead(None)
        with pytest.raises(NotLeader) as caught:
            async with AsyncClient(group.addresses) as new:
                await new.leader(timeout=0.5)
        assert f"{mirror.addresses[0]} is a node of cluster 'orders-r1', not of 'orders'" in str(caught.value)
        assert caught.value.code is Code.NOT_LEADER
        group.lead(group.servers[1])
        await client.append(b"b")
        assert group.log.bodies == [b"a", b"b"]


async def test_a_client_of_the_mirror_does_not_learn_the_group() -> None:
    """The mirror's former log names the voters of the group, which lead in an earlier term."""
    async with group_and_mirror() as (group, mirror):
        mirror.members += group.members[:-1]
        async with AsyncClient(mirror.addresses, timeout=30.0) as client:
            mirror.members = mirror.members[:1]
            await client.append(b"m")
        assert mirror.log.bodies == [b"m"] and not group.log.entries


async def test_configurations_of_two_clusters_are_not_mixed() -> None:
    """The mirror's configuration is at a later index. It says nothing about the voters of the group."""
    async with group_and_mirror() as (group, mirror):
        group.lead(None)
        servers = [*group.addresses, *mirror.addresses]
        async with AsyncClient(servers, cluster_id="orders", timeout=30.0) as client:
            with pytest.raises(NotLeader):
                await client.leader(timeout=0.3)
            group.lead(group.servers[2])
            await client.append(b"g")
        assert group.log.bodies == [b"g"] and not mirror.log.entries


async def test_a_later_term_of_a_mirror_does_not_hide_the_leader_of_the_group() -> None:
    """The client has addresses of both, and is bound to neither. The mirror has no leader at the moment."""
    async with group_and_mirror() as (group, mirror):
        mirror.lead(None)
        servers = [*mirror.addresses, *group.addresses]
        async with AsyncClient(servers, session=False, timeout=30.0) as client:
            for server in group.servers:
                server.gate.clear()
            appending = asyncio.create_task(client.append(b"g"))
            await until(lambda: mirror.addresses[0] in client._directory._clusters)
            for server in group.servers:
                server.gate.set()
            await appending
        assert group.log.bodies == [b"g"] and not mirror.log.entries


async def test_a_client_stays_with_the_cluster_of_its_leader_while_that_is_silent() -> None:
    async with group_and_mirror() as (group, mirror):
        servers = [*group.addresses, *mirror.addresses]
        mirror.lead(None)
        async with AsyncClient(servers, session=False, timeout=30.0) as client:
            await client.append(b"a")
            mirror.lead(mirror.servers[0])
            directory, silent = client._directory, group.addresses[0]
            group.servers[0].gate.clear()
            assert not await directory.other_leader(silent)
            group.lead(group.servers[2])
            assert await directory.other_leader(silent)
            assert directory.term == group.term < mirror.term


async def test_a_leader_that_was_named_by_a_redirection_is_known_with_its_cluster() -> None:
    """Its address serves the mirror later."""
    async with group_and_mirror() as (group, mirror):
        group.members, group.membership_index = [], 0
        async with AsyncClient(group.addresses[:1], session=False, timeout=30.0) as client:
            await client.append(b"a")
            group.lead(group.servers[1])
            await client.append(b"b")
            port = int(client_port(group, 1))
            await group.servers[1].kill()
            group.lead(None)
            await mirror.servers[0].kill()
            await mirror.servers[0].start(port)
            mirror.members[0].address = mirror.addresses[0]
            with pytest.raises(NotLeader):
                await client.append(b"c", timeout=1.0)
        assert group.log.bodies == [b"a", b"b"] and not mirror.log.entries


async def test_the_term_of_a_former_cluster_does_not_count_in_the_next_one() -> None:
    """Otherwise a client would take none of its new leaders before it has asked a majority."""
    async with group_and_mirror(1) as (group, mirror):
        address, port = mirror.addresses[0], int(client_port(mirror, 0))
        async with AsyncClient([address], session=False, timeout=30.0) as client:
            await client.append(b"m")
            await mirror.servers[0].kill()
            await group.servers[0].kill()
            await group.servers[0].start(port)
            group.members[0].address = address
            await client.append(b"g")
            assert client._directory.term == group.term < mirror.term
        assert group.log.bodies == [b"g"]


async def test_a_bound_client_names_the_other_cluster() -> None:
    async with group_and_mirror(1) as (_, mirror):
        async with AsyncClient(mirror.addresses, cluster_id="orders") as client:
            with pytest.raises(NotLeader, match="'orders-r1', not of 'orders'") as caught:
                await client.append(b"a", timeout=0.5)
            assert caught.value.code is Code.UNKNOWN_CLUSTER
            with pytest.raises(ReadFailed) as unread:
                [entry async for entry in client.read(0, timeout=0.5)]
            assert unread.value.code is Code.UNKNOWN_CLUSTER
        assert not mirror.log.entries and not mirror.servers[0].reads


async def test_an_address_that_serves_another_cluster_now() -> None:
    """A bound client does not follow. Another one uses what its addresses are now."""
    async with group_and_mirror(1) as (group, mirror):
        address, port = group.addresses[0], int(client_port(group, 0))
        async with (
            AsyncClient([address], cluster_id="orders", session=False) as bound,
            AsyncClient([address], session=False, timeout=30.0) as other,
        ):
            await bound.append(b"a")
            await other.append(b"b")
            await group.servers[0].kill()
            await mirror.servers[0].kill()
            await mirror.servers[0].start(port)
            mirror.members[0].address = address
            with pytest.raises(NotLeader) as caught:
                await bound.append(b"c", timeout=1.0)
            assert caught.value.code is Code.UNKNOWN_CLUSTER
            with pytest.raises(NotLeader) as caught:
                await bound.leader(timeout=1.0)
            assert caught.value.code is Code.UNKNOWN_CLUSTER
            await other.append(b"d")
        assert group.log.bodies == [b"a", b"b"] and mirror.log.bodies == [b"d"]


async def test_the_cluster_id_is_a_text() -> None:
    with pytest.raises(TypeError, match="cluster_id must be str"):
        AsyncClient(["a:1"], cluster_id=7)  # type: ignore[arg-type]
