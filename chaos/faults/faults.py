"""Faults on a cluster. Each reports evidence that its start and its end took effect."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from chaos.cluster.cluster import ChaosCluster, started
from chaos.network.impairment import Impairment
from chaos.network.topology import Pair
from dledger.cli.local.local_cluster import LocalCluster

_POLL_S = 0.05
_WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Effect:
    """Outcome of a start or end.

    `facts`: the evidence. `trace_fields`: an additional trace line; `trace_time_ns`: its monotonic time.
    """

    happened: bool
    facts: dict[str, int | str] = field(default_factory=dict)
    trace_fields: dict[str, int | str] = field(default_factory=dict)
    trace_time_ns: int = 0


class Fault(Protocol):
    """One fault on chosen targets. `begin` and `end` are each called once, in this order.

    If a fault has stopped its targets, `end` restarts or resumes them and waits until they respond, so that
    the nodes run when the next fault starts. The evidence records whether they respond, but the effect does
    not depend on it, because a slow restart does not undo a kill. The healing detects a node that never
    responds.
    """

    kind: str
    targets: Sequence[str]

    async def begin(self) -> Effect: ...
    async def end(self) -> Effect: ...


class Kill:
    """Kills all targets at once with SIGKILL. At the end they are restarted; with `wipe`, they rejoin with
    empty directories. `for_good`: the directories of a majority may be lost, because nobody restarts them."""

    def __init__(
        self, cluster: ChaosCluster, targets: Sequence[str], *, wipe: bool = False, for_good: bool = False
    ) -> None:
        self.kind = "wipe" if wipe else "kill"
        self._for_good = for_good
        self.targets = targets
        self._chaos = cluster
        self._cluster = cluster.local
        self._wipe = wipe

    async def begin(self) -> Effect:
        if self._wipe and not self._for_good:
            for target in self.targets:
                self._chaos.copies.lose(target)
        pids = {target: await asyncio.to_thread(self._pid, target) for target in self.targets}
        ends = await asyncio.gather(*(asyncio.to_thread(self._kill, target) for target in self.targets))
        happened = all(pids.values()) and all(end == "killed by SIGKILL" for end in ends)
        if self._wipe:
            await asyncio.to_thread(self._lose_directories)
            for target in self.targets:
                self._chaos.injections.forget(target)
        return Effect(happened, pid_facts(pids))

    async def end(self) -> Effect:
        down = [target for target in self.targets if not await asyncio.to_thread(self._pid, target)]
        pids = {
            target: await started(self._cluster.start_node, target, rejoin=self._wipe)
            for target in self.targets
        }
        answered = await all_answer(self._cluster, self.targets)
        if self._wipe:
            # One node at a time: two that have lost their directories would wait for each other.
            answered = answered and await until(lambda: all(map(self._has_rejoined, self.targets)))
            await self._chaos.update_recovered_copies()
        return Effect(down == list(self.targets), {**pid_facts(pids), "answered": int(answered)})

    def _has_rejoined(self, target: str) -> bool:
        status = self._cluster.node_status(target)
        return status is not None and not status.rejoining

    def _pid(self, target: str) -> int:
        """Return the target's pid, or 0 if it is not running."""
        process = self._cluster.process(target)
        return (process.pid or 0) if process.is_alive else 0

    def _kill(self, target: str) -> str:
        process = self._cluster.process(target)
        process.kill()
        return process.why_down()

    def _lose_directories(self) -> None:
        """Move the directories to another place, where they remain available for the analysis of a failed
        run."""
        for target in self.targets:
            folder = self._cluster.folder(target)
            lost = sum(1 for path in folder.iterdir() if path.name.startswith("lost-"))
            (folder / f"lost-{lost + 1}").mkdir()
            for name in ("store", "store-broker"):
                if (folder / name).exists():
                    (folder / name).rename(folder / f"lost-{lost + 1}" / name)


