"""The command `dledger-chaos failover`, which measures failover times."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from chaos.failover import HOWS, FailoverMeasurement, How, Outage, quantile
from dledger.errors import DLedgerError

_BAR_WIDTH = 40


@click.command()
@click.option(
    "--kills", type=click.IntRange(1, 10_000), default=10, show_default=True, help="Number of faults."
)
@click.option(
    "--how", type=click.Choice(HOWS), default="kill", show_default=True, help="Fault to inject on the leader."
)
@click.option("--nodes", type=click.IntRange(3, 9), default=3, show_default=True, help="Size of the cluster.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of all random choices."
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Directory of the run.  [default: a new directory]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with all measurements.")
def failover(kills: int, how: How, nodes: int, seed: int, directory: Path | None, as_json: bool) -> None:
    """Inject faults on the leader repeatedly, and measure the time to the next acknowledged append.

    \b
    Examples:
      dledger-chaos failover
      dledger-chaos failover --kills 100 --how stop --json

    \b
    Exit codes:
      0    every failover was measured
      1    no append was acknowledged after a failover
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


PLOT_FILE = "failover.svg"
_BARS = 12
_WIDTH, _HEIGHT, _MARGIN = 640, 320, 40


def histogram(times: Sequence[int]) -> list[tuple[int, int]]:
    """Return the bars of a histogram as (lower bound, count), with equal widths in ns. `times` must not be
    empty."""
    least, most = min(times), max(times)
    width = max(1, -(-(most - least + 1) // _BARS))
    counts = [0] * _BARS
    for time_ns in times:
        counts[(time_ns - least) // width] += 1
    return [(least + number * width, count) for number, count in enumerate(counts)]


def svg_plot(times: Sequence[int], title: str) -> str:
    """Return the histogram as an SVG picture, in ms. `times`: times in ns; must not be empty."""
    bars = histogram(times)
    most = max(count for _, count in bars)
    step = (_WIDTH - 2 * _MARGIN) / len(bars)
    parts = [f'<text x="{_MARGIN}" y="20" font-weight="bold">{escape(title)}</text>']
    for number, (begin, count) in enumerate(bars):
        height = count / most * (_HEIGHT - 3 * _MARGIN)
        x, y = _MARGIN + number * step, _HEIGHT - _MARGIN - height
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{step - 2:.1f}" height="{height:.1f}" fill="#48c"/>'
        )
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - _MARGIN + 16}">{begin / 1e6:.0f}</text>')
        if count:
            parts.append(f'<text x="{x:.1f}" y="{y - 4:.1f}">{count}</text>')
    parts.append(f'<text x="{_WIDTH - _MARGIN}" y="{_HEIGHT - 6}">ms</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'font-family="sans-serif" font-size="11">\n' + "\n".join(parts) + "\n</svg>\n"
    )
