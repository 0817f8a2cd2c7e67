"""A learner in another place becomes a group of its own."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from dledger.client import AsyncClient
from dledger.client.member_changes import MemberChanges
from dledger.errors import Code, DLedgerError, NotLeader, ReadFailed, SessionExpired
from tests.node.local import PATIENT
from tests.process.cluster import CLUSTER
from tests.process.test_recovery import GROUP, Recovered, append_in_session

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("process-recovery")]

VOTERS = ("n1", "n2", "n3")
LIMIT_S = 60.0


class Mirrored(Recovered):
    """Three voters, and learners that are added to them."""

    async def add_learners(self, client: AsyncClient, *nodes: str) -> None:
        first = {node: self.members[node] for node in VOTERS}
        for node in nodes:
            address = self.add(node, CLUSTER, first)
            await self.start([node])
            await MemberChanges(client, timeout=LIMIT_S).add(node, address, as_voter=False)

    async def mirror_status(self) -> dict[str, Any]:
        servers = ",".join(self.members[node] for node in VOTERS)
        shown = json.loads(
            await self.command("mirror", "status", "--servers", servers, "--group", GROUP, "--json")
        )
        assert isinstance(shown, dict)
        return shown

    async def promote(self, node: str, *options: str, code: int = 0) -> str:
        config = str(self.folder / f"{node}.toml")
        return await self.command(
            "mirror", "promote", "--config", config, "--yes", "--timeout", "1", *options, code=code
        )

    async def start_alone(self, node: str, cluster_id: str) -> None:
        self.configure(node, cluster_id=cluster_id, members={node: self.members[node]})
        await self.start([node])
        await self.wait_for(lambda seen: seen[node].role == "LEADER", nodes=[node])


class Load:
    """Appends entries one after the other until the group fails, and keeps the acknowledged ones."""

    def __init__(self, client: AsyncClient) -> None:
        self.acked: list[tuple[int, bytes]] = []
        self._client = client
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        number = 0
        while True:
            body = f"entry {number}".encode()
            try:
                result = await self._client.append(body, timeout=2.0)
            except DLedgerError:
                return
            self.acked.append((result.index, body))
            number += 1

    async def ended(self) -> None:
        await self._task


async def bodies_at(address: str) -> list[tuple[int, bytes]]:
    async with AsyncClient([address], group=GROUP, timeout=LIMIT_S) as client:
        return [(entry.index, entry.body) async for entry in client.read(0)]


async def test_the_place_of_the_voters_is_lost(tmp_path: Path) -> None:
    async with Mirrored(
        tmp_path, settings={"timing": PATIENT}, server_options=["--if-empty", "join"]
    ) as cluster:
        await cluster.leader()
        addresses = cluster.addresses
        async with AsyncClient(addresses, group=GROUP, timeout=LIMIT_S) as client:
            await cluster.add_learners(client, "m1", "m2")
            session = client.session()
            await session.append(b"in a session of the group")
            kept = session.session_id
            assert kept is not None
            load = Load(client)
            await cluster.wait_for(lambda _: len(load.acked) > 50 or None)
            shown = await cluster.mirror_status()
            assert shown["cluster_id"] == CLUSTER
            assert [row["node"] for row in shown["learners"]] == ["m1", "m2"]
            assert all(row["lacks"] is not None and row["lacks"] >= 0 for row in shown["learners"])

            bound = AsyncClient([cluster.members["m1"]], group=GROUP, cluster_id=CLUSTER, timeout=LIMIT_S)
            reading = {"mode": "local", "server": cluster.members["m1"], "count": 1}
            assert [entry.index async for entry in bound.read(0, **reading)]

            await cluster.kill(*VOTERS)
            await load.ended()
            known = (await cluster.wait_for(lambda seen: seen["m1"], nodes=["m1"])).committed_index
            refused = await cluster.promote("m1", code=1)
            assert f"{int(Code.DIRECTORY_LOCKED)} DIRECTORY_LOCKED" in refused
            await cluster.stop("m1")
            refused = await cluster.promote("m1", code=1)
            assert f"{int(Code.PROMOTION_REFUSED)} PROMOTION_REFUSED" in refused and "m2 at" in refused
            await cluster.stop("m2")
            report = json.loads(await cluster.promote("m1", "--json"))
            assert report["committed_index"] >= known and report["missing_count"] is None

            await cluster.start(["m1"])
            cluster.expect_end("m1")
            assert await cluster.ended("m1") != 0
            assert f"code={int(Code.FOREIGN_DIRECTORY)}" in cluster.log_of("m1")
            await cluster.start_alone("m1", report["cluster_id"])
            mirror = cluster.members["m1"]
            stored = await bodies_at(mirror)
            expected = [entry for entry in load.acked if entry[0] <= report["committed_index"]]
            assert [entry for entry in stored if entry[1].startswith(b"entry")] == expected
            retry = await append_in_session(mirror, kept, 1, b"in a session of the group")
            assert isinstance(retry.error, SessionExpired)

            # A client that is bound to the former group does not use the mirror, at the same address.
            with pytest.raises(ReadFailed) as unread:
                [entry async for entry in bound.read(0, timeout=1.0, **reading)]
            with pytest.raises(NotLeader) as unwritten:
                await bound.append(b"for the group", timeout=1.0)
            assert unread.value.code is unwritten.value.code is Code.UNKNOWN_CLUSTER
            await bound.close()

            async with AsyncClient([mirror], group=GROUP, timeout=LIMIT_S) as new:
                result = await new.append(b"stored by the mirror")
                assert result.index > report["committed_index"]
                address = cluster.add("m3", report["cluster_id"], {"m1": mirror})
                await cluster.start(["m3"])
                await MemberChanges(new, timeout=LIMIT_S).add("m3", address, as_voter=True)

            # The lost place returns: its nodes go on as the former group, and m1 is no member that answers.
            await cluster.start(list(VOTERS))
            leader = await cluster.wait_for(
                lambda seen: next((n for n, s in seen.items() if s.role == "LEADER"), None), nodes=VOTERS
            )
            await cluster.wait_for(lambda _: "UNKNOWN_CLUSTER" in cluster.log_of(leader) or None)
            assert (mirror_bodies := await bodies_at(mirror))[-1][1] == b"stored by the mirror"
            assert len(mirror_bodies) == len(stored) + 1


async def test_a_learner_that_is_far_behind_is_promoted_while_the_group_runs(tmp_path: Path) -> None:
    """Its number of missing entries is known. Clients of both groups stay with theirs."""
    async with Mirrored(
        tmp_path, settings={"timing": PATIENT}, server_options=["--if-empty", "join"]
    ) as cluster:
        await cluster.leader()
        group = cluster.addresses
        async with AsyncClient(group, group=GROUP, timeout=LIMIT_S) as client:
            await cluster.add_learners(client, "m1")
            await client.append(b"in both")
            await cluster.settle()
            await cluster.stop("m1")
            for number in range(5):
                await client.append(b"of the group %d" % number)
            shown = await cluster.mirror_status()
            assert shown["learners"][0]["lacks"] is None, "it does not answer"
            refused = await cluster.promote("m1", code=1)
            assert "members of the former group run" in refused and "the learner lacks" in refused
            report = json.loads(await cluster.promote("m1", "--fork", "--json"))
            assert report["missing_count"] >= 5 and len(report["running"]) == 3
            await cluster.start_alone("m1", report["cluster_id"])
            mirror = cluster.members["m1"]
            await asyncio.gather(
                *(append_alone([server], b"of the group by %d" % i) for i, server in enumerate(group)),
                append_alone([mirror], b"of the mirror"),
            )
            # A group whose leader is gone does not lose its clients to the mirror, which is its learner.
            leader = (await client.leader()).node_id
            cluster.signal(leader, signal.SIGKILL)
            await client.append(b"after a failover")
            await append_alone([cluster.members[n] for n in VOTERS if n != leader][:1], b"by a new client")
            in_group = [entry.body async for entry in client.read(0)]
            assert in_group[-2:] == [b"after a failover", b"by a new client"]
            assert b"of the mirror" not in in_group
        in_mirror = [body for _, body in await bodies_at(mirror)]
        assert in_mirror == [b"in both", b"of the mirror"]


async def append_alone(servers: list[str], body: bytes) -> None:
    async with AsyncClient(servers, group=GROUP, session=False, timeout=LIMIT_S) as client:
        await client.append(body)
