"""Sample memory, open files and disk use of the nodes of a soak once a second, and compute the growth."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.common import slope
from benchmarks.memory import resident_mib
from dledger.cli.local.local_cluster import LocalCluster

_EVERY_S = 1.0
#: A new process fills its caches during this time, which does not count as growth.
_WARM_UP_S = 30.0
_LEAST_LIFE_S = 60.0

Points = list[tuple[float, float]]


class Growth(NamedTuple):
    """Growth of a resource during the life of one process, after its warm-up."""

    node: str
    pid: int
    seconds: float
    slope: float  # per second
    grown: float  # `slope` times `seconds`
    most: float


def disk_mib(directory: Path) -> float:
    used = 0
    for path in directory.rglob("*"):
        try:
            used += path.stat().st_blocks * 512
        except FileNotFoundError:  # purged meanwhile
            continue
    return used / (1 << 20)


class Sampler:
    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._started = time.perf_counter()
        # kind -> (node, pid) -> points
        self._points: dict[str, dict[tuple[str, int], Points]] = {"memory": {}, "files": {}, "disk": {}}

    async def run(self) -> None:
        while True:
            await asyncio.to_thread(self._sample)
            await asyncio.sleep(_EVERY_S)

    def _sample(self) -> None:
        for node in self._cluster.running():
            pid = self._cluster.process(node).pid or 0
            now = time.perf_counter() - self._started
            try:
                taken = {
                    "memory": resident_mib(pid),
                    "files": float(len(list(Path(f"/proc/{pid}/fd").iterdir()))),
                    "disk": disk_mib(self._cluster.store_directory(node)),
                }
            except (OSError, KeyError):  # the process is exiting
                continue
            for kind, value in taken.items():
                self._points[kind].setdefault((node, pid), []).append((now, value))

    def word(self) -> str:
        latest = {kind: [p[-1][1] for p in lives.values()] for kind, lives in self._points.items()}
        return ", ".join(f"{kind} {max(values, default=0):.0f}" for kind, values in latest.items())

    def growth(self, kind: str) -> list[Growth]:
        """Return the growth of every process that lived long enough for a slope."""
        found = []
        for (node, pid), points in self._points[kind].items():
            warm = [p for p in points if p[0] - points[0][0] >= _WARM_UP_S]
            seconds = warm[-1][0] - warm[0][0] if warm else 0.0
            if seconds < _LEAST_LIFE_S:
                continue
            per_second = slope(warm)
            most = max(value for _, value in warm)
            found.append(Growth(node, pid, seconds, per_second, per_second * seconds, most))
        return found

    def most(self, kind: str) -> float:
        return max((v for points in self._points[kind].values() for _, v in points), default=0.0)

    def samples(self, kind: str) -> dict[str, Points]:
        return {f"{node} pid {pid}": points for (node, pid), points in self._points[kind].items()}
