"""Scenarios: short, declarative files with the load and the faults of a run.

A scenario is a TOML file in `chaos/scenarios/` or elsewhere; a new one needs no code. Times are seconds since
the end of the warm-up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from chaos.hostile.kinds import KINDS
from chaos.workloads.spec import LoadSpec
from dledger import ConfigError
from dledger.infra.files.config_faults import read_toml

FOLDER = Path(__file__).parents[1] / "scenarios"

Seconds = Annotated[float, Field(ge=0, le=86_400)]
ProcessKind = Literal["kill", "stop", "term", "wipe", "take_over"]
DiskKind = Literal[
    "slow_disk",
    "stuck_disk",
    "full_disk",
    "write_error",
    "sync_error",
    "power_loss",
    "bit_flip",
]
NetworkKind = Literal[
    "isolate",
    "isolate_out",
    "isolate_in",
    "cut",
    "cut_one_way",
    "halves",
    "bridge",
    "ring",
    "delay",
    "loss",
    "reset",
    "throttle",
    "hang",
]
#: Faults that change the members of the group.
MemberKind = Literal["replace", "add", "remove", "lose_majority", "promote_mirror"]
Kind = ProcessKind | MemberKind | NetworkKind | DiskKind | Literal["clock_jump"]
HostileKind = Literal[
    "connection_floods",
    "handshake_floods",
    "exhausted_descriptors",
    "half_requests",
    "garbage",
    "unread_streams",
    "expensive_filters",
    "telemetry_floods",
    "topic_floods",
    "repeated_calls",
    "abandoned_groups",
    "dying_clients",
    "forged_peers",
    "forged_registrations",
    "registration_floods",
]
Target = Literal["leader", "follower", "random", "minority", "majority", "all"]
#: Faults that disable a process. Other faults do not select it.
TAKING = (
    *("kill", "stop", "term", "wipe", "take_over", "write_error", "sync_error", "power_loss"),
    *("replace", "add", "remove", "lose_majority", "promote_mirror"),
)
#: Targets of the faults that change the members.
MEMBER_TARGETS: dict[str, tuple[str, ...]] = {
    "replace": ("leader", "follower", "random"),
    "add": ("random",),
    "remove": ("leader", "follower", "random", "minority"),
    "lose_majority": ("majority",),
    "promote_mirror": ("all",),
}
#: Faults after which a node continues alone, in a new cluster.
FOUNDING = frozenset(("lose_majority", "promote_mirror"))
#: Faults that require nodes with fault injection for disks and clocks.
INJECTED = (
    "slow_disk",
    "stuck_disk",
    "full_disk",
    "write_error",
    "sync_error",
    "power_loss",
    "clock_jump",
)
#: Faults on the leader that force an election.
UNSEATING = (
    "replace",
    "remove",
    "lose_majority",
    "promote_mirror",
    "take_over",
    "kill",
    "stop",
    "term",
    "isolate",
    "isolate_out",
    "isolate_in",
    "halves",
    "hang",
    "write_error",
    "sync_error",
    "power_loss",
)
#: The same for the target `leader` only: if all disks are affected, the leader keeps its role.
UNSEATING_ALONE = ("wipe", "stuck_disk", "full_disk")


class _ScenarioSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FaultStep(_ScenarioSection):
    """One fault. It starts at `at`, ends after `lasts`, and is repeated every `every` seconds (0: not
    repeated)."""

    kind: Kind
    """The fault. See [chaos](../chaos.md)."""
    target: Target = "leader"
    """Target nodes."""
    at: Seconds = 2.0
    """Start, in seconds after the warm-up."""
    lasts: Seconds = 2.0
    """Duration, in seconds."""
    every: Seconds = 0.0
    """Interval between starts, in seconds; more than `lasts`. 0: the fault occurs once."""
    after: Annotated[int, Field(ge=1)] | None = None
    """Number of another fault in the file, from 1: this fault does not start before that one has ended."""
    delay_ms: Annotated[int, Field(ge=0, le=60_000)] = 100
    """`delay`: delay of each chunk of traffic."""
    jitter_ms: Annotated[int, Field(ge=0, le=60_000)] = 50
    """`delay`: maximum random addition."""
    reset_chance: Annotated[float, Field(gt=0, le=1)] = 0.02
    """`loss`: probability that a chunk of traffic (up to 64 KiB) breaks its connection."""
    bytes_per_second: Annotated[int, Field(gt=0)] = 64 << 10
    """`throttle`: bandwidth."""
    slow_ms: Annotated[int, Field(gt=0, le=60_000)] = 50
    """`slow_disk`: additional duration of each sync."""
    count: Annotated[int, Field(gt=0, le=4)] = 1
    """`add`: number of new nodes."""
    entries: Annotated[int, Field(gt=0, le=1000)] = 3
    """`bit_flip`: number of damaged entries."""
    jump_s: Annotated[float, Field(ge=-1e9, le=1e9)] = 3600.0
    """`clock_jump`: size of the jump, in seconds."""

    @model_validator(mode="after")
    def _repeats_after_its_end(self) -> FaultStep:
        if self.every and self.every <= self.lasts:
            raise ValueError("every must exceed lasts: a fault must end before it is repeated")
        if self.kind == "wipe" and self.target in ("majority", "all", "minority"):
            raise ValueError("wipe must target one node at a time: entries lost on a majority are lost")
        if self.kind == "bit_flip" and self.target in ("majority", "all"):
            raise ValueError("bit_flip must target a minority: entries damaged on a majority are lost")
        if self.target not in (targets := MEMBER_TARGETS.get(self.kind, (self.target,))):
            raise ValueError(f"{self.kind} must have one of these targets: {', '.join(targets)}")
        return self

    @property
    def unseats_leader(self) -> bool:
        """Return True if the fault forces an election."""
        if self.kind in UNSEATING_ALONE:
            return self.target == "leader"
        return self.kind in UNSEATING and self.target in ("leader", "majority", "all")


class HostileStep(_ScenarioSection):
    """One hostile client in its own process."""

    kind: HostileKind
    """The hostile client. See [chaos](../chaos.md)."""
    at: Seconds = 1.0
    """Start, in seconds after the warm-up."""
    lasts: Annotated[float, Field(gt=0, le=86_400)] = 10.0
    """Duration, in seconds."""
    clients: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Number of concurrent connections or callers. Default: depends on the kind."""
    rate: Annotated[float, Field(ge=0, le=100_000)] | None = None
    """New requests per second of all clients together; 0: as fast as they are answered. Default: depends on
    the kind."""


