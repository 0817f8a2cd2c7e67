"""Groups that come into being because somebody receives: each address has a share and a rate."""

from __future__ import annotations

from pathlib import Path

from broker_adapter.api import TopicConfig
from broker_adapter.errors import Busy, Status
from broker_adapter.metadata.creation_limits import EACH_CLIENT
from broker_adapter.server.program import BrokerProgram
from tests.broker_adapter.cluster import brokers


async def made(program: BrokerProgram, remote: str, count: int) -> int:
    """How many of so many groups come into being."""
    done, name = 0, remote.partition(":")[0].replace(".", "_")
    for number in range(count):
        try:
            await program.delivery.receive(f"{name}-{number}", "t", client_id="c", remote=remote)
        except Busy as busy:
            assert busy.status is Status.TOO_MANY_GROUPS
            continue
        done += 1
    return done


async def test_one_address_that_makes_groups_is_slowed_down_and_others_are_not(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as cluster:
        program = await cluster.master()
        await program.broker.put_topic(TopicConfig("t", 1, 1))
        most = int(EACH_CLIENT.burst)
        assert most <= await made(program, "10.0.0.1:1", 2 * most) < 2 * most
        assert await made(program, "10.0.0.2:1", 10) == 10
        assert await made(program, "10.0.0.1:2", 10) == 10, "those that there are need no creation"


async def test_an_address_has_no_more_groups_than_its_share(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1, {"auto_create_per_client": 5}) as cluster:
        program = await cluster.master()
        await program.broker.put_topic(TopicConfig("t", 1, 1))
        assert await made(program, "10.0.0.1:1", 8) == 5
        assert await made(program, "10.0.0.2:1", 3) == 3
        await program.broker.delete_group("10_0_0_1-0")
        assert await made(program, "10.0.0.1:9", 8) == 5
