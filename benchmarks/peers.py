"""`python -m benchmarks.peers`: the same load on three-node etcd and NATS JetStream, in turns with ours."""

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
from dledger.node.loop.wakefulness import DEVICE, CpuLatency

PEERS = (peers_etcd, peers_nats)
_OURS, _ETCD, _NATS = ours.NAME, peers_etcd.NAME, peers_nats.NAME


@dataclass(frozen=True, slots=True)
class Comparison:
    """One load: how many operations each system has in flight (its best), and what is asked of ours."""

    name: str
    title: str
    operation: Callable[[Any], Operation]
    in_flight: dict[str, int]
    least: dict[str, float]  # our rate must be at least so many times that of the peer
    by_latency: bool = False  # compare p50 instead: ours must not be above the peer's


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
    """A line for each system, those of the peers with our ratio to them."""
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
@click.option("--seconds", default=20.0, show_default=True, help="For each system and load.")
@click.option(
    "--awake", is_flag=True, help="Keep the CPUs awake for all systems, as our nodes do for themselves."
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the rows here as well.")
def main(names: tuple[str, ...], seconds: float, awake: bool, json_file: Path | None) -> None:
    """Compare with etcd and NATS JetStream from the packages of the distribution.

    Each system runs as it comes. Ours asks the kernel to keep the CPUs awake while it has work in flight
    (`keep_cpus_awake`), where it may; --awake asks for that all the time, and so for the others as well.
    """
    missing = [package for peer in PEERS if peer.missing() for package in peer.APT_PACKAGES]
    if missing:
        raise click.ClickException(f"a peer is not installed: apt-get install {' '.join(missing)}")
    end_on_signals()
    title = "Three nodes of each and the client on this machine, in turns"
    device = _cpu_latency()
    if device is None and awake:
        raise click.ClickException(f"--awake needs leave to write to {DEVICE}: run it as root")
    if device is None:
        title += "; CPUs sleep as they like"
    elif awake:
        device.stay_awake(True)
        title += "; CPUs awake for all of them"
    else:
        title += "; CPUs awake while our nodes have work"
    try:
        rows = asyncio.run(compare(names, seconds))
    except KeyboardInterrupt:
        say("interrupted; processes and data are gone")
        raise SystemExit(130) from None
    except BenchError as error:
        raise click.ClickException(str(error)) from None
    show(title, rows)
    if json_file is not None:
        write_json(json_file, rows)


if __name__ == "__main__":
    sys.exit(main())