_USUAL = LoadSpec()


class Load(_ScenarioSection):
    """Load of a run. See LoadSpec."""

    clients: Annotated[int, Field(ge=1, le=64)] = _USUAL.clients
    """Number of producers, or of appending clients."""
    at_once: Annotated[int, Field(ge=0, le=256)] = _USUAL.at_once
    """Concurrent operations of each client in a closed loop. 0: 6 on a log, 32 on brokers, 4 with released
    clients."""
    rate: Annotated[float, Field(ge=0)] = _USUAL.rate
    """Messages per second of all clients together. 0: as fast as they are answered."""
    max_batch: Annotated[int, Field(ge=1, le=256)] = _USUAL.max_batch
    """Maximum number of messages per operation. Not for `clients`."""
    max_bytes: Annotated[int, Field(ge=0, le=65_536)] = _USUAL.max_bytes
    """Maximum size of a body, in bytes."""
    readers: Annotated[int, Field(ge=0, le=16)] = _USUAL.readers
    """Number of clients that read during the run. Only `log`."""
    topics: Annotated[int, Field(ge=1, le=16)] = _USUAL.topics
    """Number of topics. Not for `log`."""
    queues: Annotated[int, Field(ge=1, le=16)] = _USUAL.queues
    """Number of queues per topic. Not for `log`."""
    consumers: Annotated[int, Field(ge=0, le=16)] = _USUAL.consumers
    """Number of members of each consumer group. Not for `log`."""
    delayed: Annotated[float, Field(ge=0, le=1)] = _USUAL.delayed
    """Share of delayed messages. Only `clients`."""
    transactional: Annotated[float, Field(ge=0, le=1)] = _USUAL.transactional
    """Share of messages in transactions. Only `clients`."""
    push: bool = _USUAL.push
    """Include groups of push consumers. Only `clients`."""

    @model_validator(mode="after")
    def _shares_are_of_one_whole(self) -> Load:
        if self.delayed + self.transactional > 1:
            raise ValueError(
                "delayed and transactional are shares of all messages: their sum must not exceed 1"
            )
        return self

    def spec(self) -> LoadSpec:
        return LoadSpec(**self.model_dump())


