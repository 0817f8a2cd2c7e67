"""One run of a scenario: cluster, load, faults, healing, drain and verdict, all in one directory."""

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

from chaos.cluster.cluster import ChaosCluster, merged
from chaos.cluster.node_configs import ClusterVariant
from chaos.cluster.scheduling import SchedulingWatch
from chaos.cluster.starts import ProcessLife, written_lines
from chaos.dump import dump_cluster, dump_source
from chaos.faults.hostiles import FOLDER as HOSTILE_FOLDER
from chaos.faults.hostiles import Hostiles
from chaos.faults.nemesis import Nemesis
from chaos.plans.scenario import Scenario, newcomers, plan, plan_hostiles
from chaos.plans.soak import to_file
from chaos.quick.check import quick_check
from chaos.quick.trace import QuickReport
from chaos.syncs.trace import syncs_source, write_syncs
from chaos.trace.files import seal
from chaos.trace.schema import RAW_DIR, Ev
from chaos.trace.writer import TraceWriter
from chaos.verdict import Phases, RunVerdict, judge_run
from chaos.workloads import broker
from chaos.workloads.broker import BrokerWorkload, topic_names
from chaos.workloads.log import LogWorkload
from chaos.workloads.released import workload as released
from chaos.workloads.released.installed import client_kinds
from chaos.workloads.released.topics import PredictableTopics
from chaos.workloads.released.workload import FOLDER, ClientsWorkload
from chaos.workloads.spec import DrainTimeout, Setting, Workload
from chaos.workloads.tally import LoadTally
from dledger.errors import ConfigError, DLedgerError

RUN_FILE, RESULT_FILE, SCENARIO_FILE = "run.json", "result.json", "scenario.toml"
#: Lines read by the final reader, if lines of a file were sent.
LINES_FILE = "lines.txt"
_FLUSH_S = 0.5
_WARM_UP_S = 30.0
_HEAL_S = 60.0
_AFTER_S = 1.5
_AFTER_MOST_S = 15.0
#: More than the checker's limit of 60 s for the first acknowledgment after healing.
_RECOVERY_MOST_S = 70.0
_DRAIN_S = 60.0
_SICK_DRAIN_S = 10.0


@dataclass(slots=True)
class Watch:
    """Live state of a run for the terminal. `note` receives one line per event."""

    note: Callable[[str], None] = lambda text: None
    phase: str = "starting"
    tally: LoadTally | None = None
    nemesis: Nemesis | None = None
    cluster: ChaosCluster | None = None

    def enter(self, phase: str) -> None:
        self.phase = phase
        self.note(phase)


class FaultPeriodRates(NamedTuple):
    """Rates per second from the first fault to the healing: acknowledged sends (a batch counts once), the
    messages in them, and the messages delivered to readers and groups."""

    sends: float
    messages: float
    read: float


