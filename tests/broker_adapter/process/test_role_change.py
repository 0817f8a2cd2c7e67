"""The way to mastership, held up and broken in real brokers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from broker_adapter.client import Admin, Message, MessageQueue, Producer
from broker_adapter.errors import PutRefused
from tests.broker_adapter.process.checker import check
from tests.broker_adapter.process.load import Load
from tests.broker_adapter.process.processes import (
    NAME,
    OPTIONS,
    BrokerProcesses,
    Seen,
    is_writable,
    queue_of,
    step_of,
)
from tests.broker_adapter.process.programs import held_up, never_master
from tests.node.local import PATIENT

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("broker-role-change")]

FAULTY = "tests.broker_adapter.process.programs:faulty"
BATCH, LANES = 500, 2
PATIENTLY = replace(OPTIONS, timeout=60.0, request_timeout=60.0)


def at_node(node: str, lane: int) -> MessageQueue:
    """To write to it, by way of this node."""
    return MessageQueue("events", f"{NAME}-{node}", lane)


async def send_many(brokers: BrokerProcesses, node: str, count: int) -> None:
    async with Producer("writers", brokers.names, options=PATIENTLY) as producer:

        async def send(lane: int) -> None:
            for _ in range(count // BATCH // LANES):
                batch = [Message("events", b"x" * 20)] * BATCH
                await producer.send_batch(batch, queue=at_node(node, lane))

        await asyncio.gather(*(send(lane) for lane in range(LANES)))


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.long)])
async def test_messages_that_are_not_dispatched_come_before_the_first_new_one(
    count: int, tmp_path: Path
) -> None:
    log = {"timing": PATIENT}  # nobody repeats what is sent
    async with BrokerProcesses(tmp_path, program=FAULTY, log=log, data_file_size=16 << 20) as brokers:
        nodes, folder = brokers.nodes, brokers.folder
        master = await brokers.master()
        slaves = brokers.slaves(master)
        for slave in slaves:
            held_up(folder / slave).touch()
        await send_many(brokers, master, count)
        await nodes.settle()
        await nodes.kill(master)

        def waits(seen: Seen) -> str | None:
            assert not any(map(is_writable, seen.values()))
            return next((n for n, s in seen.items() if step_of(s) == "WAITING_FOR_DISPATCH"), None)

        leader = await nodes.wait_for(waits, nodes=slaves)
        status = await nodes.wait_for(lambda seen: seen[leader], nodes=slaves)
        assert status.committed_index - status.applied_index >= count
        assert status.owner["dispatch_behind_bytes"] > count * 100
        async with Producer("early", brokers.names, options=PATIENTLY) as producer:
            with pytest.raises(PutRefused):
                await producer.send(Message("events", b"early"), queue=at_node(leader, 0))

        for slave in slaves:
            held_up(folder / slave).unlink()
        new = await brokers.master(other_than=master)
        async with (
            Producer("late", brokers.names, options=PATIENTLY) as producer,
            Admin(brokers.names, options=PATIENTLY) as admin,
        ):
            for lane in range(LANES):
                result = await producer.send(Message("events", b"first of the new"), queue=at_node(new, lane))
                assert result.queue_offset == count // LANES
                # Consumers see it a moment after its answer.
                while (end := await admin.max_offset(queue_of("events", lane))) == count // LANES:
                    pass
                assert end == count // LANES + 1


async def test_leadership_moves_on_from_a_broker_that_cannot_become_master(tmp_path: Path) -> None:
    async with BrokerProcesses(tmp_path, program=FAULTY) as brokers:
        nodes = brokers.nodes
        async with Load(brokers) as load:
            await load.progress(200)
            master = await brokers.master()
            broken, good = brokers.slaves(master)
            never_master(brokers.folder / broken).touch()
            await nodes.kill(good)
            await nodes.start([good])
            await nodes.wait_for(lambda seen: step_of(seen[good]) == "SLAVE")
            # Whoever is elected first: the good one is master in the end, or the broken one has passed it on.
            for _ in range(2):
                old = await brokers.kill_master()
                new = await brokers.master(other_than=old)
                assert new != broken
                await load.progress(100)
                await nodes.start([old])
                await load.progress(100)
            never_master(brokers.folder / broken).unlink()
            await load.progress(100)
        await check(brokers, load)
