"""`python -m benchmarks`: run all benchmarks of a local cluster, with yardsticks from the same run."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path

import click

from benchmarks import (
    appends,
    catchup,
    chaos_tracing,
    checker,
    failover,
    memory,
    reads,
    restart,
    unary,
    yardsticks,
)
from benchmarks.broker import clients, loads
from benchmarks.broker import consume as broker_consume
from benchmarks.broker import failover as broker_failover
from benchmarks.broker import produce as broker_produce
from benchmarks.broker import restart as broker_restart
from benchmarks.broker.cases import Selection, options
from benchmarks.common import BODY, BenchError, Row, collect, end_on_signals, say, show, write_json

Figure = Callable[[float], AsyncGenerator[Row]]

FIGURES: dict[str, Figure] = {
    yardsticks.NAME: yardsticks.run,
    "batches": appends.batches,
    "concurrent": appends.concurrent,
    "lone": appends.lone,
    "unary": unary.run,
    "reads": reads.run,
    "failover": failover.run,
    "restart": restart.run,
    "catchup": catchup.run,
    "memory": memory.run,
    "broker-produce": broker_produce.run,
    "broker-consume": broker_consume.run,
    "broker-failover": broker_failover.run,
    "broker-restart": broker_restart.run,
    "broker-loads": loads.run,
    "clients-send": clients.send,
    "clients-receive": clients.receive,
    "checker": checker.run,
    "chaos-tracing": chaos_tracing.run,
}
_MEMORY_SECONDS = 30.0


@click.command()
@click.option(
    "--only",
    "names",
    multiple=True,
    type=click.Choice(list(FIGURES)),
    help="Run only this benchmark; may be repeated.",
)
@click.option("--seconds", default=8.0, show_default=True, help="Duration of each measurement.")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Also write the rows to this file."
)
@click.option(
    "--long",
    "long_run",
    is_flag=True,
    help="Measure memory for ten minutes, catch-up of 2 GiB, restart with 1 KiB messages with keys, and "
    "traces of 1,000,000 and 10,000,000 events.",
)
@click.option(
    "--events",
    "sizes",
    type=click.IntRange(10_000),
    multiple=True,
    help="Number of events in the checker's trace; may be repeated, smallest first. 100,000,000 events take "
    "two hours and 30 GB of disk.",
)
@options
def main(
    names: tuple[str, ...],
    seconds: float,
    json_file: Path | None,
    long_run: bool,
    sizes: tuple[int, ...],
    selection: Selection,
) -> None:
    """Measure a cluster of three nodes on this machine."""
    end_on_signals()
    rows: list[Row] = []
    try:
        for name, figure in FIGURES.items():
            if names and name not in names:
                continue
            say(f"{name} ...")
            length = seconds
            if name == "catchup" and long_run:
                figure = partial(catchup.run, behind_bytes=catchup.LONG_BEHIND_BYTES)
            if name == "broker-restart" and long_run:
                figure = partial(broker_restart.run, body=BODY)
            if name == "broker-loads":
                figure = partial(loads.run, selection=selection)
            if name == "checker" and (long_run or sizes):
                figure = partial(checker.run, sizes=sizes or checker.LONG_SIZES)
            if name == "memory":
                length = memory.LONG_SECONDS if long_run else max(seconds, _MEMORY_SECONDS)
            asyncio.run(collect(figure(length), rows))
    except KeyboardInterrupt:
        say("interrupted; removed all processes and data")
        raise SystemExit(130) from None
    except BenchError as error:
        raise click.ClickException(str(error)) from None
    finally:
        if rows:
            show("Three nodes and the client on this machine", rows)
            if json_file is not None:
                write_json(json_file, rows)


if __name__ == "__main__":
    sys.exit(main())
