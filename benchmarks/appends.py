"""Measure appends through one client: batches, concurrent single appends, and one append at a time."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable

from benchmarks import ours, yardsticks
from benchmarks.common import Load, Operation, Row, closed_loops, interleaved, rounds_for, scratch, warm


async def batches(seconds: float) -> AsyncGenerator[Row]:
    """Measure batches of 256 with 8 in flight. `make bench-peers` compares the rate with etcd's."""
    load, cpu = await _loaded("batches", lambda system: system.bulk, ours.BATCHES_IN_FLIGHT, seconds)
    yield Row(
        f"batches of {ours.BATCH}, {ours.BATCHES_IN_FLIGHT} in flight",
        f"{load.rate:,.0f} entries/s",
        "about 150,000/s quiet",
        None,
        f"p50 {load.latency_ms(0.5):.1f} ms, p99 {load.latency_ms(0.99):.1f} ms; CPU {cpu}",
        _values(load),
    )


async def concurrent(seconds: float) -> AsyncGenerator[Row]:
    """Measure 64 concurrent append() calls of one client, which combines them into batches."""
    load, cpu = await _loaded("concurrent", lambda system: system.append, ours.APPENDS_IN_FLIGHT, seconds)
    yield Row(
        f"{ours.APPENDS_IN_FLIGHT} concurrent append()",
        f"{load.rate:,.0f} entries/s",
        "about 35,000/s quiet",
        None,
        f"p50 {load.latency_ms(0.5):.1f} ms, p99 {load.latency_ms(0.99):.1f} ms; CPU {cpu}",
        _values(load),
    )


async def lone(seconds: float) -> AsyncGenerator[Row]:
    """Measure one append in flight, interleaved with the operations that every append includes."""
    with scratch("lone") as folder, yardsticks.fdatasync_file(folder) as fdatasync:
        async with ours.running(folder) as system, yardsticks.echo() as channel:
            operations = {
                "append": (system.append, 1),
                "fdatasync": (fdatasync, 1),
                "stream": (yardsticks.ping_pong(channel), 1),
            }
            rounds = await interleaved(operations, seconds, rounds_for(seconds))
    loads = {name: Load.joined(one) for name, one in rounds.items()}
    p50 = {name: load.latency_ms(0.5) for name, load in loads.items()}
    bound = p50["fdatasync"] + 2 * p50["stream"]
    yield Row(
        "one append in flight",
        f"p50 {p50['append']:.2f} ms",
        "about 0.8 ms quiet",
        None,
        f"p99 {loads['append'].latency_ms(0.99):.2f} ms; one fdatasync and two stream exchanges take "
        f"{bound:.2f} ms: {p50['append'] / bound:.1f} times that",
        {**_values(loads["append"]), "bound_ms": bound, "fdatasync_ms": p50["fdatasync"],
         "stream_ms": p50["stream"]},
    )  # fmt: skip


async def _loaded(
    name: str, operation_of: Callable[[ours.Dledger], Operation], concurrency: int, seconds: float
) -> tuple[Load, str]:
    """Return the load, and a text with the CPU use of client and nodes as shares of one CPU."""
    with scratch(name) as folder:
        async with ours.running(folder) as system:
            operation = operation_of(system)
            await warm(operation, concurrency)
            nodes, client = system.node_cpu_seconds(), time.process_time()
            load = await closed_loops(operation, concurrency, seconds)
            client = time.process_time() - client
            used = {node: after - nodes[node] for node, after in system.node_cpu_seconds().items()}
    leader = used.pop(system.leader_id)
    shares = [client, leader, *used.values()]
    kinds = ["client", "leader", *(["follower"] * len(used))]
    text = ", ".join(f"{kind} {share / seconds:.0%}" for kind, share in zip(kinds, shares, strict=True))
    return load, f"{text}; {1e6 * sum(shares) / load.entries:.0f} µs per entry"


def _values(load: Load) -> dict[str, float]:
    return {
        "rate": load.rate,
        "p50_ms": load.latency_ms(0.5),
        "p99_ms": load.latency_ms(0.99),
    }
