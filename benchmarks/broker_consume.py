"""Consuming one range of one queue, in turns with reading the log: messages checked and decoded."""

from __future__ import annotations

import asyncio
import time

from benchmarks import brokers, ours
from benchmarks.common import BODY, Row, percentile, say, scratch
from broker_adapter.client import PullConsumer
from broker_adapter.namesrv.client import NameServerClient

LEAST_RATE = 100_000
_MESSAGES = 300_000
_QUEUE = 0


async def run(seconds: float) -> list[Row]:
    """The same range again and again, page cache warm, as consumers that keep up read it."""
    rates: list[float] = []
    master_us: list[float] = []
    client_us: list[float] = []
    with scratch("broker-consume") as folder:
        async with brokers.running(folder) as system:
            say(f"broker-consume: producing {_MESSAGES:,} messages first")
            batch = [BODY] * ours.BATCH
            for _ in range(-(-_MESSAGES // (4 * ours.BATCH))):
                # One call at a time would wait for each commit; four travel as one batch.
                await asyncio.gather(
                    *(
                        system.producer.send_many(brokers.TOPIC, batch, tag=brokers.TAG, queue_id=_QUEUE)
                        for _ in range(4)
                    )
                )
            await asyncio.to_thread(system.wait_in_step)
            names = [companion.address for companion in system.cluster.plan.companions]
            async with NameServerClient(names) as source, PullConsumer(source, timeout=30) as consumer:
                await _consume(consumer)
                until = time.perf_counter() + seconds
                while len(rates) < 3 or time.perf_counter() < until:
                    master, client = system.node_cpu_seconds()[system.master_id], time.process_time()
                    count, took = await _consume(consumer)
                    client = time.process_time() - client
                    master = system.node_cpu_seconds()[system.master_id] - master
                    rates.append(count / took)
                    master_us.append(1e6 * master / count)
                    client_us.append(1e6 * client / count)
    rate = percentile(rates, 0.5)
    return [
        Row(
            "consume one range of one queue",
            f"{rate:,.0f} messages/s",
            f">= {LEAST_RATE:,}/s",
            rate >= LEAST_RATE,
            f"median of {len(rates)} runs over {_MESSAGES:,} messages of 1 KiB, {min(rates):,.0f} to "
            f"{max(rates):,.0f}; µs of CPU per message: master {percentile(master_us, 0.5):.1f}, consumer "
            f"{percentile(client_us, 0.5):.1f}",
            {"rate": rate, "rates": rates, "master_us": master_us, "client_us": client_us},
        )
    ]


async def _consume(consumer: PullConsumer) -> tuple[int, float]:
    """(messages, seconds) from the first offset to the present end."""
    messages = 0
    began = time.perf_counter()
    async for batch in consumer.reader(brokers.TOPIC, _QUEUE, 0).batches():
        messages += len(batch)
    took = time.perf_counter() - began
    assert messages >= _MESSAGES, f"{messages} messages came back"
    return messages, took
