"""One run of a scenario: cluster, load, faults, healing, drain, verdict; all of it in one directory."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from chaos.cluster.cluster import ChaosCluster, Kind, merged
from chaos.cluster.starts import Life, written_lines
from chaos.dump import dump_cluster, dump_source
from chaos.faults.hostiles import FOLDER as HOSTILE_FOLDER
from chaos.faults.hostiles import Hostiles
from chaos.faults.nemesis import Nemesis
from chaos.plans.scenario import Scenario, plan, plan_hostiles
from chaos.plans.soak import to_file
from chaos.quick.check import quick_check
from chaos.quick.trace import QuickReport
from chaos.syncs.trace import syncs_source, write_syncs
from chaos.trace.files import seal
from chaos.trace.schema import RAW_DIR, Ev
from chaos.trace.writer import TraceWriter
from chaos.verdict import Phases, Verdict, judge_run
from chaos.workloads import broker
from chaos.workloads.auditor import NameServers
from chaos.workloads.broker import BrokerWorkload, topic_names
from chaos.workloads.log import LogWorkload
from chaos.workloads.released import workload as released
from chaos.workloads.released.installed import client_kinds
from chaos.workloads.released.topics import Topics
from chaos.workloads.released.workload import FOLDER, ClientsWorkload
from chaos.workloads.spec import DrainTimeout, Setting, Workload
from chaos.workloads.tally import Tally
from dledger.errors import ConfigError, DLedgerError

RUN_FILE, RESULT_FILE, SCENARIO_FILE = "run.json", "result.json", "scenario.toml"
#: What the final reader has read, if lines of a file were sent.
LINES_FILE = "lines.txt"
_FLUSH_S = 0.5
_WARM_UP_S = 30.0
_HEAL_S = 60.0
_AFTER_S = 1.5
_AFTER_MOST_S = 15.0
_DRAIN_S = 60.0
_SICK_DRAIN_S = 10.0


@dataclass(slots=True)
class Watch:
    """What a terminal shows of a run that goes on. `note`: one line for people, as things happen."""

    note: Callable[[str], None] = lambda text: None
    phase: str = "starting"
    tally: Tally | None = None
    nemesis: Nemesis | None = None
    cluster: ChaosCluster | None = None

    def enter(self, phase: str) -> None:
        self.phase = phase
        self.note(phase)


class During(NamedTuple):
    """From the first fault to the healing, per second: acknowledged sends (a batch counts once), the messages
    in them, and what readers and groups were given."""

    sends: float
    messages: float
    read: float


@dataclass(slots=True)
class Result:
    scenario: str
    seed: int
    verdict: Verdict
    reasons: list[str]
    report: QuickReport
    seconds: float
    acknowledged_per_second: float  # messages
    operations_per_second: float  # acknowledged sends; a batch counts once
    shed: int
    leader_changes: int
    longest_silence_ms: int
    faults: list[str] = field(default_factory=list)
    during: During | None = None
    hostiles: list[str] = field(default_factory=list)  # each with what it has achieved

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Run:
    """`run_directory` must be absent or empty; ConfigError if it is not."""

    def __init__(
        self,
        scenario: Scenario,
        run_directory: Path,
        *,
        seed: int,
        lines: Sequence[bytes] = (),
        command: str = "",
        watch: Watch | None = None,
        trace_nodes: bool = True,
        keep_stores: bool = False,
    ) -> None:
        """`trace_nodes` False: only clients and faults are traced. `keep_stores`: what nodes have stored
        stays, also if the run is valid; all of it is in the trace anyway. ConfigError if the load is one of
        released clients, and these are not installed."""
        if run_directory.exists() and any(run_directory.iterdir()):
            raise ConfigError(f"{run_directory} is not empty: a run needs a directory of its own")
        self._scenario = scenario
        self._directory = run_directory
        self._name = f"{scenario.name}-{seed}"
        self._seed = seed
        self._lines = lines
        self._command = command
        self._watch = watch or Watch()
        # What a node on a classic log does, its files say in the end.
        self._trace_nodes = trace_nodes and scenario.store != "classic"
        self._keep_stores = keep_stores
        self._clients = client_kinds() if scenario.workload == "clients" else None
        self._writers: list[TraceWriter] = []
        self._plan = plan(scenario)
        self._hostile_plan = plan_hostiles(scenario)
        self._behind: list[str] = []

    async def run(self) -> Result:
        """The whole run. Raises what broke the harness itself; processes are gone in any case."""
        scenario, rng = self._scenario, Random(self._seed)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._save(
            RUN_FILE, {"command": self._command, "seed": self._seed, **scenario.model_dump(mode="json")}
        )
        (self._directory / SCENARIO_FILE).write_text(to_file(scenario))
        nemesis_writer = self._new_writer("nemesis")
        setting = Setting(
            scenario.load.spec(),
            Random(rng.random()),
            self._new_writer,
            self._lines,
            tells_indexes=scenario.store != "classic",
        )
        flushing = asyncio.create_task(self._flush())
        try:
            cluster = await ChaosCluster.create(
                self._directory,
                kind=_kind_of(scenario),
                nodes=scenario.nodes,
                rng=Random(rng.random()),
                settings=scenario.settings,
                trace_run=self._name if self._trace_nodes else None,
                fault_injection=scenario.injects,
                data_file_size=scenario.data_file_size,
                broker_settings=self._broker_settings(),
                tls=scenario.tls,
                double_write=scenario.double_write,
            )
            nemesis = Nemesis(cluster, nemesis_writer, Random(rng.random()), self._watch.note)
            hostiles = Hostiles(
                cluster,
                nemesis_writer,
                # Not drawn from the run's own numbers: those of scenarios without hostile clients stay.
                Random(f"hostile {self._seed}"),
                self._topics(),
                self._directory / HOSTILE_FOLDER,
                self._watch.note,
            )
            self._watch.tally, self._watch.nemesis, self._watch.cluster = setting.tally, nemesis, cluster
            self._write_begin(nemesis_writer)
            async with cluster:
                phases = await self._hurt(cluster, nemesis, hostiles, setting, nemesis_writer)
                self._watch.enter("stopping")
                settled = await cluster.wait_settled()
                if settled is not None and scenario.store != "classic":  # there it is no index
                    nemesis_writer.write(Ev.META, {"e": "settled", "off": settled})
                await cluster.stop()
            self._watch.enter("reading what is stored")
            for path in (self._directory / RAW_DIR).glob("node-*"):
                seal(path)  # of those that were killed
            self._write_lives(nemesis_writer, cluster.local.lives)
            await asyncio.to_thread(dump_cluster, self._directory, self._name, cluster, settled)
            if self._trace_nodes:
                await asyncio.to_thread(write_syncs, self._directory, self._name, cluster.node_ids)
        finally:
            flushing.cancel()
            ids = [f"n{n}" for n in range(1, scenario.nodes + 1)]
            others = [dump_source(n) for n in ids]
            if self._trace_nodes:
                others += [name for n in ids for name in (f"node:{n}", syncs_source(n))]
            for member in [*(writer.src for writer in self._writers), *others]:
                nemesis_writer.write(Ev.META, {"e": "expect", "member": member})
            for writer in self._writers:
                writer.close()
        result = await self._conclude(nemesis, hostiles, setting.tally, phases)
        if result.verdict is Verdict.VALID and not self._keep_stores:
            await asyncio.to_thread(cluster.remove_stores)
        return result

    async def _hurt(
        self,
        cluster: ChaosCluster,
        nemesis: Nemesis,
        hostiles: Hostiles,
        setting: Setting,
        writer: TraceWriter,
    ) -> Phases:
        """Load, faults, healing, drain. Raises what broke the load."""
        workload = self._workload(cluster, setting)
        stop, drained = asyncio.Event(), asyncio.Event()
        try:
            await workload.prepare()
            for log in workload.logs():
                writer.write(Ev.META, {"e": "log", **log})
            self._watch.enter("warming up")
            async with asyncio.TaskGroup() as tasks:
                load = tasks.create_task(workload.write(stop))
                tasks.create_task(workload.read(stop, drained))
                warm = await self._warm_up(setting.tally)
                self._watch.enter("faults")
                await self._faults(nemesis, hostiles)
                self._watch.enter("healing")
                cluster.links.heal()
                unhealed = await self._heal(cluster)
                healed = writer.now()
                writer.write(Ev.META, {"e": "healed"})
                await asyncio.sleep(_AFTER_S)
                await self._see_it_work(setting.tally, healed)
                stop.set()
                await load
                over = writer.now()
                self._watch.enter("draining")
                await self._drain(workload, setting, bool(unhealed))
                drained.set()
        except BaseExceptionGroup as several:
            raise _first_of(several) from None
        finally:
            await workload.close()
        return Phases(warm, healed, over, unhealed)

    def _workload(self, cluster: ChaosCluster, setting: Setting) -> Workload:
        names = NameServers(cluster.remoting_namesrv, cluster.namesrv)
        if self._clients is not None:
            folder = self._directory / FOLDER
            about = (names, cluster.addresses, self._clients, folder)
            return ClientsWorkload(setting, *about, cluster.held_messages)
        if self._scenario.workload == "broker":
            return BrokerWorkload(setting, names)
        local = cluster.local
        return LogWorkload(setting, local.addresses, local.plan.group, local.tls_files)

    async def _heal(self, cluster: ChaosCluster) -> str:
        """Why the cluster does not get healthy. What it has then is still read, and compared."""
        try:
            await cluster.wait_healthy(_HEAL_S, all_run=True)
        except DLedgerError as error:
            self._watch.note(error.message)
            return error.message
        return ""

    async def _drain(self, workload: Workload, setting: Setting, is_sick: bool) -> None:
        """Of a cluster that does not heal we read what there is to be had, in less time."""
        try:
            with (self._directory / LINES_FILE).open("wb") if self._lines else nullcontext() as file:
                if file is not None:
                    setting.keep_line = lambda line: file.write(line + b"\n")
                await workload.drain(_SICK_DRAIN_S if is_sick else _DRAIN_S)
        except DrainTimeout as error:
            if not is_sick:
                self._behind.append(f"{error} after {_DRAIN_S:g} s")
        except Exception as error:
            if not is_sick:
                raise
            self._watch.note(f"not everything can be read: {error!r}")

    async def _warm_up(self, tally: Tally) -> int:
        """Until something is acknowledged; when that was. ConfigError if nothing is."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _WARM_UP_S
        while tally.acknowledged < self._scenario.min_acknowledged:
            if loop.time() > deadline:
                raise ConfigError(f"the load does not get going: {dict(tally.errors)}")
            await asyncio.sleep(0.02)
        return self._writers[0].now()

    async def _see_it_work(self, tally: Tally, healed: int) -> None:
        """With hardly any load the little that is to be acknowledged after the faults may take longer. If
        nothing is, the verdict says so."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _AFTER_MOST_S
        while tally.acknowledged_between(healed, self._writers[0].now()) < self._scenario.min_acknowledged:
            if loop.time() > deadline:
                return
            await asyncio.sleep(0.02)

    async def _faults(self, nemesis: Nemesis, hostiles: Hostiles) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._scenario.seconds
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(nemesis.run(self._plan))
            tasks.create_task(hostiles.run(self._hostile_plan))
        await asyncio.sleep(max(0.0, until - loop.time()))

    async def _conclude(self, nemesis: Nemesis, hostiles: Hostiles, tally: Tally, phases: Phases) -> Result:
        self._watch.enter("checking")
        report = await asyncio.to_thread(quick_check, self._directory)
        verdict, reasons = judge_run(self._scenario, nemesis.done, tally, phases, report, hostiles.done)
        reasons += self._behind
        seconds = (phases.over - phases.warm) / 1e9
        silence = tally.longest_silence
        result = Result(
            self._scenario.name,
            self._seed,
            verdict,
            reasons,
            report,
            round(seconds, 3),
            round(tally.acknowledged_between(phases.warm, phases.over) / seconds, 1),
            round(tally.operations_between(phases.warm, phases.over) / seconds, 1),
            tally.shed,
            sum(done.new_term > done.old_term >= 0 for done in nemesis.done),
            0 if silence is None else (silence.until - silence.since) // 1_000_000,
            [done.name for done in nemesis.done],
            _during(nemesis, tally, phases),
            [f"{one.name}: {one.evidence}" for one in hostiles.done],
        )
        self._save(RESULT_FILE, result.to_json())
        return result

    def _write_begin(self, writer: TraceWriter) -> None:
        writer.write(
            Ev.META,
            {
                "e": "run_begin",
                "nodes": self._scenario.nodes,
                "seed": self._seed,
                "planned_faults": len(self._plan) + len(self._hostile_plan),
                "git": _git_revision(),
                "config": self._scenario.model_dump_json(),
                "flush_mode": "SYNC_FLUSH",
                "aim": "leader" if self._scenario.aims_at_leader else "",
                **self._promised(),
            },
        )

    def _promised(self) -> dict[str, int | str]:
        """What may be purged, what a classic log promises, and what holds beside hostile clients."""
        kept: dict[str, int | str] = dict(self._scenario.kept)
        if self._scenario.store == "classic":
            role = "SYNC_MASTER" if self._scenario.double_write else "ASYNC_MASTER"
            kept |= {"store": "classic", "broker_role": role}
        if not self._hostile_plan:
            return kept
        return {
            **kept,
            "window_ms": round(1000 * self._scenario.served_within_s),
            "most_bytes": self._scenario.most_server_mib << 20,
        }

    def _broker_settings(self) -> dict[str, Any]:
        """What the workload needs, and over it what the scenario says."""
        needed = released.BROKER_SETTINGS if self._clients else broker.BROKER_SETTINGS
        return merged(needed, self._scenario.broker_settings)

    def _topics(self) -> list[str]:
        """Of the good clients."""
        load = self._scenario.load
        if self._scenario.workload == "clients":
            return Topics.of(load.topics, load.queues, push=load.push).names
        return topic_names(load.topics) if self._scenario.workload == "broker" else []

    def _write_lives(self, writer: TraceWriter, lives: Sequence[Life]) -> None:
        """Which lives of nodes there were, and how much each has written. All have ended."""
        if self._trace_nodes:
            for node_id, pid in lives:
                writer.write(Ev.META, {"e": "started", "node": node_id, "pid": pid})
            for (node_id, pid), count in written_lines(self._directory):
                writer.write(Ev.META, {"e": "written", "node": node_id, "pid": pid, "count": count})

    def _new_writer(self, src: str) -> TraceWriter:
        writer = TraceWriter(self._directory, self._name, src)
        self._writers.append(writer)
        return writer

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(_FLUSH_S)
            for writer in self._writers:
                writer.flush()

    def _save(self, name: str, content: dict[str, Any]) -> None:
        (self._directory / name).write_text(json.dumps(content, indent=2) + "\n")


def _kind_of(scenario: Scenario) -> Kind:
    if scenario.workload == "log":
        return "log"
    return "classic" if scenario.store == "classic" else "broker"


def _during(nemesis: Nemesis, tally: Tally, phases: Phases) -> During | None:
    """None: without faults."""
    if not nemesis.done:
        return None
    since, until = min(one.began for one in nemesis.done), phases.healed
    counts = (tally.operations_between, tally.acknowledged_between, tally.read_between)
    return During(*(round(count(since, until) * 1e9 / (until - since), 1) for count in counts))


def _first_of(several: BaseExceptionGroup) -> BaseException:
    """One of them says enough."""
    found: BaseException = several
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


def _git_revision() -> str:
    """Of the code that runs; empty outside of a repository."""
    try:
        shown = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return ""
    return shown.stdout.strip()
