"""Ids of members decide what a majority is: two lists must never have two leaders (rule 11)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dledger.node.server import NodeServer
from tests.node.local import leader_of, make_server, until
from tests.process.cluster import free_ports

THREE, FOUR, FIVE = "n1, n2, n3", "n1, n2, n3, n4", "n1, n2, n3, n4, n5"


class Log:
    """What the nodes have logged since."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        self._start = len(caplog.text)

    def has(self, text: str) -> bool:
        return text in self._caplog.text[self._start :]


def addresses(count: int) -> dict[str, str]:
    return {f"n{i}": f"127.0.0.1:{port}" for i, port in enumerate(free_ports(count), 1)}


async def start_three(folder: Path, members: dict[str, str]) -> list[NodeServer]:
    """All of them have taken part: each has voted, or stored an entry."""
    servers = [make_server(folder, node, members) for node in members]
    for server in servers:
        await server.start()
    await until(lambda: all(s.store.committed_checkpoint >= 0 or s.durable_index >= 0 for s in servers))
    return servers


async def test_rule_11_a_node_restarted_with_five_members_instead_of_three_counts_three(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    five = addresses(5)
    three = {node: five[node] for node in ("n1", "n2", "n3")}
    servers = await start_three(tmp_path, three)
    try:
        await servers[2].stop()
        log = Log(caplog)
        servers[2] = make_server(tmp_path, "n3", five)
        await servers[2].start()
        assert log.has("members differs from the first members of the group") and log.has("n4, n5")
        assert sorted(servers[2]._replica.core.membership.voters) == sorted(three)
        await servers[2].stop()
        servers[2] = make_server(tmp_path, "n3", three | {"n3": f"127.0.0.1:{free_ports(1)[0]}"})
        await servers[2].start()  # addresses may change
    finally:
        for server in servers:
            await server.stop()


async def test_rule_11_two_lists_of_members_never_elect_two_leaders(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Three to five, node by node: n4 and n5 are new, n3 is restarted with the longer list, n1 and n2 are
    still to come. If the list of n3 counted, n3, n4 and n5 would be a majority, and so would n1 and n2."""
    five = addresses(5)
    three = {node: five[node] for node in ("n1", "n2", "n3")}
    servers = await start_three(tmp_path, three)
    added = [make_server(tmp_path, node, five) for node in ("n4", "n5")]
    log = Log(caplog)
    try:
        await servers[2].stop()
        servers[2] = make_server(tmp_path, "n3", five)
        for server in (servers[2], *added):
            await server.start()
        await until(lambda: log.has(f"n4 has {FIVE}; n1 has {THREE}: `members` must name the same ids"))
        await until(lambda: log.has(f"n5 has {FIVE}; n2 has {THREE}"))
        await until(lambda: log.has(f"n4 has {FIVE}; n3 has {THREE}"))
        await until(lambda: leader_of(servers).node_status().is_leader)
        assert not any(server.node_status().is_leader for server in added)
        assert {server.node_status().term for server in added} == {0}
    finally:
        await asyncio.gather(*[server.stop() for server in (*servers, *added)])


async def test_rule_11_a_node_with_another_list_gets_no_pushes_and_its_votes_do_not_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It was made with that list, as if its directory was lost and `init` was run instead of --rejoin."""
    four = addresses(4)
    three = {node: four[node] for node in ("n1", "n2", "n3")}
    stray = make_server(tmp_path, "n3", four)
    alone = make_server(tmp_path, "n1", three)
    try:
        await stray.start()
        await alone.start()
        log = Log(caplog)
        await until(lambda: log.has(f"n1 has {THREE}; n3 has {FOUR}"))
        await until(lambda: log.has(f"n3 has {FOUR}; n1 has {THREE}"))
        assert {server.node_status().term for server in (stray, alone)} == {0}
    finally:
        await asyncio.gather(stray.stop(), alone.stop())
