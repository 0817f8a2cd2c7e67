"""Runs the planned hostile clients, each in its own process, and records their effects.

The trace records them as faults of the kinds in `schema.HOSTILE`. While they run, the harness monitors the
servers, because a hostile client must not terminate a server or raise its memory use above the limit of the
scenario.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from chaos.cluster.cluster import ChaosCluster
from chaos.cluster.node_configs import NAMESRV
from chaos.hostile.kinds import KINDS, achieved
from chaos.hostile.orders import HostileOrders, counts_of_line
from chaos.plans.scenario import HostileOccurrence
from chaos.trace.schema import Ev
from chaos.trace.writer import TraceWriter

FOLDER = "hostile"
#: Timeout for the first effect of a client. On a busy machine, starting Python and importing gRPC takes long.
_START_S = 20.0
_WATCH_S = 0.25


@dataclass(slots=True)
class HostileRun:
    """One hostile client that was started. Times are monotonic ns; `ended` is 0 while it runs. `counts`: its
    latest report."""

    occurrence: HostileOccurrence
    began: int
    ended: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.occurrence.step.kind

    @property
    def evidence(self) -> str:
        return " ".join(f"{name}={count}" for name, count in sorted(self.counts.items()) if count)


class HostileProcess:
    """A process of `python -m chaos.hostile` and its reports. Its stderr goes to `log`."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self.counts: dict[str, int] = {}

    async def start(self, orders: HostileOrders) -> None:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "chaos.hostile"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, "GRPC_VERBOSITY": "NONE"},
                # Its own process group, so that it can be killed with all its children.
                start_new_session=True,
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(orders.to_line())
        self._reading = asyncio.create_task(self._read(self._process.stdout))

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def stop(self) -> None:
        """Kill the process and all its children. May be called repeatedly."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        if self._reading is not None:
            await self._reading

    def last_error_line(self) -> str:
        """Return the last line of its stderr."""
        return self._log.read_text(errors="replace").strip().rpartition("\n")[2]

    async def _read(self, lines: asyncio.StreamReader) -> None:
        while (line := await lines.readline()).endswith(b"\n"):
            self.counts = counts_of_line(line)


class Hostiles:
    """Starts and ends hostile clients. `topics`: used by the regular clients. `folder`: for the processes'
    stderr. `on_change`: called when a hostile client has started or ended."""

    def __init__(
        self,
        cluster: ChaosCluster,
        writer: TraceWriter,
        rng: Random,
        topics: Sequence[str],
        folder: Path,
        on_change: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._cluster = cluster
        self._writer = writer
        self._rng = rng
        self._topics = tuple(topics)
        self._folder = folder
        self._on_change = on_change
        self.done: list[HostileRun] = []

    async def run(self, plan: Sequence[HostileOccurrence]) -> None:
        """Run all clients, each at its planned time, and watch the servers until the last one has ended."""
        if not plan:
            return
        watch = ServerWatch(self._cluster, self._writer)
        watching = asyncio.create_task(watch.run())
        try:
            began = asyncio.get_running_loop().time()
            async with asyncio.TaskGroup() as tasks:
                for occurrence in plan:
                    tasks.create_task(self._run_client(occurrence, began + occurrence.step.at))
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
        watch.conclude()

    async def _run_client(self, occurrence: HostileOccurrence, when: float) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, when - loop.time()))
        process = HostileProcess(self._folder / f"{occurrence.number}-{occurrence.step.kind}.log")
        run = HostileRun(occurrence, self._writer.now())
        self.done.append(run)
        try:
            await process.start(self._orders(occurrence))
            over = loop.time() + occurrence.step.lasts
            self._note_begin(run, process, await self._takes_effect(process))
            while process.is_alive and loop.time() < over:
                await asyncio.sleep(min(_WATCH_S, max(0.0, over - loop.time())))
            ended_by_itself = not process.is_alive
        finally:
            await process.stop()
        self._note_end(run, process, ended_by_itself)

    def _orders(self, occurrence: HostileOccurrence) -> HostileOrders:
        plan, step = self._cluster.local.plan, occurrence.step
        kind = KINDS[step.kind]
        return HostileOrders(
            kind=step.kind,
            seed=self._rng.randrange(1 << 32),
            clients=kind.clients if step.clients is None else step.clients,
            rate=kind.rate if step.rate is None else step.rate,
            cluster_id=plan.cluster_id,
            group=plan.group,
            nodes={node.node_id: node.address for node in plan.nodes},
            http=tuple(node.http_address for node in plan.nodes),
            namesrv=tuple(self._cluster.namesrv),
            topics=self._topics,
        )

    async def _takes_effect(self, process: HostileProcess) -> bool:
        """Wait until the client has any effect."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_START_S):
                while process.is_alive and not any(process.counts.values()):
                    await asyncio.sleep(_WATCH_S / 5)
        return process.is_alive and any(process.counts.values())

    def _note_begin(self, run: HostileRun, process: HostileProcess, began: bool) -> None:
        step = run.occurrence.step
        run.counts = process.counts
        if not began:
            run.failures.append(f"did not start: {process.last_error_line()}")
        self._writer.write(
            Ev.FAULT,
            {
                "e": "begin",
                "params": step.model_dump_json(exclude_defaults=True),
                "aim": "hostile",
                **self._about(run, began),
            },
            at=run.began,
        )
        self._writer.flush()
        self._on_change(f"{run.name} started" if began else f"{run.name} DID NOT START")

    def _note_end(self, run: HostileRun, process: HostileProcess, ended_by_itself: bool) -> None:
        run.counts, run.ended = process.counts, self._writer.now()
        happened = achieved(run.name, run.counts) and not ended_by_itself
        if ended_by_itself:
            run.failures.append(f"ended unexpectedly: {process.last_error_line()}")
        elif not happened:
            run.failures.append(f"had no effect: {run.evidence}")
        self._writer.write(Ev.FAULT, {"e": "end", **self._about(run, happened)})
        self._writer.flush()
        self._on_change(f"{run.name} {'ended' if happened else 'HAD NO EFFECT'}: {run.evidence}")

    def _about(self, run: HostileRun, effective: bool) -> Mapping[str, int | str | bool]:
        return {
            "fault": run.occurrence.number,
            "f": run.name,
            "targets": ",".join(self._cluster.node_ids),
            "effective": effective,
            "evidence": run.evidence,
        }


