"""A majority of a group is lost for good: a survivor becomes the first member of a new cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dledger.client import AsyncClient
from dledger.client.member_changes import MemberChanges
from dledger.errors import Code, NotLeader, SessionExpired
from dledger.rpc.log_client import LogClient, NetworkFailure
from dledger.rpc.request_wire import SessionMark
from tests.node.local import PATIENT
from tests.process.cluster import CLUSTER, GROUP, ProcessCluster, free_ports, toml_of

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("process-recovery")]

RECOVER = ["--force-new-cluster", "--yes", "--timeout", "1"]


class Recovered(ProcessCluster):
    """A cluster whose nodes get other configurations during the test."""

    def configure(self, node: str, **changes: Any) -> None:
        config: dict[str, Any] = {
            "directory": str(self.folder / node),
            "node_id": node,
            "cluster_id": CLUSTER,
            "group": GROUP,
            "members": self.members,
            "timing": PATIENT,
        }
        (self.folder / f"{node}.toml").write_text(toml_of(config | changes))

    async def recover(self, node: str, *options: str, code: int = 0) -> str:
        return await self.command(
            "recover", "--config", str(self.folder / f"{node}.toml"), *RECOVER, *options, code=code
        )

    def add(self, node: str, cluster_id: str, first: Mapping[str, str]) -> str:
        """Configure a node that joins. Returns its address."""
        address = f"127.0.0.1:{free_ports(1)[0]}"
        self.members[node] = address
        self._clients[node] = LogClient(address, GROUP)
        self.configure(node, cluster_id=cluster_id, members={**first, node: address})
        return address


async def append_in_session(address: str, session_id: int, seq: int, body: bytes) -> Any:
    """Append as a client that has this session, and return the answer: it retries nothing."""
    client = LogClient(address, GROUP)
    stream = client.open_append_stream()
    try:
        await stream.send(1, [body], SessionMark(session_id, seq), 30_000)
        return await stream.receive()
    finally:
        await stream.close()
        await client.close()


async def retried_in_session(address: str, session_id: int, body: bytes) -> Any:
    """Like `append_in_session`, until the node leads."""
    while True:
        try:
            answer = await append_in_session(address, session_id, 1, body)
        except NetworkFailure:
            continue
        if not isinstance(answer.error, NotLeader):
            return answer


async def test_two_of_three_nodes_are_lost_for_good(tmp_path: Path) -> None:
    settings = {"timing": PATIENT}
    async with Recovered(tmp_path, settings=settings, server_options=["--if-empty", "join"]) as cluster:
        await cluster.leader()
        async with AsyncClient(cluster.addresses, group=GROUP, timeout=60.0) as client:
            await client.append(b"before")
            await cluster.settle()
        refused = await cluster.recover("n1", code=1)
        assert f"{int(Code.DIRECTORY_LOCKED)} DIRECTORY_LOCKED" in refused
        await cluster.stop("n1")
        refused = await cluster.recover("n1", code=1)
        assert f"{int(Code.RECOVERY_REFUSED)} RECOVERY_REFUSED" in refused and "n2 at" in refused
        await cluster.stop("n2")
        refused = await cluster.recover("n1", code=1)
        assert "n3 at" in refused and "n2 at" not in refused, (
            "one is enough: it may be a majority with others"
        )
        await cluster.stop("n3")

        report = json.loads(await cluster.recover("n1", "--json"))
        assert [member["node_id"] for member in report["dropped"]] == ["n2", "n3"]
        new_id, old = report["cluster_id"], dict(cluster.members)

        await cluster.start(["n1"])
        cluster.expect_end("n1")
        assert await cluster.ended("n1") != 0
        assert f"code={int(Code.FOREIGN_DIRECTORY)}" in cluster.log_of("n1")
        assert f'set cluster_id = \\"{new_id}\\" for this node' in cluster.log_of("n1")

        alone = {"n1": old["n1"]}
        cluster.configure("n1", cluster_id=new_id, members=alone)
        await cluster.start(["n1"])
        await cluster.wait_for(lambda seen: seen["n1"].role == "LEADER", nodes=["n1"])
        async with AsyncClient([old["n1"]], group=GROUP, timeout=60.0) as client:
            await client.append(b"alone")
            changes = MemberChanges(client, timeout=60.0)
            for node in ("n4", "n5"):
                address = cluster.add(node, new_id, alone)
                await cluster.start([node])
                await changes.add(node, address, as_voter=True)
            await cluster.kill("n5")
            await client.append(b"with n4")
            assert [entry.body async for entry in client.read(0)] == [b"before", b"alone", b"with n4"]

            # The lost nodes return. They are a majority of the former cluster, which is another one now.
            await cluster.start(["n2", "n3"])
            former = await cluster.wait_for(
                lambda seen: next((n for n, s in seen.items() if s.role == "LEADER"), None),
                nodes=["n2", "n3"],
            )
            await cluster.wait_for(lambda _: "UNKNOWN_CLUSTER" in cluster.log_of(former) or None)
            term = (await cluster.wait_for(lambda seen: seen[former], nodes=[former])).term
            assert (await cluster.wait_for(lambda seen: seen["n1"], nodes=["n1"])).term > term
            await client.append(b"after")
            assert (await cluster.wait_for(lambda seen: seen["n1"], nodes=["n1"])).role == "LEADER"


async def test_sessions_of_the_former_cluster_are_refused(tmp_path: Path) -> None:
    """A batch of a client may be in the survivor's log, and the index of its session another session's."""
    async with Recovered(tmp_path, settings={"timing": PATIENT}) as cluster:
        await cluster.leader()
        async with AsyncClient(cluster.addresses, group=GROUP, timeout=60.0) as client:
            session = client.session()
            await session.append(b"stored once")
            kept = session.session_id
            assert kept is not None
            await cluster.settle()
            await cluster.kill(*cluster.members)
            report = json.loads(await cluster.recover("n1", "--json"))
            alone = {"n1": cluster.members["n1"]}
            cluster.configure("n1", cluster_id=report["cluster_id"], members=alone)
            await cluster.start(["n1"])
            await cluster.wait_for(lambda seen: seen["n1"].role == "LEADER", nodes=["n1"])
            # The next batch of the session, and a retry of the first one.
            with pytest.raises(SessionExpired):
                await session.append(b"next", timeout=60.0)
            retry = await append_in_session(alone["n1"], kept, 1, b"stored once")
            assert (
                isinstance(retry.error, SessionExpired)
                and "recovered as a new cluster" in retry.error.message
            )
            # A session of the new cluster at the index where the lost nodes may have opened one.
            newer = client.session()
            opened = await newer.open(timeout=60.0)
            index = (await cluster.wait_for(lambda seen: seen["n1"], nodes=["n1"])).ledger_end_index
            assert opened > 1 << 48 > index
            stray = await append_in_session(alone["n1"], index, 1, b"of another client")
            assert isinstance(stray.error, SessionExpired), "it is not the new cluster's session"
            await newer.append(b"new")
            # The ids survive a restart, with the table of sessions and without it.
            for lost_file in ("", "sessions"):
                await cluster.stop("n1")
                if lost_file:
                    (tmp_path / "n1" / lost_file).unlink()
                await cluster.start(["n1"])
                stray = await retried_in_session(alone["n1"], index, b"of another client")
                assert isinstance(stray.error, SessionExpired)
                await newer.append(b"again", timeout=60.0)
        async with AsyncClient([alone["n1"]], group=GROUP, timeout=60.0) as client:
            bodies = [entry.body async for entry in client.read(0)]
            assert bodies == [b"stored once", b"new", b"again", b"again"]