@dataclass(slots=True)
class ScenarioResult:
    scenario: str
    seed: int
    verdict: RunVerdict
    reasons: list[str]
    report: QuickReport
    seconds: float
    acknowledged_per_second: float  # messages
    operations_per_second: float  # acknowledged sends; a batch counts once
    shed: int
    leader_changes: int
    longest_silence_ms: int
    faults: list[str] = field(default_factory=list)
    during: FaultPeriodRates | None = None
    hostiles: list[str] = field(default_factory=list)  # each with its counts
    pauses_ms: list[int] = field(default_factory=list)  # of each fault: the longest silence that overlaps it
    repeated: int = 0
    recognized: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Run:
    """Runs one scenario. `run_directory` must be absent or empty; otherwise raises ConfigError."""

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
        """Prepare a run. If `trace_nodes` is False, only clients and faults are traced. `keep_stores`: keep
        the nodes' files even if the run is valid; the trace contains their content anyway. Raises ConfigError
        if the load needs released clients and these are not installed, or if nodes are added whose links
        only traced nodes know."""
        if run_directory.exists() and any(run_directory.iterdir()):
            raise ConfigError(f"{run_directory} is not empty; use an empty or new directory")
        self._scenario = scenario
        self._directory = run_directory
        self._name = f"{scenario.name}-{seed}"
        self._seed = seed
        self._lines = lines
        self._command = command
        self._watch = watch or Watch()
        self._is_classic = scenario.store == "classic"
        self._trace_nodes = trace_nodes
        self._keep_stores = keep_stores
        self._clients = client_kinds() if scenario.workload == "clients" else None
        self._writers: list[TraceWriter] = []
        self._plan = plan(scenario)
        self._hostile_plan = plan_hostiles(scenario)
        self._newcomers = newcomers(scenario)
        if self._newcomers and not trace_nodes:
            raise ConfigError(f"{scenario.name} adds nodes, which needs the traces of nodes")
        self._behind: list[str] = []

    async def run(self) -> ScenarioResult:
        """Execute the run. Raises only errors of the harness. Afterwards all processes have ended."""
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
            has_indexes=not self._is_classic,
        )
        flushing = asyncio.create_task(self._flush())
        cluster: ChaosCluster | None = None
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
                newcomers=self._newcomers,
            )
            nemesis = Nemesis(cluster, nemesis_writer, Random(rng.random()), self._watch.note)
            hostiles = Hostiles(
                cluster,
                nemesis_writer,
                # A separate generator, so that the random numbers of scenarios without hostile clients do not
                # change.
                Random(f"hostile {self._seed}"),
                self._topics(),
                self._directory / HOSTILE_FOLDER,
                self._watch.note,
            )
            self._watch.tally, self._watch.nemesis, self._watch.cluster = setting.tally, nemesis, cluster
            self._write_begin(nemesis_writer)
            async with cluster:
                if scenario.has_mirror:
                    await cluster.add_mirror()
                phases = await self._run_phases(cluster, nemesis, hostiles, setting, nemesis_writer)
                self._watch.enter("stopping")
                settled = await cluster.wait_settled()
                if settled is not None and not self._is_classic:  # a classic log has no such index
                    nemesis_writer.write(Ev.META, {"e": "settled", "off": settled})
                await cluster.stop()
            self._watch.enter("reading what is stored")
            for path in (self._directory / RAW_DIR).glob("node-*"):
                seal(path)  # of killed nodes
            self._write_lives(nemesis_writer, cluster.local.lives)
            await asyncio.to_thread(dump_cluster, self._directory, self._name, cluster, settled)
            if self._trace_nodes:
                await asyncio.to_thread(
                    write_syncs,
                    self._directory,
                    self._name,
                    cluster.local.all_node_ids,
                    is_classic=self._is_classic,
                )
        finally:
            flushing.cancel()
            for member in [*(writer.src for writer in self._writers), *self._other_writers(cluster)]:
                nemesis_writer.write(Ev.META, {"e": "expect", "member": member})
            for writer in self._writers:
                writer.close()
        result = await self._conclude(nemesis, hostiles, setting.tally, phases)
        if result.verdict is RunVerdict.VALID and not self._keep_stores:
            await asyncio.to_thread(cluster.remove_stores)
        return result

    def _other_writers(self, cluster: ChaosCluster | None) -> list[str]:
        """Return the writers that write on nodes, or about the nodes after the run."""
        first = [f"n{n}" for n in range(1, self._scenario.nodes + 1)]
        last, ever = (first, first) if cluster is None else (cluster.node_ids, cluster.local.all_node_ids)
        writers = [dump_source(n) for n in last]
        if self._trace_nodes:
            writers += [syncs_source(n) for n in ever]
            # Nodes with a classic log write no trace.
            writers += [] if self._is_classic else [f"node:{n}" for n in ever]
        return writers

    async def _run_phases(
        self,
        cluster: ChaosCluster,
        nemesis: Nemesis,
        hostiles: Hostiles,
        setting: Setting,
        writer: TraceWriter,
    ) -> Phases:
        """Run load, faults, healing and drain. Raises errors of the load."""
        workload = self._workload(cluster, setting)
        stop, drained = asyncio.Event(), asyncio.Event()
        scheduling = SchedulingWatch(cluster, writer)
        watching = asyncio.create_task(scheduling.run())
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
                await self._wait_for_load(setting.tally, healed)
                stop.set()
                await load
                over = writer.now()
                self._watch.enter("draining")
                await self._drain(workload, setting, bool(unhealed))
                drained.set()
        except BaseExceptionGroup as several:
            raise _first_of(several) from None
        finally:
            await scheduling.stop(watching)
            await workload.close()
        return Phases(warm, healed, over, unhealed)

    def _workload(self, cluster: ChaosCluster, setting: Setting) -> Workload:
        names = cluster.namesrv
        if self._clients is not None:
            folder = self._directory / FOLDER
            about = (names, cluster.addresses, self._clients, folder)
            return ClientsWorkload(setting, *about, cluster.held_messages)
        if self._scenario.workload == "broker":
            return BrokerWorkload(setting, names)
        local = cluster.local
        return LogWorkload(setting, lambda: local.addresses, local.plan.group, local.tls_files)

    async def _heal(self, cluster: ChaosCluster) -> str:
        """Wait until the cluster is healthy; return the reason if it is not. The run continues with the final
        reads in both cases."""
        try:
            await cluster.wait_healthy(_HEAL_S, all_run=True)
        except DLedgerError as error:
            self._watch.note(error.message)
            return error.message
        return ""

    async def _drain(self, workload: Workload, setting: Setting, is_sick: bool) -> None:
        """Drain the workload. If the cluster did not heal, read the available data, with a shorter
        timeout."""
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
            self._watch.note(f"some data cannot be read: {error!r}")

    async def _warm_up(self, tally: LoadTally) -> int:
        """Wait until enough is acknowledged and return that time. Raises ConfigError on timeout."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _WARM_UP_S
        while tally.acknowledged < self._scenario.min_acknowledged:
            if loop.time() > deadline:
                raise ConfigError(f"no append was acknowledged during the warm-up: {dict(tally.errors)}")
            await asyncio.sleep(0.02)
        return self._writers[0].now()

    async def _wait_for_load(self, tally: LoadTally, healed: int) -> None:
        """Wait for the required acknowledgments after the faults, which take longer at a low rate. The
        verdict reports a timeout. If nothing is acknowledged, the load continues for as long as the cluster
        may take to recover, because a shorter attempt would prove nothing."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        least = self._scenario.min_acknowledged
        while (count := tally.acknowledged_between(healed, self._writers[0].now())) < least:
            if loop.time() > since + (_AFTER_MOST_S if count else _RECOVERY_MOST_S):
                return
            await asyncio.sleep(0.02)

    async def _faults(self, nemesis: Nemesis, hostiles: Hostiles) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._scenario.seconds
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(nemesis.run(self._plan))
            tasks.create_task(hostiles.run(self._hostile_plan))
        await asyncio.sleep(max(0.0, until - loop.time()))

    async def _conclude(
        self, nemesis: Nemesis, hostiles: Hostiles, tally: LoadTally, phases: Phases
    ) -> ScenarioResult:
        self._watch.enter("checking")
        report = await asyncio.to_thread(quick_check, self._directory)
        verdict, reasons = judge_run(self._scenario, nemesis.done, tally, phases, report, hostiles.done)
        reasons += self._behind
        seconds = (phases.over - phases.warm) / 1e9
        silence = tally.longest_silence
        result = ScenarioResult(
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
            [f"{client.name}: {client.evidence}" for client in hostiles.done],
            [tally.longest_silence_ms(done.began, done.ended or phases.over) for done in nemesis.done],
            tally.repeated,
            tally.recognized,
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
                **self._guarantees(),
            },
        )

    def _guarantees(self) -> dict[str, int | str]:
        """Return the run's retention, the guarantees of a classic log, and the limits that apply despite
        hostile clients."""
        kept: dict[str, int | str] = dict(self._scenario.kept)
        if self._is_classic:
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
        """Return the settings that the workload needs, overridden by the settings of the scenario."""
        needed = released.BROKER_SETTINGS if self._clients else broker.BROKER_SETTINGS
        return merged(needed, self._scenario.broker_settings)

    def _topics(self) -> list[str]:
        """Return the topics of the regular clients."""
        load = self._scenario.load
        if self._scenario.workload == "clients":
            return PredictableTopics.of(load.topics, load.queues, push=load.push).names
        return topic_names(load.topics) if self._scenario.workload == "broker" else []

    def _write_lives(self, writer: TraceWriter, lives: Sequence[ProcessLife]) -> None:
        """Record the processes of nodes and how many lines each has written. All have ended."""
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


def _kind_of(scenario: Scenario) -> ClusterVariant:
    if scenario.workload == "log":
        return "log"
    return "classic" if scenario.store == "classic" else "broker"


def _during(nemesis: Nemesis, tally: LoadTally, phases: Phases) -> FaultPeriodRates | None:
    """Return the rates during the faults, or None if there were no faults."""
    if not nemesis.done:
        return None
    since, until = min(fault.began for fault in nemesis.done), phases.healed
    counts = (tally.operations_between, tally.acknowledged_between, tally.read_between)
    return FaultPeriodRates(*(round(count(since, until) * 1e9 / (until - since), 1) for count in counts))


def _first_of(several: BaseExceptionGroup) -> BaseException:
    """Return one error of the group, which is enough for the report."""
    error: BaseException = several
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _git_revision() -> str:
    """Return the revision of the running code; empty outside a repository."""
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
