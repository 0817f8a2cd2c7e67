"""A machine whose clock is days away from cluster time: what clients get goes by cluster time.

The members' clocks show another day than this machine's, which has the tests and the brokers' other clocks.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.endpoints.rejected import Rejected
from broker_adapter.endpoints.v4.pops import POP_CK
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.wire.properties import split_properties
from tests.broker_adapter.cluster import BrokerCluster, brokers
from tests.broker_adapter.v4.asker import LISTEN, Asker, asking
from tests.broker_adapter.v4.test_remoting_consumers import beat, records
from tests.broker_adapter.v4.test_remoting_pops import pop
from tests.broker_adapter.v4.test_remoting_replies import reply, waiting
from tests.broker_adapter.v5.access.signed import signed

DAY_MS = 86_400_000


def machine_ms() -> int:
    return time.time_ns() // 1_000_000


@asynccontextmanager
async def cluster_ahead(
    folder: Path, ahead_ms: int, count: int = 2, settings: dict[str, Any] | None = None
) -> AsyncIterator[BrokerCluster]:
    """Cluster time is this far ahead of the clock of this machine."""
    options = {"wall_ms": lambda: machine_ms() + ahead_ms}
    async with brokers(folder, count, LISTEN | (settings or {}), options=options) as cluster:
        yield cluster


async def fill(asker: Asker) -> None:
    await asker.send("t", b"0", 0)
    await asker.get(RequestCode.HEART_BEAT, beat("c", "g", "t"))


@pytest.mark.parametrize("ahead_ms", [2 * DAY_MS, -DAY_MS])
async def test_no_client_whose_clock_is_right_takes_a_popped_message_for_timed_out(
    tmp_path: Path, ahead_ms: int
) -> None:
    """Java drops it if popTime + invisibleTime is over: with the clock of the machine or the cluster's."""
    async with cluster_ahead(tmp_path, ahead_ms) as cluster:
        master = await cluster.master()
        async with asking(master.remoting.address) as asker:
            await fill(asker)
            before_ms = max(master.node.cluster_time_ms(), machine_ms())
            answer = await pop(asker)
            after_ms = max(master.node.cluster_time_ms(), machine_ms())
            (message,) = records(answer.body)
            receipt = split_properties(message.properties)[POP_CK]
            assert receipt.split(" ")[1] == answer.fields["popTime"]
            assert before_ms - 1_000 <= int(answer.fields["popTime"]) <= after_ms
            nothing = await pop(asker)
            assert int(nothing.fields["popTime"]) >= before_ms


@pytest.mark.parametrize("count", [1, 2])
async def test_a_signature_is_fresh_by_cluster_time_in_a_group_and_else_by_the_own_clock(
    tmp_path: Path, count: int
) -> None:
    path = tmp_path / "accounts.toml"
    path.write_text('freshness_s = 3600\n[[accounts]]\naccess_key = "a"\nsecret = "s"\nadmin = true\n')
    settings = {"rocketmq_v2": {"access_control": str(path)}}
    async with cluster_ahead(tmp_path, 2 * DAY_MS, count, settings) as cluster:
        master = await cluster.master()
        guard = master._guard
        assert guard is not None
        of_cluster, of_machine = (
            signed("a", "s", f"{datetime.fromtimestamp(ms / 1000, UTC):%Y%m%dT%H%M%SZ}")
            for ms in (master.node.cluster_time_ms(), machine_ms())
        )
        fresh, stale = (of_cluster, of_machine) if count > 1 else (of_machine, of_cluster)
        assert guard.admit(fresh, "ipv4:127.0.0.1:1") == "a"
        with pytest.raises(Rejected, match="check the clocks"):
            guard.admit(stale, "ipv4:127.0.0.1:1")


async def test_an_answer_to_a_request_message_has_cluster_time_as_store_timestamp(tmp_path: Path) -> None:
    async with cluster_ahead(tmp_path, 2 * DAY_MS) as cluster:
        master = await cluster.master()
        address = master.remoting.address
        async with waiting(address) as (_, told):
            before_ms = master.node.cluster_time_ms()
            await reply(address)
            assert before_ms <= int(told[0].fields["storeTimestamp"]) <= master.node.cluster_time_ms()
