"""A node refuses calls that name another cluster, and stores nothing of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dledger.client import AsyncClient
from dledger.core.membership_change import ChangeKind, MembershipChange, MemberStep
from dledger.errors import Code, NotLeader
from dledger.rpc.log_client import ForeignServer, LogClient
from tests.node.local import CLUSTER, GROUP, running_nodes

CHANGE = MembershipChange((MemberStep(ChangeKind.ADD, "n9", "h:9"),))


async def _first(stream: Any) -> Any:
    return await anext(stream)


async def _append(client: LogClient) -> Any:
    stream = client.open_append_stream()
    try:
        await stream.send(1, [b"a"], None, 1000)
        return await stream.receive()
    finally:
        await stream.close()


CALLS: dict[str, Callable[[LogClient], Awaitable[Any]]] = {
    "append": _append,
    "open_session": lambda client: client.open_session(5.0),
    "read": lambda client: _first(client.read(0, 1, follow=False, linearizable=False, include_internal=True)),
    "read_index": lambda client: client.read_index(5.0),
    "transfer_leadership": lambda client: client.transfer_leadership("n1", 5.0),
    "change_members": lambda client: client.change_members(CHANGE, 5.0),
    "purge": lambda client: client.purge(0, -1, 5.0),
    "scrub": lambda client: _first(client.scrub(0)),
    "backup": lambda client: _first(client.backup()),
}


async def test_each_call_of_a_client_of_another_cluster_is_refused(tmp_path: Path) -> None:
    async with running_nodes(tmp_path) as [node]:
        end = node.node_status().ledger_end_index
        foreign = LogClient(node.address, GROUP, cluster_id="другой \x7e")
        for name, call in CALLS.items():
            with pytest.raises(
                ForeignServer, match=f"belongs to cluster '{CLUSTER}', not to 'другой"
            ) as caught:
                await call(foreign)
            assert caught.value.code is Code.UNKNOWN_CLUSTER, name
        assert (await foreign.get_status(5.0)).cluster_id == CLUSTER
        await foreign.close()
        assert node.node_status().ledger_end_index == end
        own = LogClient(node.address, GROUP, cluster_id=CLUSTER)
        assert (await _append(own)).error is None
        assert await own.read_index(5.0) > end
        await own.close()


@pytest.mark.parametrize("session", [True, False])
async def test_a_client_that_reaches_another_cluster_has_nothing_in_doubt(
    tmp_path: Path, session: bool
) -> None:
    """The server has changed since the client looked: its process was replaced at the same address."""
    async with running_nodes(tmp_path) as [node]:
        end = node.node_status().ledger_end_index
        async with AsyncClient([node.address], group=GROUP, cluster_id="other", session=session) as client:
            client._directory.appoint(node.address, 1)
            with pytest.raises(NotLeader) as caught:
                await client.append(b"a", timeout=1.0)
            assert caught.value.code is Code.UNKNOWN_CLUSTER
        assert node.node_status().ledger_end_index == end
