"""`python -m benchmarks.soak`: run real processes for many minutes under load and faults, and detect leaks.

The run includes appends, reads, continuous purging by retention, kills of the leader, and a lost directory
that is rebuilt with `--rejoin`. It samples memory, open files and disk use of every node, and checks that
every acknowledged entry can be read. It fails if an entry is missing or a resource grows without bound.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import click

from benchmarks.common import RESULTS, Row, end_on_signals, say, scratch, show, write_json
from benchmarks.soak_load import SoakLoad
from benchmarks.soak_samples import Sampler
from dledger.cli.local.local_cluster import LocalCluster

DATA_FILE_SIZE = 8 << 20
#: The tail cache is small enough to fill during the warm-up, so that it does not count as growth.
SETTINGS: dict[str, Any] = {
    "retention": {"max_bytes": 32 << 20, "hold_bytes": 16 << 20, "check_interval": "1s"},
    "limits": {"tail_cache_bytes": 16 << 20},
    "scrub": {"pause": "1m"},
}
#: Maximum disk use: the data that retention keeps, a partly filled data file, two prepared files, and one
#: that the newest image holds. Index files add a sixth.
MOST_DISK_BYTES = int((32 + 16 + 4 * 8) * (1 << 20) * 1.17)
MOST_GROWTH_MIB = 20.0
MOST_NEW_FILES = 20
#: Times of faults as shares of the run. The second half has few faults, so that growth is measurable.
KILLS = (0.08, 0.16, 0.24, 0.45, 0.60)
REJOIN = 0.32
_DOWN_S = 3.0
_IN_STEP_S = 120.0


async def run(seconds: float) -> list[Row]:
    with scratch("soak") as folder:
        cluster = LocalCluster.create(
            folder / "cluster",
            base_port=0,
            data_file_size=DATA_FILE_SIZE,
            settings=SETTINGS,
        )
        with cluster:
            await asyncio.to_thread(cluster.start)
            await asyncio.to_thread(cluster.wait_for_all)
            sampler = Sampler(cluster)
            async with SoakLoad(cluster.addresses) as load:
                sampling = asyncio.create_task(sampler.run())
                faults = asyncio.create_task(_faults(cluster, seconds))
                await _watch(seconds, load, sampler, faults)
                await faults
                sampling.cancel()
                await asyncio.gather(sampling, return_exceptions=True)
            await asyncio.to_thread(_wait_until_in_step, cluster)
            equal = await load.copies_are_equal(cluster.addresses)
    return _rows(seconds, load, sampler, equal)


async def _watch(seconds: float, load: SoakLoad, sampler: Sampler, faults: asyncio.Task[None]) -> None:
    """Run for `seconds`. Raises the error of any failed part of the run."""
    started = time.perf_counter()
    next_report = started + 30
    while (now := time.perf_counter()) < started + seconds:
        load.check()
        if faults.done():
            faults.result()
        if now > next_report:
            next_report += 30
            say(f"soak: {now - started:.0f} s, {load.acknowledged:,} acknowledged, {sampler.word()}")
        await asyncio.sleep(0.5)


async def _faults(cluster: LocalCluster, seconds: float) -> None:
    started = time.perf_counter()
    for part in sorted((*KILLS, REJOIN)):
        await asyncio.sleep(max(0.0, started + part * seconds - time.perf_counter()))
        leader = await asyncio.to_thread(cluster.wait_for_leader)
        if part != REJOIN:
            say(f"soak: SIGKILL of the leader {leader.node_id}")
            await asyncio.to_thread(cluster.kill, leader.node_id)
            await asyncio.sleep(_DOWN_S)
            await asyncio.to_thread(cluster.start_node, leader.node_id)
        else:
            lost = next(node for node in cluster.node_ids if node != leader.node_id)
            say(f"soak: {lost} loses its directory")
            await asyncio.to_thread(cluster.kill, lost)
            shutil.rmtree(cluster.store_directory(lost))
            await asyncio.sleep(_DOWN_S)
            await asyncio.to_thread(partial(cluster.start_node, lost, rejoin=True))
        await asyncio.to_thread(_wait_until_in_step, cluster)


def _wait_until_in_step(cluster: LocalCluster) -> None:
    """Wait until all nodes are healthy full members and lag by less than 5000 entries."""
    deadline = time.monotonic() + _IN_STEP_S
    while time.monotonic() < deadline:
        found = [cluster.node_status(node) for node in cluster.node_ids]
        healthy = [s for s in found if s is not None and s.health == "ok" and s.leader_id and not s.rejoining]
        ends = [s.committed_index for s in healthy]
        if len(healthy) == len(found) and max(ends) - min(ends) < 5000:
            return
        time.sleep(0.1)
    raise TimeoutError(f"a node is unhealthy or lags after {_IN_STEP_S:g} s: {cluster.status()}")


def _rows(seconds: float, load: SoakLoad, sampler: Sampler, equal: str) -> list[Row]:
    minutes = seconds / 60
    rows = [
        Row(
            f"acknowledged entries, {minutes:g} minutes",
            f"{load.missing} of {load.acknowledged:,} missing",
            "0 missing",
            load.missing == 0 and load.acknowledged > 0,
            f"{len(KILLS)} SIGKILLs of the leader, 1 lost directory; {load.reads:,} reads; longest pause "
            f"{load.longest_pause_s:.1f} s; entries {load.purged_to:,} and below were purged",
            {"acknowledged": load.acknowledged, "missing": load.missing, "reads": load.reads},
        ),
        Row("the copies of the log", equal or "equal", "equal", not equal),
    ]
    for kind, unit, most in (("memory", "MiB", MOST_GROWTH_MIB), ("files", "files", MOST_NEW_FILES)):
        grown = sampler.growth(kind)
        worst = max(grown, key=lambda g: g.grown, default=None)
        rows.append(
            Row(
                f"{kind} of a node",
                "no process lived long enough"
                if worst is None
                else f"{worst.grown:+.1f} {unit} at the slope",
                f"<= {most:g} {unit} growth",
                worst is not None and worst.grown <= most,
                "; ".join(
                    f"{g.node} {g.slope * 60:+.2f} {unit}/min over {g.seconds:.0f} s, max {g.most:.0f}"
                    for g in grown
                ),
                {"lives": [g._asdict() for g in grown], "samples": sampler.samples(kind)},
            )
        )
    disk = sampler.most("disk")
    rows.append(
        Row(
            "disk of a node",
            f"at most {disk:.0f} MiB",
            f"<= {MOST_DISK_BYTES / (1 << 20):.0f} MiB",
            disk <= MOST_DISK_BYTES / (1 << 20) and load.purged_to > 0,
            f"{load.bytes_written / (1 << 20):,.0f} MiB were appended",
            {"samples": sampler.samples("disk"), "slopes": [g._asdict() for g in sampler.growth("disk")]},
        )
    )
    return rows


@click.command()
@click.option(
    "--minutes", default=10.0, show_default=True, help="Duration; the run takes about a minute longer."
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), default=RESULTS / "soak.json")
def main(minutes: float, json_file: Path) -> None:
    """Run three nodes under load and faults; exit with 1 if an entry is lost or a resource grows."""
    end_on_signals()
    try:
        rows = asyncio.run(run(60 * minutes))
    except KeyboardInterrupt:
        say("interrupted; removed all processes and data")
        raise SystemExit(130) from None
    show(f"Three nodes on this machine for {minutes:g} minutes", rows)
    write_json(json_file, rows)
    say(f"all samples are in {json_file}")
    if not all(row.ok for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    sys.exit(main())
