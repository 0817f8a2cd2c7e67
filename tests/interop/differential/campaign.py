"""Play sequences on all brokers, compare, shrink what fails, and count."""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import actions, administration, scheduled
from .accepted import split
from .brokers import CLASSIC, BrokerSet
from .compare import Difference, differences, first_failures
from .session import Session, play_step
from .shrink import shrunk
from .steps import RESTART, Step, to_text

#: Importing them registers their actions.
ACTION_MODULES = (actions, administration, scheduled)
#: How often a sequence is played to shrink it; a restart takes up to half a minute.
_MOST, _MOST_WITH_RESTARTS = 200, 8
_plays = itertools.count()


@dataclass
class Counts:
    """Of a campaign. `requests`: steps played on each of our stores and RocketMQ."""

    seeds: int = 0
    steps: Counter[str] = field(default_factory=Counter)
    accepted: Counter[tuple[str, str]] = field(default_factory=Counter)
    failed: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    unrepeated: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def table(self) -> str:
        lines = [f"{self.seeds} seeds, {sum(self.steps.values())} steps on each broker:"]
        lines += [f"  {count:6} {kind}" for kind, count in sorted(self.steps.items())]
        for title, counter in (
            ("accepted", self.accepted),
            ("FAILED", self.failed),
            ("differed once, and not when played again", self.unrepeated),
        ):
            lines += [f"{title}: {sum(counter.values())} differences"]
            lines += [f"  {count:6} {' '.join(key)}" for key, count in sorted(counter.items())]
        return "\n".join(lines)


class Campaign:
    """`report` receives lines of text. `shrinks`: whether failing sequences are reduced."""

    def __init__(
        self, brokers: BrokerSet, report: Callable[[str], None] = print, *, shrinks: bool = True
    ) -> None:
        self._brokers = brokers
        self._report = report
        self._shrinks = shrinks
        self.counts = Counts()

    async def play(self, steps: Sequence[Step]) -> tuple[list[Difference], Counter[tuple[str, str]]]:
        """The first failures, and how many differences each rule accepted."""
        prefix = f"d{int(time.time()):x}p{next(_plays)}x"
        born_ms = time.time_ns() // 1_000_000
        sessions = [Session(broker, prefix, born_ms) for broker in self._brokers.all]
        seen: list[dict[int, Any]] = [{} for _ in sessions]
        await asyncio.gather(*(session.open() for session in sessions))
        try:
            for step in steps:
                if step.kind == RESTART:
                    await self._restart(sessions, step)
                step_ms = time.time_ns() // 1_000_000
                for session in sessions:
                    session.step_ms = step_ms
                found = await asyncio.gather(*(play_step(session, step) for session in sessions))
                for observations, one in zip(seen, found, strict=True):
                    observations[step.number] = one
        finally:
            for session in sessions:
                session.close()
        all_found: list[Difference] = []
        for broker, ours in zip(self._brokers.ours, seen, strict=False):
            all_found += differences(broker.name, steps, ours, seen[-1])
        failures, accepted = split(all_found)
        return first_failures(failures), accepted

    async def _restart(self, sessions: list[Session], step: Step) -> None:
        """`how`: "stop" or "kill"; `exchange`: the classic broker and RocketMQ swap directories, and
        with it what a session knows of its contents."""
        for session in sessions:
            session.close()
        number = signal.SIGKILL if step.args["how"] == "kill" else signal.SIGTERM
        await self._brokers.restart(number, bool(step.args.get("exchange")))
        classic = next((n for n, one in enumerate(sessions) if one.broker.name == CLASSIC), None)
        if step.args.get("exchange") and classic is not None:
            sessions[classic], sessions[-1] = sessions[-1], sessions[classic]
        for session, broker in zip(sessions, self._brokers.all, strict=True):
            session.broker = broker
        await asyncio.gather(*(session.open() for session in sessions))

    async def run(self, seed: int, steps: Sequence[Step]) -> list[Difference]:
        """Failures of a sequence that repeat; each kind of them is shrunk and reported once."""
        self.counts.seeds += 1
        self.counts.steps.update(step.kind for step in steps)
        failures, accepted = await self.play(steps)
        self.counts.accepted.update(accepted)
        if not failures:
            return []
        again = {one.signature for one in (await self.play(steps))[0]}
        repeated = [one for one in failures if one.signature in again]
        self.counts.failed.update(one.signature for one in repeated)
        self.counts.unrepeated.update(one.signature for one in failures if one.signature not in again)
        reported: set[tuple[str, str, str]] = set()
        for failure in repeated:
            self._report(f"# seed {seed}: {failure}")
        for failure in repeated:
            if self._shrinks and failure.signature not in reported:
                reported |= await self._report_shrunk(seed, steps, failure)
        return repeated

    async def _report_shrunk(
        self, seed: int, steps: Sequence[Step], failure: Difference
    ) -> set[tuple[str, str, str]]:
        """The signatures that the shrunk sequence shows."""

        async def fails(candidate: Sequence[Step]) -> bool:
            return failure.signature in {one.signature for one in (await self.play(candidate))[0]}

        has_restarts = any(step.kind == RESTART for step in steps)
        smallest = await shrunk(steps, fails, _MOST_WITH_RESTARTS if has_restarts else _MOST)
        found, _ = await self.play(smallest)
        lines = [f"# seed {seed}: {failure.signature}", to_text(smallest), *(f"# {one}" for one in found)]
        self._report("\n".join(lines))
        return {failure.signature, *(one.signature for one in found)}
