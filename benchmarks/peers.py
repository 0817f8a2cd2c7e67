"""`python -m benchmarks.peers`: compare a cluster with three-node etcd and NATS JetStream
under equal load.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks import ours, peers_etcd, peers_nats
from benchmarks.common import (
    BenchError,
    Load,
    Operation,
    Row,
    end_on_signals,
    interleaved,
    rounds_for,
    say,
    scratch,
    show,
    write_json,
)
from dledger.infra.loops.wakefulness import DEVICE, CpuLatency

PEERS = (peers_etcd, peers_nats)
_OURS, _ETCD, _NATS = ours.NAME, peers_etcd.NAME, peers_nats.NAME


@dataclass(frozen=True, slots=True)
class Comparison:
    """A load for all systems.

    `in_flight`: concurrency with the best result, by system. `least`: target ratio, by peer.
    """

    name: str
    title: str
    operation: Callable[[Any], Operation]
    in_flight: dict[str, int]
    least: dict[str, float]  # minimum ratio of our rate to the peer's
    by_latency: bool = False  # compare p50 instead; `least` is then the maximum ratio


COMPARISONS = (
    Comparison(
        "batches",
        f"bulk: {_OURS} {ours.BATCH} x {ours.BATCHES_IN_FLIGHT}, {_ETCD} {peers_etcd.BULK_PUTS} puts x 4, "
        f"{_NATS} {peers_nats.BATCH} publishes x 2",
        lambda system: system.bulk,
        {_OURS: ours.BATCHES_IN_FLIGHT, _ETCD: 4, _NATS: 2},
        {_ETCD: 4.0},
    ),
    Comparison(
        "concurrent",
        "64 single appends in flight",
        lambda system: system.append,
        {_OURS: 64, _ETCD: 64, _NATS: 64},
        {_ETCD: 5.0, _NATS: 1.7},
    ),
    Comparison(
        "lone",
        "one append in flight, p50",
        lambda system: system.append,
        {_OURS: 1, _ETCD: 1, _NATS: 1},
        {_ETCD: 1.0},
        by_latency=True,
    ),
)


async def compare(names: Sequence[str], seconds: float) -> list[Row]:
    rows: list[Row] = []
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(scratch("peers"))
        systems: dict[str, Any] = {}
        for module in (ours, *PEERS):
            home = folder / module.NAME
            home.mkdir()
            systems[module.NAME] = await stack.enter_async_context(module.running(home))
        for comparison in COMPARISONS:
            if names and comparison.name not in names:
                continue
            say(f"{comparison.name} ...")
            operations = {
                name: (comparison.operation(system), comparison.in_flight[name])
                for name, system in systems.items()
            }
            rounds = await interleaved(operations, seconds, rounds_for(seconds))
            rows += _rows(comparison, {name: Load.joined(one) for name, one in rounds.items()})
    return rows


def _rows(comparison: Comparison, loads: dict[str, Load]) -> list[Row]:
    """Return a row per system. Rows of peers include our ratio to the peer."""
    mine = loads[_OURS]
    rows = []
    for name, load in loads.items():
        p50 = load.latency_ms(0.5)
        measured = f"p50 {p50:.2f} ms" if comparison.by_latency else f"{load.rate:,.0f} entries/s"
        values: dict[str, Any] = {"system": name, "rate": load.rate, "p50_ms": p50}
        target, ok, detail = "", None, f"p50 {p50:.2f} ms, {load.rate:,.0f}/s"
        if name != _OURS:
            ratio = mine.latency_ms(0.5) / p50 if comparison.by_latency else mine.rate / load.rate
            values["ratio"] = ratio
            detail = f"ours: {ratio:.2f} times this; {detail}"
            if (least := comparison.least.get(name)) is not None:
                ok = ratio <= least if comparison.by_latency else ratio >= least
                target = f"ours {'<=' if comparison.by_latency else '>='} {least:g} times"
        rows.append(Row(f"{comparison.title}: {name}" if name == _OURS else f"  {name}", measured, target, ok,
                        detail, values))  # fmt: skip
    return rows


def _cpu_latency() -> CpuLatency | None:
    try:
        return CpuLatency()
    except OSError:
        return None


@click.command()
@click.option("--only", "names", multiple=True, type=click.Choice([c.name for c in COMPARISONS]))
@click.option("--seconds", default=20.0, show_default=True, help="Duration for each system and load.")
@click.option(
    "--awake", is_flag=True, help="Keep the CPUs awake for all systems, not only while our nodes have work."
)
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Also write the rows to this file."
)
def main(names: tuple[str, ...], seconds: float, awake: bool, json_file: Path | None) -> None:
    """Compare with etcd and NATS JetStream from the distribution's packages.

    Each system runs with its defaults. Our nodes keep the CPUs awake while they have work in flight
    (`keep_cpus_awake`), if the process has the permission. --awake keeps them awake throughout, which
    benefits
    all systems.
    """
    missing = [package for peer in PEERS if peer.missing() for package in peer.APT_PACKAGES]
    if missing:
        raise click.ClickException(f"a peer is not installed: apt-get install {' '.join(missing)}")
    end_on_signals()
    title = "Three nodes of each and the client on this machine, in turns"
    device = _cpu_latency()
    if device is None and awake:
        raise click.ClickException(f"--awake requires write permission for {DEVICE}: run it as root")
    if device is None:
        title += "; CPUs may sleep"
    elif awake:
        device.stay_awake(True)
        title += "; CPUs always awake"
    else:
        title += "; CPUs awake while our nodes have work"
    try:
        rows = asyncio.run(compare(names, seconds))
    except KeyboardInterrupt:
        say("interrupted; removed all processes and data")
        raise SystemExit(130) from None
    except BenchError as error:
        raise click.ClickException(str(error)) from None
    show(title, rows)
    if json_file is not None:
        write_json(json_file, rows)


if __name__ == "__main__":
    sys.exit(main())
