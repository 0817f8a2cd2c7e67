"""Records how long the processes of a run waited for a processor.

On a busy machine a node may lose its leadership without any fault, and a client may get no answer for
seconds. The trace therefore states when a process was *starved*: its main thread, which runs its event loop,
waited for a processor for at least half of the time between two samples. The time that the kernel reports
(`/proc/<pid>/schedstat`) includes neither waits for a disk, a peer or a signal nor the work of the process
itself, so it cannot hide a defect of the product. The harness, in which most clients run, also counts as
starved if its own loop runs late.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from chaos.cluster.cluster import ChaosCluster
from chaos.cluster.node_configs import NAMESRV
from chaos.trace.schema import Ev
from chaos.trace.writer import TraceWriter

#: Name of the harness in the trace.
HARNESS = "harness"
_PERIOD_S = 0.25


class Sample(NamedTuple):
    """Total time in ns that processes had waited for a processor at a monotonic time, by (name, pid)."""

    mono: int
    waited: Mapping[tuple[str, int], int]


class Starved(NamedTuple):
    """A process that waited for `waited` ns since the time `since`."""

    name: str
    since: int
    waited: int


def starved_between(before: Sample, after: Sample) -> list[Starved]:
    """Return the processes that waited for at least half of the time between two samples."""
    elapsed = after.mono - before.mono
    late = elapsed - int(_PERIOD_S * 1e9)
    found = []
    for (name, pid), waited in after.waited.items():
        if (name, pid) in before.waited:
            delta = waited - before.waited[name, pid]
            delta = max(delta, late) if name == HARNESS else delta
            if 2 * delta >= elapsed > 0:
                found.append(Starved(name, before.mono, delta))
    return found


class SchedulingWatch:
    """Watches the servers of a cluster and this process, and writes their waiting times to the trace."""

    def __init__(self, cluster: ChaosCluster, writer: TraceWriter) -> None:
        self._local = cluster.local
        self._writer = writer
        self._servers = [NAMESRV] if cluster.namesrv else []
        self._totals: dict[tuple[str, int], int] = {}

    async def run(self) -> None:
        """Watch until cancelled."""
        before = await asyncio.to_thread(self._sample)
        while True:
            await asyncio.sleep(_PERIOD_S)
            after = await asyncio.to_thread(self._sample)
            for name, since, waited in starved_between(before, after):
                self._writer.write(Ev.META, {"e": "starved", "node": name, "since": since, "size": waited})
            before = after

    async def stop(self, watching: asyncio.Task[None]) -> None:
        """End `run` and record the total waiting time of each process. If a process has no such line, its
        waiting time is unknown."""
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        for (name, pid), waited in self._totals.items():
            self._writer.write(Ev.META, {"e": "scheduling", "node": name, "pid": pid, "size": waited})

    def _sample(self) -> Sample:
        pids = {name: self._local.pid_of(name) for name in (*self._local.node_ids, *self._servers)}
        processes = [(HARNESS, os.getpid()), *((name, pid) for name, pid in pids.items() if pid is not None)]
        waited = {}
        for name, pid in processes:
            if (total := waited_ns(pid)) is not None:
                waited[name, pid] = self._totals[name, pid] = total
        return Sample(time.monotonic_ns(), waited)


def waited_ns(pid: int) -> int | None:
    """Return the total time in ns for which the main thread of a process has waited for a processor. Returns
    None if the process does not exist or the kernel does not report it."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