class ServerWatch:
    """Watches the nodes and the NameServer for exits, and records their memory use."""

    def __init__(self, cluster: ChaosCluster, writer: TraceWriter) -> None:
        self._cluster = cluster
        self._writer = writer
        self._down: set[str] = set()
        self._memory: dict[str, int] = {}
        self._names = [*cluster.node_ids, *([NAMESRV] if cluster.namesrv else [])]

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            ended = await asyncio.to_thread(self._poll)
            for name, why in ended.items():
                self._writer.write(Ev.META, {"e": "ended", "node": name, "text": why})
            await asyncio.sleep(_WATCH_S)

    def conclude(self) -> None:
        """Record the peak memory of each server."""
        for name, size in self._memory.items():
            self._writer.write(Ev.META, {"e": "memory", "node": name, "size": size})

    def _poll(self) -> dict[str, str]:
        """Return the servers that ended since the last call, with the reason."""
        ended = {}
        for name in self._names:
            process = self._cluster.local.process(name)
            if not process.is_alive:
                if name not in self._down:
                    ended[name] = process.why_down()
                self._down.add(name)
                continue
            self._down.discard(name)
            if process.pid is not None:
                self._memory[name] = max(self._memory.get(name, 0), most_memory(process.pid))
        return ended


def most_memory(pid: int) -> int:
    """Return the peak resident memory of a process in bytes, or 0 if the process does not exist."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    lines = (line.split() for line in status.splitlines())
    return next((int(line[1]) << 10 for line in lines if line and line[0] == "VmHWM:"), 0)
