"""Kill and restart all nodes with millions of messages, and measure the time to the next acknowledgement."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from itertools import count

from benchmarks.broker import brokers
from benchmarks.common import BODY_SIZE, BenchError, Row, percentile, say, scratch
from broker_adapter.client import Message, Producer, QueueNumber
from broker_adapter.errors import BrokerError

MESSAGES = 5_000_000
MOST_SECONDS = 5.0
SMALL_BODY = b"0123456789abcdef"
_BATCH = 1024  # the maximum that brokers accept
_TIMES = 3
_GIVE_UP_SECONDS = 60.0


async def run(seconds: float, *, body: bytes = SMALL_BODY) -> AsyncGenerator[Row]:
    """Run the benchmark. Each message has a UNIQ_KEY and an IndexFile item. `seconds` is ignored."""
    times: list[float] = []
    cpu: list[float] = []
    with scratch("broker-restart") as folder:
        async with brokers.running(folder) as system:
            say(f"broker-restart: producing {MESSAGES:,} messages of {len(body)} bytes first")
            began = time.perf_counter()
            await _fill(system.producer, body)
            filled = time.perf_counter() - began
            for _ in range(_TIMES):
                took, used = await _restart_once(system)
                times.append(took)
                cpu.append(used)
                say(f"broker-restart: {took:.2f} s")
    median = percentile(times, 0.5)
    size = "1 KiB" if len(body) == BODY_SIZE else f"{len(body)} bytes"
    yield Row(
        f"restart with {MESSAGES // 1_000_000} million messages of {size}",
        f"{median:.2f} s",
        f"<= {MOST_SECONDS:g} s",
        max(times) <= MOST_SECONDS,
        f"{_TIMES} times SIGKILL of all nodes and start, {min(times):.2f} to {max(times):.2f} s from the "
        f"start of the processes to the first acknowledgement, {percentile(cpu, 0.5):.1f} s of CPU; "
        f"produced at {MESSAGES / filled:,.0f} messages/s, with a tag and UNIQ_KEY",
        {"median_s": median, "times_s": times, "cpu_s": cpu, "fill_rate": MESSAGES / filled},
    )


async def _fill(producer: Producer, body: bytes) -> None:
    messages = [Message(brokers.TOPIC, body, tags=brokers.TAG)] * max(
        1, min(_BATCH, (700 << 10) // (len(body) + 256))
    )
    numbers = count(0, len(messages))

    async def loop(queue_id: int) -> None:
        while next(numbers) < MESSAGES:
            await producer.send_batch(messages, selector=QueueNumber(queue_id), timeout=60)

    await asyncio.gather(*(loop(queue_id) for queue_id in range(brokers.QUEUES)))


async def _restart_once(system: brokers.Brokers) -> tuple[float, float]:
    """Kill and restart all nodes. Return (seconds to the first acknowledged message, CPU
    seconds of nodes).
    """
    cluster = system.cluster
    await asyncio.gather(*(asyncio.to_thread(cluster.kill, node) for node in cluster.node_ids))
    began = time.perf_counter()
    for node in cluster.node_ids:
        await asyncio.to_thread(cluster.start_node, node)
    async with Producer("bench", brokers.names_of(cluster), options=brokers.OPTIONS) as producer:
        while time.perf_counter() - began < _GIVE_UP_SECONDS:
            try:
                await producer.send(Message(brokers.TOPIC, b"first"), timeout=1.0)
                took = time.perf_counter() - began
                used = sum(system.node_cpu_seconds().values())
                await asyncio.to_thread(system.wait_in_step)
                return took, used
            except BrokerError:
                continue
    raise BenchError(f"no message was acknowledged {_GIVE_UP_SECONDS:g} s after the start")