class Scenario(_ScenarioSection):
    """A scenario. Sizes in bytes, times in seconds."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    """Name for `dledger-chaos run NAME`."""
    title: Annotated[str, Field(min_length=1, max_length=100)]
    """Description in one line, for `dledger-chaos list`."""
    why: str = ""
    """Purpose."""
    workload: Literal["log", "broker", "clients"] = "log"
    """`log`: appends and reads. `broker`: the broker's own clients. `clients`: released clients of
    RocketMQ 5."""
    store: Literal["replicated", "classic"] = "replicated"
    """Log of the brokers. `classic`: two nodes, master and slave, without elections. Only `broker`."""
    double_write: bool = True
    """With a classic log: sends wait for the slave (SYNC_MASTER)."""
    nodes: Annotated[int, Field(ge=1, le=9)] = 3
    """Number of nodes."""
    seconds: Annotated[float, Field(gt=0, le=86_400)] = 15.0
    """Time from the end of the warm-up to the healing of all faults."""
    min_acknowledged: Annotated[int, Field(ge=1)] = 20
    """Minimum number of acknowledged operations before, during and after the faults; with fewer, the run is
    void."""
    tls: bool = False
    """Mutual TLS on all ports, with certificates made for the run. Only `log`."""
    data_file_size: Annotated[int, Field(ge=64 << 10, le=1 << 30)] = 16 << 20
    """Size of a data file of the log, in bytes."""
    load: Load = Load()
    """Load."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Additional keys for the configuration of every node."""
    broker_settings: dict[str, Any] = Field(default_factory=dict)
    """Additional keys for the settings of every broker."""
    fault: tuple[FaultStep, ...] = ()
    """Faults (`[[fault]]`), in order of their start."""
    served_within_s: Annotated[float, Field(ge=0.5, le=3_600)] = 5.0
    """With hostile clients: maximum time between successes of each kind of operation of other clients, and
    between deliveries to each group."""
    most_server_mib: Annotated[int, Field(ge=64, le=1 << 20)] = 1024
    """With hostile clients: memory limit of each server, in MiB."""
    hostile: tuple[HostileStep, ...] = ()
    """Hostile clients (`[[hostile]]`)."""

    @model_validator(mode="after")
    def _delays_end_by_clocks_that_are_right(self) -> Scenario:
        if self.load.delayed and any(step.kind == "clock_jump" for step in self.fault):
            raise ValueError(
                "clock_jump and delayed are mutually exclusive: cluster time may follow the jump"
            )
        return self

    @model_validator(mode="after")
    def _hostile_clients_have_something_to_call(self) -> Scenario:
        for step in self.hostile:
            if KINDS[step.kind].on_brokers and self.workload == "log":
                raise ValueError(f'{step.kind} needs brokers: workload = "broker" or "clients"')
            if KINDS[step.kind].on_tls and not self.tls:
                raise ValueError(f"{step.kind} needs TLS ports: set tls = true")
        if self.tls and self.workload != "log":
            raise ValueError('tls = true needs workload = "log"')
        return self

    @model_validator(mode="after")
    def _faults_follow_earlier_ones(self) -> Scenario:
        for number, step in enumerate(self.fault, 1):
            if step.after is not None and not step.after < number:
                raise ValueError(f"fault {number}: after must be the number of an earlier fault")
        return self

    @model_validator(mode="after")
    def _members_can_change(self) -> Scenario:
        kinds = {step.kind for step in self.fault} & MEMBER_TARGETS.keys()
        if kinds and (self.store == "classic" or self.workload == "clients" or self.hostile):
            raise ValueError(
                f"{', '.join(sorted(kinds))}: the members change only under the loads log and broker, with a "
                "replicated log and without hostile clients"
            )
        if founding := "".join(sorted(kinds & FOUNDING)):
            if (self.workload, self.nodes) != ("log", 3):
                raise ValueError(f'{founding} needs workload = "log" and nodes = 3: one node continues')
            if any(step.every for step in self.fault):
                raise ValueError(f"{founding} and faults that are repeated are mutually exclusive")
        return self

    @model_validator(mode="after")
    def _a_classic_log_has_two_nodes_and_no_leader_of_its_own(self) -> Scenario:
        kinds = {step.kind for step in self.fault}
        if self.store != "classic":
            if "take_over" in kinds:
                raise ValueError('take_over needs store = "classic": replicated logs elect their leaders')
            return self
        if (self.workload, self.nodes, self.load.max_batch) != ("broker", 2, 1):
            raise ValueError('store = "classic" needs workload = "broker", nodes = 2 and load.max_batch = 1')
        if "take_over" in kinds and self.load.consumers:
            raise ValueError("take_over needs load.consumers = 0: members may have seen lost messages")
        if odd := kinds & {*INJECTED, "wipe", "bit_flip"}:
            raise ValueError(f"a classic log does not support these faults: {', '.join(sorted(odd))}")
        if any(step.unseats_leader and step.kind != "take_over" for step in self.fault):
            raise ValueError("only take_over may replace a classic master: aim other faults at a follower")
        return self

    @model_validator(mode="after")
    def _what_may_be_purged_can_be_seen(self) -> Scenario:
        if self.settings.get("retention", {}).get("min_free_bytes") is not None:
            raise ValueError("retention.min_free_bytes is not supported: traces do not record free space")
        _ = self.kept
        return self

    @property
    def kept(self) -> dict[str, int]:
        """Retention limits of the run, as fields of the trace: `keep_ms`, `keep_bytes`."""
        retention = self.settings.get("retention", {})
        kept: dict[str, int] = {}
        if (age := retention.get("max_age")) is not None:
            match = re.fullmatch(r"(\d+)(ms|s|m)", str(age))
            if not match:
                raise ValueError(f"retention.max_age: {age!r} is not a whole number of ms, s or m")
            kept["keep_ms"] = int(match[1]) * {"ms": 1, "s": 1000, "m": 60_000}[match[2]]
        if (size := retention.get("max_bytes")) is not None:
            kept["keep_bytes"] = int(size)
        return kept

    @property
    def has_mirror(self) -> bool:
        """True if a learner is added before the load, which a fault promotes."""
        return any(step.kind == "promote_mirror" for step in self.fault)

    @property
    def injects(self) -> bool:
        """True if the scenario requires fault injection for disks and clocks."""
        return any(step.kind in INJECTED for step in self.fault)

    @property
    def aims_at_leader(self) -> bool:
        """True if the scenario forces elections. A classic master has no terms."""
        return self.store != "classic" and any(step.unseats_leader for step in self.fault)


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One planned fault."""

    number: int
    at: float
    step: FaultStep
    after: FaultStep | None = None


def plan(scenario: Scenario) -> list[Occurrence]:
    """Return all faults of a run that end within `seconds`, ordered by start.

    Raises ConfigError if a scenario with faults has none that fits.
    """
    planned: list[tuple[float, FaultStep]] = []
    for step in scenario.fault:
        start = step.at
        while start + step.lasts <= scenario.seconds:
            planned.append((start, step))
            if not step.every:
                break
            start += step.every
    if scenario.fault and not planned:
        raise ConfigError(f"{scenario.name}: no fault would end within {scenario.seconds:g} s; run it longer")
    planned.sort(key=lambda item: item[0])
    steps = {step for _, step in planned}
    before = {
        step: scenario.fault[step.after - 1]
        for step in steps
        if step.after is not None and scenario.fault[step.after - 1] in steps
    }
    return [Occurrence(number, start, step, before.get(step)) for number, (start, step) in enumerate(planned)]


def newcomers(scenario: Scenario) -> int:
    """Return the number of nodes that the planned faults add."""
    added = {"replace": 1, "lose_majority": scenario.nodes - 1, "promote_mirror": scenario.nodes}
    steps = [occurrence.step for occurrence in plan(scenario)]
    return sum(step.count if step.kind == "add" else added.get(step.kind, 0) for step in steps)


@dataclass(frozen=True, slots=True)
class HostileOccurrence:
    """One planned hostile client. The trace treats it as a fault, with a number that no other fault has."""

    number: int
    step: HostileStep


def plan_hostiles(scenario: Scenario) -> list[HostileOccurrence]:
    """Return all hostile clients that end within `seconds`. Raises ConfigError if there are some but none
    fits."""
    planned = [step for step in scenario.hostile if step.at + step.lasts <= scenario.seconds]
    if scenario.hostile and not planned:
        raise ConfigError(
            f"{scenario.name}: no hostile client would end within {scenario.seconds:g} s; run it longer"
        )
    first = len(plan(scenario))
    return [HostileOccurrence(number, step) for number, step in enumerate(planned, first)]


def load_scenario(path: Path) -> Scenario:
    """Load a scenario file. Raises ConfigError, which names the file, the key and the valid values."""
    content = read_toml(path)
    try:
        return Scenario.model_validate(content)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise ConfigError(f"{path}: {faults}") from None


def find_scenario(name: str) -> Scenario:
    """Find a scenario by name or path. Raises ConfigError if it does not exist."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.exists():
        known = ", ".join(scenario.name for scenario in all_scenarios())
        raise ConfigError(f"unknown scenario {name!r}; known: {known}")
    return load_scenario(path)


def all_scenarios() -> list[Scenario]:
    """Return the scenarios of this package, by name."""
    return [load_scenario(path) for path in sorted(FOLDER.glob("*.toml"))]
