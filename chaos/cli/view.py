"""What a terminal shows of a run: lines as things happen, and a panel that is kept up to date below them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from chaos.run import Result, Watch
from chaos.trace.schema import OpType
from chaos.verdict import Verdict

_REFRESH_S = 0.5
_COLOURS = {Verdict.VALID: "green", Verdict.INVALID: "bold red", Verdict.VOID: "yellow"}


class RunView:
    """`watch` is for the run; `showing()` keeps the panel up to date, on terminals only."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._began = time.monotonic()
        self._rate = 0.0
        self._leader = ""
        self._last: tuple[float, int] = (self._began, 0)
        self.watch = Watch(note=self._note)

    @asynccontextmanager
    async def showing(self) -> AsyncIterator[None]:
        self._console.print(Text(self._title, style="bold"))
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
        self._console.print(f"{time.monotonic() - self._began:7.1f} s  {text}", markup=False, highlight=False)

    async def _refresh(self, live: Live) -> None:
        while True:
            await asyncio.sleep(_REFRESH_S)
            watch = self.watch
            if watch.cluster is not None and watch.phase not in ("stopping", "checking"):
                leader = await watch.cluster.leadership()
                self._leader = f"{leader.node_id}, term {leader.term}" if leader else "nobody"
            if watch.tally is not None:
                now, count = time.monotonic(), watch.tally.acknowledged
                self._rate = (count - self._last[1]) / (now - self._last[0])
                self._last = (now, count)
            live.update(self._panel(), refresh=True)

    def _panel(self) -> Group:
        watch = self.watch
        table = Table.grid(padding=(0, 2))
        table.add_row("phase", watch.phase)
        table.add_row("leader", self._leader)
        table.add_row("faults", "; ".join(watch.nemesis.in_force) if watch.nemesis else "")
        if (tally := watch.tally) is not None:
            table.add_row("acknowledged", f"{tally.acknowledged:,}, {self._rate:,.0f}/s")
            table.add_row(
                "latency", f"p50 {tally.latency_ms(0.5):.1f} ms, p99 {tally.latency_ms(0.99):.1f} ms"
            )
            failed, in_doubt = tally.outcomes[OpType.FAIL], tally.outcomes[OpType.INFO]
            table.add_row("failed, in doubt", f"{failed:,}, {in_doubt:,}")
            table.add_row("read", f"{tally.read:,}")
        return Group(table)


def print_result(console: Console, result: Result) -> None:
    """What came of a run, in a few lines."""
    report = result.report
    console.print(
        f"{result.scenario} (seed {result.seed}): [{_COLOURS[result.verdict]}]{result.verdict.upper()}[/]  "
        f"{report.acknowledged:,} acknowledged ({result.acknowledged_per_second:,.0f}/s), "
        f"{report.failed:,} failed, {report.in_doubt:,} in doubt; {len(result.faults)} faults, "
        f"{result.leader_changes} changes of leader, longest silence {result.longest_silence_ms:,} ms",
        highlight=False,
    )
    console.print(
        f"  lost {report.lost}, duplicated {report.duplicated}, reordered {report.reordered}, "
        f"phantom {report.phantom}; {report.read:,} read in the end",
        highlight=False,
    )
    for reason in result.reasons:
        console.print(f"  {reason}", style=_COLOURS[result.verdict], markup=False, highlight=False)
