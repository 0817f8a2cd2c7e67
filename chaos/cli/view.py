"""What a terminal shows of a run: lines as things happen, and a panel that is kept up to date below them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from chaos.run import Result, Watch
from chaos.trace.schema import OpType
from chaos.verdict import Verdict

_REFRESH_S = 0.5
#: Rates that the curve shows.
_CURVE = 60
_LEVELS = " ▁▂▃▄▅▆▇█"
COLOURS = {Verdict.VALID: "green", Verdict.INVALID: "bold red", Verdict.VOID: "yellow"}


@dataclass(frozen=True, slots=True)
class Shown:
    """What the panel says. `rates`: acknowledged messages per second, the newest last. Latencies in ms;
    `errors`: code and how often, the most frequent first."""

    phase: str
    seconds: float
    leader: str = ""
    faults: Sequence[str] = ()
    acknowledged: int = 0
    operations: int = 0
    rates: Sequence[float] = ()
    p50: float = 0.0
    p99: float = 0.0
    failed: int = 0
    in_doubt: int = 0
    shed: int = 0
    errors: Sequence[tuple[str, int]] = ()
    read: int = 0


def panel_of(shown: Shown) -> Panel:
    """The panel, in one place for each fact: nothing jumps while numbers change."""
    # Texts, not markup: lines that are printed beside the panel switch markup off for all that is shown.
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="dim")
    table.add_column()
    table.add_row("phase", Text.assemble((shown.phase, "bold"), f", {shown.seconds:.0f} s"))
    faults = "; ".join(shown.faults)
    table.add_row("fault", Text(faults, style="red") if faults else Text("none in force"))
    table.add_row("leader", Text(shown.leader or "-"))
    rate = shown.rates[-1] if shown.rates else 0.0
    total = f", {shown.acknowledged:,} in {shown.operations:,} operations"
    table.add_row("acknowledged", Text.assemble((f"{rate:,.0f}/s", "bold"), total))
    table.add_row("", Text(curve(shown.rates), style="green"))
    table.add_row("latency", Text(f"p50 {shown.p50:.1f} ms, p99 {shown.p99:.1f} ms"))
    outcomes = f"{shown.acknowledged:,} ok, {shown.failed:,} failed, {shown.in_doubt:,} in doubt"
    table.add_row("outcomes", Text(outcomes + (f", {shown.shed:,} not begun" if shown.shed else "")))
    errors = ", ".join(f"{code} {count:,}" for code, count in shown.errors)
    table.add_row("errors", Text(errors or "-"))
    table.add_row("read", Text(f"{shown.read:,}"))
    return Panel(table, expand=False, border_style="red" if shown.faults else "dim")


def curve(rates: Sequence[float]) -> str:
    """One character for each, from nothing to the highest. Anything that is not nothing is to be seen."""
    highest = max(rates, default=0.0)
    if not highest:
        return " " * len(rates)
    steps = len(_LEVELS) - 1
    return "".join(_LEVELS[0 if rate <= 0 else max(1, round(rate / highest * steps))] for rate in rates)


@dataclass(slots=True)
class _Rates:
    """Differences of a count that grows."""

    last_at: float
    last_count: int = 0
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=_CURVE))

    def take(self, now: float, count: int) -> None:
        self.rates.append((count - self.last_count) / max(1e-9, now - self.last_at))
        self.last_at, self.last_count = now, count


class RunView:
    """`watch` is for the run; `showing()` keeps the panel up to date, on terminals only."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._began = time.monotonic()
        self._rates = _Rates(self._began)
        self._leader = ""
        self.watch = Watch(note=self._note)

    @asynccontextmanager
    async def showing(self) -> AsyncIterator[None]:
        self._console.print(Text(self._title, style="bold"), soft_wrap=True)
        if not self._console.is_terminal:
            yield
            return
        with Live(self._panel(), console=self._console, auto_refresh=False, transient=True) as live:
            refreshing = asyncio.create_task(self._refresh(live))
            try:
                yield
            finally:
                refreshing.cancel()
                await asyncio.gather(refreshing, return_exceptions=True)

    def _note(self, text: str) -> None:
        line = f"{time.monotonic() - self._began:7.1f} s  {text}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    async def _refresh(self, live: Live) -> None:
        while True:
            await asyncio.sleep(_REFRESH_S)
            watch = self.watch
            if watch.cluster is not None and watch.phase not in ("stopping", "checking"):
                leader = await watch.cluster.leadership()
                self._leader = f"{leader.node_id}, term {leader.term}" if leader else "nobody"
            if watch.tally is not None:
                self._rates.take(time.monotonic(), watch.tally.acknowledged)
            live.update(self._panel(), refresh=True)

    def _panel(self) -> Panel:
        watch, seconds = self.watch, time.monotonic() - self._began
        tally = watch.tally
        if tally is None:
            return panel_of(Shown(watch.phase, seconds))
        return panel_of(
            Shown(
                watch.phase,
                seconds,
                self._leader,
                watch.nemesis.in_force if watch.nemesis else (),
                tally.acknowledged,
                tally.operations,
                tuple(self._rates.rates),
                tally.latency_ms(0.5),
                tally.latency_ms(0.99),
                tally.outcomes[OpType.FAIL],
                tally.outcomes[OpType.INFO],
                tally.shed,
                tally.errors.most_common(3),
                tally.read,
            )
        )


def _during(result: Result) -> list[str]:
    if (during := result.during) is None:
        return []
    return [
        f"  during the faults {during.messages:,.0f} messages/s acknowledged in {during.sends:,.0f} sends/s, "
        f"{during.read:,.0f}/s read"
    ]


def print_result(console: Console, result: Result) -> None:
    """What came of a run, in a few lines."""
    report = result.report
    colour = COLOURS[result.verdict]
    for text in (
        f"{result.scenario} (seed {result.seed}): [{colour}]{result.verdict.upper()}[/]  "
        f"{report.acknowledged:,} acknowledged ({result.acknowledged_per_second:,.0f}/s in "
        f"{result.operations_per_second:,.0f} operations/s), {report.failed:,} failed, "
        f"{report.in_doubt:,} in doubt; {len(result.faults)} faults, {len(result.hostiles)} hostile clients, "
        f"{result.leader_changes} changes of leader, longest silence {result.longest_silence_ms:,} ms",
        f"  lost {report.lost}, duplicated {report.duplicated}, reordered {report.reordered}, "
        f"phantom {report.phantom}, returned {report.returned}, early {report.early}; "
        f"{report.read:,} read in the end"
        + (f", {report.consumed:,} by groups ({report.redelivered:,} again)" if report.consumed else ""),
        *_during(result),
    ):
        console.print(text, highlight=False, soft_wrap=True)
    for reason in result.reasons:
        console.print(f"  {reason}", style=colour, markup=False, highlight=False, soft_wrap=True)
