"""Real brokers that are killed in the middle of what they write of delayed messages: each comes once."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from random import Random

import pytest

from broker_adapter.api import TopicConfig
from broker_adapter.client import Message, Producer, PullConsumer
from broker_adapter.errors import BrokerError, PutIndeterminate
from broker_adapter.scheduled.delay_file import FILE_NAME
from tests.broker_adapter.process.processes import OPTIONS, BrokerProcesses, Seen, queue_of
from tests.broker_adapter.process.programs import kill_number
from tests.broker_adapter.process.test_derived_files import MADE_AGAIN

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("broker-delay-kills")]

TOPIC = TopicConfig("later", 1, 1)
KILLED = "tests.broker_adapter.process.programs:killed"
#: Calls by which the index is written, between the first ones and many checkpoints later.
_MOST_CALLS = 400


class Delays:
    """`async with Delays(brokers) as delays:` sends messages with delays, one after the other in each of some
    tasks."""

    def __init__(self, brokers: BrokerProcesses) -> None:
        self._producer = Producer("delayers", brokers.names, options=OPTIONS)
        self._rng = Random(3)
        self._stopped = asyncio.Event()
        self._changed = asyncio.Condition()
        self._sent = 0
        self.acknowledged: set[bytes] = set()
        self.in_doubt: set[bytes] = set()

    async def __aenter__(self) -> Delays:
        await self._producer.start()
        self._tasks = [asyncio.create_task(self._send()) for _ in range(8)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopped.set()
        await asyncio.gather(*self._tasks)
        await self._producer.close()

    async def progress(self, more: int) -> None:
        """Until so many more are acknowledged."""
        async with self._changed, asyncio.timeout(60):
            most = len(self.acknowledged) + more
            await self._changed.wait_for(lambda: len(self.acknowledged) >= most)

    async def _send(self) -> None:
        while not self._stopped.is_set():
            self._sent += 1
            body, delay_ms = b"%d" % self._sent, self._rng.choice([200, 1_000, 3_000])
            message = Message(TOPIC.name, body, properties={"TIMER_DELAY_MS": str(delay_ms)})
            try:
                await self._producer.send(message, queue=queue_of(TOPIC.name, 0))
            except PutIndeterminate:
                self.in_doubt.add(body)
                continue
            except BrokerError:  # there is no master
                continue
            async with self._changed:
                self.acknowledged.add(body)
                self._changed.notify_all()


async def delivered(brokers: BrokerProcesses) -> list[bytes]:
    """All, once nothing is delayed any more."""

    def is_empty(seen: Seen) -> bool:
        return len(seen) == 3 and all(one.owner["delivery"]["held_messages"] == 0 for one in seen.values())

    await brokers.nodes.wait_for(is_empty)
    await brokers.in_step()
    async with PullConsumer("auditors", brokers.names, options=OPTIONS) as consumer:
        queue, found = queue_of(TOPIC.name, 0), list[bytes]()
        end = await consumer.max_offset(queue)
        while len(found) < end:
            found += [one.body for one in (await consumer.pull(queue, len(found), max_messages=500)).messages]
    return found


@pytest.mark.parametrize("kills", [4, pytest.param(40, marks=pytest.mark.long)])
async def test_each_delayed_message_comes_once_whenever_its_node_was_killed(
    tmp_path: Path, kills: int
) -> None:
    rng = Random(kills)
    async with BrokerProcesses(tmp_path, program=KILLED, topics=[TOPIC]) as brokers:
        nodes = brokers.nodes
        async with Delays(brokers) as delays:
            for turn in range(kills):
                victim = await brokers.master() if turn % 2 else rng.choice(list(nodes.members))
                await nodes.kill(victim)
                # Less the more often, as most calls are those of starts and of the first checkpoints.
                number = rng.choice([1, -1]) * int(_MOST_CALLS ** rng.random())
                kill_number(tmp_path / victim).write_text(str(number))
                await nodes.start([victim])
                nodes.expect_end(victim)
                assert await nodes.ended(victim) == -signal.SIGKILL
                kill_number(tmp_path / victim).unlink()
                await nodes.start([victim])
                await delays.progress(20)
        found = await delivered(brokers)
        assert len(set(found)) == len(found)
        assert delays.acknowledged <= set(found) <= delays.acknowledged | delays.in_doubt
        assert len(found) > 20 * kills
        for node in nodes.members:
            assert MADE_AGAIN not in nodes.log_of(node)
            assert (brokers.derived(node) / FILE_NAME).exists()