class PauseProcesses:
    """Sends SIGSTOP to all targets, and SIGCONT at the end."""

    kind = "stop"

    def __init__(self, cluster: ChaosCluster, targets: Sequence[str]) -> None:
        self.targets = targets
        self._cluster = cluster.local

    async def begin(self) -> Effect:
        pids = {t: await asyncio.to_thread(self._signal, t, signal.SIGSTOP) for t in self.targets}
        # A process pauses immediately; a target without a process never does.
        happened = all(pids.values()) and await until(lambda: all(map(self._is_paused, self.targets)))
        return Effect(happened, pid_facts(pids))

    async def end(self) -> Effect:
        still = [t for t in self.targets if await asyncio.to_thread(self._is_paused, t)]
        for target in still:
            await asyncio.to_thread(self._signal, target, signal.SIGCONT)
        answered = await all_answer(self._cluster, still)
        return Effect(still == list(self.targets), {"answered": int(answered)})

    def _is_paused(self, target: str) -> bool:
        return self._cluster.process(target).is_paused

    def _signal(self, target: str, number: signal.Signals) -> int:
        process = self._cluster.process(target)
        if not process.is_alive:
            return 0
        return self._cluster.send_signal(target, number)


class Terminate:
    """Restarts the targets one by one with SIGTERM, as in a rolling restart. The last target stays down until
    the end."""

    kind = "term"

    def __init__(self, cluster: ChaosCluster, targets: Sequence[str]) -> None:
        self.targets = targets
        self._chaos = cluster
        self._cluster = cluster.local

    async def begin(self) -> Effect:
        happened = True
        for position, target in enumerate(self.targets):
            was_alive = await asyncio.to_thread(self._is_alive, target)
            ended = await asyncio.to_thread(self._cluster.stop_node, target)
            happened = happened and was_alive and ended
            if position < len(self.targets) - 1:
                await started(self._cluster.start_node, target)
                await self._chaos.wait_healthy()
        return Effect(happened, {"graceful": int(happened)})

    async def end(self) -> Effect:
        last = self.targets[-1]
        was_down = not await asyncio.to_thread(self._is_alive, last)
        await started(self._cluster.start_node, last)
        answered = await all_answer(self._cluster, [last])
        return Effect(was_down, {"answered": int(answered)})

    def _is_alive(self, target: str) -> bool:
        return self._cluster.process(target).is_alive


class NetworkFault:
    """Impairs directed links. At the end the counters of the links show whether the fault took effect."""

    def __init__(
        self,
        cluster: ChaosCluster,
        kind: str,
        targets: Sequence[str],
        pairs: frozenset[Pair],
        impairment: Impairment,
    ) -> None:
        self.kind = kind
        self.targets = targets
        self._links = cluster.links
        self._pairs = pairs
        self._impairment = impairment

    async def begin(self) -> Effect:
        self._fault = self._links.begin(self._impairment, self._pairs)
        return Effect(bool(self._pairs), {"links": " ".join(f"{a}>{b}" for a, b in sorted(self._pairs))})

    async def end(self) -> Effect:
        done = self._links.end(self._fault)
        facts: dict[str, int | str] = {
            "held": done.held,
            "swallowed": done.swallowed,
            "delayed": done.delayed,
            "resets": done.resets,
            "passed": done.passed,
        }
        return Effect(done.hurt_by(self._impairment), facts)


def pid_facts(pids: dict[str, int]) -> dict[str, int | str]:
    return {f"pid.{name}": pid for name, pid in pids.items()}


async def all_answer(cluster: LocalCluster, targets: Sequence[str]) -> bool:
    """Wait until all targets respond with their status. Returns False on timeout."""
    return await until(lambda: all(cluster.node_status(target) is not None for target in targets))


async def until(condition: Callable[[], bool], within_s: float = _WAIT_S) -> bool:
    """Evaluate `condition` in a thread until it holds. Returns False on timeout."""
    try:
        async with asyncio.timeout(within_s):
            while not await asyncio.to_thread(condition):
                await asyncio.sleep(_POLL_S)
            return True
    except TimeoutError:
        return False
