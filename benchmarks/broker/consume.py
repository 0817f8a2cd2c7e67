"""Measure consumption of one range of a queue, interleaved with reads of the log.

The client checks and decodes all messages.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

from benchmarks import ours
from benchmarks.broker import brokers
from benchmarks.common import BODY, Row, percentile, say, scratch
from benchmarks.reads import read_all
from broker_adapter.client import Message, PullConsumer, QueueNumber

LEAST_RATE = 100_000
_MESSAGES = 200_000
_QUEUE = 0
_FILLERS = 4
#: Maximum messages per pull; the frame size may limit a pull further.
_BATCH = 1024


async def run(seconds: float) -> AsyncGenerator[Row]:
    """Consume the same range repeatedly. The page cache is warm, as it is for consumers without a lag."""
    rates: list[float] = []
    log_rates: list[float] = []
    master_us: list[float] = []
    client_us: list[float] = []
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(scratch("broker-consume"))
        log = await stack.enter_async_context(ours.running(folder))
        system = await stack.enter_async_context(brokers.running(folder))
        say(f"broker-consume: {_MESSAGES:,} messages and entries first")
        await log.fill(_MESSAGES)
        await _fill(system)
        names = brokers.names_of(system.cluster)
        reader = PullConsumer("bench", names, options=brokers.OPTIONS)
        consumer = await stack.enter_async_context(reader)
        address = log.cluster.plan.node(log.leader_id).address
        await _consume(consumer)
        until = time.perf_counter() + seconds
        while len(rates) < 3 or time.perf_counter() < until:
            master, client = system.node_cpu_seconds()[system.master_id], time.process_time()
            messages, took = await _consume(consumer)
            client = time.process_time() - client
            master = system.node_cpu_seconds()[system.master_id] - master
            rates.append(messages / took)
            master_us.append(1e6 * master / messages)
            client_us.append(1e6 * client / messages)
            log_rates.append(await read_all(log, address, _MESSAGES))
    rate, log_rate = percentile(rates, 0.5), percentile(log_rates, 0.5)
    yield Row(
        "consume one range of one queue",
        f"{rate:,.0f} messages/s",
        f">= {LEAST_RATE:,}/s",
        rate >= LEAST_RATE,
        f"median of {len(rates)} runs over {_MESSAGES:,} messages of 1 KiB, {min(rates):,.0f} to "
        f"{max(rates):,.0f}; µs of CPU per message: master {percentile(master_us, 0.5):.1f}, consumer "
        f"{percentile(client_us, 0.5):.1f}; the log, in turns: {log_rate:,.0f} entries/s",
        {
            "rate": rate,
            "rates": rates,
            "log_rates": log_rates,
            "master_us": master_us,
            "client_us": client_us,
        },
    )


async def _fill(system: brokers.Brokers) -> None:
    batch = [Message(brokers.TOPIC, BODY, tags=brokers.TAG)] * ours.BATCH

    async def loop(number: int) -> None:
        for _ in range(-(-_MESSAGES // (_FILLERS * ours.BATCH))):
            await system.producer.send_batch(batch, selector=QueueNumber(_QUEUE))

    await asyncio.gather(*map(loop, range(_FILLERS)))
    await asyncio.to_thread(system.wait_in_step)


async def _consume(consumer: PullConsumer) -> tuple[int, float]:
    """Consume from the first offset to the current end. Return (messages, seconds)."""
    messages = at = 0
    queue = brokers.queue_of(_QUEUE)
    end = await consumer.max_offset(queue)
    began = time.perf_counter()
    while at < end:
        result = await consumer.pull(queue, at, max_messages=_BATCH)
        messages, at = messages + len(result.messages), result.next_offset
    took = time.perf_counter() - began
    assert messages >= _MESSAGES, f"consumed only {messages} messages"
    return messages, took
