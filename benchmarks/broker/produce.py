"""Measure producing in batches, interleaved with batches of plain log entries.

The difference is the cost of a message beyond that of an entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from functools import partial

from benchmarks import ours
from benchmarks.broker import brokers
from benchmarks.common import Cpu, Load, Operation, Row, interleaved, rounds_for, scratch

LEAST_SHARE = 0.6
#: Maximum dispatch lag: the size of all batches in flight.
MOST_BEHIND_BYTES = ours.BATCHES_IN_FLIGHT * (ours.BATCH + 1) * 1300
_LOG, _TAG, _KEYED = "log", "tag", "keyed"


async def run(seconds: float) -> AsyncGenerator[Row]:
    """Run the benchmark. Both clusters run throughout; only one of them is loaded at a time."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(scratch("broker-produce"))
        log = await stack.enter_async_context(ours.running(folder))
        system = await stack.enter_async_context(brokers.running(folder))
        watch = brokers.DispatchWatch(system)
        watching = asyncio.create_task(watch.run())
        operations: dict[str, tuple[Operation, int]] = {
            _LOG: (log.bulk, ours.BATCHES_IN_FLIGHT),
            _TAG: (system.bulk, ours.BATCHES_IN_FLIGHT),
            _KEYED: (system.keyed_bulk, ours.BATCHES_IN_FLIGHT),
        }
        cpu = {
            name: Cpu(log if name == _LOG else system, partial(setattr, watch, "load", name))
            for name in operations
        }
        rounds = await interleaved(operations, seconds, rounds_for(seconds), cpu)
        watching.cancel()
        level = await asyncio.to_thread(system.wait_in_step)
    loads = {name: Load.joined(one) for name, one in rounds.items()}
    figure = "batches of messages with a tag and UNIQ_KEY"
    yield _row(figure, loads, _TAG, cpu, watch, level, judged=True)
    yield _row(f"{figure} and a key", loads, _KEYED, cpu, watch, level, judged=False)


def _row(
    figure: str,
    loads: dict[str, Load],
    name: str,
    cpu: dict[str, Cpu],
    watch: brokers.DispatchWatch,
    level: float,
    *,
    judged: bool,
) -> Row:
    load, log = loads[name], loads[_LOG]
    share = load.rate / log.rate
    behind = max(watch.behind_bytes[name], default=0)
    pending = max(watch.index_pending[name], default=0)
    used = {who: 1e6 * seconds / load.entries for who, seconds in cpu[name].used.items()}
    log_us = 1e6 * sum(cpu[_LOG].used.values()) / log.entries
    parts = ", ".join(f"{who} {us:.1f}" for who, us in used.items())
    return Row(
        f"{figure}: {ours.BATCH}, {ours.BATCHES_IN_FLIGHT} in flight",
        f"{load.rate:,.0f} messages/s, {100 * share:.0f} % of the log's batches",
        f">= {100 * LEAST_SHARE:.0f} %, bounded dispatch lag" if judged else "bounded index lag",
        (share >= LEAST_SHARE and behind <= MOST_BEHIND_BYTES) if judged else None,
        f"log {log.rate:,.0f} entries/s; p50 {load.latency_ms(0.5):.1f} ms; µs of CPU per message: {parts}, "
        f"{sum(used.values()):.0f} in all, log {log_us:.0f}; maximum dispatch lag of a node "
        f"{behind / 1e6:.2f} MB, index lag {pending:,} messages; no lag {level:.2f} s after the load",
        {
            "rate": load.rate,
            "log_rate": log.rate,
            "share": share,
            "p50_ms": load.latency_ms(0.5),
            "cpu_us": used,
            "log_cpu_us": log_us,
            "behind_bytes": watch.behind_bytes[name],
            "index_pending": watch.index_pending[name],
        },
    )
