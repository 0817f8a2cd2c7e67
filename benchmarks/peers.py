"""`python -m benchmarks.peers`: compare a cluster with three-node etcd and NATS JetStream
under equal load.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks import ours, peers_etcd, peers_nats
from benchmarks.common import (
    BenchError,
    Cpu,
    Load,
    Operation,
    Row,
    closed_loops,
    collect,
    end_on_signals,
    interleaved,
    rounds_for,
    say,
    scratch,
    show,
    write_json,
)
from benchmarks.profiles import flame_graph, py_spy
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


async def compare(names: Sequence[str], seconds: float, profile: Path | None) -> AsyncGenerator[Row]:
    """Measure all systems in turns. `profile`: folder for flame graphs of this project's leader."""
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
            cpu = {name: Cpu(system) for name, system in systems.items()}
            rounds = await interleaved(operations, seconds, rounds_for(seconds), cpu)
            loads = {name: Load.joined(one) for name, one in rounds.items()}
            used = {
                name: _cpu_text(one.used, systems[name].leader_id, loads[name]) for name, one in cpu.items()
            }
            for row in _rows(comparison, loads, used):
                yield row
            if profile is not None:
                mine = systems[_OURS]
                leader = mine.cluster.process(mine.leader_id).pid
                with flame_graph(leader, profile / f"{comparison.name}.svg", seconds):
                    await closed_loops(*operations[_OURS], seconds + 1)


def _cpu_text(used: dict[str, float], leader: str, load: Load) -> str:
    named = {"leader": used[leader], **{who: seconds for who, seconds in used.items() if who != leader}}
    each = (f"{who} {1e6 * seconds / load.entries:.0f}" for who, seconds in named.items())
    return f"CPU µs per entry: {', '.join(each)}"


def _rows(comparison: Comparison, loads: dict[str, Load], cpu: dict[str, str]) -> list[Row]:
    """Return a row per system. Rows of peers include our ratio to the peer."""
    mine = loads[_OURS]
    rows = []
    for name, load in loads.items():
        p50 = load.latency_ms(0.5)
        measured = f"p50 {p50:.2f} ms" if comparison.by_latency else f"{load.rate:,.0f} entries/s"
        values: dict[str, Any] = {"system": name, "rate": load.rate, "p50_ms": p50}
        target, ok, detail = "", None, f"p50 {p50:.2f} ms, {load.rate:,.0f}/s; {cpu[name]}"
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
    "--profile",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write a flame graph of our leader to this folder for each load (needs py-spy).",
)
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Also write the rows to this file."
)
def main(
    names: tuple[str, ...], seconds: float, awake: bool, profile: Path | None, json_file: Path | None
) -> None:
    """Compare with etcd and NATS JetStream.

    Each system runs with its defaults. Our nodes keep the CPUs awake while they have work in flight
    (`keep_cpus_awake`), if the process has the permission. --awake keeps them awake throughout, which
    benefits all systems.
    """
    missing = [peer for peer in PEERS if peer.missing()]
    if missing:
        raise click.ClickException(
            f"no server of {' and '.join(peer.NAME for peer in missing)} on PATH or in build/peers: run "
            "`make bench-peers` with Go 1.24 or newer on PATH, or as root "
            f"`apt-get install {' '.join(package for peer in missing for package in peer.APT_PACKAGES)}`"
        )
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
    rows: list[Row] = []
    try:
        if profile is not None:
            py_spy()
        asyncio.run(collect(compare(names, seconds, profile), rows))
    except KeyboardInterrupt:
        say("interrupted; removed all processes and data")
        raise SystemExit(130) from None
    except BenchError as error:
        raise click.ClickException(str(error)) from None
    finally:
        if rows:
            show(title, rows)
            if json_file is not None:
                write_json(json_file, rows)


if __name__ == "__main__":
    sys.exit(main())
