"""`dledger-chaos failover`."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from chaos.cli.failover_plot import PLOT_FILE, histogram, svg_plot
from chaos.failover import HOWS, FailoverMeasurement, How, Outage, quantile
from dledger.errors import DLedgerError

_BAR_WIDTH = 40


@click.command()
@click.option("--kills", type=click.IntRange(1, 10_000), default=10, show_default=True, help="How often.")
@click.option(
    "--how", type=click.Choice(HOWS), default="kill", show_default=True, help="What happens to the leader."
)
@click.option("--nodes", type=click.IntRange(3, 9), default=3, show_default=True, help="Size of the cluster.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of all that is drawn at random."
)
@click.option(
    "--dir", "directory", type=click.Path(path_type=Path), help="Where it runs.  [default: a new directory]"
)
@click.option("--json", "as_json", is_flag=True, help="One object with all figures.")
def failover(kills: int, how: How, nodes: int, seed: int, directory: Path | None, as_json: bool) -> None:
    """Take the leader away again and again, and measure the time to the next acknowledged append.

    \b
    Examples:
      dledger-chaos failover
      dledger-chaos failover --kills 100 --how stop --json

    \b
    Exit codes:
      0    every failover was measured
      1    after a failover no append was acknowledged
      2    wrong option or argument
      130  interrupted (Ctrl-C)
    """
    console = Console(stderr=as_json)
    root = directory or Path(tempfile.mkdtemp(prefix="dledger-failover-"))

    def note(outage: Outage) -> None:
        console.print(
            f"{how} {outage.victim} in term {outage.old_term}: {outage.duration_ns / 1e6:.0f} ms until term "
            f"{outage.new_term} answered"
            if outage.duration_ns >= 0
            else f"{how} {outage.victim}: no answer",
            highlight=False,
        )

    measurement = FailoverMeasurement(root, kills=kills, how=how, nodes=nodes, seed=seed, note=note)
    try:
        outages = asyncio.run(measurement.run())
    except KeyboardInterrupt:
        console.print("interrupted; all processes of the run are gone")
        sys.exit(130)
    except DLedgerError as error:
        raise click.ClickException(str(error)) from None
    times = [outage.duration_ns for outage in outages if outage.duration_ns >= 0]
    if as_json:
        click.echo(
            json.dumps({"how": how, "nodes": nodes, "ms": [time / 1e6 for time in times], **_summary(times)})
        )
    elif times:
        _print(console, times)
        plot = root / PLOT_FILE
        plot.write_text(svg_plot(times, f"{how}: time to the next acknowledged append, {nodes} nodes"))
        console.print(f"plot: {plot}", highlight=False)
    sys.exit(0 if len(times) == kills else 1)


def _summary(times: list[int]) -> dict[str, float]:
    if not times:
        return {}
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {name: round(quantile(times, share) / 1e6, 1) for name, share in shares.items()}


def _print(console: Console, times: list[int]) -> None:
    table = Table("faults", *(f"{name} ms" for name in _summary(times)))
    table.add_row(str(len(times)), *(f"{value:,.0f}" for value in _summary(times).values()))
    console.print(table)
    bars = histogram(times)
    most = max(count for _, count in bars)
    for begin, count in bars:
        bar = "█" * -(-count * _BAR_WIDTH // most)
        console.print(f"{begin / 1e6:8.0f} ms {count:5} {bar}", highlight=False)
